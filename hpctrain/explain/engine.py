"""Why the job failed: rules, hits and the record in, the earliest cause out, its consequences told apart. PURE."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from hpctrain.explain import engine_evidence, engine_order, engine_requeues, engine_running, engine_survived, text
from hpctrain.explain.case import Case
from hpctrain.explain.engine_evidence import Fired
from hpctrain.explain.engine_order import TOLERANCE_S
from hpctrain.explain.engine_survived import Over
from hpctrain.explain.hit import DEADLY, FirstFailed, Hit, Trouble
from hpctrain.explain.model import Consequence, Diagnosis, ErrorBlock, Evidence, Explanation, Fix
from hpctrain.explain.rule import KNOWN_NAMES, Rule
from hpctrain.scheduler.parse import states

#: So much earlier, and what is only likely may have nothing to do with what is certain.
_FAR_S = 600.0
_MOST_EVIDENCE = 4
#: What srun and Slurm say at the end of a step in which a task has failed, whatever the task said.
_OF_STEP = ("kill-on-bad-exit", "srun-exited", "srun-terminated")
#: What a launcher says of a process that failed: the job did, though nobody knows its exit code.
_LAUNCHERS = ("srun-exited", "torchelastic-child-failed")
#: Signals as torch's elastic agent writes them: what ends a process from outside, whose traces are of many kinds, and those of one kind.
_KILLED, _OF_SIGNAL = -9, {-11: "segfault", -7: "bus-error", -6: "aborted"}


def explain(
    case: Case, hits: Iterable[Hit], rules: Sequence[Rule], *, troubles: Iterable[Trouble] = (), first_failed: Iterable[FirstFailed] = (),
    status: int | None = None,
) -> Explanation:  # fmt: skip
    """Return why the job failed; nothing where it did not.

    Args:
        case: what is known of the job besides its logs.
        hits: of all of its logs (hpctrain.logs.scan).
        rules: the whole table.
        troubles: errors that the logs show, whether a rule knows them or not.
        first_failed: what torch's elastic agents saw.
        status: the exit code that the job script wrote, where there is no record.
    """
    ended = engine_evidence.described(case.account) if case.account is not None else None
    if ended_well(case, status):
        return Explanation(ended=ended, history=_history(case, ()))
    clocks = case.extra.get("clocks") or engine_order.skews(case.samples)
    hits = engine_order.straight(hits, clocks)
    case = engine_requeues.with_requeues(case, hits)
    now, before = engine_order.split(hits, case)
    shown, _ = engine_order.split(engine_order.straight(troubles, clocks), case)
    seen_first, _ = engine_order.split(engine_order.straight(first_failed, clocks), case)
    lost = engine_running.has_lost_a_rank(case, now, shown, seen_first)
    judge = _Judge(case, engine_order.filled(now), rules, sorted(shown, key=engine_order.place), seen_first, lost=lost)
    known = has_failed(case, status)
    diagnoses, consequences = judge.judged(known=known)
    failed = known or bool(diagnoses)
    block = None
    if not diagnoses and (lost or not _is_active(case)):
        block = judge.earliest_trouble(known=known or judge.says_so())
    return Explanation(
        diagnoses=diagnoses, consequences=consequences if diagnoses or block else (), unexplained=block,
        history=_history(case, before), failed=failed or block is not None, ended=ended,
        notes=_notes(case, block, lost=lost, said=bool(diagnoses or block)),
    )  # fmt: skip


def _notes(case: Case, block: ErrorBlock | None, *, lost: bool, said: bool) -> tuple[str, ...]:
    if not said:
        return engine_requeues.notes(case)
    return engine_running.notes(case, block) if lost else ()


def ended_well(case: Case, status: int | None = None) -> bool:
    """Whether the job did what it was to do, as its record, its own outcome, or, where there is neither, its script's last line says."""
    last = case.attempts[-1] if case.attempts else None
    if case.account is not None and case.account.state != states.UNKNOWN:
        if case.account.state != "COMPLETED" or (last is not None and last.outcome == "failed"):
            return False
        # A script whose last command succeeds is COMPLETED, whatever became of its training.
        return not any(step.state in ("FAILED", "OUT_OF_MEMORY", "NODE_FAIL") for step in case.account.steps)
    if last is not None and last.outcome is not None:
        return last.outcome == "completed" and last.status in (0, None)
    return status == 0


