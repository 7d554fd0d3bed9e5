"""Which rules fire, on which evidence (log lines, the scheduler's record, facts), and whether the
training recovered from it. PURE.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from hpctrain.explain import facts, values
from hpctrain.explain.model import STAGES, Certainty, ErrorExcerpt, Evidence, JobContext, Match
from hpctrain.explain.rules import FailureRule, RecordPattern
from hpctrain.explain.values import Proof
from hpctrain.slurm.notations import states, units
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util.text import size

#: With this many steps after an error, the training surely, or perhaps, recovered. Other ranks may
#: log a few steps before they wait for a dead one.
SURVIVED, LITTLE = 20, 3
#: Bytes that may have been buffered: Python buffers 8 KiB of output to a file and writes it at
#: exit, after the traceback.
HELD_BACK = 16 << 10
#: With more lines than this after a non-fatal shell message, the script continued; with more than
#: `_REST`, and no sign of a failure, it may have.
MUCH, _REST = 500, 5
#: Lines that one such message may have; those of conda, and two of Lmod, have more, and end so.
_MESSAGE, _LONG, _LAST = 6, 24, ("IMPORTANT: ", "Also make sure that all ")
#: An error that was logged this often did not end the program, unless as many processes failed.
_AGAIN = 50
_LOGGER = re.compile(r"\b(?:ERROR|CRITICAL|WARN(?:ING)?)\b[\]:|>)]* ")
#: A warning: the program continues.
#: NCCL also writes WARN of what ends the communicator: a call or connection that failed, a GPU that
#: two ranks use.
#: bitsandbytes logs a library that it cannot load; only a call of it ends the program. torch only
#: warns of a GPU that it was not built for.
_WARNING = re.compile(
    r"(?i)(?<!NCCL )\bwarn(?:ing)?\b|NCCL WARN (?!Call to \w+ failed|\w+ failure|Duplicate GPU|Net : Connect to)"
    r"|^\W*CUDA Setup failed despite"
    r"|is not compatible with the current PyTorch installation"
    r"|^\S*libbitsandbytes_cpu\.so: undefined|^'NoneType' object has no attribute 'c"
)
#: Lines from the head of a traceback within which a rule's match belongs to it.
_WITHIN = 60
#: The first frame of an uncaught error: it ended the process, even if buffered output follows it.
_UNCAUGHT = re.compile(r", in (?:<module>|_run_module_as_main)\s*$")
_CAUGHT = re.compile(
    r"^ +File .*, in"
    r" (?!<module>|_run_module|_bootstrap|_wrap|wrapper|\w*worker|run\b|main\b|<lambda>|__?\w*call)\w+\s*$"
)
#: A line about an error, from which the program may have recovered.
_ERROR = re.compile(
    r"(?i)error|exception|traceback|fatal|abort|killed|fail|\braise\b|keyboardinterrupt"
)
#: Slurm's "error:" lines about what it does to a job.
_NOTICE = re.compile(r"\*\*\* (?:JOB|STEP) \S+ ON ")


class Recovery(IntEnum):
    """Certainty that the training recovered from an error."""

    NO = 0
    PERHAPS = 1
    SURELY = 2


def of(
    each: Match | ErrorExcerpt,
    *,
    numbers: bool = False,
    uncaught: bool = False,
    caught: bool = False,
) -> Recovery:
    """Return whether the training recovered from one line or error.

    Args:
        each: the line or error.
        numbers: it is about NaN: a training may complete with NaN values.
        uncaught: the error was not caught; a little output after it may be older, buffered output.
        caught: the error was caught: one step is enough.
    """
    if each.steps_after >= SURVIVED or (each.done_after == "complete" and not numbers):
        return (
            Recovery.PERHAPS if uncaught and 0 < each.bytes_after <= HELD_BACK else Recovery.SURELY
        )
    perhaps = each.steps_after >= (1 if caught else LITTLE) or (
        each.done_after == "zero" and not numbers
    )
    return Recovery.PERHAPS if perhaps and not uncaught else Recovery.NO


def tracebacks(troubles: Iterable[ErrorExcerpt]) -> dict[str, list[ErrorExcerpt]]:
    """Group tracebacks by file: a job with hundreds of ranks has thousands of them."""
    found: dict[str, list[ErrorExcerpt]] = {}
    for each in troubles:
        if each.traceback:
            found.setdefault(each.file, []).append(each)
    return found


def of_hits(
    rule: FailureRule, hits: Iterable[Match], by_file: Mapping[str, Sequence[ErrorExcerpt]]
) -> Recovery:
    """Return whether the training recovered from all lines of a rule; `by_file`: see
    `tracebacks`.
    """
    hits = list(hits)
    # A training continues during the grace time after a notice of its end.
    first = hits[0].evidence.text
    if rule.area in ("time", "end") and (_NOTICE.search(first) or _ERROR.search(first) is None):
        return Recovery.NO
    last = hits[-1]
    if (rule.passing or hits[0].logged) and (
        last.steps_after or last.done_after or last.lines_after > MUCH
    ):
        return Recovery.SURELY
    own = [
        (hit, [each for each in by_file.get(hit.evidence.file, ()) if stands_in(hit, each)])
        for hit in hits
    ]
    if rule.area not in ("time", "end") and all(
        # Ctrl-C came while the program handled other errors, such as those of a retry.
        any(one.error.startswith("KeyboardInterrupt") for one in shown)
        for _, shown in own
    ):
        return Recovery.SURELY
    # A NaN persists until steps without it follow; an error raised for it is like any other.
    numbers = rule.area == "numbers" and _ERROR.search(first) is None
    return min(
        of(
            hit,
            numbers=numbers,
            uncaught=any(map(is_uncaught, shown)),
            caught=bool(shown) and all(map(is_caught, shown)),
        )
        for hit, shown in own
    )


def is_notice(hit: Match) -> bool:
    """Whether a line is Slurm's message about the end of a job."""
    return _NOTICE.search(hit.evidence.text) is not None


