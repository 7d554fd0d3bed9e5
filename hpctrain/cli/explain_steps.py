"""What the lines of a log say of the steps of a training that is not hpctrain's own: how far it came, and which file tells of it.

Only what cannot be misread counts: numbers that rise, out of one and the same total, or a progress bar.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hpctrain.cli import explain_run
from hpctrain.explain.case import Case
from hpctrain.logs import text
from hpctrain.logs.model import LogFile

#: Fewer lines than this are no rhythm, and may be anything: `step 1/4: loading`.
_LEAST = 5
_WORD = re.compile(
    r"(?i)\b(?:global[ _]?)?(?:step|iter(?:ation)?|it|batch|update)s?\b\W{0,3}"
    r"(?P<step>[0-9]{1,12})(?:\s*(?:/|of)\s*(?P<most>[0-9]{1,12}))?"
)
_BAR = re.compile(r"[0-9]{1,3}%\|[^|]*\| (?P<step>[0-9]{1,12})/(?P<most>[0-9]{1,12}) \[")
_HF = re.compile(r"\{'loss': ")
_BEGINS = re.compile(r"^hpctrain: attempt \S+ of the run \S+ begins on ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What a log says: how many different steps it tells of since the newest start, the first and the last of them, and the total."""

    count: int = 0
    first: int | None = None
    last: int | None = None
    most: int | None = None


def of_lines(lines: Iterable[str]) -> Steps:
    """Return what these lines say, in their order."""
    seen: set[tuple[int, int | None]] = set()
    last: tuple[int, int | None] | None = None
    rows = 0
    for raw in lines:
        if _BEGINS.match(raw):
            seen, last, rows = set(), None, 0
            continue
        line = text.label(text.clean(raw)).rest
        if _HF.search(line):
            rows += 1
        match = _BAR.search(line) or _WORD.search(line)
        if match is None:
            continue
        now = (int(match["step"]), int(match["most"]) if match["most"] else None)
        if last is None or now[1] != last[1] or now[0] >= last[0]:
            last = now
            seen.add(now)
    same = sorted(step for step, most in seen if last is not None and most == last[1])
    if last is None or len(same) < _LEAST:
        return Steps(count=rows if rows >= _LEAST else 0)
    return Steps(count=max(len(same), rows), first=same[0], last=last[0], most=last[1])


def with_steps(case: Case, files: Sequence[LogFile]) -> Case:
    """Return the case with the steps that each log tells of, and where the training stood.

    Args:
        case: of a run whose training left no samples and no rows; its `files` are of the same logs.
        files: the logs; those of earlier jobs tell of earlier starts.
    """
    last = case.attempts[-1]
    sizes = {fact.name: fact.size for fact in case.files}
    # A long file of several starts does not show, at its ends, where the newest one begins.
    most = 2 * explain_run.END_BYTES if len(case.attempts) > 1 else max(sizes.values(), default=0)
    mine = [file for file in files if file.job in (None, last.job_id) and not file.copy and sizes.get(file.name, 0) <= most]
    found = {file.name: of_lines(explain_run.ends(file.path)) for file in mine}
    facts = tuple(replace(fact, steps=found[fact.name].count) if fact.name in found else fact for fact in case.files)
    case = replace(case, files=facts)
    said = [each for each in found.values() if each.last is not None and each.most is not None]
    if not said:
        return case
    furthest = max(said, key=lambda each: (each.last or 0, each.count))
    done = (furthest.last or 0) - (furthest.first or 0)
    step_s = None
    if last.output_at is not None and last.started is not None and last.output_at > last.started and done > 0:
        step_s = (last.output_at - last.started) / done  # at most: its loading is in it
    return replace(case, step=furthest.last, max_steps=furthest.most, step_s=step_s)
