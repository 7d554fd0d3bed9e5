"""Job records from the output of squeue, sacct and scontrol.

The queries use the unit separator (U+001F) between fields, because job names, comments and
constraints may contain any printable character, including `|`. sbatch also accepts newlines in them
(tested with Slurm 22.05), and squeue prints those verbatim.

sacct is called with the FIELDS (Slurm 20.11 to 26.05) that it supports: `sacct -n -D -P
--delimiter=SEPARATOR -o FIELDS`, with SLURM_TIME_FORMAT=%s in its environment. Fields that users
can write (names, comments, paths) come last, so that a separator or a newline in them does not
shift the others. scontrol is used if accounting is missing, late or unreachable; it shows neither
steps nor usage.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpctrain.slurm.notations import states, units
from hpctrain.util.text import integer, is_number

SEPARATOR = "\x1f"

#: squeue -o: id, name, state, reason, elapsed, limit, nodes, partition, expected or actual start,
#: comment.
SQUEUE_FORMAT = SEPARATOR.join(("%i", "%j", "%T", "%r", "%M", "%l", "%D", "%P", "%S", "%k"))
_BLANK = {"", "N/A", "Unknown", "None", "NONE", "(null)", "None assigned", "n/a", "NULL"}
#: sacct(1), in query order; the first two identify rows.
FIELDS = (
    "JobID",
    "JobIDRaw",
    "State",
    "User",
    "Account",
    "Partition",
    "QOS",
    "ExitCode",
    "DerivedExitCode",
    "Submit",
    "Start",
    "End",
    "ElapsedRaw",
    "Timelimit",
    "NNodes",
    "NodeList",
    "NTasks",
    "NCPUS",
    "AllocTRES",
    "ReqTRES",
    "MaxRSS",
    "FailedNode",  # 23.02
    "Restarts",  # 24.11
    "Reason",  # 20.11
    "JobName",
    "WorkDir",
    "Comment",
    "StdOut",
    "StdErr",  # StdOut, StdErr: 24.05
    "SubmitLine",  # 21.08
)
#: States of the record of an earlier start after a requeue (tests/lab/README.md); not, or not
#: always, final states of a job.
_REQUEUED = {"REQUEUED", "PREEMPTED", "NODE_FAIL", "TIMEOUT", "BOOT_FAIL", "REVOKED"}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?)([KMGTPE]?)(?:i?B)?\Z", re.IGNORECASE)
_FACTORS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5, "E": 1024**6}

#: The FIELDS that Slurm 20.11 lacks.
NEW_FIELDS = frozenset({"FailedNode", "Restarts", "StdOut", "StdErr", "SubmitLine"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUsage:
    """One job step, including `batch` and `extern`. Unknown is None.

    Attributes:
        name: the part of its id after the dot: `0`, `batch`, `extern`.
        max_rss_bytes: the largest sampled memory of one task.
    """

    name: str
    state: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    elapsed_s: int | None = None
    n_tasks: int | None = None
    nodes: str | None = None
    max_rss_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A scheduler's record of one job or array task. Unknown is None: squeue and the queries for
    states give less than accounting.

    Attributes:
        job_id: Slurm's id, `123` or `123_4`, without a cluster; slurm_job_id: its raw job number,
            if different.
        scheduler: `slurm` or `local`.
        state: one of `states`, or `states.UNKNOWN`; reason: Slurm's reason for it.
        exit_code: of the batch script, 0 to 255; signal: the signal that ended it.
        submitted, started, ended: seconds since the epoch.
        start: actual or expected start, as the scheduler printed it.
        elapsed_s, time_limit_s: seconds of wall clock; no limit is None too.
        nodes: host list, `n[1-2]`; n_nodes: their number.
        memory_bytes: requested, per node.
        gpus: of the whole job.
        failed_node: the failed node according to Slurm.
        restarts: number of requeues.
        cancelled_by: id of the user who cancelled it.
        command: the submission command, if Slurm keeps it.
        output, error: log files of the batch script as the scheduler reports them, with or without
            expanded patterns.
        earlier: records of its starts before a requeue, oldest first; these have no `earlier`
            themselves.
        source: of its usage: `sacct`, `scontrol` or `local`.
        note: a sentence on missing data, such as why the source is not sacct.
    """

    job_id: str
    scheduler: str
    state: str
    slurm_job_id: str | None = None
    name: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    start: str | None = None
    elapsed_s: int | None = None
    time_limit_s: int | None = None
    nodes: str | None = None
    n_nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    memory_bytes: int | None = None
    failed_node: str | None = None
    restarts: int | None = None
    dependency: str | None = None
    cancelled_by: int | None = None
    comment: str | None = None
    work_dir: str | None = None
    command: str | None = None
    output: str | None = None
    error: str | None = None
    steps: tuple[StepUsage, ...] = ()
    earlier: tuple[JobRecord, ...] = ()
    source: str = ""
    note: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether the state never changes again."""
        return states.is_final(self.state)

    @property
    def exit_status(self) -> int:
        """The job's exit status for the shell: never 0 for a job that did not complete."""
        if self.state == "COMPLETED":
            return self.exit_code or 0
        if self.exit_code:
            return self.exit_code
        return 128 + self.signal if self.signal and self.signal < 65 else 1

    @property
    def max_rss_bytes(self) -> int | None:
        """The largest sampled memory of one task in any step."""
        return max(
            (step.max_rss_bytes for step in self.steps if step.max_rss_bytes is not None),
            default=None,
        )


