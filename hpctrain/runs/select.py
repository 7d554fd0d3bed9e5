"""Which runs are meant: by id, by glob, by state, tag, stage and age. Pure; what the command line offers for it is cli/runs_filter.py."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpctrain.errors import UsageError
from hpctrain.runs.store import Run

_AGE = re.compile(r"([0-9]{1,9})([smhdw])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What was asked for; the kinds all have to hold, and of several words of one kind, one has to.

    Attributes:
        words: ids, the beginnings of ids, tags, or globs over ids.
        older_than_s, newer_than_s: seconds since `Run.since`.
    """

    words: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    older_than_s: int | None = None
    newer_than_s: int | None = None

    @property
    def is_bare(self) -> bool:
        """Whether nothing was asked for, which means all runs."""
        return self == Filter()

    def choose(self, runs: Sequence[Run], now: float) -> list[Run]:
        """Return the runs that are meant, but for their state, in their order; `now` is seconds since the epoch.

        Raises:
            UsageError: words that no run matches, or that several begin with: all of them at once.
        """
        ids = resolve(self.words, runs) if self.words else None
        return [run for run in runs if (ids is None or run.id in ids) and self._holds(run, now)]

    def has(self, state: str) -> bool:
        """Whether a run in that state is meant."""
        return not self.states or state in self.states

    def _holds(self, run: Run, now: float) -> bool:
        if self.tags and not any(fnmatch.fnmatchcase(run.tag, tag) for tag in self.tags):
            return False
        if self.stages and run.stage not in self.stages:
            return False
        if self.older_than_s is None and self.newer_than_s is None:
            return True
        if run.since is None:  # of an age that nobody knows, it is neither
            return False
        age = now - run.since
        return (self.older_than_s is None or age > self.older_than_s) and (self.newer_than_s is None or age < self.newer_than_s)


def parse_age(text: str) -> int:
    """Return the seconds in `90s`, `30m`, `12h`, `7d` or `2w`.

    Raises:
        ValueError: it is none of these.
    """
    found = _AGE.match(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not an age; write a whole number with s, m, h, d or w, such as 7d")
    return int(found[1]) * _SECONDS[found[2]]


def resolve(words: Sequence[str], runs: Sequence[Run]) -> set[str]:
    """Return the ids that the words stand for: an id, a tag, a glob, or the beginning of one id.

    Raises:
        UsageError: words that no run matches, or that several begin with: all of them at once.
    """
    ids = [run.id for run in runs]
    present = set(ids)
    tags: dict[str, list[str]] = {}
    for run in runs:
        tags.setdefault(run.tag, []).append(run.id)
    found: set[str] = set()
    problems: list[str] = []
    for word in words:
        if word in present:
            found.add(word)
        elif any(sign in word for sign in "*?["):
            found.update(fnmatch.filter(ids, word))  # none is an answer
        elif word in tags:
            found.update(tags[word])
        else:
            begun = [run for run in ids if word and run.startswith(word)]
            found.update(begun if len(begun) == 1 else ())
            if len(begun) != 1:
                problems.append(_several(word, begun) if begun else _none(word, ids))
    if problems:
        raise UsageError(problems[0], details=tuple(problems[1:]), fix="hpctrain runs list --all")
    return found


def one(word: str, runs: Sequence[Run]) -> Run:
    """Return the run that a word stands for: its id, or the beginning of it.

    Raises:
        UsageError: there is none, or there are several.
    """
    ids = resolve([word], runs)
    if len(ids) != 1:
        raise UsageError(_several(word, sorted(ids)) if ids else _none(word, [run.id for run in runs]), fix="hpctrain runs list --all")
    return next(run for run in runs if run.id in ids)


def _several(word: str, ids: Sequence[str]) -> str:
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return f"{len(ids)} runs are called {word!r} or so: {', '.join(ids[:3])}{more}"


def _none(word: str, ids: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, ids, n=1, cutoff=0.5)
    return f"there is no run {word!r}" + (f"; did you mean {close[0]!r}?" if close else "")
