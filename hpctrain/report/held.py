"""When a run had its nodes, and how many: each of its starts with the accounting record that is of it. PURE.

The jobs of one run need not be alike: a chain goes on with fewer nodes, a resubmission asks for more time. A start that was killed says no
end of its own; its record does, and what it held after its last row is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hpctrain.runs.history import Start
from hpctrain.scheduler.parse.accounting import Account

_DAY_S = 86_400
_PROLOGUE_S = 600.0
"""What may lie between the start of a job and the first line of its script: the site's own preparations."""
_CLOCKS_S = 3600.0
"""What a node's clock may be off, and a record still be that of a start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Had:
    """What a job had: GPUs and nodes, all together, and its time limit."""

    gpus: int | None = None
    nodes: int | None = None
    limit_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One start with what its job had; `first` and `until` are seconds since the epoch."""

    start: Start
    first: float
    until: float
    had: Had = Had()

    @property
    def seconds(self) -> float:
        """How long it had them."""
        return self.until - self.first


def with_ends(starts: Sequence[Start], accounts: Sequence[Account]) -> tuple[Start, ...]:
    """Return the starts; those that were killed, and say no end, with the end that their record says."""
    records = [each for account in accounts for each in (*account.earlier, account)]
    of = _records(starts, records)
    found = []
    for number, start in enumerate(starts):
        record = of[number]
        if start.ended is None and start.until is not None and record is not None:
            after = next((index for index, each in enumerate(starts) if index > number and each.first_at is not None), None)
            following = None if after is None else starts[after].first_at
            until = _ended(start.until, record, following, same=after is not None and of[after] is record)
            found.append(replace(start, ended=until) if until > start.until else start)
        else:
            found.append(start)
    return tuple(found)


def spans(
    starts: Sequence[Start], accounts: Sequence[Account], now: float | None, *, otherwise: Callable[[float, float], Had]
) -> list[Span]:
    """Return when each start had its nodes.

    Args:
        starts: of the run.
        accounts: the records of its jobs.
        now: of a run that goes on.
        otherwise: what a start had between two moments, as far as its record does not say it.
    """
    records = [each for account in accounts for each in (*account.earlier, account)]
    seen = [(start, first, until) for start in with_ends(starts, accounts)
            if (first := start.first_at) is not None and (until := start.until) is not None]  # fmt: skip
    if not seen:
        return [_span(_unseen(each, number), each.started, each.ended, each, otherwise)
                for number, each in enumerate(records) if each.started is not None and each.ended is not None]  # fmt: skip
    of = _records([start for start, _, _ in seen], records)
    found = []
    for number, ((start, first, until), record) in enumerate(zip(seen, of, strict=True)):
        alone = record is not None and sum(each is record for each in of) == 1
        had_at, lost_at = _billed(first, until, record) if alone and record is not None else (first, until)
        goes_on = now is not None and number == len(seen) - 1 and start.ended is None
        found.append(_span(start, had_at, max(lost_at, now or lost_at) if goes_on else lost_at, record, otherwise))
    return found


def _billed(first: float, until: float, record: Account) -> tuple[float, float]:
    """Return when a start had its nodes, as long as its record says: before its script's first line, and behind its last one, too.

    The scheduler's clock is another one than the node's: how long it was is believed, and when, as far as the two agree.
    """
    began, ended = record.started, record.ended
    if began is None:
        return first, until
    lead = first - began
    if ended is None:
        return (began if 0 < lead < _PROLOGUE_S else first), until
    more = ended - began - (until - first)
    if not 0 < more <= max(_DAY_S, record.time_limit_s or 0):
        return first, until
    lead = lead if 0 <= lead <= more else more
    return first - lead, until + more - lead


def _span(start: Start, first: float, until: float, record: Account | None, otherwise: Callable[[float, float], Had]) -> Span:
    had = otherwise(first, until)
    if record is not None:
        had = Had(
            gpus=record.gpus or had.gpus, nodes=had.nodes if record.n_nodes is None else record.n_nodes,
            limit_s=had.limit_s if record.time_limit_s is None else record.time_limit_s,
        )  # fmt: skip
    return Span(start=start, first=first, until=until, had=had)


def _records(starts: Sequence[Start], records: Sequence[Account]) -> list[Account | None]:
    """Return the record of each start.

    Starts of one attempt have one, and so have all of a job of which there is only one. Of a requeued job that may be its newest alone, and
    then it says nothing of the starts before the one that it began with.
    """
    begun: dict[str, float | None] = {}
    for start in starts:
        begun.setdefault(start.name, start.first_at)
    found = [_record(start, begun[start.name], records) for start in starts]
    for record in records:
        of = [number for number, each in enumerate(found) if each is record]
        first = min(of, key=lambda number: _apart(record, starts[number].first_at), default=0)
        for number in of:
            found[number] = record if number >= first else None
    return found


def _apart(record: Account, first: float | None) -> float:
    return math.inf if record.started is None or first is None else abs(record.started - first)


def _record(start: Start, first: float | None, records: Sequence[Account]) -> Account | None:
    """Return the record of a start: of those of its job the one that was there at its time, for a requeued job has one for each start."""
    mine = [each for each in records if start.job is not None and start.job in (each.job_id, each.slurm_job_id)]
    if len(mine) < 2 or first is None:
        return next(iter(mine), None)
    return min(mine, key=lambda each: _apart(each, first))


def _ended(until: float, record: Account, following: float | None, *, same: bool) -> float:
    """Return when a start ended that says nothing of it; the scheduler's clock is another one, and what is far off is not believed.

    Args:
        until: the last that it said.
        record: of it.
        following: when the next start began.
        same: whether that was in the same job, which had its nodes all the while.
    """
    ended = record.ended
    if ended is None:
        return max(until, following) if same and following is not None else until
    if not until <= ended <= until + max(_DAY_S, record.time_limit_s or 0):
        return until
    if following is None or ended <= following:
        return ended
    return max(until, following) if same or ended <= following + _CLOCKS_S else until


def waited_s(found: Sequence[Span], accounts: Sequence[Account]) -> float | None:
    """Return the seconds in the queue of the first job, and between starts."""
    submitted = min(
        (each.submitted for account in accounts for each in (account, *account.earlier) if each.submitted is not None), default=None
    )
    if not found or (submitted is None and len(found) == 1):
        return None
    between = sum(max(0.0, later.first - earlier.until) for earlier, later in pairwise(found))
    return between + (max(0.0, found[0].first - submitted) if submitted is not None else 0.0)


def _unseen(account: Account, number: int) -> Start:
    """Return a start of which only the scheduler knows."""
    return Start(
        name=f"{account.job_id}.{number}", started=account.started, ended=account.ended, first_step=None, last_step=None, outcome=None,
        reason=account.reason, job=account.job_id,
    )  # fmt: skip
