"""Judge of the all-reduce of a preflight job: right, fast enough, and over the network that the cluster has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.doctor.words import many, rate
from hpctrain.jobs.finding import Finding

if TYPE_CHECKING:
    from hpctrain.doctor.facts import Case
    from hpctrain.doctor.report import NetworkFacts, Report

#: Bus bandwidth, bytes per second, under which NCCL's data has taken a wrong way. Between nodes: over TCP 2.3 GB/s were measured where the
#: fast network gives 163 (Isambard-AI's own notes); one 100 Gb/s link of InfiniBand gives about 11. Within a node: PCIe alone gives more.
_SLOW_BETWEEN = 3e9
_SLOW_WITHIN = 5e9


def network(report: Report, case: Case) -> list[Finding]:
    """Return what is wrong with correctness, speed and way of the all-reduce."""
    wrong = [speed for speed in report.speeds if not speed.right]
    if wrong:
        return [
            Finding(
                id="node-all-reduce-wrong", level="error", what=f"the all-reduce of {wrong[0].group} gives wrong sums",
                evidence=f"{many(wrong[0].ranks, 'rank')}, {wrong[0].bytes} bytes, {wrong[0].backend}",
                reason="gradients would be wrong, and the loss not tell",
                fix="NCCL_P2P_DISABLE=1 to see whether P2P is at fault; tell the site",
            )
        ]  # fmt: skip
    return [*_interface(report, case), *_slow(report)]


def expected(case: Case) -> tuple[str, ...]:
    """Return the prefixes of the interfaces that the profile expects, as NCCL_SOCKET_IFNAME understands them."""
    words = case.cluster.profile.network.interface if case.cluster is not None else None
    return tuple(word.strip().lstrip("=^") for word in (words or "").split(",") if word.strip())


def used(report: Report) -> tuple[str, ...]:
    """Return what the data went over, each once: interfaces, or the devices of InfiniBand."""
    return tuple(dict.fromkeys(name for found in report.networks for name in found.devices))


def _interface(report: Report, case: Case) -> list[Finding]:
    wanted = expected(case)
    nodes = {rank.host for rank in report.ranks}
    if not wanted or len(nodes) < 2 or case.cluster is None:
        return []
    strays: dict[str, list[str]] = {}
    for found in report.networks:
        names = _names(found)
        # gloo's ranks of one node talk over the loopback, beside the network.
        between = [name for name in names if name != "lo"] or list(names)
        if between and not any(name.startswith(wanted) for name in between):
            strays.setdefault(", ".join(between), []).append(found.host)
    speed = report.speed_of("all")
    fast = f"all-reduce {rate(speed.bandwidth)} " if speed is not None else "the ranks talk "
    profile = case.cluster.profile.name
    return [
        Finding(
            id="node-interface", level="warning", what=f"{fast}over {names}; the profile of {profile} expects {', '.join(wanted)}",
            evidence=f"on {', '.join(dict.fromkeys(hosts))}; {case.cluster.evidence('network', 'interface')}",
            reason="the slow network is ten to seventy times slower, and every step waits for it",
            fix=f"environment.env: {{NCCL_SOCKET_IFNAME: {wanted[0]}, GLOO_SOCKET_IFNAME: {wanted[0]}}} in config.yaml",
        )
        for names, hosts in strays.items()
    ]  # fmt: skip


def _names(found: NetworkFacts) -> tuple[str, ...]:
    """Return interfaces to compare: of sockets those of the data, else the one over which the ranks found each other."""
    if found.transport in ("gloo", "Socket"):
        return found.devices
    return (found.bootstrap,) if found.bootstrap else ()


def _slow(report: Report) -> list[Finding]:
    """Only NCCL is held to a speed: gloo's is that of the CPU's memory, and no training on GPUs uses it for gradients."""
    several = len({rank.host for rank in report.ranks}) > 1
    found = []
    for group in dict.fromkeys(speed.group for speed in report.speeds):
        best = report.speed_of(group)
        least = _SLOW_BETWEEN if several and group == "all" else _SLOW_WITHIN
        if best is None or best.backend != "nccl" or best.bandwidth >= least:
            continue
        where = f"among {many(best.ranks, 'rank')}" + (" of all nodes" if group == "all" else f" of {group}")
        over = ", ".join(dict.fromkeys(each.transport for each in report.networks if each.transport)) or "an unknown transport"
        found.append(
            Finding(
                id="node-all-reduce-slow", level="warning", what=f"all-reduce {where}: {rate(best.bandwidth)} over {over}",
                evidence=f"NCCL, {best.bytes >> 20} MiB, bus bandwidth; less than {rate(least)}",
                reason="every step waits for it",
                fix="NCCL_DEBUG=INFO shows what NCCL chose, and why; the site's module for NCCL's network plugin",
            )
        )  # fmt: skip
    return found
