"""Find the earliest cause of a failure from matches and the job's record, and separate it from its
consequences. PURE.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import chain, islice
from typing import TypeVar

from hpctrain.explain import facts, fixes, matching, text
from hpctrain.explain.matching import Recovery, RuleMatch
from hpctrain.explain.model import (
    DEADLY,
    Consequence,
    Diagnosis,
    ErrorBlock,
    ErrorExcerpt,
    Evidence,
    Explanation,
    FirstFailed,
    Fix,
    JobContext,
    Match,
    Occurrence,
)
from hpctrain.explain.rules import KNOWN_NAMES, FailureRule, logged_exception
from hpctrain.explain.values import clock, current, last_attempt
from hpctrain.slurm.notations import states

#: Clock skew in seconds that does not matter. Lines of different files that are closer than this
#: count as simultaneous.
TOLERANCE_S = 2.0
#: A start of a job comes at least this long after the end of the previous one.
_SLACK_S = 30.0

OccurrenceT = TypeVar("OccurrenceT", bound=Occurrence)


def split(
    seen: Iterable[OccurrenceT], case: JobContext, ends: Mapping[int, int]
) -> tuple[list[OccurrenceT], list[OccurrenceT]]:
    """Return the occurrences of the last start of the job, and those of earlier starts.

    `ends` is the result of `other_jobs`.
    """
    now: list[OccurrenceT] = []
    before: list[OccurrenceT] = []
    for each in seen:
        is_earlier = _is_earlier(each, case) or each.order[1] <= ends.get(each.order[0], -1)
        (before if is_earlier else now).append(each)
    return now, before


#: Rules for what ends a program before it does anything: rejected arguments, a syntax error.
_REJECTED = ("script-arguments", "option-empty", "python-syntax", "training-script-missing")


def other_jobs(
    hits: Sequence[Match], troubles: Sequence[ErrorExcerpt] = (), said: Collection[str] = ()
) -> dict[int, int]:
    """Return file index → the last line that another job or run wrote to that file.

    Several jobs may append to one file. Slurm marks the end of each; and a program that could not
    be parsed, or rejected its arguments, writes nothing more: steps, much text or an uncaught error
    after it are another run's. `said`: rules for launcher messages.
    """
    notices = sorted(
        (each for each in hits if matching.is_notice(each) and "job" in each.groups),
        key=lambda each: each.order,
    )
    last = {each.order[0]: each.groups["job"] for each in notices}
    found = {
        each.order[0]: each.order[1]
        for each in notices
        if each.groups["job"] != last[each.order[0]]
    }
    for hit in hits:
        if hit.rule in _REJECTED and _was_followed(hit, hits, troubles, said):
            found[hit.order[0]] = max(hit.order[1], found.get(hit.order[0], 0))
    return found


def _was_followed(
    hit: Match, hits: Sequence[Match], troubles: Sequence[ErrorExcerpt], said: Collection[str]
) -> bool:
    """Whether a program that rejected its arguments was followed by another run in its file."""

    def is_later(one: Occurrence, lines: int = 0) -> bool:
        begin = (hit.order[0], hit.order[1] + lines)
        return begin < one.order < (hit.order[0] + 1, 0) and one.rank == hit.rank

    # Only the first errors are kept as excerpts.
    return (
        hit.steps_after >= matching.SURVIVED
        or hit.lines_after > matching.MUCH
        or any(
            is_later(one, _NEARBY)
            # What the next step of the same job lacks, since this one wrote nothing.
            and one.rule not in (*said, hit.rule, "path-missing", "dataset-missing")
            for one in hits
        )
        or any(
            is_later(one)
            and matching.is_uncaught(one)
            and "No such file" not in one.error
            # Without its message, it may be the launcher's.
            and not one.error[:1].isspace()
            and not any(other.rule in said and matching.stands_in(other, one) for other in hits)
            for one in troubles
        )
    )


def _quiet_ends(seen: Sequence[Occurrence], rules: Sequence[FailureRule]) -> dict[int, int]:
    """Return file index → the last error in that file, where so much output without an error
    follows that the program continued, or another run wrote it.
    """
    notices = {rule.id for rule in rules if rule.area in ("time", "end")}
    last = {each.order[0]: each for each in sorted(seen, key=lambda one: one.order)}
    return {
        file: each.order[1]
        for file, each in last.items()
        if each.bytes_after > matching.HELD_BACK
        and not any(
            isinstance(one, Match) and one.rule in notices and one.order[0] == file for one in seen
        )
    }


def _is_earlier(each: Occurrence, case: JobContext) -> bool:
    last = case.attempts[-1] if case.attempts else None
    if (
        last is not None
        and each.attempt is not None
        and any(each.attempt == known.name for known in case.attempts)
    ):
        return each.attempt != last.name
    if (
        last is not None
        and len(case.attempts) > 1
        and last.started is not None
        and each.at is not None
    ):
        return each.at < last.started - _SLACK_S
    return each.part < each.parts


def filled(hits: Sequence[Match]) -> list[Match]:
    """Sort hits in the order they were written; one without a time gets the time of the next one in
    its file.
    """
    by_file: dict[tuple[str, int], list[Match]] = {}
    for hit in hits:
        by_file.setdefault((hit.evidence.file, hit.order[0]), []).append(hit)
    found: list[Match] = []
    for own in by_file.values():
        later: float | None = None
        for hit in sorted(own, key=lambda each: each.order, reverse=True):
            later = hit.at if hit.at is not None else later
            found.append(hit if hit.at is not None else replace(hit, at=later))
    return sorted(found, key=place)


def is_behind(hit: Match, trouble: ErrorExcerpt) -> bool:
    """Whether a line was written after an error: by time, or by line number if either has no
    time.
    """
    if hit.at is None or trouble.at is None:
        return hit.order[0] == trouble.order[0] and hit.order[1] > trouble.order[1]
    return hit.at - trouble.at > TOLERANCE_S


def place(hit: Match | ErrorExcerpt) -> tuple[float, int, int]:
    """Return the sort key of a hit; one without a time sorts first."""
    return (hit.at if hit.at is not None else float("-inf"), *hit.order)


#: Rules for lines that a launcher writes when a process has ended.
_EXITED = frozenset({"srun-exited", "exit-killed", "torchelastic-child-failed"})
#: The errors of a process that was told to end.
_ENDED = re.compile(r"SignalException|KeyboardInterrupt|SystemExit|SIGTERM|SIGINT|Terminated")
#: srun's message that a signal ended a task; another rule reports the signal.
_SRUN = re.compile(r"srun: error: \S+: tasks? [\d,\[\]-]+: ")
#: Seconds without a step, after a process has exited, that are not a hang: once there were steps,
#: before the first step, and while the log still grows (the step clock may be slow). `_ALONE_S`:
#: after a traceback alone, as an evaluation may print nothing for that long.
_LEAST_S, _START_S, _GROWS_S, _ALONE_S, _TIMES = 60.0, 1200.0, 900.0, 1800.0, 3.0
#: With this many steps after an error, no other process waits for the one it ended. With more lines
#: than this after a launcher's message, some process continues.
_GOES_ON, _LINES = 3, 2


def has_lost_a_rank(
    case: JobContext,
    hits: Sequence[Match],
    troubles: Sequence[ErrorExcerpt],
    first_failed: Sequence[FirstFailed],
) -> bool:
    """Whether a process of a running job died with an error, and no step followed.

    All arguments but the case are of the newest start.
    """
    if case.account is None or case.account.state != "RUNNING" or case.now is None:
        return False
    exited = [
        hit
        for hit in hits
        if (hit.rule in _EXITED or _SRUN.match(hit.evidence.text)) and hit.steps_after < _GOES_ON
    ]
    died = any(
        (each.traceback or DEADLY.search(each.error)) and each.steps_after < _GOES_ON
        for each in troubles
    )
    last = died and (bool(first_failed) or any(hit.lines_after <= _LINES for hit in exited))
    if (exited or first_failed) and _stands_still(case, case.now, sure=last):
        return True
    quiet = facts.silence(case) if died else None
    return quiet is not None and quiet.seconds > max(quiet.least, _ALONE_S)


def _stands_still(case: JobContext, now: float, *, sure: bool) -> bool:
    """Whether no step came for longer than one takes, or, without step records, the log stopped
    growing.

    `sure` if the exited process also left a traceback and no output followed it. A tool that fails
    at the start of a script rarely does that, and data loading prints output.
    """
    last, samples = last_attempt(case), current(case)
    signs = [last.last_logged_at] if last is not None and last.last_logged_at is not None else []
    signs += [samples[-1].time_ms / 1000] if samples else []
    grown = [file.grown for file in case.files if file.grown is not None and file.size]
    usual = facts.usual_pause(case)
    least = max(_LEAST_S if sure or usual is not None else _START_S, _TIMES * (usual or 0.0))
    if grown and now - max(grown) <= _LEAST_S:
        least = max(least, _GROWS_S)
    newest = max(signs or grown, default=None)
    return newest is not None and now - newest > least


def _cancel(case: JobContext, options: str = "") -> tuple[str, ...]:
    """Return the commands to type, one per line; `resubmit` reports it if the job has not ended."""
    job, run = case.account.job_id if case.account is not None else "JOB", case.extra.get("run")
    return (f"hpctrain cancel {job}", *((f"hpctrain resubmit {run}{options}",) if run else ()))


def _notes(case: JobContext, *, lost: bool, block: ErrorBlock | None) -> Iterator[str]:
    """Yield that the job still runs, and how to end it unless a fix covers that."""
    if lost and case.account is not None:
        yield (
            f"job {case.account.job_id} still runs: one of its processes has ended by this error,"
            " and the others wait for it, until the time limit if need be"
        )
        commands = _cancel(case) if block is not None else ()
        yield from map(": ".join, zip(("to end it", "then, to continue"), commands, strict=False))


_ASIDE = re.compile(r", in _(?:bootstrap_inner|run_finalizers)\b")
_BUILD = re.compile(r"make(?:\[\d+\])?: \*\*\* |CMake Error")
#: Bytes that a job still writes after a failed build.
_AFTER_BUILD = 1500
#: A likely cause that is this much earlier may be unrelated to the certain one.
_FAR_S = 600.0
_MOST_EVIDENCE = 4
#: Characters of a line that are shown as evidence; of an earlier start's, and how many of those.
_EVIDENCE, _TOLD, _MOST_TOLD = 300, 120, 6
#: Lines between an error and a restatement of the same error.
_NEARBY = 20
#: Bytes in the job's other files that show that the shell went on behind a failed set-up.
_OUTPUT = 4096
#: Messages of srun and Slurm at the end of a step in which a task failed, for any reason.
_OF_STEP = ("kill-on-bad-exit", "srun-exited", "srun-terminated")
#: Launcher messages about a failed process: the job failed, though its exit code is unknown.
_LAUNCHERS = ("srun-exited", "kill-on-bad-exit", "torchelastic-child-failed")
#: Signals as torch's elastic agent writes them: SIGKILL, which leaves traces of many kinds, and
#: those with a rule of their own.
_KILLED, _OF_SIGNAL = -9, {-11: "segfault", -7: "bus-error", -6: "aborted"}


def explain(
    case: JobContext,
    hits: Iterable[Match],
    rules: Sequence[FailureRule],
    *,
    troubles: Iterable[ErrorExcerpt] = (),
    first_failed: Iterable[FirstFailed] = (),
    status: int | None = None,
) -> Explanation:
    """Explain why the job failed; the explanation has no diagnosis if it did not.

    Args:
        case: everything known about the job except its logs.
        hits: from all of its logs (hpctrain.logs.scan).
        rules: the complete table.
        troubles: errors in the logs, including those that match no rule.
        first_failed: the first failed process as reported by torch's elastic agents.
        status: the exit code that the job script wrote, if there is no record.
    """
    ended = matching.described(case.account) if case.account is not None else None
    if ended_well(case, status):
        return Explanation(ended=ended, history=_history(case, ()))
    hits, troubles = list(hits), list(troubles)
    known = has_failed(case, status)
    ends = other_jobs(hits, troubles, {each.id for each in rules if each.kind == "consequence"})
    if not known and case.account is None:
        ends = _quiet_ends([*hits, *troubles], rules) | ends
    now, before = split(hits, case, ends)
    shown, shown_before = split(troubles, case, ends)
    seen_first, _ = split(first_failed, case, ends)
    lost = has_lost_a_rank(case, now, shown, seen_first)
    judge = _DiagnosisRanker(
        case,
        filled(now),
        rules,
        sorted(shown, key=place),
        seen_first,
        lost=lost,
    )
    diagnoses, consequences = judge.judged(known=known)
    block = None
    if not diagnoses and (lost or not _is_active(case)):
        trouble = judge.earliest_trouble(known=known or judge.says_so())
        if trouble is not None:
            block, diagnoses = judge.block(trouble), judge.hints(trouble)
    found = bool(diagnoses or block)
    return Explanation(
        diagnoses=diagnoses,
        consequences=consequences if found else (),
        unexplained=block,
        history=_history(
            case,
            # What ended nothing is not told.
            [hit for hit in before if not any(hit.rule == one.id and one.passing for one in rules)],
            [each for each in shown_before if each.traceback],
        ),
        failed=known or found or judge.says_so(),
        ended=ended,
        notes=tuple(_notes(case, lost=lost, block=block)),
    )


def ended_well(case: JobContext, status: int | None = None) -> bool:
    """Whether the job succeeded, according to its record, its own outcome, or, without either, the
    last line of its script.
    """
    last = case.attempts[-1] if case.attempts else None
    if case.account is not None and case.account.state != states.UNKNOWN:
        if case.account.state != "COMPLETED" or (last is not None and last.outcome == "failed"):
            return False
        # A script whose last command succeeds is COMPLETED, even if its training failed.
        return not any(
            step.state in ("FAILED", "OUT_OF_MEMORY", "NODE_FAIL") for step in case.account.steps
        )
    if last is not None and last.outcome is not None:
        return last.outcome == "completed" and last.status in (0, None)
    return status == 0


def has_failed(case: JobContext, status: int | None = None) -> bool:
    """Whether the job is known to have failed."""
    if ended_well(case, status):
        return False
    last = case.attempts[-1] if case.attempts else None
    if case.account is not None and case.account.state != states.UNKNOWN:
        return states.is_final(case.account.state)
    return status not in (None, 0) or (
        last is not None and (last.outcome == "failed" or last.status not in (None, 0))
    )


def _is_active(case: JobContext) -> bool:
    return case.account is not None and case.account.state in states.ACTIVE | states.WAITING


class Standing(IntEnum):
    """How well a rule explains the end; the earliest of the best-ranked is the cause.

    A cause ranks before a set-up message that the job survived, then a symptom (which an unknown
    cause may have), then anything that the training may have recovered from.
    """

    CAUSE = 0
    PASSED = 1
    SYMPTOM = 2
    PERHAPS = 3
    PERHAPS_SYMPTOM = 4
    NOT = 5


class _DiagnosisRanker:
    """Ranks the rules that fired. Their lines, the record and facts are evidence for them;
    `_standing` collects the evidence against.

    The hits are those of the explained start, in the order they were written.
    """

    def __init__(
        self,
        case: JobContext,
        hits: Sequence[Match],
        rules: Sequence[FailureRule],
        troubles: Sequence[ErrorExcerpt],
        first_failed: Sequence[FirstFailed],
        *,
        lost: bool = False,
    ) -> None:
        self.case, self.rules, self.troubles, self.lost = case, rules, troubles, lost
        self.is_running = case.account is not None and case.account.state in states.ACTIVE
        self.first = min(
            first_failed,
            key=lambda each: each.at if each.at is not None else float("inf"),
            default=None,
        )
        hits = () if _is_active(case) and not lost else hits
        self.by_file: dict[str, list[Match]] = {}
        for hit in hits:
            self.by_file.setdefault(hit.evidence.file, []).append(hit)
        self.fired = matching.rules_that_match(rules, hits, case, troubles)
        self.unknown = self._unknown_tracebacks()
        self.reactions = {each.rule.id for each in self.fired if self._is_reaction(each)}

    def judged(self, *, known: bool) -> tuple[tuple[Diagnosis, ...], tuple[Consequence, ...]]:
        """Return the diagnoses and their consequences.

        Args:
            known: whether the job is known to have failed.
        """
        masked = self._masked()
        # A traceback without its message: the log was cut there.
        failed = (known or self.lost or self.says_so()) or any(
            matching.is_uncaught(each)
            and each.error[:1].isspace()
            and not matching.of_trouble(each)
            for each in self.troubles
        )
        standing = {
            each.rule.id: self._standing(each, masked, failed=failed) for each in self.fired
        }
        best = min(standing.values(), default=Standing.NOT)
        open_to = Standing.PERHAPS_SYMPTOM if failed and not self.unknown else Standing.SYMPTOM
        chosen: list[RuleMatch] = []
        if best <= open_to and not (best is Standing.PASSED and self.unknown):
            chosen = self._earliest([each for each in self.fired if standing[each.rule.id] is best])
        chosen = [
            replace(each, contested=each.contested or self._is_doubtful(each, known=known))
            for each in self._with_rival(chosen, standing)
        ]
        masked |= {name for each in chosen for name in self._followers(each.rule)}
        ids = {each.rule.id for each in chosen}
        begin = min((each.place for each in chosen), default=None)
        named = {hit.order for each in chosen for hit in each.hits}
        followed = [
            each
            for each in self.fired
            if each.hits
            and each.rule.id not in ids
            # Another name of the same line.
            and (
                each.rule.kind == "consequence" or any(hit.order not in named for hit in each.hits)
            )
            and (
                each.rule.kind == "consequence"
                or each.rule.id in masked
                or (begin and each.place >= begin)
            )
        ]
        return tuple(map(self._diagnosis, chosen)), tuple(map(self._consequence, followed))

    def _masked(self) -> set[str]:
        """Return the rules whose hits are consequences of others; if two mask each other, the later
        one.
        """
        masked: set[str] = set()
        for each in sorted(self.fired, key=lambda one: one.place):
            if each.rule.id not in masked | self.reactions and each.over is Recovery.NO:
                masked |= self._followers(each.rule)
        return masked

    def _followers(self, rule: FailureRule) -> set[str]:
        """Return the rules that fired of whose lines this rule is the cause: consequences, those
        that it masks, and of a cause all symptoms but those that mask it.
        """
        return {
            each.rule.id
            for each in self.fired
            if each.rule.kind == "consequence"
            or each.rule.id in rule.masks
            or (
                rule.kind == "cause"
                and each.rule.kind == "symptom"
                and rule.id not in each.rule.masks
            )
        }

    def _standing(self, each: RuleMatch, masked: set[str], *, failed: bool) -> Standing:
        rule, account, followers = each.rule, self.case.account, self._followers(each.rule)
        perhaps, certain = each.over is Recovery.PERHAPS, each.certainty == "certain"
        completed = account is not None and account.state == "COMPLETED"
        against = (
            rule.kind == "consequence" or (rule.id in masked and not perhaps),
            each.over is Recovery.SURELY,
            # Output followed, perhaps in another file, and nothing shows that the job failed.
            (
                each.went_on
                or (
                    each.passing
                    and sum(
                        one.size
                        for one in self.case.files
                        if one.name != each.hits[0].evidence.file
                    )
                    > _OUTPUT
                )
            )
            and not failed
            and not any(
                other.rule.id in followers and other.over is Recovery.NO for other in self.fired
            ),
            # If steps followed, the start succeeded.
            perhaps and rule.stage not in ("comm", "run", "end"),
            # For a running or completed job, only certain causes count.
            not certain and (completed or (self.is_running and not self.lost)),
            # The hang is a consequence of the dead rank.
            self.lost and not each.hits and (not certain or rule.fact == "hang"),
            rule.id in self.reactions,
            self._is_late(each),
            # If a rank died with an unknown error and Slurm ended the step for it, a fact alone
            # describes the ended step, not the cause.
            rule.kind == "symptom"
            and not (each.hits or each.record)
            and bool(self._unknown_tracebacks(_OF_STEP)),
            # With bare logs it is unknown whether the job has ended or failed: a merely likely fact
            # is not enough.
            not (each.hits or each.record or certain or account or self.case.attempts),
        )
        if any(against):
            return Standing.NOT
        is_cause = rule.kind == "cause"
        if perhaps:
            return Standing.PERHAPS if is_cause else Standing.PERHAPS_SYMPTOM
        if not is_cause:
            return Standing.SYMPTOM
        return Standing.PASSED if each.passing else Standing.CAUSE

    def _is_reaction(self, each: RuleMatch) -> bool:
        """Whether the job was cancelled, or reached its time limit, after one of its processes had
        died: the others wait for it, or the node does not end. Or its user saw NaN to the end.
        """
        return (
            each.rule.id in ("cancelled-by-user", "time-limit")
            and any(
                (
                    matching.is_uncaught(one)
                    or (one.traceback and "Traceback" not in one.lines[0])
                    or one.error.startswith("terminate called")
                )
                and not _ENDED.search(one.error)
                and one.steps_after < _GOES_ON
                and all(is_behind(hit, one) for hit in each.hits[:1])
                for one in self.troubles
                if each.hits
            )
        ) or (
            each.rule.id == "cancelled-by-user"
            and any(
                one.hits[-1].order < each.hits[0].order
                and one.over is Recovery.NO
                and one.rule.id == "nan-loss"
                for one in self.fired
                if one.hits and each.hits
            )
        )

    def _is_late(self, each: RuleMatch) -> bool:
        """Whether this is a line from another rank after an error that matches no rule."""
        if (
            not each.hits
            or each.record
            or each.found
            or (each.certainty == "certain" and each.rule.stage not in ("comm", "rdzv", "end"))
        ):
            return False
        hit = each.hits[0]
        return any(
            None not in (one.rank, hit.rank) and one.rank != hit.rank and is_behind(hit, one)
            for one in self.unknown
        )

    def _unknown_tracebacks(self, but: Sequence[str] = ()) -> list[ErrorExcerpt]:
        """Return tracebacks that the training did not recover from and that no rule matches, except
        the rules in `but`.
        """
        return [
            each
            for each in self.troubles
            if each.traceback
            # One without its message says nothing against a rule.
            and not each.error[:1].isspace()
            and matching.of_trouble(each) is not Recovery.SURELY
            and not any(
                hit.rule not in but
                and matching.stands_in(hit, each)
                # What the shell failed at afterwards, such as a `mv` of the results.
                and not (
                    hit.order[1] >= each.line + len(each.lines)
                    and any(rule.passing for rule in self.rules if rule.id == hit.rule)
                )
                for hit in self.by_file.get(each.file, ())
            )
        ]

    def _with_rival(
        self, chosen: list[RuleMatch], standing: Mapping[str, Standing]
    ) -> list[RuleMatch]:
        """Add the last other cause that the same process wrote well after the chosen one, and to a
        cancellation a failed set-up that nothing followed.

        If both could have ended the job and neither follows from the other, both are only likely.
        """
        if not chosen or any(each.record or each.found or not each.hits for each in chosen):
            return chosen
        own, first = chosen[0].rule, chosen[0].hits[0]
        rivals = [
            each
            for each in self.fired
            if each.rule.id != own.id
            and each.hits
            and each.hits[-1].evidence.file == first.evidence.file
            and each.hits[-1].rank == first.rank
            and (
                (
                    standing.get(each.rule.id) is Standing.CAUSE
                    and each.hits[-1].order[1] > first.order[1] + _NEARBY
                )
                # The user may have cancelled the job because of a message of its set-up.
                or (
                    own.id == "cancelled-by-user"
                    and standing.get(each.rule.id) is Standing.PASSED
                    and not each.went_on
                )
            )
        ]
        if not rivals:
            return chosen
        # The last cause, or the first message of the set-up.
        last = max(
            rivals,
            key=lambda each: (
                (1, each.hits[-1].order[1])
                if standing[each.rule.id] is Standing.CAUSE
                else (0, -each.hits[0].order[1])
            ),
        )
        both = (
            chosen
            if last in chosen
            else sorted((*chosen, last), key=lambda each: (each.certainty != "certain", each.place))
        )
        return [replace(each, contested=True) for each in both]

    def _is_doubtful(self, each: RuleMatch, *, known: bool) -> bool:
        """Whether a line without a matching record or fact may not have ended the job: the shell
        continued, or steps or an unknown error follow in the same file.
        """
        if not each.hits or each.record or each.found or matching.is_notice(each.hits[-1]):
            return False
        last = each.hits[-1]
        ended = any(
            matching.is_uncaught(one) and matching.stands_in(last, one) for one in self.troubles
        )
        later = any(
            one.file == last.evidence.file
            and one.rank == last.rank
            and one.order[1] > last.order[1]
            and not self._is_known(one)
            for one in self.unknown
        )
        return (
            later
            or (not known and (each.rule.passing or last.logged))
            or (last.steps_after > 0 and not ended)
        )

    def _earliest(self, fired: Sequence[RuleMatch]) -> list[RuleMatch]:
        """Return the earliest cause; of simultaneous ones, within clock precision, a certain one,
        then that of the rank that failed first. Before a merely likely one that is long ago, also a
        certain one.
        """
        ordered = sorted(fired, key=lambda each: each.place)
        rivals = [each for each in ordered if self._at_once(ordered[0], each)]
        failed = self.first.rank if self.first is not None else None
        first = sorted(
            rivals,
            key=lambda each: (
                each.certainty != "certain",
                failed is None or not each.hits or each.hits[0].rank != failed,
            ),
        )[:1]
        later = (
            each
            for each in ordered
            if each.certainty == "certain"
            and (each.at is None or first[0].at is None or each.at - first[0].at > _FAR_S)
        )
        return [*islice(later, 1 if first and first[0].certainty == "likely" else 0), *first]

    def _at_once(self, first: RuleMatch, each: RuleMatch) -> bool:
        if each is first:
            return True
        if not (first.hits and each.hits):
            return False
        one, other = first.hits[0], each.hits[0]
        if one.order[0] == other.order[0] and one.evidence.file == other.evidence.file:
            return one.order == other.order
        return one.at is None or other.at is None or abs(one.at - other.at) <= TOLERANCE_S

    # -- output ------------------------------------------------------------------------------------

    def _diagnosis(self, each: RuleMatch) -> Diagnosis:
        rank, node = self._where(each)
        raised = (
            one.raised
            for one in self.troubles
            if each.hits and one.traceback and matching.stands_in(each.hits[0], one)
        )
        groups = {
            **{
                name: value
                for name, value in next(raised, {}).items()
                # A group of the rule that did not match is no other thing of that name.
                if name != "code" or "(?P<code>" not in "".join(each.rule.lines)
            },
            **matching.known(self.case),
            "count": str(sum(hit.count for hit in each.hits)),
        }
        for own in (
            each.hits[0].groups if each.hits else {},
            each.found.groups if each.found else {},
        ):
            groups.update(own)
        groups |= {
            name: str(value)
            for name, value in (("rank", rank), ("node", node))
            if value is not None and name not in groups
        }
        cause, remedy = self._sentences(each.rule, groups)
        make = fixes.FIXES.get(each.rule.fix or "")
        fix = (make and make(self.case, groups)) or Fix(
            text=text.filled_in(remedy, self._places(each, groups, node))
        )
        if self.lost:  # nothing else frees the nodes
            commands = _cancel(self.case, " --apply-fix" if fix.changes else "")
            fix = replace(fix, text="\n".join((fix.text.rstrip(), *commands)))
        return Diagnosis(
            id=each.rule.id,
            stage=each.rule.stage,
            certainty="likely" if self.is_running else each.certainty,
            cause=cause,
            fix=fix,
            evidence=_evidence(each),
            rank=rank,
            node=node,
            since=self._clock(each.at),
            attempt=(each.hits[0].attempt if each.hits else None)
            or next((one.name for one in reversed(self.case.attempts)), None),
        )

    def _sentences(self, rule: FailureRule, groups: Mapping[str, str]) -> tuple[str, str]:
        # A name in the cause may come from a group, or from a fact that did not hold.
        in_lines = [re.findall(r"\(\?P<(\w+)>", pattern) for pattern in (*rule.lines, *rule.near)]
        names = {*KNOWN_NAMES, *groups, *chain.from_iterable(in_lines), *text.names(rule.cause)}
        # hpctrain's commands only help if it submitted the job.
        ours = self.case.config is not None or self.case.attempts or self.case.extra.get("run")
        remedy = rule.remedy if ours else rule.script or text.script_remedy(rule.remedy)
        remedy = text.filled_lines(remedy, groups, names)
        if self.case.account is not None and self.case.account.scheduler == "local":
            remedy = re.sub(r"(?m)^sacct .*", "hpctrain ps JOBID", remedy)
        return text.sentences(rule.cause, groups, names), remedy

    def _places(
        self, each: RuleMatch, groups: Mapping[str, str], node: str | None
    ) -> dict[str, str]:
        """Return the known values of a remedy's placeholders RUN, JOBID, NODE, PATH, HOST and
        LOG.
        """
        account = self.case.account
        job = account.job_id if account is not None else groups.get("job")
        known = {
            "RUN": self.case.extra.get("run"),
            "JOBID": job,
            "NODE": node,
            "PATH": groups.get("path") or groups.get("directory"),
            "HOST": groups.get("host"),
            "LOG": each.hits[0].evidence.file if each.hits else None,
        }
        return {name: str(value) for name, value in known.items() if value}

    def _where(self, each: RuleMatch) -> tuple[int | None, str | None]:
        """Return rank and node: from the first line, its copy in the rank's own file, the fact, the
        process that failed first, or a later line of the same start.
        """
        known: list[tuple[int | None, str | None]] = []
        if each.hits:
            first, text_of_first = each.hits[0], each.hits[0].evidence.text
            texts = [(hit, hit.evidence.text) for hit in each.hits]
            same = [
                hit
                for hit, own in texts
                if own.endswith(text_of_first) or text_of_first.endswith(own)
            ]
            known += [(hit.rank, hit.node) for hit in (first, *same)]
        if each.found is not None:
            known.append((each.found.rank, each.found.node))
        if self.first is not None and self._is_of_the_first(each.rule):
            known.append((self.first.rank, self.first.node))
        if all(rank is None for rank, _ in known):
            # Prefer the node that a line names to the node that wrote it.
            own = [hit for hit in each.hits if hit.part == each.hits[0].part]
            known = [
                *((hit.rank, hit.groups.get("node")) for hit in own),
                *known,
                *((hit.rank, hit.node) for hit in own),
            ]
        rank = next((rank for rank, _ in known if rank is not None), None)
        nodes: list[str | None] = [
            node for of, node in known if node not in (None, "localhost") and of in (None, rank)
        ]
        nodes += [sample.host for sample in self.case.samples if sample.rank == rank]
        account = self.case.account
        if account is not None:
            nodes += [account.failed_node or (account.nodes if account.n_nodes == 1 else None)]
        return rank, next((node for node in nodes if node), None)

    def _is_of_the_first(self, rule: FailureRule) -> bool:
        """Whether a rule is about a single process: then it is the one that torch saw fail
        first.
        """
        if rule.kind == "symptom":
            code = self.first.exit_code if self.first is not None else None
            return code == _KILLED or (code is not None and _OF_SIGNAL.get(code) == rule.id)
        return rule.stage in ("run", "comm") and rule.area not in ("time", "end")

    def _consequence(self, each: RuleMatch) -> Consequence:
        ranks = tuple(sorted({hit.rank for hit in each.hits if hit.rank is not None}))
        what, _ = self._sentences(each.rule, {**matching.known(self.case), **each.hits[0].groups})
        count = sum(hit.count for hit in each.hits)
        return Consequence(
            id=each.rule.id, what=what, count=count, evidence=each.hits[0].evidence, ranks=ranks
        )

    def says_so(self) -> bool:
        """Whether a launcher reports at the end that a process failed."""
        return any(
            each.rule.id in _LAUNCHERS and bool(each.hits) and each.over is Recovery.NO
            for each in self.fired
        )

    def earliest_trouble(self, *, known: bool) -> ErrorExcerpt | None:
        """Return the earliest error of the rank that failed first.

        Args:
            known: whether the job is known to have failed; if not, only fatal errors count.
        """
        usable = [
            each
            for each in self.troubles
            if known
            or (
                (each.traceback or DEADLY.search(each.error) or each.ending)
                and not matching.of_trouble(each)
                and (each.ending or not self._was_passed(each))
                # vLLM's handler of a signal raises it: the server was stopped.
                and not each.error.startswith("KeyboardInterrupt: ")
                # An exception in a thread ends only that thread; one in a finalizer nothing.
                and not any(_ASIDE.search(line) for line in each.lines[1:4])
            )
        ]
        if not usable:
            return None
        own = [each for each in usable if not self._is_known(each)]
        usable = (
            [each for each in own or usable if matching.of_trouble(each) is not Recovery.SURELY]
            or own
            or usable
        )
        if self.first is not None and (
            of_first := [
                each for each in usable if each.rank is not None and each.rank == self.first.rank
            ]
        ):
            usable = of_first
        # Prefer a traceback: a line with an error word before it may be unrelated, and one that
        # other processes wrote into may lack its end. Errors that were recovered from come last.
        return min(
            usable,
            key=lambda each: (
                each.launcher,
                each.ending and not (each.traceback or DEADLY.search(each.error)),
                matching.of_trouble(each),
                each.traceback and each.error[:1].isspace(),
                not (each.traceback or DEADLY.search(each.error)),
                place(each),
            ),
        )

    def block(self, trouble: ErrorExcerpt) -> ErrorBlock:
        """Return an error to show it."""
        return ErrorBlock(
            file=trouble.file,
            line=trouble.line,
            rank=trouble.rank,
            node=trouble.node,
            since=self._clock(trouble.at),
            lines=trouble.lines,
            frame=trouble.raised.get("frame"),
        )

    def hints(self, trouble: ErrorExcerpt) -> tuple[Diagnosis, ...]:
        """Return what the first hint that fits says of an error that no rule explains."""
        if matching.of_trouble(trouble) is not Recovery.NO:
            return ()
        said = logged_exception(trouble.error) or trouble.error
        behind = trouble.lines if trouble.ending or not trouble.traceback else ()
        texts = (said, f"{said}\n{trouble.raised.get('code', '')}", *behind)
        where = (*trouble.lines, f"raised by {trouble.raised.get('package')}")
        for rule in self.rules:
            if rule.kind != "hint" or (rule.near and not _found(rule.near, where)):
                continue
            match = _found(rule.lines, texts)
            if match is None or _found(rule.but_not, (match.string,)):
                continue
            known = {name: value for name, value in match.groupdict().items() if value}
            evidence = Evidence(
                file=trouble.file,
                line=trouble.line,
                text=match.string.partition("\n")[0][:_EVIDENCE],
            )
            hit = Match(
                rule=rule.id,
                evidence=evidence,
                # The general advice of a hint comes behind that for its wording.
                groups={"plain": "error, if that is not it", **trouble.raised, **known},
                order=trouble.order,
                at=trouble.at,
                rank=trouble.rank,
                node=trouble.node,
                attempt=trouble.attempt,
            )
            return (self._diagnosis(RuleMatch(rule=rule, hits=(hit,))),)
        return ()

    def _clock(self, at: float | None) -> str | None:
        return None if at is None else clock(at, self.case.zone_s)

    def _was_passed(self, each: ErrorExcerpt) -> bool:
        """Whether an error without a traceback is a message after which the shell went on."""
        passed = (hit for one in self.fired if one.went_on for hit in one.hits)
        return not each.traceback and (
            (_BUILD.match(each.error) and each.bytes_after > _AFTER_BUILD)
            or any(matching.stands_in(hit, each) for hit in passed)
        )

    def _is_known(self, each: ErrorExcerpt) -> bool:
        """Whether a rule matches inside an error or shortly after it.

        A launcher reports a dead process after its traceback, so a consequence counts only if it
        matches the traceback itself.
        """
        until = each.line + len(each.lines) + 40
        near = {
            hit.rule for hit in self.by_file.get(each.file, ()) if each.line <= hit.order[1] < until
        }
        if not each.traceback:
            return bool(near)
        return any(
            (rule.kind != "consequence" and not rule.passing)
            or any(re.search(pattern, line) for pattern in rule.lines for line in each.lines)
            for rule in self.rules
            if rule.id in near
        )


def _found(patterns: Iterable[str], texts: Sequence[str]) -> re.Match[str] | None:
    matches = (re.search(pattern, each) for pattern in patterns for each in texts)
    return next(filter(None, matches), None)


def _evidence(each: RuleMatch) -> tuple[Evidence, ...]:
    """Return the first lines, from different files if possible, then the record and the fact's
    evidence.
    """
    # The last of repeated lines has count 0; it is the only one if the first is of an earlier run.
    counted = [hit for hit in each.hits if hit.count] or each.hits
    found = list(dict.fromkeys(hit.evidence for hit in counted))
    by_file = list({item.file: item for item in reversed(found)}.values())
    first = [item for item in found if item in by_file][:2]
    return tuple(
        [
            *first,
            *([each.record] if each.record else []),
            *(each.found.evidence if each.found else ()),
        ][:_MOST_EVIDENCE]
    )


def _history(
    case: JobContext, before: Sequence[Match], errors: Sequence[ErrorExcerpt] = ()
) -> tuple[str, ...]:
    said = []
    for attempt in case.attempts[:-1]:
        ids = sorted({hit.rule for hit in before if hit.attempt == attempt.name})
        parts = [f"{attempt.name}: {attempt.outcome or 'ended without a message'}"]
        parts += [f"at step {attempt.last_step}"] if attempt.last_step is not None else []
        why = ", ".join([*([attempt.reason] if attempt.reason else []), *ids])
        said.append(" ".join(parts) + (f" ({why})" if why else ""))
    if not said:
        first = {
            **{(hit.part, hit.rule): (hit, hit.evidence.text) for hit in reversed(before)},
            **{
                (each.part, "error"): (each, each.error)
                for each in reversed(errors)
                if not any(matching.stands_in(hit, each) for hit in before)
            },
        }
        said = [
            f"start {part + 1}: {rule}, line {hit.order[1]}: {told[:_TOLD]}"
            for (part, rule), (hit, told) in sorted(
                first.items(), key=lambda each: each[1][0].order
            )
        ][:_MOST_TOLD]
    return tuple(said)
