"""Idle GPUs and their likely cause, derived from samples. PURE.

Nothing is reported if the values are unknown (MIG devices report no utilization). GPUs are also
idle during start-up, evaluation and saving, so only several samples after a step count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpctrain.memory.sample import Sample
from hpctrain.slurm.notations import array as arrays
from hpctrain.slurm.notations import hostlist
from hpctrain.util import text

#: Utilization up to which a GPU counts as idle.
NEAR_ZERO_PERCENT = 5
#: Fraction of the time that a training may wait for its data; hpctrain.training.monitoring.speed
#: warns at the same value.
STARVED = 0.2
#: Samples of one rank, taken after a step, that have to agree.
_ENOUGH = 4


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
    run: str | None,
) -> tuple[Idle, ...]:
    """Return wasted resources, the worst first.

    Args:
        samples: several of each rank from the last minutes, sorted by time; a single one proves
            nothing.
        gpus_per_node: of the job.
        data_wait: the fraction of the time that the slowest rank waited for its data.
        run: the run's id, for the commands.
    """
    ranks: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.event == "step":
            ranks.setdefault(sample.rank, []).append(sample)
    is_starving = data_wait is not None and data_wait > STARVED
    found = _nodes(ranks, gpus_per_node) or _idle(ranks, run, starving=is_starving)
    if is_starving:
        starved = Idle(
            "data-starved",
            what=f"the GPUs wait for their data {data_wait:.0%} of the time",
            cause="likely: the data loader's workers cannot keep up",
            fix="a larger dataloader_num_workers, with as many cores: --cpus-per-gpu",
        )
        found = [*found, starved]
    return tuple(found)


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
        fix = f"start {has} processes on a node, or request what is used: --gpus {used}"
        if used < processes:
            what = f"{processes} processes share {text.count(used, 'GPU')}"
            cause = "each process takes the first GPU, because the script ignores LOCAL_RANK"
            fix = 'in the script: torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
        what = f"{hostlist.compress(hosts)}: {what}{' on each node' * (len(hosts) > 1)}"
        found.append(Idle("node-underused", what, f"likely: {cause}", fix, node=hosts[0]))
    return found


def _idle(ranks: Mapping[int, Sequence[Sample]], run: str | None, *, starving: bool) -> list[Idle]:
    busy, resting = 0, list[Sample]()
    for _, tail in sorted(ranks.items()):
        percents = [sample.gpu_utilisation_percent for sample in tail[-_ENOUGH:]]
        known = [percent for percent in percents if percent is not None]
        if len(known) == _ENOUGH:
            rests = max(known) <= NEAR_ZERO_PERCENT
            busy, resting = busy + (not rests), resting + [tail[-1]] * rests
    if not resting or (starving and not busy):  # then the data is the cause
        return []
    first = resting[0]
    most = f"(at most {NEAR_ZERO_PERCENT} % in {_ENOUGH} samples)"
    if busy:
        numbers = arrays.compress(each.rank for each in resting)
        nodes = hostlist.compress(list(dict.fromkeys(each.host for each in resting)))
        what = f"the GPU of {'ranks' if len(resting) > 1 else 'rank'} {numbers} on {nodes} does"
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
        fix = "a larger per_device_train_batch_size; hpctrain fit reports which ones fit"
        if not any(each.torch_allocated_mib for each in resting):
            cause = "the training runs on the CPU; torch holds nothing on a GPU"
            fix = (
                'in the job: python -c "import torch; print(torch.cuda.is_available())"; no'
                " use_cpu, no ACCELERATE_USE_CPU"
            )
    return [Idle("gpu-idle", what, f"likely: {cause}", fix, rank=first.rank, node=first.host)]
