"""Judges of the preflight job: what its nodes have said against what was asked for, each other, and the cluster's profile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpctrain.doctor.judge.gpus import gpus
from hpctrain.doctor.judge.network import network
from hpctrain.doctor.words import many, ranges, size
from hpctrain.jobs.finding import LEVELS, Finding
from hpctrain.scheduler.parse import hostlist

if TYPE_CHECKING:
    from hpctrain.doctor.facts import Case
    from hpctrain.doctor.report import NodeFacts, RankFacts, Report

_SMALL_SHM = 1 << 30
_SMALL_TMP = 1 << 30
_SMALL_MEMORY_PER_RANK = 4 << 30
_SLOW_READ = 50e6  # bytes per second: a disk of the nineties
_SLOW_WRITE = 50e6
_SKEW_S = 1.0
_FEW_FILES = 1024
_HOSTS = "\0"  # stands for the node's name while findings are compared


def judge(report: Report, case: Case, job_words: tuple[str, ...] = ()) -> list[Finding]:
    """Return everything that is wrong, the worst first.

    Args:
        report: what the ranks have said.
        case: the user's own job, whose nodes, GPUs and cores were asked for.
        job_words: what the job's own script said was wrong; evidence for a node that has said nothing.
    """
    found = [*_silent(report, case, job_words), *gpus(report, case), *network(report, case)]
    for node in report.nodes:
        ranks = report.ranks_of(node.host)
        # Too many threads for cores that are too few is the same thing twice.
        found += [*(_cores(node, ranks) or _threads(node, ranks)), *_places(node), *_memory(node, ranks)]
        found += [*_reading(node), *_writing(node), *_clock(node), *_limits(node, ranks)]
    found += _versions(report)
    hosts = tuple(node.host for node in report.nodes)
    return sorted(_merged(found, hosts), key=lambda finding: LEVELS.index(finding.level))


def _merged(findings: list[Finding], hosts: tuple[str, ...]) -> list[Finding]:
    """Return one finding for nodes of which the same is said: `node[1-16]: 3 of 4 GPUs`."""
    alike: dict[Finding, list[str]] = {}
    for finding in findings:
        host = next((each for each in hosts if finding.what.startswith(f"{each}: ")), None)
        if host is None:
            alike.setdefault(finding, [])
            continue
        rest = finding.what.removeprefix(f"{host}: ")
        key = replace(finding, what=f"{_HOSTS}: {rest}", fix=finding.fix.replace(f"exclude={host}", f"exclude={_HOSTS}"))
        alike.setdefault(key, []).append(host)
    return [
        replace(key, what=key.what.replace(_HOSTS, names), fix=key.fix.replace(_HOSTS, names))
        for key, each in alike.items()
        for names in [hostlist.compress(each) if each else ""]
    ]


def _silent(report: Report, case: Case, job_words: tuple[str, ...]) -> list[Finding]:
    """Tell of ranks that never spoke, and of those that stopped on their way."""
    found = []
    missing = case.spec.processes - len(report.ranks)
    if missing > 0:
        hosts = len({rank.host for rank in report.ranks})
        found.append(
            Finding(
                id="node-silent", level="error", what=f"{missing} of {many(case.spec.processes, 'process', 'es')} never reported",
                evidence=f"{hosts} of {many(case.spec.nodes, 'node')} reported"
                + (f"; the job said: {' / '.join(job_words)}" if job_words else ""),
                reason="a training would wait for them and then fail", fix="hpctrain logs --err JOB shows what the launcher said",
            )
        )  # fmt: skip
    stopped = {failure.stage: failure for failure in reversed(report.failures)}
    for stage, failure in stopped.items():
        ranks = sorted({each.rank for each in report.failures if each.stage == stage})
        found.append(
            Finding(
                id="node-silent", level="error", what=f"{_ranks(ranks)} stopped at: {stage} ({failure.host})", evidence=failure.said,
                reason="the training takes the same steps",
                fix=f"leave the node out: --sbatch exclude={failure.host}, if it is always the same one",
            )
        )  # fmt: skip
    quiet = [rank.rank for rank in report.ranks if not rank.done and rank.rank not in {failure.rank for failure in report.failures}]
    if quiet:
        found.append(
            Finding(
                id="node-silent", level="error", what=f"{_ranks(quiet)} began and did not come to the end",
                evidence="their last lines in the job's log", reason="the job was ended before, or they hang",
                fix="hpctrain logs JOB, and --err for what torch said",
            )
        )  # fmt: skip
    return found


def _cores(node: NodeFacts, ranks: tuple[RankFacts, ...]) -> list[Finding]:
    """Compare the cores that tasks are bound to with those that Slurm promised, and with each other's."""
    tasks: dict[int | None, RankFacts] = {rank.task: rank for rank in ranks if rank.cpu_set}
    asked = next((rank.cpus_per_task for rank in ranks if rank.cpus_per_task), None)
    if not tasks or asked is None:
        return []
    few = [rank for rank in ranks if rank.cpu_set and len(rank.cpu_set) < asked]
    if few:
        fewest = min(few, key=lambda rank: len(rank.cpu_set))
        one = len({core for rank in ranks for core in rank.cpu_set}) == 1 and asked > 1
        who = "all ranks" if len(few) == len(ranks) else _ranks([rank.rank for rank in few])
        on = "one core" if one else many(len(fewest.cpu_set), "core")
        hardware = f"; the node has {many(node.cores, 'core')}" if node.cores is not None and node.cores < asked else ""
        return [
            Finding(
                id="node-cores-few", level="error" if len(fewest.cpu_set) == 1 and not hardware else "warning",
                what=f"{node.host}: {who} on {on} (CPU {fewest.cpus}) of {asked} for each task",
                evidence=f"sched_getaffinity, against SLURM_CPUS_PER_TASK={asked}{hardware}",
                reason="data loading and kernel launches of all processes queue for the same cores, and the GPUs wait",
                fix="launch.cpu_bind: none in config.yaml, and no taskset, OMP_PROC_BIND or GOMP_CPU_AFFINITY",
            )
        ]  # fmt: skip
    union = {core for rank in tasks.values() for core in rank.cpu_set}
    if len(tasks) > 1 and len(union) < len(tasks) * asked and not node.played:
        return [
            Finding(
                id="node-cores-shared", level="warning",
                what=f"{node.host}: {len(tasks)} tasks with {many(asked, 'core')} each share {many(len(union), 'core')}",
                evidence=f"sched_getaffinity: CPUs {ranges(union)}", reason="the tasks take turns on the same cores",
                fix="launch.cpu_bind: cores in config.yaml",
            )
        ]  # fmt: skip
    return []


