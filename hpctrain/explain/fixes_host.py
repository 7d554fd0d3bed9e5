"""Fixes of host memory, workers and cores: more of what ran out, up to what a node has. PURE."""

from __future__ import annotations

from hpctrain.explain.case import Case
from hpctrain.explain.facts_found import GIB, MIB, current, gib, setting, whole
from hpctrain.explain.facts_host import climb, host_use
from hpctrain.explain.fixes_gpu import _layout, _shape
from hpctrain.explain.fixes_values import Groups, change, fix, gpus_per_node, is_ours, kept, round_up, told
from hpctrain.explain.model import Change, Fix
from hpctrain.fit import host
from hpctrain.scheduler.parse import memory_size, states

#: The limit was too small by nobody knows how much: half as much again is the usual next try.
_MORE = 1.5
#: What an estimate, or a line that is drawn on, may be wrong by.
_SPARE = 1.15
#: Of a node, Slurm keeps some for itself: asked for all, by `--mem 0`, it gives what there is.
_OF_NODE = 0.95
_WORKERS = "dataloader_num_workers"
_CORES = 8
#: Of its memory, a job whose processes were killed may have been at its limit: the record looks every some seconds.
_NEARLY = 0.7


def host_memory(case: Case, _: Groups) -> Fix | None:
    """Return more memory, by what the samples, the formula and the limit say; where the node has no more, fewer workers."""
    had = _limit(case)
    if had is None:
        return None
    node = _of_node(case)
    need, why = _need(case, had)
    if node is not None and need > node:
        if had < node and _asks_by_node(case):
            everything = change(case, "resources.mem", "0")
            return fix(told(everything), *kept(case, everything), more=f"all memory of a node, {gib(node)}: {why}")
        return _fewer_workers(case, f"the job has all of the node already, {gib(node)}") or _fewer_processes(case, node)
    if not _asks_by_node(case):
        return _per_cpu(case, had, need, why)
    more = _mem(case, had, min(round_up(need), max(need, 2 * need // MIB * MIB), *_caps(node)))
    return more and fix(more[0], *kept(case, *more[1]), more=why)


def killed(case: Case, groups: Groups) -> Fix | None:
    """Return what the record makes of a process that was killed, and nothing says by whom: memory that was nearly full, or not."""
    account = case.account
    if account is None or account.state not in states.FAILED:
        return None
    held, asked = account.max_rss_bytes, account.memory_bytes
    if held is None or not asked:
        return None
    said = f"the record says {account.state}; the largest task held {gib(held)} of the {gib(asked)} that the job asked for on each node"
    if held > _NEARLY * asked:
        more = host_memory(case, groups)
        # Not done by itself: what a sample of the record saw is no proof.
        return more and fix(more.text.splitlines()[0], more=said)
    run = case.extra.get("run")
    again = f"hpctrain resubmit {run}\n" if run else ""
    doubt = "so it was not the job's memory limit, unless memory rose within seconds"
    others = "A kill from within, an agent of the site, or a full node are left"
    return fix(f"{said}, {doubt}. {others}.", more=f"{again}if one node does it twice: --sbatch exclude={account.nodes}")


def _caps(node: int | None) -> tuple[int, ...]:
    return () if node is None else (node // GIB * GIB,)


def _mem(case: Case, had: int, size: int) -> tuple[str, tuple[Change, ...]] | None:
    """Return `--mem 64G -> 96G` with its change; None where that is no more than the job had."""
    if size <= had:
        return None
    new = change(case, "resources.mem", memory_size.format(size))
    return f"--mem {memory_size.format(_even(had))} -> {new.new}", (new,)


def _even(size: int) -> int:
    """Return a size in whole MiB: cgroups and records count bytes that nobody asked for."""
    return size if size % GIB == 0 else -(-size // MIB) * MIB


def _per_cpu(case: Case, had: int, need: int, why: str) -> Fix | None:
    each = whole(setting(case, "resources", "mem_per_cpu"))
    if not each:
        return None
    step = 256 * MIB
    size = -(-(each * need // had) // step) * step
    if size <= each:
        return None
    new = change(case, "resources.mem_per_cpu", memory_size.format(size))
    return fix(told(new), *kept(case, new), more=why)


def _asks_by_node(case: Case) -> bool:
    return whole(setting(case, "resources", "mem_per_cpu")) is None


def _limit(case: Case) -> int | None:
    """Return the bytes that the job had on each node: of its cgroup, its record, or its config; of `--mem 0`, of the node."""
    limits = [sample.cgroup_limit_mib * MIB for sample in current(case) if sample.cgroup_limit_mib]
    asked = whole(setting(case, "resources", "mem"))
    account = case.account.memory_bytes if case.account is not None else None
    return account or asked or (min(limits) if limits else None) or _of_node(case)


def _of_node(case: Case) -> int | None:
    """Return the bytes that a job can have of a node: as the cluster says it, else most of what the node has."""
    seen = [int(_OF_NODE * sample.node_total_mib * MIB) for sample in current(case) if sample.node_total_mib]
    known = [*seen, *([case.node_memory_bytes] if case.node_memory_bytes else [])]
    return min(known, default=None)


def _need(case: Case, had: int) -> tuple[int, str]:
    """Return the bytes to ask for, and why as much."""
    rising = climb(case)
    if rising is not None and case.max_steps is not None:
        used = host_use(rising.last)[0] or 0
        end = (used + rising.all_ranks * max(0, case.max_steps - rising.last.step)) * MIB
        why = f"memory rises by {gib(rising.all_ranks * 1000 * MIB)} in 1000 steps: a leak, in the training or its workers"
        return int(max(end * _SPARE, had * 1.01)), f"{why}; this is enough for step {case.max_steps}"
    estimate = _estimate(case)
    peak = max(((host_use(sample)[0] or 0) * MIB for sample in current(case)), default=0)
    seen = f"the samples saw {gib(peak)} of {gib(had)}" if peak else f"{gib(had)} were not enough"
    if estimate is not None and estimate.total * _SPARE > had * _MORE:
        return int(estimate.total * _SPARE), f"{seen}; worked out are {gib(estimate.total)}: {estimate.words}"
    return int(had * _MORE), seen


def _estimate(case: Case) -> host.HostMemory | None:
    """Return what the processes of a node hold by the formula; None of a script of one's own."""
    fit = case.fit or {}
    layout, shape = _layout(fit.get("layout")), _shape(fit.get("shape"))
    if layout is None or not is_ours(case):
        return None
    workers = whole(setting(case, "training", _WORKERS)) or 0
    return host.host_memory(shape.parameters if shape is not None else None, layout, workers=workers, cuda=fit.get("gpu") is not None)


# -- workers, cores ----------------------------------------------------------------------------------------------------


def workers(case: Case, groups: Groups) -> Fix | None:
    """Return fewer data-loader workers: as many as a process has cores for, or half."""
    return _fewer_workers(case, "", most=whole(groups.get("suggested")))


def _fewer_workers(case: Case, why: str, *, most: int | None = None) -> Fix | None:
    now = whole(setting(case, "training", _WORKERS))
    if not now or not is_ours(case):
        return None
    fewer = min(now // 2, most) if most is not None else now // 2
    new = change(case, f"training.{_WORKERS}", fewer)
    each = f"{gpus_per_node(case)} x {now} -> {gpus_per_node(case)} x {fewer} worker processes on each node"
    return fix(told(new), *kept(case, new), more=f"{each}; {why}" if why else each)


def _fewer_processes(case: Case, node: int) -> Fix | None:
    """Return what is left where a node has no more memory and there are no workers: only said, because it is another job."""
    estimate, count = _estimate(case), gpus_per_node(case)
    if count < 2:
        return None
    held = f"; worked out are {gib(estimate.total)} of each node: {estimate.words}" if estimate is not None else ""
    text = f"sharding: fsdp (one process of each node loads the model), or --nodes {2 * (whole(setting(case, 'resources', 'nodes')) or 1)}"
    return fix(f"{text} --gpus {max(1, count // 2)}", more=f"a node has {gib(node)}, and the job had them{held}")


def cpus(case: Case, groups: Groups) -> Fix | None:
    """Return more cores: as many as the workers of its processes take, 8 for each GPU where nobody says; of a node, no more than it has."""
    count = gpus_per_node(case)
    wanted = max(_CORES, (whole(setting(case, "training", _WORKERS)) or whole(groups.get("workers")) or 0) + 1)
    by_gpu, by_task = (whole(setting(case, "resources", name)) for name in ("cpus_per_gpu", "cpus_per_task"))
    tasks = count if setting(case, "launcher") == "srun" else 1
    had = by_gpu or (by_task * tasks // count if by_task else None) or _cores_had(case, count)
    share = whole(case.extra.get("cpus_per_node"))
    wanted = min(wanted, max(1, share // count)) if share else wanted
    if had is None or wanted <= had:
        return None
    key = "resources.cpus_per_task" if by_task else "resources.cpus_per_gpu"
    new = change(case, key, wanted * count // tasks if by_task else wanted)
    option = told(new) if new.old is not None else f"--cpus-per-gpu {had} -> {wanted}"
    return fix(option, *kept(case, new), more=f"{wanted} cores for each GPU's process and its workers, in place of {had}")


def _cores_had(case: Case, count: int) -> int | None:
    account = case.account
    if account is None or not account.cpus or not account.n_nodes:
        return None
    return max(1, account.cpus // account.n_nodes // count)
