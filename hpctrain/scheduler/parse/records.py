"""What squeue, sacct and scontrol print, as job records.

The queries ask for the unit separator (U+001F) between fields, because job names, comments and constraints may hold any
printable character, `|` included. sbatch also takes line breaks in them (tried on Slurm 22.05), and squeue prints those as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hpctrain.scheduler.parse import duration, states

SEPARATOR = "\x1f"

#: squeue -o: id, name, state, reason, elapsed, limit, nodes, partition, expected or real start, comment.
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

_BLANK = {"", "N/A", "Unknown", "None", "NONE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What a scheduler knows of one job. What it does not know is None.

    Attributes:
        job_id: Slurm's id, `123` or `123_4`, without a cluster.
        scheduler: `slurm` or `local`.
        state: one of `states`, or `states.UNKNOWN`.
        reason: Slurm's word for why the job is in that state.
        elapsed_s, time_limit_s: seconds of wall clock; no limit is None too.
        exit_code: of the batch script, 0 to 255.
        signal: that ended it, or None.
        start: when it started or is expected to, as the scheduler wrote it.
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


def parse_submission(output: str) -> tuple[str, str | None]:
    """Return job id and cluster (None on a single-cluster site) from what `sbatch --parsable` printed.

    Raises:
        ValueError: no line is a job id. Sites let their submit plugins print greetings in front, so the last one counts.
    """
    for line in reversed(output.splitlines()):
        match = re.fullmatch(r"([0-9]+)(?:;(\S+))?", line.strip())
        if match:
            return match[1], match[2]
    raise ValueError(f"no job id in {output!r}")


def parse_squeue(output: str) -> list[JobRecord]:
    """Return one record for each job of `squeue -h -o SQUEUE_FORMAT`; lines of another shape are warnings and are passed over."""
    found = []
    for fields in rows(output, 10):
        job_id, name, state, reason, elapsed, limit, nodes, partition, start, comment = fields
        found.append(
            JobRecord(
                job_id=job_id, scheduler="slurm", state=states.normalise(state), name=name, reason=known(reason),
                elapsed_s=duration.parse_reported(elapsed), time_limit_s=duration.parse_reported(limit), nodes=_integer(nodes),
                partition=known(partition), start=known(start), comment=known(comment.replace("(null)", "")),
            )
        )  # fmt: skip
    return found


def parse_sacct(output: str) -> list[JobRecord]:
    """Return one record for each job of `sacct -n -P --delimiter=SEPARATOR -o SACCT_FIELDS`, its steps folded in.

    Slurm up to 22.05 calls a job FAILED whose step the kernel killed for memory; the step alone is OUT_OF_MEMORY
    (exit code 0:125). The job's record then says OUT_OF_MEMORY, which is what happened.
    """
    jobs: dict[str, JobRecord] = {}
    for fields in rows(output, len(SACCT_FIELDS)):
        row = dict(zip(SACCT_FIELDS, fields, strict=True))
        job_id, _, step = row["JobID"].partition(".")
        state = states.normalise(row["State"])
        if not step:
            jobs[job_id] = _from_sacct_row(job_id, state, row)
        elif state == "OUT_OF_MEMORY" and job_id in jobs and jobs[job_id].state == "FAILED":
            jobs[job_id] = replace(jobs[job_id], state="OUT_OF_MEMORY")
    return list(jobs.values())


def parse_scontrol_jobs(output: str) -> list[dict[str, str]]:
    """Return the fields of each job of `scontrol show job -o`.

    A value runs up to the next ` Name=`, because names, comments and paths may hold blanks. What looks like a field inside a job's
    name or comment is none: the name ends where `UserId=` begins, and of two equal fields the first counts, as comments come late.
    """
    found = []
    for job in re.split(r"^(?=JobId=)", output, flags=re.MULTILINE):
        head = re.match(r"(JobId=.*?) JobName=(.*?)(?= UserId=\S*\(\d+\) GroupId=)", job, re.DOTALL)
        if head is None:
            continue
        fields = {"JobName": head[2].strip()}
        # The last field of 20.11 has no `=`, and would belong to the one before it.
        for text in (head[1], re.sub(r" NtasksPerTRES:\d+\s*\Z", "", job[head.end() :]).rstrip("\n")):
            starts = list(re.finditer(r"(?:^| )([A-Z][A-Za-z/:_]*)=", text))
            ends = [match.start() for match in starts[1:]] + [len(text)]
            for match, end in zip(starts, ends, strict=True):
                fields.setdefault(match[1], text[match.end() : end].strip())
        found.append(fields)
    return found


def from_scontrol(fields: dict[str, str]) -> JobRecord:
    """Return the record in one job's fields of `scontrol show job -o`."""
    exit_code, signal = _exit(fields.get("ExitCode", ""))
    state = _with_killed_steps(states.normalise(fields.get("JobState", "")), fields.get("DerivedExitCode", ""))
    array = fields.get("ArrayJobId")
    job_id = f"{array}_{fields['ArrayTaskId']}" if array and fields.get("ArrayTaskId", "").isdigit() else fields["JobId"]
    return JobRecord(
        job_id=job_id, scheduler="slurm", state=state, name=fields.get("JobName"),
        reason=known(fields.get("Reason", "")), elapsed_s=duration.parse_reported(fields.get("RunTime", "")),
        time_limit_s=duration.parse_reported(fields.get("TimeLimit", "")), nodes=_integer(fields.get("NumNodes", "").split("-")[0]),
        partition=known(fields.get("Partition", "")), start=known(fields.get("StartTime", "")),
        comment=known(fields.get("Comment", "")), exit_code=exit_code, signal=signal,
    )  # fmt: skip