def _threads(node: NodeFacts, ranks: tuple[RankFacts, ...]) -> list[Finding]:
    """Find more computing threads than cores: the processes of a node together."""
    cores = {core for rank in ranks for core in rank.cpu_set}
    threads = sum(rank.threads or rank.omp or 0 for rank in ranks)
    if not cores or threads <= 2 * len(cores):
        return []
    return [
        Finding(
            id="node-threads", level="warning", what=f"{node.host}: {threads} computing threads on {many(len(cores), 'core')}",
            evidence=f"OMP_NUM_THREADS={ranks[0].omp}, torch uses {ranks[0].threads} in each of {many(len(ranks), 'process', 'es')}",
            reason="threads that wait for each other's cores make every step slower", fix="--cpus-per-task, or OMP_NUM_THREADS=1",
        )
    ]  # fmt: skip


def _places(node: NodeFacts) -> list[Finding]:
    found = []
    if node.shm is not None and node.shm.free is not None and node.shm.free < _SMALL_SHM:
        found.append(
            Finding(
                id="node-shm-small", level="warning", what=f"{node.host}: /dev/shm has {size(node.shm.free)} free",
                evidence="statvfs /dev/shm",
                reason="data loader workers and NCCL hand over their data there, and die with a bus error when it is full",
                fix="in a container: bind /dev/shm of the node; else --dataloader_num_workers 0",
            )
        )  # fmt: skip
    if node.tmp is not None and node.tmp.free is not None and node.tmp.free < _SMALL_TMP:
        found.append(
            Finding(
                id="node-tmp-small", level="warning", what=f"{node.host}: {node.tmp.path} has {size(node.tmp.free)} free",
                evidence=f"statvfs {node.tmp.path} ({node.tmp.type})", reason="compiler caches of Triton and torch are written there",
                fix="environment.env: {TMPDIR: a directory with room} in config.yaml",
            )
        )  # fmt: skip
    elif node.tmp is not None and node.tmp.total is None:
        found.append(
            Finding(
                id="node-tmp-small", level="warning", what=f"{node.host}: TMPDIR={node.tmp.path} does not exist there",
                evidence=f"statvfs {node.tmp.path}", reason="a TMPDIR of the login node came along",
                fix="environment.unset: [TMPDIR] in config.yaml",
            )
        )  # fmt: skip
    return found


def _memory(node: NodeFacts, ranks: tuple[RankFacts, ...]) -> list[Finding]:
    """A limit that nobody asked for is the site's default, which may be as small as a gigabyte for each core."""
    limit, needed = node.memory_limit, _SMALL_MEMORY_PER_RANK * max(1, len(ranks))
    asked = any(rank.mem_asked for rank in ranks)
    if limit is None or limit >= needed or asked:
        return []
    return [
        Finding(
            id="node-memory-limit", level="warning",
            what=f"{node.host}: the job may use {size(limit)} of the node's {size(node.memory or 0)}",
            evidence="the memory limit of the job's cgroup; the job asks for none, so it is the site's default",
            reason="loading a model takes more than that, and the kernel kills what goes beyond", fix="--mem 64G, or --mem 0 for all of it",
        )
    ]  # fmt: skip