def parse_submission(output: str) -> tuple[str, str | None] | None:
    """Return job id and cluster (None on a single-cluster site) from the output of `sbatch
    --parsable`; None if no line is a job id.

    The last such line counts, because submit plugins may print greetings before it.
    """
    for line in reversed(output.splitlines()):
        match = re.fullmatch(r"([0-9]{1,18})(?:;(\S+))?", line.strip())
        if match:
            return match[1], match[2]
    return None


def parse_squeue(output: str) -> list[JobRecord]:
    """Return one record per job of `squeue -h -o SQUEUE_FORMAT`; lines of another form are warnings
    and are skipped.
    """
    found = []
    for fields in rows(output, 10):
        job_id, name, state, reason, elapsed, limit, nodes, partition, start, comment = fields
        found.append(
            JobRecord(
                job_id=job_id,
                scheduler="slurm",
                state=states.normalise(state),
                name=name,
                reason=known(reason),
                elapsed_s=units.parse_reported_time(elapsed),
                time_limit_s=units.parse_reported_time(limit),
                n_nodes=integer(nodes),
                partition=known(partition),
                start=known(start),
                comment=comment_of(comment),
            )
        )
    return found


def parse_scontrol_jobs(output: str) -> list[dict[str, str]]:
    """Return the fields of each job of `scontrol show job -o`.

    A value extends to the next ` Name=`, because names, comments and paths may contain spaces. Text
    inside a job's name or comment may look like a field: the name ends where `UserId=` begins, and
    of two equal fields the first counts, because comments come late.
    """
    found = []
    for job in re.split(r"^(?=JobId=)", output, flags=re.MULTILINE):
        head = re.match(r"(JobId=.*?) JobName=(.*?)(?= UserId=\S*\(\d+\) GroupId=)", job, re.DOTALL)
        if head is None:
            continue
        fields = {"JobName": head[2].strip()}
        # The last field of 20.11 has no `=`, and would be added to the one before it.
        for text in (
            head[1],
            re.sub(r" NtasksPerTRES:\d+\s*\Z", "", job[head.end() :]).rstrip("\n"),
        ):
            starts = list(re.finditer(r"(?:^| )([A-Z][A-Za-z/:_]*)=", text))
            ends = [match.start() for match in starts[1:]] + [len(text)]
            for match, end in zip(starts, ends, strict=True):
                fields.setdefault(match[1], text[match.end() : end].strip())
        found.append(fields)
    return found


def rows(output: str, count: int) -> Iterator[list[str]]:
    """Yield the fields of each job. A job starts at a line whose first field is an id, and extends
    over lines until it has all its fields.
    """
    fields: list[str] = []
    for line in output.split("\n"):
        more = line.split(SEPARATOR)
        # A newline followed by a number in a name looks like the next job, but has exactly the
        # fields that this job still lacks.
        ends = 0 < len(fields) < count == len(fields) + len(more) - 1 and len(more) < count
        if not ends and re.match(rf"[0-9][^{SEPARATOR}\s]*{SEPARATOR}", line):
            fields = more
        elif 0 < len(fields) < count:
            fields = [*fields[:-1], f"{fields[-1]}\n{more[0]}", *more[1:]]
        else:
            continue
        if len(fields) >= count:  # more: the last field contains a separator
            yield [field.strip() for field in fields[:count]]
            fields = []