def rows(output: str, count: int) -> Iterator[list[str]]:
    """Yield the fields of each job: a job begins at a line whose first field is an id, and goes on until it has all its fields."""
    fields: list[str] = []
    for line in output.split("\n"):
        more = line.split(SEPARATOR)
        # A line break and a number in a name look like the next job, which would lack just the fields that this one does.
        ends = 0 < len(fields) < count == len(fields) + len(more) - 1 and len(more) < count
        if not ends and re.match(rf"[0-9][^{SEPARATOR}\s]*{SEPARATOR}", line):
            fields = more
        elif 0 < len(fields) < count:
            fields = [*fields[:-1], f"{fields[-1]}\n{more[0]}", *more[1:]]
        else:
            continue
        if len(fields) >= count:  # more: somebody wrote a separator into the last of them
            yield [field.strip() for field in fields[:count]]
            fields = []


def _from_sacct_row(job_id: str, state: str, row: dict[str, str]) -> JobRecord:
    exit_code, signal = _exit(row["ExitCode"])
    return JobRecord(
        job_id=job_id, scheduler="slurm", state=_with_killed_steps(state, row["DerivedExitCode"]), name=row["JobName"],
        elapsed_s=_integer(row["ElapsedRaw"]), time_limit_s=duration.parse_reported(row["Timelimit"]),
        nodes=_integer(row["NNodes"]), partition=known(row["Partition"]),
        start=known(row["Start"]), comment=known(row["Comment"]), exit_code=exit_code, signal=signal,
    )  # fmt: skip


def without_a_job(record: JobRecord, queue: Mapping[str, JobRecord]) -> JobRecord:
    """Return a record of accounting as cancelled where it waits to start again and slurmctld has no such job.

    A job that is cancelled after its requeue stays REQUEUED in the accounting (tried on 22.05).
    """
    array = record.job_id.partition("_")[0]
    if record.state != "REQUEUED" or any(job.startswith(f"{array}_[") for job in (record.job_id, *queue)) or record.job_id in queue:
        return record
    return replace(record, state="CANCELLED", reason="while it waited to start again")


def _with_killed_steps(state: str, derived_exit_code: str) -> str:
    """Return OUT_OF_MEMORY for a failed job with a step that the kernel killed for its memory (0:125, Slurm's SIG_OOM less 128)."""
    return "OUT_OF_MEMORY" if state == "FAILED" and _exit(derived_exit_code) == (0, 125) else state


def _exit(text: str) -> tuple[int | None, int | None]:
    match = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
    if match is None:
        return None, None
    return int(match[1]), int(match[2]) or None


def known(text: str) -> str | None:
    """Return `text`; None where it is one of Slurm's words for nothing."""
    return None if text in _BLANK else text


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None
