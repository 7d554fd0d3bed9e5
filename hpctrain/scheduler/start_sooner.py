"""What would let a waiting job start sooner: the changes worth asking about, and Slurm's answer to each (`sbatch --test-only`).

Pure, but for `ask`, which asks a bounded number of questions, one after the other. Nothing is submitted, and nothing is changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpctrain.clusters.live import LiveCluster, LivePartition
from hpctrain.errors import SchedulerError
from hpctrain.scheduler import process
from hpctrain.scheduler.parse import duration
from hpctrain.scheduler.parse.accounting_sacct import integer, tres_of
from hpctrain.scheduler.slurm_accounts import epoch

#: Questions about one job: each makes slurmctld look through its plan.
MOST_ASKED = 8
#: Seconds: no training is worth a shorter limit.
_SHORTEST_S = 600
#: Of sbatch's options, what scontrol update calls them.
_UPDATES = {"nodes": "NumNodes", "time": "TimeLimit", "partition": "Partition", "qos": "QOS"}
#: Slurm 26.05 writes a lone `a` behind the time.
_TO_START = re.compile(r"Job (?:\S+) to start at (\S+)(?: \S+)? using (\d+) processors on nodes (\S+) in partition (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a waiting job asks for, as `scontrol show job` says it. Unknown is None.

    Attributes:
        gpus: of each node.
        options: of sbatch, that stand for the job as it is.
    """

    job_id: str
    nodes: int | None = None
    time_limit_s: int | None = None
    partition: str | None = None
    qos: str | None = None
    account: str | None = None
    gpus: int = 0
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a job, and what came of asking.

    Attributes:
        words: what is changed, from what to what.
        options: of sbatch, on its command line, where they stand in place of the script's.
        command: what makes the change.
        start: seconds since the epoch, as Slurm expects it; None: Slurm would not take it, or does not say.
        refused: Slurm's words, where it would not take it.
    """

    words: str
    options: tuple[str, ...]
    command: str = ""
    start: float | None = None
    refused: str | None = None


def wish_of(fields: Mapping[str, str]) -> Wish:
    """Return what a job asks for from its fields of `scontrol show job -o`."""
    nodes = integer(fields.get("NumNodes", "").split("-")[0])
    limit = duration.parse_reported(fields.get("TimeLimit", ""))
    said = {name: text for name in ("Partition", "QOS", "Account") if (text := fields.get(name, "")) not in ("", "(null)", "N/A")}
    tres = tres_of(fields.get("ReqTRES", "") or fields.get("TRES", ""))
    per_node = fields.get("TresPerNode", "").replace("gres/", "").replace("gres:", "")
    gpus = re.search(r"gpu(?:[:=][^,()]*?)?[:=]?(\d+)(?:\(|,|\Z)", per_node)
    whole = integer(tres.get("gres/gpu", "")) or 0
    options = [f"--nodes={nodes}"] if nodes else []
    options += [f"--time={duration.format(limit)}"] if limit else []
    options += [f"--{name.lower()}={text}" for name, text in said.items()]
    options += [f"--gres={gpus[0].rstrip('(,')}"] if gpus else []
    return Wish(
        job_id=fields["JobId"].split()[0], nodes=nodes, time_limit_s=limit, partition=said.get("Partition"), qos=said.get("QOS"),
        account=said.get("Account"), gpus=int(gpus[1]) if gpus else whole // max(1, nodes or 1), options=tuple(options),
    )  # fmt: skip


def changes(wish: Wish, live: LiveCluster, *, needs_s: int | None = None, ours: bool = True) -> list[Change]:
    """Return the changes to ask about, those that cost the least first: at most MOST_ASKED.

    Args:
        wish: the job.
        live: the cluster, with the nodes that are idle now.
        needs_s: seconds that the run still needs, where that is known: no shorter limit is asked about.
        ours: whether hpctrain wrote the script, so that it can write it for other nodes; else Slurm changes the job as it is.
    """
    times, nodes = _shorter(wish, needs_s), _fewer_nodes(wish)
    elsewhere, qos = _partitions(wish, live, needs_s), _qos(wish, live, needs_s)
    # Fewer nodes in a shorter time may fit where neither does alone; a run whose need is known needs longer on fewer nodes.
    both = [_joined(nodes[-1], times[-1])] if nodes and times and not needs_s else []
    # In turns, so that none of the kinds crowds out another.
    chosen = [*elsewhere[:2], *times[:2], *nodes[:2], *qos[:1], *both, *elsewhere[2:]][:MOST_ASKED]
    return [replace(change, command=_command(change.options, wish, ours=ours)) for change in chosen]


def _command(options: Sequence[str], wish: Wish, *, ours: bool) -> str:
    """Return what makes a change: in place, where that does it, because the job keeps its age; a script for other nodes is a new one."""
    pairs = [option.removeprefix("--").split("=", 1) for option in options]
    if ours and any(name == "nodes" for name, _ in pairs):
        said = " ".join(f"--{name} {value}" for name, value in pairs)
        return f"hpctrain submit {said}, then: hpctrain cancel {wish.job_id}"
    return f"scontrol update JobId={wish.job_id} " + " ".join(f"{_UPDATES[name]}={value}" for name, value in pairs)


def _shorter(wish: Wish, needs_s: int | None) -> list[Change]:
    limit = wish.time_limit_s
    if limit is None:
        return []
    floor = max(_SHORTEST_S, int((needs_s or 0) * 1.1) + 300 if needs_s else 0)  # a tenth, and the start of the training
    wanted = [floor] if needs_s else [limit // 2, limit // 4]
    found = []
    for seconds in dict.fromkeys(each // 60 * 60 for each in wanted):
        if _SHORTEST_S <= seconds < limit:
            text = duration.format(seconds)
            why = ", which the run still needs" if needs_s else ""
            found.append(Change(words=f"time {duration.format(limit)} -> {text}{why}", options=(f"--time={text}",)))
    return found


def _fewer_nodes(wish: Wish) -> list[Change]:
    if wish.nodes is None:
        return []
    return [_to_nodes(wish.nodes, fewer) for fewer in dict.fromkeys((wish.nodes // 2, 1)) if 0 < fewer < wish.nodes]


def _joined(first: Change, second: Change) -> Change:
    return Change(words=f"{first.words}, {second.words.partition(', which')[0]}", options=(*first.options, *second.options))


def _partitions(wish: Wish, live: LiveCluster, needs_s: int | None) -> list[Change]:
    """Return the partitions with idle nodes of the right kind now: first those with enough of them, and those with the most."""
    own = set((wish.partition or "").split(","))
    wanted = wish.nodes or 1
    found: list[tuple[bool, int, Change]] = []
    for partition in live.partitions or ():
        idle = sum(group.idle or 0 for group in partition.nodes if group.gpu_count >= wish.gpus)
        nodes = min(wanted, idle)
        if partition.name in own or partition.up is False or not nodes or not _may_use(partition, wish):
            continue
        limit = _fitting(wish.time_limit_s, partition.time_max, needs_s)
        if limit is False or _out_of(nodes, partition.nodes_min, partition.nodes_max):
            continue
        change = _moved("partition", wish.partition, partition.name, limit)
        found.append((nodes < wanted, -idle, change if nodes == wanted else _joined(change, _to_nodes(wanted, nodes))))
    return [change for _, _, change in sorted(found, key=lambda each: each[:2])]


def _to_nodes(old: int, new: int) -> Change:
    return Change(words=f"nodes {old} -> {new}", options=(f"--nodes={new}",))


def _may_use(partition: LivePartition, wish: Wish) -> bool:
    account, qos = wish.account, wish.qos
    allowed = partition.allow_accounts is None or account is None or account in partition.allow_accounts
    allowed_qos = partition.allow_qos is None or qos is None or qos in partition.allow_qos
    return allowed and allowed_qos and account not in partition.deny_accounts and qos not in partition.deny_qos


def _qos(wish: Wish, live: LiveCluster, needs_s: int | None) -> list[Change]:
    """Return the QOS that the user may use with this account, and whose limits the job fits."""
    mine = {name for each in live.associations or () if each.account == wish.account for name in each.qos}
    found = []
    for qos in live.qos or ():
        gpus = wish.gpus * (wish.nodes or 1)
        if qos.name == wish.qos or qos.name not in mine or _out_of(wish.nodes, qos.nodes_min, qos.nodes_max):
            continue
        if _out_of(gpus, None, qos.gpus_max):
            continue
        limit = _fitting(wish.time_limit_s, qos.time_max, needs_s)
        if limit is not False:
            found.append(_moved("QOS", wish.qos, qos.name, limit))
    return found


def _out_of(count: int | None, low: int | None, high: int | None) -> bool:
    return count is not None and ((low is not None and count < low) or (high is not None and count > high))


def _fitting(limit: int | None, most: int | None, needs_s: int | None) -> int | bool | None:
    """Return the time limit to ask for: None for the job's own; False where what is allowed is too short to be of use."""
    if most is None or (limit is not None and limit <= most):
        return None
    return most if most >= max(_SHORTEST_S, needs_s or 0) else False