def has_failed(case: Case, status: int | None = None) -> bool:
    """Whether it is known that the job failed."""
    if ended_well(case, status):
        return False
    last = case.attempts[-1] if case.attempts else None
    if case.account is not None and case.account.state != states.UNKNOWN:
        return states.is_final(case.account.state)
    return status not in (None, 0) or (last is not None and (last.outcome == "failed" or last.status not in (None, 0)))


def _is_active(case: Case) -> bool:
    return case.account is not None and case.account.state in states.ACTIVE | states.WAITING


class _Judge:
    """Weighs what fires. The hits are those of the start that is explained, in the order in which they were written."""

    def __init__(
        self, case: Case, hits: Sequence[Hit], rules: Sequence[Rule], troubles: Sequence[Trouble], first_failed: Sequence[FirstFailed],
        *, lost: bool = False,
    ) -> None:  # fmt: skip
        self.case, self.rules, self.troubles, self.lost = case, rules, troubles, lost
        self.first = min(first_failed, key=lambda each: each.at if each.at is not None else float("inf"), default=None)
        self.hits = () if _is_active(case) and not lost else tuple(hits)
        self.by_file: dict[str, list[Hit]] = {}
        for hit in self.hits:
            self.by_file.setdefault(hit.evidence.file, []).append(hit)
        self.fired = engine_evidence.fired(rules, self.hits, case, troubles)

    def judged(self, *, known: bool) -> tuple[tuple[Diagnosis, ...], tuple[Consequence, ...]]:
        """Return the diagnoses, and what followed from them.

        Args:
            known: whether it is known that the job failed.
        """
        masked = self._masked()
        able = [each for each in self.fired if self._may_be(each)]
        chosen: list[Fired] = []
        for pool in ([each for each in able if each.over is Over.NO and each.rule.id not in masked], self._last_resort(able, known=known)):
            for kind in ("cause", "symptom"):
                chosen = chosen or self._earliest([each for each in pool if each.rule.kind == kind])
        masked |= {name for each in chosen for name in each.rule.masks}
        ids = {each.rule.id for each in chosen}
        begin = min((each.place for each in chosen), default=None)
        rest = [each for each in self.fired if each.rule.id not in ids and each.hits]
        followed = [each for each in rest if each.rule.kind == "consequence" or each.rule.id in masked or (begin and each.place >= begin)]
        return tuple(self._diagnosis(each) for each in chosen), tuple(self._consequence(each) for each in followed)

    def _masked(self) -> set[str]:
        """Return the rules whose hits are consequences of others; of two that mask each other, the later one's."""
        masked: set[str] = set()
        for each in sorted(self.fired, key=lambda one: one.place):
            if each.rule.id not in masked and each.over is Over.NO:
                masked |= set(each.rule.masks)
        return masked

    def _last_resort(self, able: Sequence[Fired], *, known: bool) -> list[Fired]:
        """Return what the training perhaps got over, where it failed, and nothing says by what. What steps came behind has started well."""
        if not (known or self.lost or self.says_so()) or self._unknown_tracebacks():
            return []
        return [each for each in able if each.over is Over.PERHAPS and each.rule.stage in ("comm", "run", "end")]

    def _may_be(self, each: Fired) -> bool:
        """Whether this can be why the job failed."""
        account = self.case.account
        if self.lost and not each.hits:  # that it hangs is what the dead rank did
            return each.certainty == "certain" and each.rule.fact != "hang"
        if account is not None and account.state in states.ACTIVE and not self.lost:
            return each.certainty == "certain"
        if account is not None and account.state == "COMPLETED" and each.certainty != "certain":
            return False
        if each.over is Over.SURELY or self._is_late(each) or self._is_hearsay(each):
            return False
        # Of bare logs nobody knows whether the job has ended, or failed: a fact that is only likely is not enough to say so.
        return bool(each.hits) or each.record is not None or each.certainty == "certain" or account is not None or bool(self.case.attempts)

    def _is_late(self, each: Fired) -> bool:
        """Whether it is a lone line of another rank, behind an error that no rule knows."""
        if not each.hits or each.record or each.found or (each.certainty == "certain" and each.rule.stage not in ("comm", "rdzv", "end")):
            return False
        hit = each.hits[0]
        for trouble in self._unknown_tracebacks():
            apart = None not in (trouble.rank, hit.rank) and trouble.rank != hit.rank
            if apart and engine_order.is_behind(hit, trouble):
                return True
        return False

    def _unknown_tracebacks(self, but: Sequence[str] = ()) -> list[Trouble]:
        """Return the tracebacks that the training did not get over, and in which no line of a rule stands, but of those named."""
        shown = [each for each in self.troubles if each.traceback and not self._is_over(each)]
        known = engine_survived.stands_in
        return [each for each in shown if not any(known(hit, each) for hit in self.by_file.get(each.file, ()) if hit.rule not in but)]

    @staticmethod
    def _is_over(each: Trouble) -> bool:
        return engine_survived.of_trouble(each) is Over.SURELY

    def _is_hearsay(self, each: Fired) -> bool:
        """Whether a symptom is a fact of the record alone, and a rank had ended by itself, with an error that no rule knows.

        Where Slurm ends a step because one of its tasks has failed, the record is that of a step which somebody has ended.
        """
        if each.rule.kind != "symptom" or each.hits or each.record or not each.found:
            return False
        return bool(self._unknown_tracebacks(_OF_STEP))

    def _earliest(self, fired: Sequence[Fired]) -> list[Fired]:
        """Return the one that came first; with one that is certain behind it, where the first is only likely, and long ago."""
        if not fired:
            return []
        ordered = sorted(fired, key=lambda each: each.place)
        first = ordered[0]
        # Written at once, as far as clocks can tell: what is certain before what is likely, and the rank that failed first.
        rivals = [each for each in ordered if self._at_once(first, each)]
        first = min(rivals, key=lambda each: (each.certainty != "certain", not self._is_first_rank(each)))
        if first.certainty == "likely":
            certain = next((each for each in ordered if each.certainty == "certain"), None)
            if certain is not None and (certain.at is None or first.at is None or certain.at - first.at > _FAR_S):
                return [certain, first]
        return [first]

    def _at_once(self, first: Fired, each: Fired) -> bool:
        if each is first:
            return True
        if not (first.hits and each.hits):
            return False
        one, other = first.hits[0], each.hits[0]
        if one.order[0] == other.order[0] and one.evidence.file == other.evidence.file:
            return one.order == other.order
        return one.at is None or other.at is None or abs(one.at - other.at) <= TOLERANCE_S

    def _is_first_rank(self, each: Fired) -> bool:
        return self.first is not None and bool(each.hits) and each.hits[0].rank == self.first.rank

    # -- what is said --------------------------------------------------------------------------------------------------

    def _diagnosis(self, each: Fired) -> Diagnosis:
        rank, node = self._where(each)
        groups = {**engine_evidence.known(self.case), "count": str(sum(hit.count for hit in each.hits))}
        for own in (each.hits[0].groups if each.hits else {}, each.found.groups if each.found else {}):
            groups.update(own)
        groups |= {name: str(value) for name, value in (("rank", rank), ("node", node)) if value is not None and name not in groups}
        names = {*KNOWN_NAMES, *groups, *_groups_of(each.rule)}
        at = each.at
        last = self.case.attempts[-1].name if self.case.attempts else None
        remedy = text.lines(each.rule.remedy, groups, names)
        fix = self._fix(each.rule, groups) or Fix(text=text.filled_in(remedy, self._places(each, groups, node)))
        return Diagnosis(
            id=each.rule.id, stage=each.rule.stage, certainty="likely" if self.lost and each.hits else each.certainty,
            cause=text.sentences(each.rule.cause, groups, names),
            fix=engine_running.with_cancel(fix, self.case) if self.lost else fix,
            evidence=_evidence(each),
            rank=rank, node=node, since=None if at is None else text.clock(at, self.case.zone_s),
            attempt=(each.hits[0].attempt if each.hits else None) or last,
        )  # fmt: skip

    def _places(self, each: Fired, groups: Mapping[str, str], node: str | None) -> dict[str, str]:
        """Return what a remedy's RUN, JOBID, NODE, PATH and LOG stand for, where that is known."""
        account = self.case.account
        job = account.job_id if account is not None else groups.get("job")
        known = {"RUN": self.case.extra.get("run"), "JOBID": job, "NODE": node}
        return {
            name: str(value)
            for name, value in {**known, "PATH": groups.get("path"), "LOG": each.hits[0].evidence.file if each.hits else None}.items()
            if value
        }

    def _fix(self, rule: Rule, groups: Mapping[str, str]) -> Fix | None:
        if rule.fix is None:
            return None
        from hpctrain.explain import fixes

        make = fixes.FIXES.get(rule.fix)
        return None if make is None else make(self.case, groups)

    def _where(self, each: Fired) -> tuple[int | None, str | None]:
        """Return rank and node: of the first line, its copy in the rank's own file, the fact, what failed first, or a later line."""
        rank, node = None, None
        if each.hits:
            first = each.hits[0]
            same = [
                hit
                for hit in each.hits
                if hit.evidence.text.endswith(first.evidence.text) or first.evidence.text.endswith(hit.evidence.text)
            ]
            rank = next((hit.rank for hit in (first, *same) if hit.rank is not None), None)
            node = next((hit.node for hit in (first, *same) if hit.node is not None and hit.rank in (None, rank)), None)
        if rank is None and each.found is not None:
            rank, node = each.found.rank, node or each.found.node
        if rank is None and self.first is not None and self._is_of_the_first(each.rule):
            rank, node = self.first.rank, node or (self.first.node if self.first.node != "localhost" else None)
        if rank is None and each.hits:
            rank, node = _of_any(each.hits, node)
        if node is None and rank is not None:
            node = next((sample.host for sample in self.case.samples if sample.rank == rank), None)
        if node is None and self.case.account is not None:
            node = self.case.account.failed_node
            if node is None and self.case.account.n_nodes == 1:
                node = self.case.account.nodes
        return rank, node

    def _is_of_the_first(self, rule: Rule) -> bool:
        """Whether what a rule says is of one process: then it is the one that torch saw fail first."""
        if rule.kind == "symptom":
            code = self.first.exit_code if self.first is not None else None
            return code == _KILLED or (code is not None and _OF_SIGNAL.get(code) == rule.id)
        return rule.stage in ("run", "comm") and rule.area not in ("time", "end")

    def _consequence(self, each: Fired) -> Consequence:
        ranks = tuple(sorted({hit.rank for hit in each.hits if hit.rank is not None}))
        groups = {**engine_evidence.known(self.case), **each.hits[0].groups}
        what = text.sentences(each.rule.cause, groups, {*KNOWN_NAMES, *_groups_of(each.rule)})
        count = sum(hit.count for hit in each.hits)
        return Consequence(id=each.rule.id, what=what, count=count, evidence=each.hits[0].evidence, ranks=ranks)

    def says_so(self) -> bool:
        """Whether a launcher says at the end that a process failed."""
        return any(each.rule.id in _LAUNCHERS and bool(each.hits) and each.over is Over.NO for each in self.fired)

    def earliest_trouble(self, *, known: bool) -> ErrorBlock | None:
        """Return the earliest error of the rank that failed first.

        Args:
            known: whether it is known that the job failed; where it is not, only what ends a program counts.
        """
        usable = [
            each
            for each in self.troubles
            if known or ((each.traceback or DEADLY.search(each.error)) and not engine_survived.of_trouble(each))
        ]
        if not usable:
            return None
        own = [each for each in usable if not self._is_known(each)]
        usable = [each for each in own or usable if not self._is_over(each)] or own or usable
        if self.first is not None and (of_first := [each for each in usable if each.rank is not None and each.rank == self.first.rank]):
            usable = of_first
        # A traceback says what; the line with an error word that stands before it may be anything. What was got over says the least.
        best = min(
            usable,
            key=lambda each: (
                engine_survived.of_trouble(each),
                not (each.traceback or DEADLY.search(each.error)),
                engine_order.place(each),
            ),
        )
        since = None if best.at is None else text.clock(best.at, self.case.zone_s)
        return ErrorBlock(file=best.file, line=best.line, rank=best.rank, node=best.node, since=since, lines=best.lines)

    def _is_known(self, each: Trouble) -> bool:
        """Whether lines of a rule stand in an error, or close behind it.

        What a launcher says of a process that died stands behind its traceback: a consequence knows a traceback by its own lines only.
        """
        until = each.line + len(each.lines) + 40
        near = {hit.rule for hit in self.by_file.get(each.file, ()) if each.line <= hit.order[1] < until}
        if not each.traceback:
            return bool(near)
        return any(
            rule.kind != "consequence" or any(re.search(pattern, line) for pattern in rule.lines for line in each.lines)
            for rule in self.rules
            if rule.id in near
        )