def of_trouble(each: ErrorExcerpt) -> Recovery:
    """Return whether the training recovered from an error."""
    return of(each, uncaught=is_uncaught(each), caught=is_caught(each))


def is_uncaught(each: ErrorExcerpt) -> bool:
    """Whether a traceback starts at the program's top level."""
    return each.traceback and any(_UNCAUGHT.search(line) for line in each.lines[1:3])


def is_caught(each: ErrorExcerpt) -> bool:
    """Whether a traceback starts inside a program, so that it was caught, and not in a separate
    process or thread.
    """
    return each.traceback and len(each.lines) > 1 and _CAUGHT.search(each.lines[1]) is not None


def stands_in(hit: Match, trouble: ErrorExcerpt) -> bool:
    """Whether a line belongs to an error: near its head, and not from another rank."""
    if (
        trouble.file != hit.evidence.file
        or not trouble.line <= hit.order[1] <= trouble.line + _WITHIN
    ):
        return False
    return trouble.rank is None or trouble.rank == hit.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMatch:
    """A rule, and why it fires.

    Attributes:
        hits: in the order they were written.
        record: evidence from the scheduler's record.
        found: proof of the fact.
        ended: when the job ended, seconds since the epoch.
        over: whether the training recovered from all of its lines, and there is no other evidence.
        contested: whether another cause may have ended the job.
    """

    rule: FailureRule
    hits: tuple[Match, ...] = ()
    record: Evidence | None = None
    found: Proof | None = None
    ended: float | None = None
    over: Recovery = Recovery.NO
    contested: bool = False

    @property
    def passing(self) -> bool:
        """Whether its line alone ends nothing: a shell continues, as does a program that warns."""
        return bool(self.hits) and (
            self.rule.passing
            or self.hits[0].logged
            or _WARNING.search(self.hits[0].evidence.text) is not None
        )

    @property
    def went_on(self) -> bool:
        """Whether the shell or program wrote more after such a line, or logged it very often."""
        if _LOGGER.search(self.hits[0].evidence.text if self.hits else "") and any(
            hit.count >= _AGAIN for hit in self.hits
        ):
            return True
        if not self.passing:
            return False
        first, last = self.hits[0], self.hits[-1]
        between = last.order[1] - first.order[1] if last.order[0] == first.order[0] else 0
        # The last lines of conda's and Lmod's long messages.
        longest = _LONG if last.evidence.text.startswith(_LAST) else _MESSAGE
        # A warning of Python is two lines; what comes behind them is output of the program.
        rest = 1 if "UserWarning" in last.evidence.text else _REST
        return last.lines_after + (between if between > longest else 0) > rest

    @property
    def certainty(self) -> Certainty:
        """A line confirmed by a record or a fact is certain; a symptom never is."""
        if self.rule.kind != "cause" or self.contested:
            return "likely"
        if self.found is not None and self.found.certainty is not None:
            return self.found.certainty
        if self.over is Recovery.PERHAPS:
            return "likely"
        agree = (
            bool(self.hits)
            and (self.record is not None or self.found is not None)
            and not self.rule.all
        )
        return "certain" if agree else self.rule.certainty

    @property
    def at(self) -> float | None:
        """Return when it began."""
        if self.hits:
            return self.hits[0].at
        return self.found.at if self.found is not None else self.ended

    @property
    def place(self) -> tuple[float, int, tuple[int, int]]:
        """Return the sort key of a cause: a line without a time sorts first, a record at the end of
        the job.
        """
        if self.hits:
            return (
                self.hits[0].at if self.hits[0].at is not None else float("-inf"),
                0,
                self.hits[0].order,
            )
        # The record's times are truncated to seconds: a line of the same second comes first.
        return (
            self.at + 1.0 if self.at is not None else float("inf"),
            1 + STAGES.index(self.rule.stage),
            (0, 0),
        )