def _reading(node: NodeFacts) -> list[Finding]:
    found = []
    if node.read is not None and node.read.error is not None:
        found.append(
            Finding(
                id="node-dataset-unreadable", level="error", what=f"{node.host}: cannot read the dataset: {node.read.error}",
                evidence=f"reading {node.read.path} on that node", reason="the training would fail there",
                fix="a folder on a file system that all nodes have: --dataset_name",
            )
        )  # fmt: skip
    # A file that is read in no time says nothing about the speed of a stream.
    elif node.read is not None and node.read.speed is not None and (node.read.seconds or 0) > 0.5 and node.read.speed < _SLOW_READ:
        found.append(
            Finding(
                id="node-dataset-slow", level="warning", what=f"{node.host}: reads the dataset at {node.read.speed / 1e6:.1f} MB/s",
                evidence=f"{size(node.read.bytes or 0)} of {node.read.path} in {node.read.seconds:.1f} s, all nodes at once",
                reason="the GPUs may wait for data", fix="copy the dataset to the scratch file system, or to the node's own disk",
            )
        )  # fmt: skip
    return found


def _writing(node: NodeFacts) -> list[Finding]:
    found = []
    if node.write is not None and node.write.error is not None:
        found.append(
            Finding(
                id="node-checkpoint-unwritable", level="error", what=f"{node.host}: cannot write a checkpoint: {node.write.error}",
                evidence=f"a test file in {node.write.path}, on that node",
                reason="the first checkpoint would end the training, hours into it",
                fix="--output_dir in a directory that the nodes can write to; df -h and ls -ld show which",
            )
        )  # fmt: skip
    elif node.write is not None and node.write.speed is not None and node.write.speed < _SLOW_WRITE:
        found.append(
            Finding(
                id="node-checkpoint-slow", level="warning", what=f"{node.host}: writes a checkpoint at {node.write.speed / 1e6:.1f} MB/s",
                evidence=f"{size(node.write.bytes or 0)} with fsync in {node.write.seconds:.1f} s into {node.write.path}",
                reason="all GPUs wait while a checkpoint is written", fix="--output_dir on the scratch file system",
            )
        )  # fmt: skip
    return found


def _clock(node: NodeFacts) -> list[Finding]:
    if node.ahead_s is None or abs(node.ahead_s) - (node.ahead_error_s or 0) < _SKEW_S:
        return []
    side = "ahead of" if node.ahead_s > 0 else "behind"
    return [
        Finding(
            id="node-clock-skew", level="warning", what=f"{node.host}: its clock is {abs(node.ahead_s):.3g} s {side} the first node's",
            evidence=f"ten questions and answers between the ranks, to within {node.ahead_error_s or 0:.2g} s",
            reason="times in logs of several nodes cannot be compared, and file locks and credentials may fail",
            fix=f"tell the site's support; until then: --sbatch exclude={node.host}",
        )
    ]  # fmt: skip


def _limits(node: NodeFacts, ranks: tuple[RankFacts, ...]) -> list[Finding]:
    found = []
    locked = [rank.memlock for rank in ranks if rank.memlock is not None]
    if locked and node.infiniband:
        found.append(
            Finding(
                id="node-limits", level="warning", what=f"{node.host}: only {size(min(locked))} of memory can be locked",
                evidence=f"ulimit -l, with InfiniBand devices {', '.join(node.infiniband[:4])}",
                reason="InfiniBand registers its buffers in locked memory: NCCL fails, or falls back to TCP",
                fix="ulimit -l unlimited before sbatch (Slurm hands limits on), or ask the site",
            )
        )  # fmt: skip
    files = [rank.nofile for rank in ranks if rank.nofile is not None]
    if files and min(files) < _FEW_FILES:
        found.append(
            Finding(
                id="node-limits", level="warning", what=f"{node.host}: a process may open {min(files)} files", evidence="ulimit -n",
                reason="every connection and every data loader worker takes some", fix="ulimit -n 4096 before sbatch",
            )
        )  # fmt: skip
    return found


def _versions(report: Report) -> list[Finding]:
    """Find versions that differ from node to node."""
    kinds: dict[str, dict[str, str | None]] = {"Python": {}, "torch": {}, "NCCL": {}, "driver": {}, "machine": {}}
    for rank in report.ranks:
        if rank.version is not None:  # it came as far as torch
            kinds["Python"][rank.host], kinds["torch"][rank.host], kinds["NCCL"][rank.host] = rank.python, rank.version, rank.nccl
    for node in report.nodes:
        kinds["driver"][node.host], kinds["machine"][node.host] = node.driver, node.machine
    found = []
    for kind, values in kinds.items():
        if len(set(values.values())) < 2:
            continue
        shown = "; ".join(f"{value or 'none'} on {', '.join(_hosts(values, value))}" for value in dict.fromkeys(values.values()))
        found.append(
            Finding(
                id="node-versions-differ", level="error" if kind in ("torch", "NCCL") else "warning",
                what=f"{kind} differs between nodes: {shown}", evidence="each rank's own word",
                reason="ranks of different versions do not understand each other, or compute different numbers",
                fix="activate one environment on a shared file system, by its path",
            )
        )  # fmt: skip
    return found


def _hosts(values: dict[str, str | None], wanted: str | None) -> list[str]:
    hosts = [host for host, value in values.items() if value == wanted]
    return hosts if len(hosts) <= 4 else [*hosts[:3], f"{len(hosts) - 3} more"]


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {ranges(numbers)}"