def without_a_job(record: JobRecord, queue: Mapping[str, JobRecord]) -> JobRecord:
    """Return an accounting record as cancelled if it waits for a restart and slurmctld has no such
    job.

    A job cancelled after its requeue stays REQUEUED in accounting (tested with 22.05).
    """
    array = record.job_id.partition("_")[0]
    if (
        record.state != "REQUEUED"
        or any(job.startswith(f"{array}_[") for job in (record.job_id, *queue))
        or record.job_id in queue
    ):
        return record
    return replace(record, state="CANCELLED", reason="while it waited to start again")


def exit_and_signal(text: str) -> tuple[int | None, int | None]:
    """Return code and signal of `1:0`."""
    match = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
    if match is None:
        return None, None
    return int(match[1]), int(match[2]) or None


def known(text: str) -> str | None:
    """Return `text`, or None if it is one of Slurm's placeholders for no value."""
    return None if text in _BLANK else text


def comment_of(text: str) -> str | None:
    """Return a job's comment, in which `N/A` and `None` are ordinary text; None if there is none,
    which squeue prints as `(null)`.
    """
    return text.replace("(null)", "") or None


# -- accounting -----------------------------------------------------------------------------------


def fields_of(helpformat: str) -> tuple[str, ...]:
    """Return the FIELDS that sacct supports, given its `--helpformat` output; those of 20.11 if the
    output is unusable.
    """
    there = {word.lower() for word in helpformat.split()}
    found = tuple(name for name in FIELDS if name.lower() in there)
    old = tuple(name for name in FIELDS if name not in NEW_FIELDS)
    return found if {"JobID", "State"} <= set(found) else old


def seconds_since_epoch(text: str) -> float | None:
    """Return a time printed with SLURM_TIME_FORMAT=%s; None for `Unknown`, `None` and other
    texts.
    """
    return float(text) if re.fullmatch(r"[0-9]{1,11}", text) and int(text) else None


def parse_sacct(output: str, fields: Sequence[str]) -> list[JobRecord]:
    """Return the records in sacct's output, one for each start of each job, in sacct's order; steps
    belong to the preceding record.

    Slurm up to 22.05 marks a job as FAILED if the kernel killed a step for memory; only the step is
    OUT_OF_MEMORY (exit code 0:125). The job's record then becomes OUT_OF_MEMORY.

    Args:
        output: of sacct.
        fields: the requested fields, JobID and State among them.
    """
    found: list[JobRecord] = []
    for values in rows(output, len(fields)):
        row = defaultdict(str, zip(fields, values, strict=True))
        job_id, _, step = row["JobID"].partition(".")
        if not step:
            found.append(_account(job_id, row))
        elif found and found[-1].job_id == job_id:
            found[-1] = _with_step(found[-1], _step(step, row))
    return found


def _account(job_id: str, row: Mapping[str, str]) -> JobRecord:
    """Return the record in a row of sacct's FIELDS, of which missing ones are empty."""
    exit_code, signal = exit_and_signal(row["ExitCode"])
    by = re.search(r"CANCELLED by ([0-9]{1,10})", row["State"])
    tres = tres_of(row["AllocTRES"]) or tres_of(row["ReqTRES"])
    memory, n_nodes = size_of(tres.get("mem", "")), integer(row["NNodes"])
    raw, state = known(row["JobIDRaw"]), states.normalise(row["State"])
    # The kernel killed a step for memory: 0:125, Slurm's SIG_OOM less 128.
    killed = state == "FAILED" and exit_and_signal(row["DerivedExitCode"]) == (0, 125)
    return JobRecord(
        job_id=job_id,
        scheduler="slurm",
        state="OUT_OF_MEMORY" if killed else state,
        slurm_job_id=raw if raw != job_id else None,
        name=row["JobName"],
        user=known(row["User"]),
        account=known(row["Account"]),
        partition=known(row["Partition"]),
        qos=known(row["QOS"]),
        reason=known(row["Reason"]),
        exit_code=exit_code,
        signal=signal,
        submitted=seconds_since_epoch(row["Submit"]),
        started=seconds_since_epoch(row["Start"]),
        ended=seconds_since_epoch(row["End"]),
        start=known(row["Start"]),
        elapsed_s=integer(row["ElapsedRaw"]),
        time_limit_s=units.parse_reported_time(row["Timelimit"]),
        nodes=known(row["NodeList"]),
        n_nodes=n_nodes,
        cpus=integer(row["NCPUS"]),
        gpus=gpus_of(tres),
        memory_bytes=memory // max(1, n_nodes or 1) if memory else None,
        failed_node=known(row["FailedNode"]),
        restarts=integer(row["Restarts"]),
        cancelled_by=int(by[1]) if by else None,
        comment=comment_of(row["Comment"]),
        work_dir=known(row["WorkDir"]),
        command=known(row["SubmitLine"]),
        output=known(row["StdOut"]),
        error=known(row["StdErr"]),
        source="sacct",
    )


