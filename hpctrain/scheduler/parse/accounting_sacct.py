"""What sacct prints, as accounts: the fields of Slurm 20.11 to 26.05, of which each sacct is asked for those that it knows.

The question is `sacct -n -D -P --delimiter=SEPARATOR -o FIELDS` with SLURM_TIME_FORMAT=%s in its environment. What a user can write into
(names, comments, paths) comes last, so that a separator or a line break in it moves nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from hpctrain.scheduler.parse import duration, states
from hpctrain.scheduler.parse.accounting import Account, Step
from hpctrain.scheduler.parse.records import known, rows

#: sacct(1), in the order in which they are asked for; the first two tell rows apart.
FIELDS = (
    "JobID", "JobIDRaw", "State", "User", "Account", "Partition", "QOS", "ExitCode", "DerivedExitCode", "Submit", "Start", "End",
    "ElapsedRaw", "Timelimit", "NNodes", "NodeList", "NTasks", "NCPUS", "ReqMem", "AllocTRES", "ReqTRES", "MaxRSS", "MaxRSSNode",
    "MaxRSSTask", "TotalCPU",
    "FailedNode",  # 23.02
    "Restarts",  # 24.11
    "Reason",  # 20.11
    "JobName", "WorkDir", "Comment", "StdOut", "StdErr",  # StdOut, StdErr: 24.05
    "SubmitLine",  # 21.08
)  # fmt: skip
#: Without these nothing can be said.
NEEDED = ("JobID", "State")
#: How a requeue leaves the record of the start before it (tests/lab/README.md): a state in which no job ends for good, or not always.
_REQUEUED = {"REQUEUED", "PREEMPTED", "NODE_FAIL", "TIMEOUT", "BOOT_FAIL", "REVOKED"}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?)([KMGTPE]?)(?:i?B)?\Z", re.IGNORECASE)
_FACTORS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5, "E": 1024**6}
_CPU_TIME = re.compile(
    r"(?:(?P<days>[0-9]{1,9})-)?(?:(?P<hours>[0-9]{1,9}):)?(?P<minutes>[0-9]{1,9}):(?P<seconds>[0-9]{1,9}(?:\.[0-9]{1,9})?)\Z"
)

Epoch = Callable[[str], float | None]


def fields_of(helpformat: str) -> tuple[str, ...]:
    """Return those of FIELDS that a sacct knows, from what its `--helpformat` printed; all that 20.11 has, where that says nothing."""
    there = {word.lower() for word in helpformat.split()}
    found = tuple(name for name in FIELDS if name.lower() in there)
    return found if set(NEEDED) <= set(found) else tuple(name for name in FIELDS if name not in NEW_FIELDS)


#: Of FIELDS, what Slurm 20.11 does not have.
NEW_FIELDS = frozenset({"FailedNode", "Restarts", "StdOut", "StdErr", "SubmitLine"})


def seconds_since_epoch(text: str) -> float | None:
    """Return a time that was printed with SLURM_TIME_FORMAT=%s; None for `Unknown`, `None` and all other forms."""
    return float(text) if re.fullmatch(r"[0-9]{1,11}", text) and int(text) else None


def parse(output: str, fields: Sequence[str], *, epoch: Epoch = seconds_since_epoch) -> list[Account]:
    """Return the records in what sacct printed, each start of each job one, in sacct's order; steps belong to the row above them.

    A job that is called FAILED while the kernel killed one of its steps for memory is OUT_OF_MEMORY, as in `records.parse_sacct`.

    Args:
        output: of sacct.
        fields: that were asked for, JobID and State among them.
        epoch: makes seconds of a time that was printed.
    """
    found: list[Account] = []
    for row in rows(output, len(fields)):
        said = dict(zip(fields, row, strict=True))
        job_id, _, step = said["JobID"].partition(".")
        if not step:
            found.append(_account(job_id, said, epoch))
        elif found and found[-1].job_id == job_id:
            found[-1] = _with_step(found[-1], _step(step, said))
    return found


def _account(job_id: str, said: Mapping[str, str], epoch: Epoch) -> Account:
    exit_code, signal = exit_of(said.get("ExitCode", ""))
    state = states.normalise(said["State"])
    if state == "FAILED" and exit_of(said.get("DerivedExitCode", "")) == (0, 125):
        state = "OUT_OF_MEMORY"
    by = re.search(r"CANCELLED by ([0-9]{1,10})", said["State"])
    n_nodes, cpus = integer(said.get("NNodes", "")), integer(said.get("NCPUS", ""))
    allocated, required = (tres_of(said.get(name, "")) for name in ("AllocTRES", "ReqTRES"))
    raw = known(said.get("JobIDRaw", ""))
    nodes = known(said.get("NodeList", ""))
    return Account(
        job_id=job_id, scheduler="slurm", state=state, slurm_job_id=raw if raw != job_id else None,
        name=said.get("JobName"), user=known(said.get("User", "")), account=known(said.get("Account", "")),
        partition=known(said.get("Partition", "")), qos=known(said.get("QOS", "")), reason=known(said.get("Reason", "")),
        exit_code=exit_code, signal=signal,
        submitted=epoch(said.get("Submit", "")), started=epoch(said.get("Start", "")), ended=epoch(said.get("End", "")),
        elapsed_s=integer(said.get("ElapsedRaw", "")), time_limit_s=duration.parse_reported(said.get("Timelimit", "")),
        nodes=None if nodes == "None assigned" else nodes, n_nodes=n_nodes, cpus=cpus,
        gpus=gpus_of(allocated) if allocated else gpus_of(required),
        memory_bytes=memory_of_node(said.get("ReqMem", ""), allocated, required, n_nodes=n_nodes, cpus=cpus),
        failed_node=known(said.get("FailedNode", "")), restarts=integer(said.get("Restarts", "")),
        cancelled_by=int(by[1]) if by else None, comment=known(said.get("Comment", "")), work_dir=known(said.get("WorkDir", "")),
        command=known(said.get("SubmitLine", "")), output=known(said.get("StdOut", "")), error=known(said.get("StdErr", "")),
        source="sacct",
    )  # fmt: skip


def _step(name: str, said: Mapping[str, str]) -> Step:
    exit_code, signal = exit_of(said.get("ExitCode", ""))
    return Step(
        name=name, state=states.normalise(said["State"]), exit_code=exit_code, signal=signal,
        elapsed_s=integer(said.get("ElapsedRaw", "")), n_tasks=integer(said.get("NTasks", "")), nodes=known(said.get("NodeList", "")),
        max_rss_bytes=size_of(said.get("MaxRSS", "")) or None,  # 0: it ended before anybody looked
        max_rss_node=known(said.get("MaxRSSNode", "")), max_rss_task=integer(said.get("MaxRSSTask", "")),
        cpu_s=cpu_seconds(said.get("TotalCPU", "")),
    )  # fmt: skip


def _with_step(account: Account, step: Step) -> Account:
    killed = step.state == "OUT_OF_MEMORY" and account.state == "FAILED"
    return replace(account, steps=(*account.steps, step), state="OUT_OF_MEMORY" if killed else account.state)


def newest(records: Iterable[Account], *, near: Mapping[str, float] | None = None) -> list[Account]:
    """Return one account for each job id, in the order in which the ids first come, with the earlier starts of the same job in it.

    Ids are reused, after MaxJobId or a new database: the job that was submitted last counts, or the one that was there at a time.

    Args:
        records: of `parse`, with --duplicates.
        near: job id to seconds since the epoch at which the job meant was running, or at least submitted.
    """
    of_id: dict[str, list[Account]] = {}
    for each in records:
        of_id.setdefault(each.job_id, []).append(each)
    return [_chosen(same, _at(job_id, near or {})) for job_id, same in of_id.items()]


def _at(job_id: str, near: Mapping[str, float]) -> float | None:
    """Return the time at which a job was there; of a task, that of its array will do."""
    return near.get(job_id, near.get(job_id.partition("_")[0]))


def _chosen(same: list[Account], at: float | None) -> Account:
    in_order = sorted(same, key=lambda each: (each.submitted or 0.0, each.started or 9e11))
    chains: list[list[Account]] = []
    for each in in_order:
        last = chains[-1][-1] if chains else None
        if last is not None and last.state in _REQUEUED and (last.name, last.user) == (each.name, each.user):
            chains[-1].append(each)
        else:
            chains.append([each])
    chain = chains[-1] if at is None else min(chains, key=lambda chain: _distance(chain, at))
    account = chain[-1]
    counted = account.restarts if account.restarts is not None else len(chain) - 1
    return replace(account, restarts=counted, submitted=chain[0].submitted, earlier=tuple(chain[:-1]))


def _distance(chain: Sequence[Account], at: float) -> float:
    """Return the seconds between a time and the life of a job; 0 within it."""
    begins = min((each.submitted for each in chain if each.submitted is not None), default=0.0)
    ends = chain[-1].ended if chain[-1].ended is not None else 9e11
    return max(0.0, begins - at, at - ends)


def tres_of(text: str) -> dict[str, str]:
    """Return name to amount of `cpu=8,mem=64G,gres/gpu:a100=4`; what has no `=` is left out."""
    return dict(item.split("=", 1) for item in text.split(",") if "=" in item)


def gpus_of(tres: Mapping[str, str]) -> int | None:
    """Return the GPUs in trackable resources; None where GPUs are not among them, which may mean that the site does not count them."""
    whole = integer(tres.get("gres/gpu", ""))
    typed = [count for name, amount in tres.items() if name.startswith("gres/gpu:") and (count := integer(amount)) is not None]
    return whole if whole is not None else sum(typed) if typed else None


def memory_of_node(
    asked: str, allocated: Mapping[str, str], required: Mapping[str, str], *, n_nodes: int | None, cpus: int | None
) -> int | None:
    """Return the bytes that a job may use on each node.

    Args:
        asked: ReqMem: up to Slurm 20.11 `4000Mn` (of a node), `4Gc` (of a CPU), `0n` (all of it); since 21.08 of the whole job.
        allocated: AllocTRES, whose `mem` is the job's, over all its nodes.
        required: ReqTRES, in place of it while the job waits.
        n_nodes: of the job.
        cpus: of the job.
    """
    nodes = max(1, n_nodes or 1)
    size, kind = size_of(asked.rstrip("nc")), asked[-1:]
    if size and kind == "n":
        return size
    for tres in (allocated, required):
        if whole := size_of(tres.get("mem", "")):
            return whole // nodes
    if not size:
        return None
    return size * (cpus or 1) // nodes if kind == "c" else size // nodes


def size_of(text: str) -> int | None:
    """Return the bytes in `1234K`, `62.50G` or `512`; None for what is none."""
    match = _SIZE.match(text.strip())
    return int(float(match[1]) * _FACTORS[match[2].upper()]) if match else None


def cpu_seconds(text: str) -> float | None:
    """Return the seconds in `1-02:03:04`, `02:03:04`, `03:04.567`; None for what is none."""
    match = _CPU_TIME.match(text.strip())
    if match is None:
        return None
    part = {name: float(value) for name, value in match.groupdict(default="0").items()}
    return part["days"] * duration.DAY + part["hours"] * 3600 + part["minutes"] * 60 + part["seconds"]


def exit_of(text: str) -> tuple[int | None, int | None]:
    """Return code and signal of `1:0`."""
    match = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
    return (int(match[1]), int(match[2]) or None) if match else (None, None)


def integer(text: str) -> int | None:
    """Return a whole number; None for what is none."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None
