"""Pure evaluation of the preflight job: the nodes' reports, compared with the request, each other,
and the cluster's profile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpctrain.doctor.facts import DoctorContext
from hpctrain.finding import LEVELS, Finding
from hpctrain.logs.preflight import NodeFacts, RankFacts, Report
from hpctrain.slurm.notations import array, hostlist
from hpctrain.util.text import count, rate

#: In a fix, the nodes that have the problem.
_NODES = "NODES"
_EXCLUDE = f"hpctrain submit --sbatch exclude={_NODES}"
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
        ranks = report.ranks_of(node.host)
        for finding in (*_missing_gpus(node, ranks, context), *_cores(ranks), *_access(node)):
            alike.setdefault(finding, []).append(node.host)
    found = [*_silent(report, context, job_words), *_not_tried(report, context)]
    for finding, hosts in alike.items():  # `node[1-16]: 3 of 4 GPUs`
        names = hostlist.compress(hosts)
        fix = finding.fix.replace(_NODES, names)
        found.append(replace(finding, what=f"{names}: {finding.what}", fix=fix))
    found += _network(report)
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
    failed = {failure.rank for failure in report.failures}
    quiet = [rank.rank for rank in report.ranks if not rank.done and rank.rank not in failed]
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


def _missing_gpus(
    node: NodeFacts, ranks: tuple[RankFacts, ...], context: DoctorContext
) -> Iterator[Finding]:
    asked = context.spec.gpus_per_node
    seen = [rank.visible for rank in ranks if rank.visible is not None and not rank.on_cpu]
    if not seen or min(seen) >= asked:
        return
    build = next((rank for rank in ranks if rank.version is not None), None)
    given = "an unknown number" if node.gpus_given is None else node.gpus_given
    evidence, fix = f"torch.cuda.device_count(); Slurm allocated {given}", _EXCLUDE
    if build is not None and build.cuda is None and build.hip is None:
        evidence, fix = f"torch {build.version} is a CPU build", "hpctrain doctor"
    yield Finding(
        id="node-gpus-missing",
        level="error",
        what=f"{min(seen)} of {count(asked, 'GPU')}",
        evidence=evidence,
        reason="a process without its own GPU stops the training, or shares one",
        fix=fix,
    )


def _cores(ranks: tuple[RankFacts, ...]) -> Iterator[Finding]:
    asked = next((rank.cpus_per_task for rank in ranks if rank.cpus_per_task), 0)
    few = [rank for rank in ranks if rank.cpu_set and len(rank.cpu_set) < asked]
    if few:
        fewest = min(few, key=lambda rank: len(rank.cpu_set))
        who = "all ranks" if len(few) == len(ranks) else _ranks([rank.rank for rank in few])
        yield Finding(
            id="node-cores-few",
            level="error" if len(fewest.cpu_set) == 1 else "warning",
            what=f"{who} on {count(len(fewest.cpu_set), 'core')} (CPU {fewest.cpus}) of {asked} for"
            " each task",
            evidence=f"sched_getaffinity, against SLURM_CPUS_PER_TASK={asked}",
            reason=(
                "data loading and kernel launches of all processes queue for the same cores, and"
                " the GPUs wait"
            ),
            fix="set launch.cpu_bind: none in config.yaml",
        )


def _access(node: NodeFacts) -> Iterator[Finding]:
    for access, id_, what, fix in (
        (node.read, "node-dataset-unreadable", "read the dataset", "--dataset_name"),
        (node.write, "node-checkpoint-unwritable", "write a checkpoint", "--output_dir"),
    ):
        if access is not None and access.error is not None:
            yield Finding(
                id=id_,
                level="error",
                what=f"cannot {what}: {access.error}",
                evidence=f"tried in {access.path}, on that node",
                reason="the training would fail there, perhaps hours after its start",
                fix=f"name a directory that all nodes share: {fix}",
            )


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {array.compress(numbers)}"


# -- the network -----------------------------------------------------------------------------------


def used(report: Report) -> tuple[str, ...]:
    """Return the distinct interfaces, or InfiniBand devices, that the data went over."""
    return tuple(dict.fromkeys(name for found in report.networks for name in found.devices))


def _network(report: Report) -> Iterator[Finding]:
    several = len({rank.host for rank in report.ranks}) > 1
    transports = dict.fromkeys(each.transport for each in report.networks if each.transport)
    for group in dict.fromkeys(speed.group for speed in report.speeds):
        best = report.speed_of(group)
        least = _SLOW_BETWEEN if several and group == "all" else _SLOW_WITHIN
        if best is None:
            continue
        where = f"{count(best.ranks, 'rank')} of {'all nodes' if group == 'all' else group}"
        evidence = f"{best.backend}, {best.bytes >> 20} MiB, bus bandwidth"
        if not all(speed.right for speed in report.speeds if speed.group == group):
            yield Finding(
                id="node-all-reduce-wrong",
                level="error",
                what=f"the all-reduce among {where} gives wrong sums",
                evidence=evidence,
                reason="gradients would be wrong, unnoticed in the loss",
                fix="NCCL_P2P_DISABLE=1 hpctrain doctor --job",
            )
        elif best.backend == "nccl" and best.bandwidth < least:
            yield Finding(
                id="node-all-reduce-slow",
                level="warning",
                what=f"all-reduce among {where}: {rate(best.bandwidth)} over"
                f" {', '.join(transports) or 'an unknown transport'}",
                evidence=f"{evidence}; less than {rate(least)}",
                reason="every step waits for it",
                fix="set environment.env: {NCCL_DEBUG: INFO} in config.yaml, and see what NCCL chose",
            )