def _moved(what: str, old: str | None, new: str, limit: int | bool | None) -> Change:
    change = Change(words=f"{what} {old or '-'} -> {new}", options=(f"--{what.lower()}={new}",))
    if not limit:
        return change
    text = duration.format(int(limit))
    return _joined(change, Change(words=f"time -> {text}", options=(f"--time={text}",)))


def ask(script: Path, wish: Wish, asked: Sequence[Change], *, timeout: float) -> list[Change]:
    """Return the changes with Slurm's answers; nothing is submitted.

    Raises:
        SchedulerError: Slurm does not answer at all.
    """
    environment = {**process.clean(os.environ), "SLURM_TIME_FORMAT": "%s"}
    found = []
    for change in asked:
        changed = {option.partition("=")[0] for option in change.options}
        own = [option for option in wish.options if option.partition("=")[0] not in changed]
        argv = ["sbatch", "--test-only", *own, *change.options, str(script)]
        done = process.run(argv, timeout=timeout, environment=environment)
        start, said = answer(done.stderr + done.stdout)
        if done.returncode != 0 and re.search(r"unable to contact|connection refused|timed out", done.stderr, re.IGNORECASE):
            raise SchedulerError("Slurm did not answer", details=(f"  sbatch said: {said}",), fix="sinfo")
        found.append(replace(change, start=start, refused=None if start is not None else said))
    return found


def answer(text: str) -> tuple[float | None, str]:
    """Return when a job would start, in seconds since the epoch, and Slurm's last words, from what `sbatch --test-only` printed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):  # a site's plugins may say something in front
        match = _TO_START.search(line)
        if match:
            return epoch(match[1]), line
    said = re.sub(r"^(?:sbatch|allocation failure): (?:error: )?", "", lines[-1]) if lines else "nothing"
    return None, re.sub(r"[^ -~]", "?", said)[:200]
