"""Idle GPUs and their likely cause, derived from samples. PURE.

Nothing is reported if the values are unknown (MIG devices report no utilization). GPUs are also
idle during start-up, evaluation and saving, so only several samples after a step count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.jobs import suggest
from hpctrain.jobs.suggest import Asked
from hpctrain.memory.sample import Sample
from hpctrain.slurm.notations import hostlist
from hpctrain.util import text
from hpctrain.util.secrets import redacted
from hpctrain.util.text import is_number

NEAR_ZERO_PERCENT = 5
"""Utilization up to which a GPU counts as idle."""
STARVED = 0.2
"""Fraction of the time that a training may wait for its data; hpctrain.training.monitoring.speed
warns at the same value.
"""
_ENOUGH = 4
"""Samples of one rank, taken after a step, that have to agree."""


@dataclass(frozen=True, slots=True)
class Idle:
    """One way in which the job wastes its resources.

    Attributes:
        id: gpu-idle, node-underused or data-starved.
        what: with names and numbers; cause: the likely one; fix: a setting or a command.
    """

    id: str
    what: str
    cause: str
    fix: str
    rank: int | None = None
    node: str | None = None


def judge(
    samples: Sequence[Sample],
    *,
    gpus_per_node: int | None,
    data_wait: float | None,
    config: Mapping[str, Any] | None = None,
    run: str | None = None,
    asked: Asked | None = None,
) -> tuple[Idle, ...]:
    """Return wasted resources, the worst first.

    Args:
        samples: several of each rank from the last minutes, sorted by time; a single one proves
            nothing.
        gpus_per_node: of the job.
        data_wait: the fraction of the time that the slowest rank waited for its data.
        config: the resolved job config, for fixes with the user's own numbers.
        run: the run's id, for the commands.
        asked: the options that the job was submitted with; the commands keep them.
    """
    config = config or {}
    ranks: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.event == "step":
            ranks.setdefault(sample.rank, []).append(sample)
    starving = _data(data_wait, config)
    found = _nodes(ranks, gpus_per_node)
    if not found:
        found = _idle(ranks, config, run, starving=bool(starving))
    found += starving
    if asked is not None:
        found = [replace(each, fix=redacted(suggest.kept(each.fix, asked))) for each in found]
    return tuple(found)


def _setting(config: Mapping[str, Any], name: str) -> int | None:
    value = (config.get("training") or {}).get(name)
    if isinstance(value, str) and is_number(value) and len(value) < 9:
        return int(value)
    return value if type(value) is int else None


def _nodes(ranks: Mapping[int, Sequence[Sample]], has: int | None) -> list[Idle]:
    """Return nodes that use fewer GPUs than the job has, or whose processes share one."""
    last = [tail[-1] for tail in ranks.values() if len(tail) > 1]
    if not last or len(last) < last[0].world_size:
        return []  # ranks without samples yet may use the others
    same: dict[tuple[int, int], list[str]] = {}
    for host in dict.fromkeys(sample.host for sample in last):
        devices = [sample.gpu_uuid for sample in last if sample.host == host]
        used = len(set(devices))
        if None not in devices and used < max(len(devices), has or 0):
            same.setdefault((used, len(devices)), []).append(host)
    found = []
    for (used, processes), hosts in same.items():
        what = f"{used} of {has} GPUs {'is' if used == 1 else 'are'} used"
        cause = f"a process uses one GPU, and {text.count(processes, 'process', 'processes')} run"
        fix = (
            f"start {has} processes on a node, or request what is used: hpctrain submit --gpus"
            f" {used}"
        )
        if used < processes:
            what = f"{processes} processes share {text.count(used, 'GPU')}"
            cause = "each process takes the first GPU, because the script ignores LOCAL_RANK"
            fix = 'in the script: torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
        what = f"{hostlist.compress(hosts)}: {what}{' on each node' * (len(hosts) > 1)}"
        found.append(Idle("node-underused", what, f"likely: {cause}", fix, node=hosts[0]))
    return found


def _idle(
    ranks: Mapping[int, Sequence[Sample]],
    config: Mapping[str, Any],
    run: str | None,
    *,
    starving: bool,
) -> list[Idle]:
    busy, resting = 0, []
    for _, tail in sorted(ranks.items()):
        percents = [
            sample.gpu_utilisation_percent
            for sample in tail[-_ENOUGH:]
            if sample.gpu_utilisation_percent is not None
        ]
        if len(percents) == _ENOUGH and max(percents) <= NEAR_ZERO_PERCENT:
            resting.append(tail[-1])
        else:
            busy += len(percents) == _ENOUGH
    if not resting or (starving and not busy):  # then the data is the cause
        return []
    first = resting[0]
    most = f"(at most {NEAR_ZERO_PERCENT} % in {_ENOUGH} samples)"
    if busy:
        names = text.listed([str(each.rank) for each in resting[:8]])
        more = f" and {len(resting) - 8} more" if len(resting) > 8 else ""
        nodes = hostlist.compress(list(dict.fromkeys(each.host for each in resting)))
        what = f"the GPU of {'ranks' if len(resting) > 1 else 'rank'} {names}{more} on {nodes} does"
        what += f" nothing {most}, while {busy} work"
        cause = "that process is busy on the CPU or with files, or it hangs, and the others wait"
        fix = f"hpctrain logs {run} --rank {first.rank}" if run else "hpctrain logs"
    else:
        which = f"all {len(resting)} GPUs do" if len(resting) > 1 else "the GPU does"
        what = f"{which} next to nothing {most}"
        cause = (
            "the batches are so small that Python takes longer than the GPU, or the training waits"
            " for files or the network"
        )
        batch = _setting(config, "per_device_train_batch_size")
        larger = "a larger per_device_train_batch_size"
        if batch is not None:
            larger = f"per_device_train_batch_size: {batch} -> {2 * batch}"
        fix = f"{larger}; hpctrain fit reports which ones fit"
        if not any(each.torch_allocated_mib for each in resting):
            cause = "the training runs on the CPU; torch holds nothing on a GPU"
            fix = (
                'in the job: python -c "import torch; print(torch.cuda.is_available())"; no'
                " use_cpu, no ACCELERATE_USE_CPU"
            )
    return [Idle("gpu-idle", what, f"likely: {cause}", fix, rank=first.rank, node=first.host)]


def _data(wait: float | None, config: Mapping[str, Any]) -> list[Idle]:
    if wait is None or not wait > STARVED:
        return []
    script = config.get("script") is not None
    workers = _setting(config, "dataloader_num_workers") or 0
    where = "num_workers of its DataLoader" if script else "dataloader_num_workers"
    each = text.count(workers, "data loader worker")
    return [
        Idle(
            "data-starved",
            f"the GPUs wait for their data {wait:.0%} of the time",
            f"likely: {each} for each process cannot keep up",
            f"{where}: {max(2, 2 * workers)}, with as many cores: --cpus-per-gpu",
        )
    ]
