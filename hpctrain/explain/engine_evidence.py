"""Which rules fire, on which evidence: lines of logs, the scheduler's record, and facts. PURE."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpctrain.explain import engine_survived, facts, facts_found
from hpctrain.explain.case import Case
from hpctrain.explain.engine_survived import Over
from hpctrain.explain.facts import Found
from hpctrain.explain.hit import Hit, Trouble
from hpctrain.explain.model import STAGES, Certainty, Evidence
from hpctrain.explain.rule import Record, Rule
from hpctrain.scheduler.parse import duration, states
from hpctrain.scheduler.parse.accounting import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """A rule, and why it fires.

    Attributes:
        hits: in the order in which they were written.
        record: what the scheduler says.
        found: what the fact says.
        ended: when the job ended, seconds since the epoch.
        over: whether the training got over all of its lines, and nothing else speaks for it.
    """

    rule: Rule
    hits: tuple[Hit, ...] = ()
    record: Evidence | None = None
    found: Found | None = None
    ended: float | None = None
    over: Over = Over.NO

    @property
    def certainty(self) -> Certainty:
        """A record, or a fact, and a line that agree are certain; a symptom never is."""
        if self.rule.kind != "cause":
            return "likely"
        if self.found is not None and self.found.certainty is not None:
            return self.found.certainty
        if self.over is Over.PERHAPS:
            return "likely"
        agree = bool(self.hits) and (self.record is not None or self.found is not None) and not self.rule.all
        return "certain" if agree else self.rule.certainty

    @property
    def at(self) -> float | None:
        """When it began."""
        if self.hits:
            return self.hits[0].at
        return self.found.at if self.found is not None else self.ended

    @property
    def place(self) -> tuple[float, int, tuple[int, int]]:
        """What causes are sorted by: a line of which nobody knows the time may be the first, a record is of the end."""
        if self.hits:
            return (self.hits[0].at if self.hits[0].at is not None else float("-inf"), 0, self.hits[0].order)
        # The record's seconds are whole ones, cut off: a line of the same second comes before it.
        return (self.at + 1.0 if self.at is not None else float("inf"), 1 + STAGES.index(self.rule.stage), (0, 0))


def fired(rules: Sequence[Rule], hits: Sequence[Hit], case: Case, troubles: Sequence[Trouble] = ()) -> list[Fired]:
    """Return the rules that fire; `troubles` are the errors in which their lines may stand."""
    by_rule: dict[str, list[Hit]] = {}
    for hit in hits:
        by_rule.setdefault(hit.rule, []).append(hit)
    shown = engine_survived.tracebacks(troubles)
    found = []
    for rule in rules:
        own = tuple(by_rule.get(rule.id, ()))
        # A fact costs more than a look at a dictionary.
        if rule.all and rule.lines and not own:
            continue
        record = matched(rule.record, case.account) if rule.record is not None else None
        if rule.all and rule.record is not None and record is None:
            continue
        fact = _asked(rule.fact, case) if rule.fact is not None else None
        if (rule.all and rule.fact is not None and fact is None) or not (own or record or fact):
            continue
        over = engine_survived.of_hits(rule, own, shown) if own and record is None and fact is None else Over.NO
        found.append(Fired(rule=rule, hits=own, record=record, found=fact, ended=_since(case), over=over))
    return found


def _since(case: Case) -> float | None:
    """Return when what only the record says began: the end of the job, or of one that waits, its submission."""
    if case.account is not None and case.account.state in states.WAITING:
        return case.account.submitted
    return facts_found.ended(case)


def _asked(name: str, case: Case) -> Found | None:
    fact = facts.FACTS.get(name)
    return None if fact is None else fact(case)


def matched(record: Record, account: Account | None) -> Evidence | None:
    """Return the record, or the step of it, that says all that a rule asks for, as evidence."""
    if account is None:
        return None
    if record.reason is not None and (account.reason is None or re.search(record.reason, account.reason) is None):
        return None
    source = account.source or ("local" if account.scheduler == "local" else "sacct")
    if _says(record, account.state, account.exit_code, account.signal):
        return Evidence(file=source, line=None, text=described(account))
    for step in account.steps:
        if step.state == "CANCELLED":
            continue  # a step is cancelled where another task of it failed, or the job is ended: that says nothing of the job
        if _says(record, step.state, step.exit_code, step.signal):
            code = _code(step.exit_code, step.signal)
            text = f"step {account.job_id}.{step.name}: {step.state or 'state not known'}" + (f", exit code {code}" if code else "")
            return Evidence(file=source, line=None, text=text)
    return None


def _says(record: Record, state: str | None, exit_code: int | None, signal: int | None) -> bool:
    if record.state and (state is None or state.split(maxsplit=1)[:1][0] not in record.state):
        return False
    return not record.exit_code or _code(exit_code, signal) in record.exit_code


def _code(exit_code: int | None, signal: int | None) -> str | None:
    return None if exit_code is None and signal is None else f"{exit_code or 0}:{signal or 0}"


def described(account: Account) -> str:
    """Return the record as one line."""
    parts = [f"job {account.job_id}: {account.state}"]
    code = _code(account.exit_code, account.signal)
    parts += [f"exit code {code}"] if code not in (None, "0:0") else []
    parts += [f"reason {account.reason}"] if account.reason not in (None, "", "None") else []
    if account.elapsed_s is not None and account.state not in states.WAITING:
        limit = f" of {duration.format(account.time_limit_s)}" if account.time_limit_s else ""
        parts.append(f"ran for {duration.format(account.elapsed_s)}{limit}")
    parts += [f"node {account.failed_node} failed"] if account.failed_node else []
    return ", ".join(parts)


def known(case: Case) -> dict[str, str]:
    """Return the names that every rule may use (rule.KNOWN_NAMES), as far as they are known."""
    account = case.account
    values: Mapping[str, object | None] = {"step": case.step, "max_steps": case.max_steps}
    if account is not None:
        values = {
            **values, "job": account.job_id, "state": account.state, "exit_code": account.exit_code, "signal": account.signal,
            "reason": account.reason, "nodes": account.nodes,
            "time_limit": duration.format(account.time_limit_s) if account.time_limit_s else None,
            "elapsed": duration.format(account.elapsed_s) if account.elapsed_s is not None else None,
            "memory": facts_found.gib(account.memory_bytes) if account.memory_bytes else None,
        }  # fmt: skip
    return {name: str(value) for name, value in values.items() if value is not None}
