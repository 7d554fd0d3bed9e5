"""Pure evaluation of the preflight job: the nodes' reports, compared with the request, each other,
and the cluster's profile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpctrain.doctor.facts import DoctorContext
from hpctrain.doctor.report import GpuFacts, NetworkFacts, NodeFacts, RankFacts, Report
from hpctrain.finding import LEVELS, Finding
from hpctrain.slurm.notations import array, hostlist
from hpctrain.util.text import count, rate, size

_SMALL_SHM = 1 << 30
_SMALL_TMP = 1 << 30
_SMALL_MEMORY_PER_RANK = 4 << 30
_SLOW_READ = 50e6  # bytes per second: as slow as a single old hard disk
_SLOW_WRITE = 50e6
#: In a fix, the nodes that have the problem.
_NODES = "NODES"
_EXCLUDE = f"hpctrain submit --sbatch exclude={_NODES}"
#: Memory that a GPU's driver and display use; more belongs to another process.
_OWN_BYTES = 1 << 30
_HOT = 85  # degrees Celsius before any work: data-center GPUs throttle at about 90
#: Bus bandwidth, bytes per second, below which NCCL probably uses the wrong network. Between nodes:
#: 2.3 GB/s over TCP, 163 over the fast network (Isambard-AI's documentation); one 100 Gb/s link of
#: InfiniBand gives about 11. Within a node: PCIe alone gives more.
_SLOW_BETWEEN = 3e9
_SLOW_WITHIN = 5e9


def evaluate(
    report: Report, context: DoctorContext, job_words: tuple[str, ...] = ()
) -> list[Finding]:
    """Return all problems, the most severe first.

    Args:
        report: the ranks' report.
        context: the user's job, with its nodes, GPUs and cores.
        job_words: errors that the job's script printed; evidence for a node without a report.
    """
    alike: dict[Finding, list[str]] = {}
    for node in report.nodes:
        gpus = [gpu for gpu in report.gpus if gpu.host == node.host]
        for finding in _of_node(node, report.ranks_of(node.host), gpus, context):
            alike.setdefault(finding, []).append(node.host)
    found = [*_silent(report, context, job_words), *_not_tried(report, context)]
    for finding, hosts in alike.items():  # `node[1-16]: 3 of 4 GPUs`
        names = hostlist.compress(hosts)
        fix = finding.fix.replace(_NODES, names)
        found.append(replace(finding, what=f"{names}: {finding.what}", fix=fix))
    found += _network(report, context)
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def _silent(
    report: Report, context: DoctorContext, job_words: tuple[str, ...]
) -> Iterator[Finding]:
    missing = context.spec.processes - len(report.ranks)
    if missing > 0:
        hosts = len({rank.host for rank in report.ranks})
        yield Finding(
            id="node-silent",
            level="error",
            what=f"{missing} of {count(context.spec.processes, 'process', 'processes')} never reported",
            evidence=f"{hosts} of {count(context.spec.nodes, 'node')} reported"
            + (f"; the job printed: {' / '.join(job_words)}" if job_words else ""),
            reason="a training would wait for them and then fail",
            fix="hpctrain logs --err",
        )
    stopped = {failure.stage: failure for failure in reversed(report.failures)}
    for stage, failure in stopped.items():
        ranks = sorted({each.rank for each in report.failures if each.stage == stage})
        yield Finding(
            id="node-silent",
            level="error",
            what=f"{_ranks(ranks)} stopped at: {stage} ({failure.host})",
            evidence=failure.said,
            reason="the training does the same",
            fix=f"hpctrain submit --sbatch exclude={failure.host}",
        )
    quiet = [
        rank.rank
        for rank in report.ranks
        if not rank.done and rank.rank not in {failure.rank for failure in report.failures}
    ]
    if quiet:
        yield Finding(
            id="node-silent",
            level="error",
            what=f"{_ranks(quiet)} started and did not finish",
            evidence="their last lines in the job's log",
            reason="the job ended before, or they hang",
            fix="hpctrain logs --err",
        )


def _not_tried(report: Report, context: DoctorContext) -> Iterator[Finding]:
    asked = context.spec.gpus_per_node
    if asked and report.ranks and all(rank.on_cpu for rank in report.ranks):
        yield Finding(
            id="node-gpus-missing",
            level="note",
            what=f"the GPUs were not tested ({asked} for each node)",
            evidence="ACCELERATE_USE_CPU is set in the job",
            reason="the training would run on the CPU",
            fix="unset ACCELERATE_USE_CPU",
        )


def _of_node(
    node: NodeFacts, ranks: tuple[RankFacts, ...], gpus: list[GpuFacts], context: DoctorContext
) -> Iterator[Finding]:
    """Yield the problems of a node, without its name."""
    yield from _missing_gpus(node, ranks, context)
    for gpu in gpus:
        yield from _health(gpu)
    yield from _cores(node, ranks)
    yield from _resources(node, ranks)


def _missing_gpus(
    node: NodeFacts, ranks: tuple[RankFacts, ...], context: DoctorContext
) -> Iterator[Finding]:
    asked = context.spec.gpus_per_node
    seen = [rank.visible for rank in ranks if rank.visible is not None and not rank.on_cpu]
    if not seen or min(seen) >= asked:
        return
    build = next((rank for rank in ranks if rank.version is not None), None)
    evidence = (
        "torch.cuda.device_count(); Slurm allocated"
        f" {'an unknown number' if node.gpus_given is None else node.gpus_given}"
    )
    fix = _EXCLUDE
    if build is not None and build.cuda is None and build.hip is None:
        evidence, fix = (
            f"torch {build.version} is a CPU build",
            "hpctrain doctor",
        )
    elif node.gpus:
        evidence += f"; NVML lists {node.gpus}"
    yield Finding(
        id="node-gpus-missing",
        level="error",
        what=f"{min(seen)} of {count(asked, 'GPU')}",
        evidence=evidence,
        reason="a process without its own GPU stops the training, or shares one",
        fix=fix,
    )


def _health(gpu: GpuFacts) -> Iterator[Finding]:
    bad = []
    if gpu.ecc_volatile:
        bad.append(
            f"{count(gpu.ecc_volatile, 'uncorrected memory error')} since its driver was loaded"
        )
    if gpu.rows_pending:
        bad.append("memory rows or pages are to be retired at the next reset of the GPU")
    if gpu.rows_failed:
        bad.append("bad memory rows could not be replaced")
    if bad:
        history = f", {gpu.ecc_aggregate} in its life" if gpu.ecc_aggregate else ""
        yield Finding(
            id="node-gpu-errors",
            level="error" if gpu.rows_failed or gpu.ecc_volatile else "warning",
            what=f"GPU {gpu.index} ({gpu.name}): {'; '.join(bad)}",
            evidence=f"NVML, {gpu.uuid}{history}",
            reason="such an error ends the process that uses the memory (Xid 48, 63, 64, 94, 95)",
            fix=_EXCLUDE,
        )
    reasons = [*(gpu.throttled or ())]
    hot = gpu.celsius is not None and gpu.celsius >= _HOT
    # A power cap is normal under load; a hardware slowdown is not.
    reasons = [reason for reason in reasons if reason != "power cap"]
    if reasons or hot:
        yield Finding(
            id="node-gpu-throttled",
            level="warning",
            what=f"GPU {gpu.index} is slowed down: {', '.join(reasons) or 'heat'}"
            + (f", {gpu.celsius} °C" if gpu.celsius is not None else ""),
            evidence=f"NVML, before the job did anything; {gpu.uuid}",
            reason="all ranks wait for the slowest GPU in every step",
            fix=_EXCLUDE,
        )
    used = gpu.used or 0
    if gpu.processes or used >= _OWN_BYTES:
        who = (
            f"processes {', '.join(map(str, gpu.processes))}"
            if gpu.processes
            else "no process that the driver names"
        )
        yield Finding(
            id="node-gpu-in-use",
            level="warning",
            what=f"GPU {gpu.index} has {size(used)} in use before the job starts",
            evidence=f"NVML: {who}",
            reason=(
                "stale memory of another job: a job that fits on the other GPUs runs out of memory "
                "on this one"
            ),
            fix=_EXCLUDE,
        )


def _cores(node: NodeFacts, ranks: tuple[RankFacts, ...]) -> list[Finding]:
    tasks: dict[int | None, RankFacts] = {rank.task: rank for rank in ranks if rank.cpu_set}
    asked = next((rank.cpus_per_task for rank in ranks if rank.cpus_per_task), None)
    if not tasks or asked is None:
        return []
    few = [rank for rank in ranks if rank.cpu_set and len(rank.cpu_set) < asked]
    if few:
        fewest = min(few, key=lambda rank: len(rank.cpu_set))
        one = len({core for rank in ranks for core in rank.cpu_set}) == 1 and asked > 1
        who = "all ranks" if len(few) == len(ranks) else _ranks([rank.rank for rank in few])
        on = "one core" if one else count(len(fewest.cpu_set), "core")
        hardware = (
            f"; the node has {count(node.cores, 'core')}"
            if node.cores is not None and node.cores < asked
            else ""
        )
        return [
            Finding(
                id="node-cores-few",
                level="error" if len(fewest.cpu_set) == 1 and not hardware else "warning",
                what=f"{who} on {on} (CPU {fewest.cpus}) of {asked} for each task",
                evidence=f"sched_getaffinity, against SLURM_CPUS_PER_TASK={asked}{hardware}",
                reason=(
                    "data loading and kernel launches of all processes queue for the same cores,"
                    " and the GPUs wait"
                ),
                fix="set launch.cpu_bind: none in config.yaml",
            )
        ]
    return []


def _resources(node: NodeFacts, ranks: tuple[RankFacts, ...]) -> Iterator[Finding]:
    if node.shm is not None and node.shm.free is not None and node.shm.free < _SMALL_SHM:
        yield Finding(
            id="node-shm-small",
            level="warning",
            what=f"/dev/shm has {size(node.shm.free)} free",  # noqa: S108 - a place to look at
            evidence="statvfs /dev/shm",
            reason=(
                "data loader workers and NCCL exchange data there, and fail with a bus error when it"
                " is full"
            ),
            fix="hpctrain submit -- --dataloader_num_workers 0",
        )
    if node.tmp is not None and node.tmp.free is not None and node.tmp.free < _SMALL_TMP:
        yield Finding(
            id="node-tmp-small",
            level="warning",
            what=f"{node.tmp.path} has {size(node.tmp.free)} free",
            evidence=f"statvfs {node.tmp.path} ({node.tmp.type})",
            reason="compiler caches of Triton and torch are written there",
            fix="set environment.env: {TMPDIR: DIRECTORY} in config.yaml",
        )
    elif node.tmp is not None and node.tmp.free is None:
        yield Finding(
            id="node-tmp-small",
            level="warning",
            what=f"TMPDIR={node.tmp.path} does not exist there",
            evidence=f"statvfs {node.tmp.path}",
            reason="the job inherited the TMPDIR of the login node",
            fix="set environment.unset: [TMPDIR] in config.yaml",
        )
    limit, needed = node.memory_limit, _SMALL_MEMORY_PER_RANK * max(1, len(ranks))
    # Without a request, the limit is the site's default, perhaps 1 GB per core.
    if limit is not None and limit < needed and not any(rank.mem_asked for rank in ranks):
        yield Finding(
            id="node-memory-limit",
            level="warning",
            what=(f"the job may use {size(limit)} of the node's {size(node.memory or 0)}"),
            evidence=(
                "the memory limit of the job's cgroup; the job requests none, so it is the "
                "site's default"
            ),
            reason="loading a model takes more, and the kernel kills what exceeds the limit",
            fix="hpctrain submit --mem 64G",
        )
    if node.read is not None and node.read.error is not None:
        yield Finding(
            id="node-dataset-unreadable",
            level="error",
            what=f"cannot read the dataset: {node.read.error}",
            evidence=f"reading {node.read.path} on that node",
            reason="the training would fail there",
            fix="name a directory on a file system that all nodes share: --dataset_name",
        )
    # A short read does not show the streaming speed.
    elif (
        node.read is not None
        and node.read.speed is not None
        and (node.read.seconds or 0) > 0.5
        and node.read.speed < _SLOW_READ
    ):
        yield Finding(
            id="node-dataset-slow",
            level="warning",
            what=f"reads the dataset at {node.read.speed / 1e6:.1f} MB/s",
            evidence=(
                f"{size(node.read.bytes or 0)} of {node.read.path} in {node.read.seconds:.1f}"
                " s, all nodes at once"
            ),
            reason="the GPUs may wait for data",
            fix="copy the dataset to the scratch file system",
        )
    if node.write is not None and node.write.error is not None:
        yield Finding(
            id="node-checkpoint-unwritable",
            level="error",
            what=f"cannot write a checkpoint: {node.write.error}",
            evidence=f"a test file in {node.write.path}, on that node",
            reason="the first checkpoint would end the training, hours after its start",
            fix="name a directory that the nodes can write to: --output_dir",
        )
    elif node.write is not None and node.write.speed is not None and node.write.speed < _SLOW_WRITE:
        yield Finding(
            id="node-checkpoint-slow",
            level="warning",
            what=f"writes a checkpoint at {node.write.speed / 1e6:.1f} MB/s",
            evidence=(
                f"{size(node.write.bytes or 0)} with fsync in {node.write.seconds:.1f} s into"
                f" {node.write.path}"
            ),
            reason="all GPUs wait while a checkpoint is written",
            fix="name a directory on the scratch file system: --output_dir",
        )


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {array.compress(numbers)}"


# -- the network -----------------------------------------------------------------------------------


def _network(report: Report, context: DoctorContext) -> list[Finding]:
    wrong = [speed for speed in report.speeds if not speed.right]
    if wrong:
        return [
            Finding(
                id="node-all-reduce-wrong",
                level="error",
                what=f"the all-reduce of {wrong[0].group} gives wrong sums",
                evidence=(
                    f"{count(wrong[0].ranks, 'rank')}, {wrong[0].bytes} bytes, {wrong[0].backend}"
                ),
                reason="gradients would be wrong, unnoticed in the loss",
                fix="NCCL_P2P_DISABLE=1 hpctrain doctor --job",
            )
        ]
    return [*_interface(report, context), *_slow(report)]


def expected(context: DoctorContext) -> tuple[str, ...]:
    """Return the interface prefixes in the profile, in the syntax of NCCL_SOCKET_IFNAME."""
    words = context.cluster.profile.network.interface if context.cluster is not None else None
    return tuple(word.strip().lstrip("=^") for word in (words or "").split(",") if word.strip())


def used(report: Report) -> tuple[str, ...]:
    """Return the distinct interfaces, or InfiniBand devices, that the data went over."""
    return tuple(dict.fromkeys(name for found in report.networks for name in found.devices))


def _interface(report: Report, context: DoctorContext) -> list[Finding]:
    wanted = expected(context)
    nodes = {rank.host for rank in report.ranks}
    if not wanted or len(nodes) < 2 or context.cluster is None:
        return []
    strays: dict[str, list[str]] = {}
    for found in report.networks:
        names = _names(found)
        # gloo's ranks on one node also use the loopback interface.
        between = [name for name in names if name != "lo"] or list(names)
        if between and not any(name.startswith(wanted) for name in between):
            strays.setdefault(", ".join(between), []).append(found.host)
    speed = report.speed_of("all")
    fast = f"all-reduce {rate(speed.bandwidth)} " if speed is not None else "the ranks talk "
    profile = context.cluster.profile.name
    there = _there(report, wanted)
    fix = (
        f"set environment.env: {{NCCL_SOCKET_IFNAME: {wanted[0]}, GLOO_SOCKET_IFNAME:"
        f" {(there or wanted)[0]}}} in config.yaml"
    )
    lacking = ""
    if there is not None and not there:  # NCCL and gloo fail on a missing interface
        lacking = ", which not every node has"
        fix = "set environment.unset: [NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME] in config.yaml"
    return [
        Finding(
            id="node-interface",
            level="warning",
            what=(
                f"{fast}over {names}; the profile of {profile} expects {', '.join(wanted)}{lacking}"
            ),
            evidence=(
                f"on {', '.join(dict.fromkeys(hosts))};"
                f" {context.cluster.evidence('network', 'interface')}"
            ),
            reason="this network is ten to seventy times slower, and every step waits for it",
            fix=fix,
        )
        for names, hosts in strays.items()
    ]


def _there(report: Report, wanted: tuple[str, ...]) -> list[str] | None:
    """Return the interfaces with these prefixes that every node has; None if the nodes do not
    report theirs.
    """
    known = [set(node.interfaces) for node in report.nodes if node.interfaces]
    return (
        sorted(name for name in set.intersection(*known) if name.startswith(wanted))
        if known
        else None
    )


def _names(found: NetworkFacts) -> tuple[str, ...]:
    """Return the interfaces to compare: the data's for sockets, else the one that the ranks
    connected over.
    """
    if found.transport in ("gloo", "Socket"):
        return found.devices
    return (found.bootstrap,) if found.bootstrap else ()


def _slow(report: Report) -> Iterator[Finding]:
    several = len({rank.host for rank in report.ranks}) > 1
    for group in dict.fromkeys(speed.group for speed in report.speeds):
        best = report.speed_of(group)
        least = _SLOW_BETWEEN if several and group == "all" else _SLOW_WITHIN
        if best is None or best.backend != "nccl" or best.bandwidth >= least:
            continue
        where = f"among {count(best.ranks, 'rank')}" + (
            " of all nodes" if group == "all" else f" of {group}"
        )
        over = (
            ", ".join(dict.fromkeys(each.transport for each in report.networks if each.transport))
            or "an unknown transport"
        )
        yield Finding(
            id="node-all-reduce-slow",
            level="warning",
            what=f"all-reduce {where}: {rate(best.bandwidth)} over {over}",
            evidence=f"NCCL, {best.bytes >> 20} MiB, bus bandwidth; less than {rate(least)}",
            reason="every step waits for it",
            fix="set environment.env: {NCCL_DEBUG: INFO} in config.yaml, and see what NCCL chose",
        )
