"""The failed runs of a sweep by what was wrong with them: a hundred points mostly fail for one or two reasons. PURE."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpctrain.explain.render import joined
from hpctrain.report import secrets
from hpctrain.report.facts import Given

NOT_READ = "its logs were not read"
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What several runs failed of.

    Attributes:
        id: of the diagnosis; None where no known cause matches.
        certainty: of it.
        cause: in words; where none is known, the last line of the first run's error.
        fix: of the first run.
        runs: ids, in the order of the points.
    """

    id: str | None
    certainty: str | None
    cause: str
    fix: str | None
    runs: tuple[str, ...]

    @property
    def first(self) -> str:
        """The run to look at."""
        return self.runs[0]


def why(given: Given) -> str | None:
    """Return why a run failed, in one sentence; None where it did not."""
    found = _of(given)
    if found is None:
        return None
    return f"{found.cause} ({found.certainty}; {found.id})" if found.id is not None else found.cause


def diagnosis(given: Given) -> str | None:
    """Return the id of the first diagnosis of a run that failed."""
    found = _of(given)
    return None if found is None else found.id


def grouped(runs: Iterable[tuple[str, Given]]) -> tuple[Failure, ...]:
    """Return the failed runs by their first diagnosis, the most frequent first; unknown errors by their last line without its numbers."""
    found: dict[tuple[str, str], list[tuple[str, Failure]]] = {}
    for run, given in runs:
        each = _of(given)
        if each is not None:
            key = ("diagnosis", each.id) if each.id is not None else ("", _NUMBERS.sub("0", each.cause))
            found.setdefault(key, []).append((run, each))
    groups = [
        Failure(id=first.id, certainty=first.certainty, cause=first.cause, fix=first.fix, runs=tuple(run for run, _ in members))
        for members in found.values()
        for first in (members[0][1],)
    ]
    return tuple(sorted(groups, key=lambda group: (-len(group.runs), group.id is None)))


def _of(given: Given) -> Failure | None:
    if given.state.word != "failed":
        return None
    said = given.explanation
    if said is not None and said.diagnoses:
        first = said.diagnoses[0]
        fix = "\n".join(joined([secrets.text(line) for line in first.fix.text.split("\n")]))
        return Failure(id=first.id, certainty=first.certainty, cause=secrets.text(first.cause), fix=fix, runs=())
    lines = said.unexplained.lines if said is not None and said.unexplained is not None else ()
    words = dict.fromkeys(word for word in (given.state.reason, given.unexplained) if word and word.lower() != given.state.word)
    cause = secrets.text(lines[-1].strip()) if lines else "; ".join(words) or "nothing says why"
    return Failure(id=None, certainty=None, cause=cause, fix=None, runs=())


def names(runs: tuple[str, ...], most: int = 5) -> str:
    """Return ids as people list them: `lr_3, lr_4 and 12 more`."""
    return ", ".join(runs[:most]) + (f" and {len(runs) - most} more" if len(runs) > most else "")