def _step(name: str, row: Mapping[str, str]) -> StepUsage:
    exit_code, signal = exit_and_signal(row["ExitCode"])
    return StepUsage(
        name=name,
        state=states.normalise(row["State"]),
        exit_code=exit_code,
        signal=signal,
        elapsed_s=integer(row["ElapsedRaw"]),
        n_tasks=integer(row["NTasks"]),
        nodes=known(row["NodeList"]),
        max_rss_bytes=size_of(row["MaxRSS"]) or None,  # 0: it ended before the first sample
    )


def _with_step(account: JobRecord, step: StepUsage) -> JobRecord:
    killed = step.state == "OUT_OF_MEMORY" and account.state == "FAILED"
    return replace(
        account, steps=(*account.steps, step), state="OUT_OF_MEMORY" if killed else account.state
    )


def newest(records: Iterable[JobRecord]) -> list[JobRecord]:
    """Return one record per job id, in order of first appearance, with the earlier starts of the
    same job in it.

    Ids are reused, after MaxJobId or with a new database: the last submitted job counts.

    Args:
        records: from `parse_sacct`, with --duplicates.
    """
    of_id: dict[str, list[JobRecord]] = {}
    for each in records:
        of_id.setdefault(each.job_id, []).append(each)
    return [_last_job(same) for same in of_id.values()]


def _last_job(same: list[JobRecord]) -> JobRecord:
    chain: list[JobRecord] = []
    for each in sorted(same, key=lambda each: (each.submitted or 0.0, each.started or 9e11)):
        last = chain[-1] if chain else each
        again = last.state in _REQUEUED and (last.name, last.user) == (each.name, each.user)
        chain = [*chain, each] if again else [each]
    account = chain[-1]
    counted = account.restarts if account.restarts is not None else len(chain) - 1
    return replace(
        account, restarts=counted, submitted=chain[0].submitted, earlier=tuple(chain[:-1])
    )


def tres_of(text: str) -> dict[str, str]:
    """Return name to amount of `cpu=8,mem=64G,gres/gpu:a100=4`; items without `=` are skipped."""
    return dict(item.split("=", 1) for item in text.split(",") if "=" in item)


def gpus_of(tres: Mapping[str, str]) -> int | None:
    """Return the number of GPUs in trackable resources; None if they do not include GPUs, perhaps
    because the site does not track them.
    """
    whole = integer(tres.get("gres/gpu", ""))
    typed = [
        count
        for name, amount in tres.items()
        if name.startswith("gres/gpu:") and (count := integer(amount)) is not None
    ]
    return whole if whole is not None else sum(typed) if typed else None


def size_of(text: str) -> int | None:
    """Return the bytes in `1234K`, `62.50G` or `512`; None for other texts."""
    match = _SIZE.match(text.strip())
    return int(float(match[1]) * _FACTORS[match[2].upper()]) if match else None


def from_scontrol(fields: Mapping[str, str]) -> JobRecord:
    """Return the usage record from one job's fields of `scontrol show job -o`
    (`parse_scontrol_jobs`).
    """
    shown = defaultdict(str, fields)
    array, task, number = shown["ArrayJobId"], shown["ArrayTaskId"], shown["JobId"].split()[0]
    job_id = number
    if array and task:
        job_id = f"{array}_{task}" if is_number(task) else f"{array}_[{task}]"
    row = {
        **{name: shown[name] for name in FIELDS},
        "JobIDRaw": number,
        "State": shown["JobState"],
        "User": shown["UserId"].partition("(")[0],
        "Submit": shown["SubmitTime"],
        "Start": shown["StartTime"],
        "End": shown["EndTime"],
        "ElapsedRaw": str(units.parse_reported_time(shown["RunTime"])),
        "Timelimit": shown["TimeLimit"],
        "NNodes": shown["NumNodes"].split("-")[0],
        "NCPUS": shown["NumCPUs"].split("-")[0],
        "AllocTRES": shown["AllocTRES"].replace("(null)", "") or shown["ReqTRES"] or shown["TRES"],
    }
    record = _account(job_id, row)
    return replace(
        record,
        # Of a pending job, it is the expected time.
        started=None if record.state in states.WAITING else record.started,
        ended=record.ended if record.is_final else None,
        dependency=known(shown["Dependency"]),
        source="scontrol",
    )
