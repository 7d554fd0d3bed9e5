"""GPUs that do nothing, and why: judged from samples. PURE.

Nothing is said of what is not known (MIG devices have no utilisation, CPUs no GPU), nor from one sample: a GPU rests while the training
starts, evaluates and saves, so only samples that were taken after a step count, and several of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.memory.sample import Sample
from hpctrain.scheduler.parse import hostlist

NEAR_ZERO_PERCENT = 5
"""Utilisation up to which a GPU counts as idle."""
STARVED = 0.2
"""The part of the time that a training may wait for its data; hpctrain.training.speed_callback warns at the same."""
_ENOUGH = 4
"""Samples of steps of one rank that have to agree."""
_EMPTY_MIB, _EMPTY_PART = 1024, 0.05
"""A GPU with no more in use than this holds no model: a context of CUDA takes some hundred MiB."""
_FULL_PART = 0.2
_MANY_WORKERS, _LOADED = 2.0, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """One thing that wastes what the job has.

    Attributes:
        id: gpu-idle, node-underused, memory-on-one-gpu, data-starved or cpu-oversubscribed.
        what: with names and numbers; cause: the likely one; fix: something to type.
    """

    id: str
    what: str
    cause: str
    fix: str
    rank: int | None = None
    node: str | None = None


def judge(
    samples: Sequence[Sample], *, gpus_per_node: int | None, cpus_per_node: int | None, data_wait: float | None,
    config: Mapping[str, Any] | None = None, threads: int | None = None, load: Mapping[str, tuple[float, int]] | None = None,
    run: str | None = None,
) -> tuple[Idle, ...]:  # fmt: skip
    """Return what is wasted, the worst first.

    Args:
        samples: some of each rank, those of the last minutes, in time's order; one alone proves nothing.
        gpus_per_node: of the job.
        cpus_per_node: of the job.
        data_wait: the part of the time that the slowest rank waited for its data.
        config: the job config as resolved, for fixes in the user's own numbers.
        threads: OMP_NUM_THREADS of each process.
        run: the run's id, for what is to be typed.
        load: node → its load (processes that want to run) and the cores it has, where that is known.
    """
    ranks = _by_rank(samples)
    own = _Own(config or {}, ranks, cpus_per_node, threads, run)
    shared = _nodes(ranks, gpus_per_node, own)
    alone = [] if shared else _memory(ranks)
    starving = _data(data_wait, own)
    idle = [] if shared or alone else _idle(ranks, own, starving=bool(starving))
    return (*shared, *alone, *idle, *starving, *_cpus(ranks, own, load or {}))


def threads_and_cores(variables: Any) -> tuple[int | None, int | None]:
    """Return OMP_NUM_THREADS, and the cores of a node that a job step has, of the variables of an environment.json."""
    known = variables if isinstance(variables, Mapping) else {}
    cpus, tasks, nodes = (_whole(known.get(name)) for name in ("SLURM_CPUS_PER_TASK", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES"))
    # A job step of one task on each node has the cores of the node; where each GPU is a task, so many times as much.
    return _whole(known.get("OMP_NUM_THREADS")), None if cpus is None else cpus * max(1, (tasks or 1) // (nodes or 1))


class _Own:
    """The user's own numbers."""

    def __init__(
        self, config: Mapping[str, Any], ranks: Mapping[int, Sequence[Sample]], cpus: int | None, threads: int | None, run: str | None
    ) -> None:
        training, resources = (part if isinstance(part, Mapping) else {} for part in (config.get("training"), config.get("resources")))
        self.script = config.get("script") is not None
        workers = _whole(training.get("dataloader_num_workers"))
        self.workers = workers or 0
        self.knows_workers = workers is not None or not self.script  # a script of the user's may say it where nobody sees it
        self.batch = _whole(training.get("per_device_train_batch_size"))
        self.accumulation = _whole(training.get("gradient_accumulation_steps")) or 1
        self.gpus, self.nodes = _whole(resources.get("gpus_per_node")), _whole(resources.get("nodes"))
        self.cpus, self.threads = cpus, threads
        self.logs = f"hpctrain logs {run}" if run else "hpctrain logs"
        self.launcher = str(config.get("launcher") or "")
        hosts = [tail[-1].host for tail in ranks.values()]
        self.ranks_of_a_node = max((hosts.count(host) for host in set(hosts)), default=0)

    @property
    def cores(self) -> int | None:
        """Cores of each process."""
        return None if self.cpus is None or not self.ranks_of_a_node else max(1, self.cpus // self.ranks_of_a_node)


def _by_rank(samples: Iterable[Sample]) -> dict[int, list[Sample]]:
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.event == "step":
            found.setdefault(sample.rank, []).append(sample)
    return found


# -- nodes that use some of their GPUs ---------------------------------------------------------------------------------


def _nodes(ranks: Mapping[int, Sequence[Sample]], gpus_per_node: int | None, own: _Own) -> list[Idle]:
    """Return nodes where fewer GPUs are used than the job has, all with the same numbers as one."""
    last = [tail[-1] for tail in ranks.values() if len(tail) > 1]
    if not last or len(last) < last[0].world_size:  # ranks that have not spoken yet may use the others
        return []
    same: dict[tuple[int, int], list[str]] = {}
    for host in dict.fromkeys(sample.host for sample in last):
        here = [sample for sample in last if sample.host == host]
        devices = {sample.gpu_uuid for sample in here}
        if None in devices:
            continue
        whole = not any(str(device).startswith("MIG-") for device in devices)
        if (whole and len(devices) < len(here)) or (gpus_per_node is not None and len(devices) < gpus_per_node):
            same.setdefault((len(devices), len(here)), []).append(host)
    return [_underused(hosts, used, here, gpus_per_node, own) for (used, here), hosts in same.items()]


def _underused(hosts: list[str], used: int, here: int, has: int | None, own: _Own) -> Idle:
    each, node = ("", hosts[0]) if len(hosts) == 1 else (" each", hostlist.compress(hosts))
    if used < here:
        of = f", and {has - used} of {has} GPUs are not used" if has is not None and used < has else ""
        return Idle(
            id="node-underused", node=hosts[0], what=f"{node}: {here} processes{each} share {used} GPU{'s' * (used > 1)}{of}",
            cause="likely: each process takes the first GPU, because the script does not look at LOCAL_RANK",
            fix='in the script: torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
        )  # fmt: skip
    processes = "one process is" if here == 1 else f"{here} processes are"
    start = "--nproc_per_node" if own.launcher == "torchrun" else "--ntasks-per-node" if own.launcher == "srun" else "--num_processes"
    total = (has or 0) * (own.nodes or 1) if start == "--num_processes" else has
    return Idle(
        id="node-underused", node=hosts[0], what=f"{node}: {used} of {has} GPUs{each} {'is' if used == 1 else 'are'} used",
        cause=f"likely: {processes} started on {'each' if each else 'the'} node, and a process uses one GPU",
        fix=f"{start} {total} where the script starts them, or ask for what is used: hpctrain submit --gpus {used}",
    )  # fmt: skip


# -- GPUs without a model ----------------------------------------------------------------------------------------------


def _memory(ranks: Mapping[int, Sequence[Sample]]) -> list[Idle]:
    """Return that one GPU holds all, and the others hold nothing."""
    known = [tail[-1] for tail in ranks.values() if len(tail) > 1 and tail[-1].gpu_used_mib is not None and tail[-1].gpu_total_mib]
    if len(known) < 2 or len(known) < known[0].world_size:
        return []
    full = [sample for sample in known if _part(sample) >= _FULL_PART]
    empty = [sample for sample in known if _is_empty(sample)]
    if len(full) != 1 or len(empty) != len(known) - 1:
        return []
    one = full[0]
    return [
        Idle(
            id="memory-on-one-gpu", rank=one.rank, node=one.host,
            what=f"only the GPU of rank {one.rank} on {one.host} holds anything ({_gib(one.gpu_used_mib)} GiB);"
            f" {len(empty)} other{'s are' if len(empty) > 1 else ' is'} empty",
            cause="likely: the model was put on one device (cuda:0, or device_map), and the other processes train nothing",
            fix='in the script: .to(f"cuda:{os.environ[\'LOCAL_RANK\']}"), and no device_map="auto" under a launcher',
        )
    ]  # fmt: skip


def _part(sample: Sample) -> float:
    return (sample.gpu_used_mib or 0) / (sample.gpu_total_mib or 1)


def _is_empty(sample: Sample) -> bool:
    return (sample.gpu_used_mib or 0) <= _EMPTY_MIB and _part(sample) <= _EMPTY_PART


# -- GPUs that rest ----------------------------------------------------------------------------------------------------


def _idle(ranks: Mapping[int, Sequence[Sample]], own: _Own, *, starving: bool) -> list[Idle]:
    busy: list[tuple[int, Sample, int]] = []
    resting: list[tuple[int, Sample, int]] = []
    for rank, tail in sorted(ranks.items()):
        known = [sample.gpu_utilisation_percent for sample in tail[-_ENOUGH:] if sample.gpu_utilisation_percent is not None]
        if len(known) < _ENOUGH:
            continue
        (resting if max(known) <= NEAR_ZERO_PERCENT else busy).append((rank, tail[-1], max(known)))
    if not resting or (starving and not busy):  # then that is why
        return []
    most = max(percent for *_, percent in resting)
    rank, sample, _ = resting[0]
    if busy:
        names = _names([each for each, *_ in resting])
        return [
            Idle(
                id="gpu-idle", rank=rank, node=sample.host,
                what=f"the GPU of {names} on {hostlist.compress(list(dict.fromkeys(each.host for _, each, _ in resting)))} does nothing"
                f" (at most {most} % in {_ENOUGH} samples), while {len(busy)} work{'s' * (len(busy) == 1)}",
                cause="likely: that process is busy on the CPU or with files, or it hangs, and the others wait for it",
                fix=f"{own.logs} --rank {rank}",
            )
        ]  # fmt: skip
    return [_all_idle(resting, most, own)]


def _all_idle(resting: list[tuple[int, Sample, int]], most: int, own: _Own) -> Idle:
    rank, sample, _ = resting[0]
    which = f"all {len(resting)} GPUs do" if len(resting) > 1 else "the GPU does"
    what = f"{which} next to nothing (at most {most} % in {_ENOUGH} samples)"
    if all((each.torch_allocated_mib or 0) == 0 for _, each, _ in resting):
        return Idle(
            id="gpu-idle", rank=rank, node=sample.host, what=what,
            cause="likely: the training runs on the CPU; torch holds nothing on a GPU",
            fix='in the job: python -c "import torch; print(torch.cuda.is_available())"; no use_cpu, no ACCELERATE_USE_CPU',
        )  # fmt: skip
    fix = "a larger per_device_train_batch_size: hpctrain fit says which ones fit"
    if own.batch is not None:
        fix = f"per_device_train_batch_size: {own.batch} -> {2 * own.batch}; hpctrain fit says whether it fits"
        if own.accumulation > 1 and own.accumulation % 2 == 0:
            fix = (
                f"per_device_train_batch_size: {own.batch} -> {2 * own.batch},"
                f" gradient_accumulation_steps: {own.accumulation} -> {own.accumulation // 2}"
            )
    return Idle(
        id="gpu-idle", rank=rank, node=sample.host, what=what, fix=fix,
        cause="likely: the batches are so small that Python takes longer than the GPU, or the training waits for files or the network",
    )  # fmt: skip


# -- data and cores ----------------------------------------------------------------------------------------------------


def _data(wait: float | None, own: _Own) -> list[Idle]:
    if wait is None or not wait > STARVED:
        return []
    cores, workers = own.cores, own.workers
    most = max(1, (cores or 2) - 1)
    where = "num_workers of its DataLoader" if own.script else "dataloader_num_workers"
    each = f"each process has {cores} core{'s' * (cores != 1)}"
    cause = f"{workers} data loader worker{'s' * (workers != 1)} for each process cannot keep up"
    if not workers:
        cause = "each process loads its data itself, without workers" if own.knows_workers else "the DataLoader has too few workers"
    if not own.knows_workers:
        fix = f"{where}: as many as {most}" + (f" ({each})" if cores is not None else ", with as many cores: --cpus-per-gpu")
    elif cores is None:
        fix = f"{where}: {workers} -> {max(2, 2 * workers)}, with as many cores: --cpus-per-gpu"
    elif workers < most:
        fix = f"{where}: {workers} -> {min(most, max(2, 2 * workers))} ({each})"
    else:
        more = 2 * max(1, workers)
        fix = f"hpctrain submit --cpus-per-gpu {max(2 * cores, more + 1)}, and {where}: {workers} -> {more} ({each} now)"
    return [Idle(id="data-starved", what=f"the GPUs wait for their data {wait:.0%} of the time", cause=f"likely: {cause}", fix=fix)]


def _cpus(ranks: Mapping[int, Sequence[Sample]], own: _Own, load: Mapping[str, tuple[float, int]]) -> list[Idle]:
    """Return that more wants to run than there are cores; the surest sign first, and one is enough."""
    here, cpus, threads = own.ranks_of_a_node, own.cpus, own.threads
    if cpus and here and threads and threads > 1 and threads * here > cpus:
        fair = max(1, cpus // here)
        return [
            Idle(
                id="cpu-oversubscribed",
                what=f"{here} processes x {threads} threads want {here * threads} cores of a node, and the job has {cpus}",
                cause="OMP_NUM_THREADS is too large for so many processes",
                fix=f"OMP_NUM_THREADS: {threads} -> {fair}, or hpctrain submit --cpus-per-gpu {threads}",
            )
        ]  # fmt: skip
    if cpus and here and here * (1 + own.workers) > _MANY_WORKERS * cpus:
        fair = max(0, cpus // here - 1)
        return [
            Idle(
                id="cpu-oversubscribed", what=f"{here} processes and {here * own.workers} data loader workers share {cpus} cores of a node",
                cause="likely: dataloader_num_workers counts for each process",
                fix=f"dataloader_num_workers: {own.workers} -> {fair}, or hpctrain submit --cpus-per-gpu {1 + own.workers}",
            )
        ]  # fmt: skip
    for node, (wanting, cores) in sorted(load.items()) if ranks else ():
        if wanting > _LOADED * cores:
            return [
                Idle(
                    id="cpu-oversubscribed", node=node, what=f"{node}: {wanting:.0f} processes want to run on {cores} cores",
                    cause="likely: other programs run there, or more threads than cores",
                    fix="top, on that machine; OMP_NUM_THREADS=1 in the job",
                )
            ]  # fmt: skip
    return []


def _names(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"ranks {', '.join(map(str, ranks[:4]))}{more}"


def _gib(mib: int | None) -> str:
    return f"{(mib or 0) / 1024:.1f}"


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 9:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