def _of_any(hits: Sequence[Hit], node: str | None) -> tuple[int | None, str | None]:
    """Return the rank that a line of the first one's start names first, and its node; `node` where no line names another in its words."""
    own = [hit for hit in hits if hit.part == hits[0].part]
    rank = next((hit.rank for hit in own if hit.rank is not None), None)
    of_rank = [hit for hit in own if hit.rank in (None, rank)]
    named = next((hit.groups["node"] for hit in of_rank if hit.groups.get("node")), None)
    return rank, named or node or next((hit.node for hit in of_rank if hit.node is not None), None)


def _groups_of(rule: Rule) -> set[str]:
    # What the cause names is a name: of a group, or of a fact that did not hold.
    return {*(name for pattern in rule.lines for name in re.findall(r"\(\?P<(\w+)>", pattern)), *text.names(rule.cause)}


def _evidence(each: Fired) -> tuple[Evidence, ...]:
    """Return the first lines, of different files where there are several, the record, and what proves the fact."""
    found = list(dict.fromkeys(hit.evidence for hit in each.hits if hit.count))
    by_file = list({item.file: item for item in reversed(found)}.values())
    first = [item for item in found if item in by_file][:2]
    return tuple([*first, *([each.record] if each.record else []), *(each.found.evidence if each.found else ())][:_MOST_EVIDENCE])


def _history(case: Case, before: Sequence[Hit]) -> tuple[str, ...]:
    """Return one line on each earlier start."""
    said = []
    for attempt in case.attempts[:-1]:
        ids = sorted({hit.rule for hit in before if hit.attempt == attempt.name})
        parts = [f"{attempt.name}: {attempt.outcome or 'ended without a word'}"]
        parts += [f"at step {attempt.last_step}"] if attempt.last_step is not None else []
        why = ", ".join([*([attempt.reason] if attempt.reason else []), *ids])
        said.append(" ".join(parts) + (f" ({why})" if why else ""))
    if not said and before:
        by_part: dict[int, list[Hit]] = {}
        for hit in before:
            by_part.setdefault(hit.part, []).append(hit)
        said = [f"start {part + 1}: {', '.join(sorted({hit.rule for hit in own}))}" for part, own in sorted(by_part.items())]
    return tuple(said)
