"""Data types: what is known about a job, what the search of its logs found, and the explanation.
Unknown values are None, or empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hpctrain.memory.sample import Sample
from hpctrain.slurm.notations.records import JobRecord

Certainty = Literal["certain", "likely"]
Stage = Literal["submit", "pending", "start", "env", "launch", "rdzv", "comm", "run", "end"]
STAGES: tuple[Stage, ...] = (
    "submit",
    "pending",
    "start",
    "env",
    "launch",
    "rdzv",
    "comm",
    "run",
    "end",
)
Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a diagnosis rests on.

    Attributes:
        file: as LogFile.name; `sacct`, `squeue`, `samples` or `config` if it is not a line of a
            file.
        line: counted from 1; None if it is not a line of a file.
        text: the line, cleaned, at most 300 characters.
    """

    file: str
    line: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of the job config; `hpctrain resubmit --apply-fix` applies it.

    Attributes:
        key: as in config.yaml, with dots: `resources.mem`, `training.per_device_train_batch_size`,
            `environment.env.NAME`.
        old: the job's value, None if it was not set; `new`: None removes it.
    """

    key: str
    old: Scalar
    new: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """What to do.

    Attributes:
        text: sentences and commands to type, with the user's own numbers if they are known.
        changes: changes to the config that can be applied automatically; empty if the user has to
            act.
    """

    text: str
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One cause.

    Attributes:
        id: of the rule; `hpctrain explain ID` prints its page.
        cause: what happened, with the job's own names and numbers; one or two sentences.
        evidence: the strongest first.
        rank, node: where it began; None if unknown, or if it affects all of them.
        since: when it began, `2026-11-22T04:10:00` in the clock of the log, or None.
        attempt: the attempt it ended, or None.
    """

    id: str
    stage: Stage
    certainty: Certainty
    cause: str
    fix: Fix
    evidence: tuple[Evidence, ...]
    rank: int | None = None
    node: str | None = None
    since: str | None = None
    attempt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Consequence:
    """An effect of a cause that needs no action: `count` lines of rule `id`, the first of them as
    evidence.
    """

    id: str
    what: str
    count: int
    evidence: Evidence
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBlock:
    """The earliest error of the rank that failed first, cleaned: shown if no cause is found.

    Attributes:
        frame: the deepest frame of a traceback outside of libraries, `train.py:12, in main`.
    """

    file: str
    line: int
    rank: int | None
    node: str | None
    since: str | None
    lines: tuple[str, ...]
    frame: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The result; without `diagnoses` and `unexplained`, the job is fine.

    Attributes:
        diagnoses: the cause that ended the job first.
        unexplained: the error to show if the job failed and no cause was found; a hint on it may
            be in `diagnoses`.
        history: one line for each earlier attempt: how it ended, and at which step.
        failed: whether the job is known not to have ended well; it may be running.
        ended: how it ended, in the scheduler's words, or None.
    """

    diagnoses: tuple[Diagnosis, ...] = ()
    consequences: tuple[Consequence, ...] = ()
    unexplained: ErrorBlock | None = None
    history: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    failed: bool = False
    ended: str | None = None


Done = Literal["complete", "zero"] | None
#: Errors that end a program, regardless of earlier output.
DEADLY = re.compile(
    r"Segmentation fault(?! (?!at\b|in\b)\w)|core dumped|terminate called(?! without an active)|Bus error|Illegal"
    r" instruction|panic:|FATAL(?!_ERROR)|Execution halted"
    r"|Fortran runtime error:|forrtl: severe|^ERROR: LoadError: |^Exception in thread"
    r" \"main\"|^thread '[^']*' panicked at"
    r"|Fatal error in|^Fatal error:|Error in routine |MPI_ABORT was invoked|called MPI_Abort|^LLVM ERROR:"
    r"|^Fatal Python error:|^F\d{4} \d\d:\d\d:|Floating point exception(?: ?\(|\s*$)|^make(?:\[\d+\])?: \*\*\* .*Error"
    r"|^CMake Error|Error executing process >|^Error in \S+\(.*\) ?:|: \. \. \. aborting the run$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """Something found in a log.

    Attributes:
        order: (index of the file, line number): the order within a file.
        at: seconds since the epoch, if the line or a nearby one has a time; logs of one job may
            differ in time zone.
        rank, node: according to the file, the launcher's label or the line itself.
        attempt: that wrote the line.
        part, parts: the start of the job that wrote the line, and the last start, if a requeued job
            continues in the same file; from 0.
        steps_after: lines of progress that follow in the same file, some tens at most.
        done_after: whether a success message follows: "complete" from a training, or "zero", an
            exit status from a script, which may be that of another command.
        bytes_after: of the file; 0 if not counted.
    """

    order: tuple[int, int] = (0, 0)
    at: float | None = None
    rank: int | None = None
    node: str | None = None
    attempt: str | None = None
    part: int = 0
    parts: int = 0
    steps_after: int = 0
    done_after: Done = None
    bytes_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Match(Occurrence):
    """A match of a rule's signature.

    Attributes:
        rule: the rule's id.
        evidence: where.
        groups: the named groups of the signature, and values of facts.
        count: lines of this rule in this file, from this rank.
        lines_after: all lines that follow, of any kind.
        logged: an exception that the program caught and logged: it may have continued.
    """

    rule: str
    evidence: Evidence
    groups: Mapping[str, str] = field(default_factory=dict)
    count: int = 1
    lines_after: int = 0
    logged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorExcerpt(Occurrence):
    """An error in a log, with or without a matching rule: a traceback, or the lines around an error
    word.

    Attributes:
        lines: cleaned, without labels.
        error: the line of `lines` with the error message.
        traceback: whether it is a Python traceback, including the exception.
        raised: where, as names for the texts of rules: `frame` and `code`, the deepest frame that
            is not in a library; `package`, the library that raised it.
        launcher: whether it is a launcher's, which only reports that a program failed.
        ending: whether the file ends with it.
    """

    file: str
    line: int
    lines: tuple[str, ...]
    error: str
    traceback: bool = False
    raised: Mapping[str, str] = field(default_factory=dict)
    launcher: bool = False
    ending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFailed(Occurrence):
    """The process that failed first, according to torch's elastic agent on one node."""

    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """Everything found in the files of a job.

    Attributes:
        status: the exit code that the job script itself wrote last, `hpctrain: job 123 ended with
            exit code 1`.
        size: bytes that were read.
    """

    hits: tuple[Match, ...] = ()
    troubles: tuple[ErrorExcerpt, ...] = ()
    first_failed: tuple[FirstFailed, ...] = ()
    status: int | None = None
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFact:
    """One log file that was read.

    Attributes:
        name: as in hpctrain.logs.files.LogFile.
        size: bytes.
        grown: time of its last change, seconds since the epoch.
    """

    name: str
    size: int = 0
    grown: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFact:
    """One start of the job (hpctrain.runs.store.Attempt), and its steps.

    Times are seconds since the epoch, by the node's clock; `output_at`: when its output last grew
    before the script ended.
    """

    name: str
    job_id: str | None = None
    restart: int = 0
    started: float | None = None
    ended: float | None = None
    status: int | None = None
    outcome: str | None = None
    reason: str | None = None
    first_step: int | None = None
    last_step: int | None = None
    last_logged_at: float | None = None
    output_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """Everything known about a job. Unknown values are None, or empty.

    Attributes:
        files: the log files that were read, in that order.
        account: the scheduler's record of the job.
        attempts: of the run, oldest first.
        config: the job config as resolved (keys of config.yaml), if hpctrain rendered the job.
        samples: of the MemoryCallback: for each rank the first, the highest and the last, sorted by
            time.
        step, max_steps: the last logged step, and the total; `step_s`: seconds per step;
            `printed_steps`: different steps in the end of the output, if there are no samples.
        fit: runs/ID/fit.json.
        gpu_memory_bytes, node_memory_bytes: of a GPU and a node of the partition, if known.
        zone_s: seconds that the clock of the logs is ahead of UTC, for displayed times.
        now: seconds since the epoch; None omits how long ago something was.
    """

    files: tuple[FileFact, ...] = ()
    account: JobRecord | None = None
    attempts: tuple[AttemptFact, ...] = ()
    config: Mapping[str, Any] | None = None
    samples: tuple[Sample, ...] = ()
    step: int | None = None
    max_steps: int | None = None
    step_s: float | None = None
    printed_steps: int = 0
    fit: Mapping[str, Any] | None = None
    world_size: int | None = None
    gpus_per_node: int | None = None
    gpu_memory_bytes: int | None = None
    node_memory_bytes: int | None = None
    now: float | None = None
    zone_s: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
