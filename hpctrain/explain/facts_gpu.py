"""Facts of GPUs: who shares one, which does nothing, and in what moment memory ran out. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.explain.case import Case
from hpctrain.explain.facts_found import (
    SAMPLES,
    Found,
    by_rank,
    current,
    evidence,
    gib,
    groups,
    newest,
    number,
    setting,
    some,
    where,
    whole,
)
from hpctrain.memory.sample import Sample

MIB = 1 << 20
#: A process that has started CUDA and nothing else holds less than this of its GPU.
_CONTEXT_MIB = 2048
#: Below it, nobody wonders where the memory is.
_MUCH_MIB = 4096


def gpu_shared(case: Case) -> Found | None:
    """Two ranks of a node on one GPU. A MIG part has a UUID of its own; of the index alone, two parts of one GPU could not be told."""
    held: dict[tuple[str, str], list[Sample]] = {}
    for sample in newest(current(case)).values():
        if sample.gpu_uuid is not None:
            held.setdefault((sample.host, sample.gpu_uuid), []).append(sample)
        elif sample.gpu_index is not None:  # AMD: torch knows no UUID there, and there is no MIG either
            held.setdefault((sample.host, f"index {sample.gpu_index}"), []).append(sample)
    shared = [(key, ranks) for key, ranks in held.items() if len(ranks) > 1]
    if not shared:
        return None
    (host, name), ranks = max(shared, key=lambda each: len(each[1]))
    first = min(ranks, key=lambda sample: sample.rank)
    gpu = name if first.gpu_index is None else str(first.gpu_index)
    words = f"ranks {some(sorted(sample.rank for sample in ranks))} of {host} are on the same GPU, {name}"
    return Found(
        groups=groups(ranks=some(sorted(sample.rank for sample in ranks)), gpu=gpu, node=host, rank=first.rank, count=len(ranks)),
        evidence=tuple(evidence(SAMPLES, text) for text in (words, *(_held(sample) for sample in ranks[:4]))),
        rank=first.rank, node=host, at=first.time_ms / 1000,
    )  # fmt: skip


def _held(sample: Sample) -> str:
    used = f"{gib(sample.gpu_used_mib * MIB)} used of the GPU" if sample.gpu_used_mib is not None else "its use is not known"
    mine = f", {gib(sample.torch_reserved_mib * MIB)} of it by this rank's torch" if sample.torch_reserved_mib is not None else ""
    return f"{where(sample)}: GPU {sample.gpu_index if sample.gpu_index is not None else sample.gpu_uuid}, {used}{mine}"


def gpu_never_used(case: Case) -> Found | None:
    """The job has GPUs, and the training does its steps on the CPU: no sample knows a GPU, or none was ever busy."""
    gpus = case.account.gpus if case.account is not None else None
    if not gpus or _wants_cpu(case):
        return None
    steps = [sample for sample in current(case) if sample.event in ("first_step", "step", "evaluate", "save", "train_end")]
    if not steps:
        return None
    blind = [sample for sample in steps if sample.gpu_total_mib is None and sample.torch_reserved_mib is None]
    if len(blind) != len(steps) and not (len(steps) >= 3 and all(_idle(sample) for sample in steps)):
        return None
    first = steps[0]
    what = "no GPU in this process" if blind else "the GPU was never busy, and torch holds nothing of it"
    return Found(
        groups=groups(gpus=gpus, ranks=len({sample.rank for sample in steps}), step=steps[-1].step),
        evidence=(evidence(SAMPLES, f"{where(first)}: {what}"), evidence("sacct", f"the job has {gpus} GPUs")),
        at=first.time_ms / 1000,
    )  # fmt: skip


def _wants_cpu(case: Case) -> bool:
    return str(setting(case, "training", "use_cpu")).lower() in ("true", "1", "yes")


def _idle(sample: Sample) -> bool:
    return sample.gpu_utilisation_percent == 0 and not sample.torch_reserved_mib


def memory_on_one_gpu(case: Case) -> Found | None:
    """Of several GPUs of a node, one holds everything: a model that every rank, or only one, puts on the first GPU."""
    for host in dict.fromkeys(sample.host for sample in current(case)):
        here = [sample for sample in newest([each for each in current(case) if each.host == host]).values() if _knows_gpu(sample)]
        gpus = {sample.gpu_uuid or str(sample.gpu_index): sample for sample in here}
        ordered = sorted(gpus.values(), key=lambda sample: -(sample.gpu_used_mib or 0))
        if len(ordered) < 2 or max(sample.step for sample in here) < 1:
            continue
        full, second = ordered[0], ordered[1]
        if (full.gpu_used_mib or 0) >= _MUCH_MIB and (second.gpu_used_mib or 0) < min(_CONTEXT_MIB, (full.gpu_used_mib or 0) / 4):
            return Found(
                groups=groups(gpu=full.gpu_index, node=host, used=gib((full.gpu_used_mib or 0) * MIB), others=len(ordered) - 1),
                evidence=tuple(evidence(SAMPLES, _held(sample)) for sample in ordered[:4]),
                rank=full.rank, node=host, at=full.time_ms / 1000,
            )  # fmt: skip
    return None


def _knows_gpu(sample: Sample) -> bool:
    return sample.gpu_used_mib is not None and (sample.gpu_uuid is not None or sample.gpu_index is not None)


# -- when memory ran out -----------------------------------------------------------------------------------------------


def oom_moment(case: Case) -> Found | None:
    """What the training did when it ended: it loaded, did its first step, evaluated, saved, or was at a step; and how full it was by then.

    Says nothing of why: for rules that know that memory ran out.
    """
    samples = current(case)
    if not samples:
        return None
    last = max(newest(samples).values(), key=lambda sample: (sample.step, sample.time_ms))
    moment = moment_of(case, by_rank(samples).get(last.rank, [last]))
    worst = max(samples, key=lambda sample: (sample.torch_peak_mib or 0, sample.gpu_used_mib or 0))
    peak = worst.torch_peak_mib
    said = [f"{where(last)}: the last sample, {last.event}; then {moment}"]
    if peak is not None and worst.gpu_total_mib:
        said.append(f"{where(worst)}: torch's peak {gib(peak * MIB)} of {gib(worst.gpu_total_mib * MIB)}")
    return Found(
        groups=groups(
            moment=moment, step=last.step, peak=None if peak is None else gib(peak * MIB),
            total=None if worst.gpu_total_mib is None else gib(worst.gpu_total_mib * MIB),
        ),
        evidence=tuple(evidence(SAMPLES, text) for text in said), rank=worst.rank, node=worst.host, at=last.time_ms / 1000,
    )  # fmt: skip


def moment_of(case: Case, samples: Sequence[Sample]) -> str:
    """Return what came after the last sample of a rank: `the first step`, `an evaluation`, `a save`, or `a step`."""
    last = samples[-1]
    if last.event == "train_begin":
        return "the first step"
    # An evaluation follows a step that eval_steps divides, and a save one that save_steps divides; each has a sample at its end.
    if last.event in ("first_step", "step") and _due(case, "eval", last.step):
        return "an evaluation"
    if last.event in ("first_step", "step", "evaluate") and _due(case, "save", last.step):
        return "a save"
    return "the end of the training" if last.event == "train_end" else "a step"


def _due(case: Case, what: str, step: int) -> bool:
    strategy, every = setting(case, "training", f"{what}_strategy"), setting(case, "training", f"{what}_steps")
    if strategy != "steps" and not (what == "save" and strategy is None):
        return False
    if every is None and what == "eval":
        every = setting(case, "training", "logging_steps")  # TrainingArguments: eval_steps is logging_steps where nobody says it
    share, count = number(every), whole(every)
    if count is None and share is not None and 0 < share < 1 and case.max_steps:
        count = max(1, -int(-share * case.max_steps // 1))
    return bool(count) and step > 0 and count is not None and step % count == 0