def rules_that_match(
    rules: Sequence[FailureRule],
    hits: Sequence[Match],
    case: JobContext,
    troubles: Sequence[ErrorExcerpt] = (),
) -> list[RuleMatch]:
    """Return the rules that fire; `troubles` are the errors that may contain their lines."""
    by_rule: dict[str, list[Match]] = {}
    for hit in hits:
        by_rule.setdefault(hit.rule, []).append(hit)
    shown = tracebacks(troubles)
    # A condition that only the record shows began at the end of the job, or, if it is pending, at
    # the submission.
    is_waiting = case.account is not None and case.account.state in states.WAITING
    since = case.account.submitted if is_waiting and case.account else values.ended(case)
    found = []
    for rule in rules:
        own = tuple(by_rule.get(rule.id, ()))
        # A fact is more expensive than a dictionary lookup.
        if rule.all and rule.lines and not own:
            continue
        if rule.beside and by_rule.keys().isdisjoint(rule.beside):
            continue
        record = matched(rule.record, case.account) if rule.record is not None else None
        if rule.all and rule.record is not None and record is None:
            continue
        fact = facts.FACTS[rule.fact](case) if rule.fact is not None else None
        if (rule.all and rule.fact is not None and fact is None) or not (own or record or fact):
            continue
        over = of_hits(rule, own, shown) if own and record is None and fact is None else Recovery.NO
        found.append(
            RuleMatch(rule=rule, hits=own, record=record, found=fact, ended=since, over=over)
        )
    return found


def matched(record: RecordPattern, account: JobRecord | None) -> Evidence | None:
    """Return the record, or the step of it, that matches all fields of a rule, as evidence."""
    if account is None:
        return None
    if record.reason is not None and (
        account.reason is None or re.search(record.reason, account.reason) is None
    ):
        return None
    source = account.source or ("local" if account.scheduler == "local" else "sacct")
    if _says(record, account.state, account.exit_code, account.signal):
        return Evidence(file=source, line=None, text=described(account))
    for step in account.steps:
        if step.state == "CANCELLED":
            # a step is cancelled if another task of it failed or the job is ended: this shows
            # nothing about the job
            continue
        if _says(record, step.state, step.exit_code, step.signal):
            code = _code(step.exit_code, step.signal)
            text = f"step {account.job_id}.{step.name}: {step.state or 'state not known'}" + (
                f", exit code {code}" if code else ""
            )
            return Evidence(file=source, line=None, text=text)
    return None


def _says(
    record: RecordPattern, state: str | None, exit_code: int | None, signal: int | None
) -> bool:
    if record.state and (state is None or state.split(maxsplit=1)[:1][0] not in record.state):
        return False
    return not record.exit_code or _code(exit_code, signal) in record.exit_code


def _code(exit_code: int | None, signal: int | None) -> str | None:
    return None if exit_code is None and signal is None else f"{exit_code or 0}:{signal or 0}"


def described(account: JobRecord) -> str:
    """Return the record as one line."""
    parts = [f"job {account.job_id}: {account.state}"]
    code = _code(account.exit_code, account.signal)
    parts += [f"exit code {code}"] if code not in (None, "0:0") else []
    parts += [f"reason {account.reason}"] if account.reason not in (None, "", "None") else []
    if account.elapsed_s is not None and account.state not in states.WAITING:
        limit = f" of {units.format_time(account.time_limit_s)}" if account.time_limit_s else ""
        parts.append(f"ran for {units.format_time(account.elapsed_s)}{limit}")
    parts += [f"node {account.failed_node} failed"] if account.failed_node else []
    return ", ".join(parts)


def known(case: JobContext) -> dict[str, str]:
    """Return the known values of the names that every rule may use (rules.KNOWN_NAMES)."""
    account = case.account
    told: Mapping[str, object | None] = {"step": case.step, "max_steps": case.max_steps}
    if account is not None:
        told = {
            **told,
            "job": account.job_id,
            "state": account.state,
            "exit_code": account.exit_code,
            "signal": account.signal,
            "reason": account.reason,
            "nodes": account.nodes,
            "time_limit": units.format_time(account.time_limit_s) if account.time_limit_s else None,
            "elapsed": (
                units.format_time(account.elapsed_s) if account.elapsed_s is not None else None
            ),
            "memory": size(account.memory_bytes) if account.memory_bytes else None,
        }
    return {name: str(value) for name, value in told.items() if value is not None}
