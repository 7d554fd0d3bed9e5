"""What a fact is made of, and the words and numbers that facts and fixes have in common. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpctrain.explain.case import AttemptFact, Case
from hpctrain.explain.model import Certainty, Evidence
from hpctrain.memory.sample import Sample
from hpctrain.scheduler.parse import duration, states

MIB, GIB = 1 << 20, 1 << 30
SAMPLES, METRICS, SACCT, CONFIG, LOGS = "samples", "metrics", "sacct", "config", "logs"
_MOST = 300
_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a fact has found.

    Attributes:
        groups: names for the rule's sentences; facts.py lists those of each fact.
        evidence: the first is the one that says most; `file` is samples, metrics, sacct, config or logs, `line` None.
        rank, node: where it began; None where that is not known, or where it is all of them.
        at: seconds since the epoch, when it began.
        attempt: that it is about.
        certainty: where this proves more than the fact does in general; None: as the rule says.
    """

    groups: Mapping[str, str] = field(default_factory=dict)
    evidence: tuple[Evidence, ...]
    rank: int | None = None
    node: str | None = None
    at: float | None = None
    attempt: str | None = None
    certainty: Certainty | None = None


def evidence(file: str, text: str) -> Evidence:
    """Return evidence that is no line of a file."""
    return Evidence(file=file, line=None, text=text if len(text) <= _MOST else f"{text[: _MOST - 1]}…")


def groups(**values: object) -> dict[str, str]:
    """Return the groups that are known, as text."""
    return {name: str(value) for name, value in values.items() if value is not None}


# -- words -------------------------------------------------------------------------------------------------------------


def gib(size: float) -> str:
    """Return bytes as `63.9 GiB`, below one GiB as `310 MiB`."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def span(seconds: float) -> str:
    """Return a duration as people say it: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"


def clock(at: float) -> str:
    """Return seconds since the epoch as `2026-11-22T04:10:00Z`. The calendar is counted here: a pure room has no clock to ask."""
    days, rest = divmod(int(at), _DAY)
    # Howard Hinnant, chrono-compatible low-level date algorithms, civil_from_days
    shifted = days + 719_468
    era, of_era = divmod(shifted, 146_097)
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    day_of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    day, month_now = day_of_year - (153 * month + 2) // 5 + 1, month + 3 if month < 10 else month - 9
    year = year_of_era + era * 400 + (month_now <= 2)
    return f"{year:04d}-{month_now:02d}-{day:02d}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}Z"


def limit(seconds: int) -> str:
    """Return a time limit as Slurm writes it."""
    return duration.format(seconds)


def some(values: Iterable[object], most: int = 6) -> str:
    """Return values as a list in words, cut where it grows long."""
    words = [str(value) for value in values]
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def where(sample: Sample) -> str:
    """Return where and when a sample was taken."""
    return f"rank {sample.rank} on {sample.host}, step {sample.step}, {clock(sample.time_ms / 1000)}"


# -- the case ----------------------------------------------------------------------------------------------------------


def last_attempt(case: Case) -> AttemptFact | None:
    """Return the newest start of the job."""
    return case.attempts[-1] if case.attempts else None


def began(case: Case) -> float | None:
    """Return when the newest start began."""
    last = last_attempt(case)
    if last is not None and last.started is not None:
        return last.started
    return case.account.started if case.account is not None else None


def is_over(case: Case) -> bool:
    """Whether the job has ended, as far as is known."""
    if case.account is not None:
        return states.is_final(case.account.state)
    last = last_attempt(case)
    return last is not None and last.ended is not None


def ended(case: Case) -> float | None:
    """Return when the newest start ended; while the job runs, when it was looked at."""
    last, account = last_attempt(case), case.account
    known = [at for at in (last.ended if last else None, account.ended if account else None) if at is not None]
    if known:
        return max(known)
    if account is not None and account.started is not None and account.elapsed_s is not None and is_over(case):
        return account.started + account.elapsed_s
    return None if is_over(case) or case.account is None else case.now


def current(case: Case) -> tuple[Sample, ...]:
    """Return the samples of the newest start, in time's order; those of earlier starts tell another story."""
    since, ordered = began(case), sorted(case.samples, key=lambda sample: sample.time_ms)
    if len(case.attempts) < 2 or since is None:
        return tuple(ordered)
    return tuple(sample for sample in ordered if sample.time_ms / 1000 >= since - 60)


def by_rank(samples: Sequence[Sample]) -> dict[int, list[Sample]]:
    """Return rank -> its samples, in time's order."""
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.rank, []).append(sample)
    return dict(sorted(found.items()))


def newest(samples: Sequence[Sample]) -> dict[int, Sample]:
    """Return rank -> its last sample."""
    return {rank: found[-1] for rank, found in by_rank(samples).items()}


def setting(case: Case, *path: str) -> Any:
    """Return what the job config says at a path; None where it says nothing, or is not known."""
    value: Any = case.config
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def whole(value: object) -> int | None:
    """Return a whole number, as the config or a group of a signature writes it; None for anything else."""
    if isinstance(value, bool):
        return None
    text = str(value).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def number(value: object) -> float | None:
    """Return a number, likewise; none that is negative, infinite or no number."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = float(str(value))
    except ValueError:
        return None
    return found if 0 <= found < float("inf") else None


def processes_asked(case: Case) -> int | None:
    """Return the processes that the job was to have: nodes x GPUs of each, as its config says."""
    nodes, gpus = whole(setting(case, "resources", "nodes")), whole(setting(case, "resources", "gpus_per_node"))
    return nodes * gpus if nodes and gpus else case.world_size
