"""Job records from the output of squeue, sacct and scontrol.

The queries use the unit separator (U+001F) between fields, because job names, comments and
constraints may contain any printable character, including `|`. sbatch also accepts newlines in them
(tested with Slurm 22.05), and squeue prints those verbatim.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hpctrain.slurm.notations import states, units
from hpctrain.util.text import integer, is_number

SEPARATOR = "\x1f"

#: squeue -o: id, name, state, reason, elapsed, limit, nodes, partition, expected or actual start,
#: comment.
SQUEUE_FORMAT = SEPARATOR.join(("%i", "%j", "%T", "%r", "%M", "%l", "%D", "%P", "%S", "%k"))
#: sacct -o, with -P and --delimiter. All of these exist since Slurm 17.11.
SACCT_FIELDS = (
    "JobID",
    "JobName",
    "State",
    "ExitCode",
    "DerivedExitCode",
    "ElapsedRaw",
    "Timelimit",
    "NNodes",
    "Partition",
    "Start",
    "Comment",
)

_BLANK = {"", "N/A", "Unknown", "None", "NONE", "(null)", "None assigned", "n/a", "NULL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A scheduler's record of one job. Unknown is None.

    Attributes:
        job_id: Slurm's id, `123` or `123_4`, without a cluster.
        scheduler: `slurm` or `local`.
        state: one of `states`, or `states.UNKNOWN`.
        reason: Slurm's reason for the state.
        elapsed_s, time_limit_s: seconds of wall clock; no limit is None too.
        exit_code: of the batch script, 0 to 255.
        signal: the signal that ended it, or None.
        start: actual or expected start, as the scheduler printed it.
    """

    job_id: str
    scheduler: str
    state: str
    name: str | None = None
    reason: str | None = None
    elapsed_s: int | None = None
    time_limit_s: int | None = None
    nodes: int | None = None
    partition: str | None = None
    start: str | None = None
    comment: str | None = None
    exit_code: int | None = None
    signal: int | None = None

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
                nodes=integer(nodes),
                partition=known(partition),
                start=known(start),
                comment=comment_of(comment),
            )
        )
    return found


def parse_sacct(output: str) -> list[JobRecord]:
    """Return one record per job of `sacct -n -P --delimiter=SEPARATOR -o SACCT_FIELDS`, merged with
    its steps.

    Slurm up to 22.05 marks a job as FAILED if the kernel killed a step for memory; only the step is
    OUT_OF_MEMORY (exit code 0:125). The job's record then becomes OUT_OF_MEMORY.
    """
    jobs: dict[str, JobRecord] = {}
    for fields in rows(output, len(SACCT_FIELDS)):
        row = dict(zip(SACCT_FIELDS, fields, strict=True))
        job_id, _, step = row["JobID"].partition(".")
        if not step:
            jobs[job_id] = _from_sacct_row(job_id, row)
        elif (
            states.normalise(row["State"]) == "OUT_OF_MEMORY"
            and job_id in jobs
            and jobs[job_id].state == "FAILED"
        ):
            jobs[job_id] = replace(jobs[job_id], state="OUT_OF_MEMORY")
    return list(jobs.values())


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


def from_scontrol(fields: dict[str, str]) -> JobRecord:
    """Return the record from one job's fields of `scontrol show job -o`."""
    exit_code, signal = exit_and_signal(fields.get("ExitCode", ""))
    state = normalized_state(fields.get("JobState", ""), fields.get("DerivedExitCode", ""))
    array = fields.get("ArrayJobId")
    job_id = (
        f"{array}_{fields['ArrayTaskId']}"
        if array and is_number(fields.get("ArrayTaskId", ""))
        else fields["JobId"]
    )
    return JobRecord(
        job_id=job_id,
        scheduler="slurm",
        state=state,
        name=fields.get("JobName"),
        reason=known(fields.get("Reason", "")),
        elapsed_s=units.parse_reported_time(fields.get("RunTime", "")),
        time_limit_s=units.parse_reported_time(fields.get("TimeLimit", "")),
        nodes=integer(fields.get("NumNodes", "").split("-")[0]),
        partition=known(fields.get("Partition", "")),
        start=known(fields.get("StartTime", "")),
        comment=comment_of(fields.get("Comment", "")),
        exit_code=exit_code,
        signal=signal,
    )


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


def _from_sacct_row(job_id: str, row: dict[str, str]) -> JobRecord:
    exit_code, signal = exit_and_signal(row["ExitCode"])
    return JobRecord(
        job_id=job_id,
        scheduler="slurm",
        state=normalized_state(row["State"], row["DerivedExitCode"]),
        name=row["JobName"],
        elapsed_s=integer(row["ElapsedRaw"]),
        time_limit_s=units.parse_reported_time(row["Timelimit"]),
        nodes=integer(row["NNodes"]),
        partition=known(row["Partition"]),
        start=known(row["Start"]),
        comment=comment_of(row["Comment"]),
        exit_code=exit_code,
        signal=signal,
    )


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


def normalized_state(text: str, derived_exit_code: str) -> str:
    """Return the state that Slurm printed; OUT_OF_MEMORY for a failed job with a step that the
    kernel killed for memory (0:125, Slurm's SIG_OOM less 128).
    """
    state = states.normalise(text)
    killed = state == "FAILED" and exit_and_signal(derived_exit_code) == (0, 125)
    return "OUT_OF_MEMORY" if killed else state


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
