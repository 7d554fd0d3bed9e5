"""An explanation as lines for people, and as JSON values. PURE."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from hpctrain.explain.model import Consequence, Diagnosis, ErrorBlock, Explanation
from hpctrain.jobs import typed
from hpctrain.jobs.secrets_in_text import redacted

SCHEMA = 1
#: Characters of an error that no rule knows.
_MOST_SAID = 400
_MOST_CONSEQUENCES = 6
#: A shorter line of a remedy ends where it does on purpose.
_WRAPPED = 80
_BOLD, _RED, _YELLOW, _DIM, _END = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[2m", "\x1b[0m"


def lines(explanation: Explanation, *, width: int = 80, colour: bool = False) -> list[str]:
    """Return the answer as lines of at most `width` characters, but for words that are longer."""
    return list(_Page(width, colour).whole(explanation))


def to_json(explanation: Explanation) -> dict[str, Any]:
    """Return the answer as JSON values: the keys of docs/explain.md."""
    unexplained = explanation.unexplained
    return {
        "schema": SCHEMA,
        "diagnoses": [_diagnosis(diagnosis) for diagnosis in explanation.diagnoses],
        "consequences": [
            {**asdict(each), "evidence": _evidence(each.evidence), "ranks": list(each.ranks)} for each in explanation.consequences
        ],
        "unexplained": None if unexplained is None else {**asdict(unexplained), "lines": [redacted(line) for line in unexplained.lines]},
        "history": list(explanation.history), "notes": list(explanation.notes),
        "failed": explanation.failed, "ended": explanation.ended,
    }  # fmt: skip


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "id": diagnosis.id, "certainty": diagnosis.certainty, "cause": redacted(diagnosis.cause), "fix": redacted(diagnosis.fix.text),
        "evidence": [_evidence(each) for each in diagnosis.evidence], "rank": diagnosis.rank, "node": diagnosis.node,
        "since": diagnosis.since, "stage": diagnosis.stage, "attempt": diagnosis.attempt, "docs": f"hpctrain docs {diagnosis.id}",
        "changes": [{"key": each.key, "old": each.old, "new": each.new} for each in diagnosis.fix.changes],
    }  # fmt: skip


def _evidence(evidence: Any) -> dict[str, Any]:
    return {"file": evidence.file, "line": evidence.line, "text": redacted(evidence.text)}


def place(rank: int | None, node: str | None, since: str | None) -> str:
    """Return where and when something began, in words; nothing where neither is known."""
    parts = [*([f"rank {rank}"] if rank is not None else []), *([f"on {node}"] if node else [])]
    return ", ".join([*([" ".join(parts)] if parts else []), *([f"since {since.replace('T', ' ')}"] if since else [])])


class _Page:
    def __init__(self, width: int, colour: bool) -> None:
        self.width, self.colour = max(40, width), colour

    def whole(self, explanation: Explanation) -> Iterator[str]:
        for number, diagnosis in enumerate(explanation.diagnoses):
            if number:
                yield ""
            yield from self._diagnosis(diagnosis)
        if explanation.unexplained is not None:
            yield from self._unexplained(explanation.unexplained, runs=bool(explanation.notes))
        elif not explanation.diagnoses and explanation.failed:
            yield from self._filled("the job failed, and neither its logs nor its record say why")
        elif not explanation.diagnoses:
            yield "nothing points to a failure"
        yield from self._consequences(explanation.consequences)
        for line in explanation.history:
            yield from self._filled(f"earlier start {line}")
        for note in explanation.notes:
            yield from self._filled(f"note: {note}")

    def _diagnosis(self, diagnosis: Diagnosis) -> Iterator[str]:
        shade = _RED if diagnosis.certainty == "certain" else _YELLOW
        yield self._painted(f"{diagnosis.certainty}: {diagnosis.id}", _BOLD + shade)
        yield from self._filled(redacted(diagnosis.cause))
        where = place(diagnosis.rank, diagnosis.node, diagnosis.since)
        if where:
            yield from self._filled(where, "  ")
        for evidence in diagnosis.evidence:
            yield from self._evidence(evidence)
        first, *rest = joined(redacted(diagnosis.fix.text).splitlines()) or [""]
        yield from self._filled(first, "  ", before="fix: ")
        for line in rest:
            command = typed.is_command(line)
            yield from typed.cut(line, self.width, indent=2, hang=4) if command else self._filled(line, "  ", before="  ")

    def _evidence(self, evidence: Any) -> Iterator[str]:
        where = evidence.file if evidence.line is None else f"{evidence.file}:{evidence.line}"
        text = redacted(evidence.text).strip()
        if len(where) + len(text) + 4 <= self.width:
            yield f"  {self._painted(where, _DIM)}: {text}"
            return
        yield f"  {self._painted(where, _DIM)}:"
        yield from self._filled(text, "    ", before="    ")

    def _unexplained(self, block: ErrorBlock, *, runs: bool) -> Iterator[str]:
        who = "a process of the job" if runs else "the job"
        yield from self._filled(f"{who} failed, and no rule says why; its first error:")
        where = place(block.rank, block.node, block.since)
        yield f"  {self._painted(f'{block.file}:{block.line}', _DIM)}" + (f" ({where})" if where else "")
        for line in block.lines:
            shown = redacted(line)
            if len(shown) <= self.width - 4:
                yield f"    {shown}"
            elif shown[:1].isspace():
                yield f"    {shown[: self.width - 5]}…"
            else:
                # What the exception says is the point of all this; a frame's line is not.
                yield from self._filled(textwrap.shorten(shown, _MOST_SAID, placeholder=" …"), "    ", before="    ")

    def _consequences(self, consequences: Sequence[Consequence]) -> Iterator[str]:
        for each in consequences[:_MOST_CONSEQUENCES]:
            times = f" x{each.count}" if each.count > 1 else ""
            ranks = f" (ranks {ranges(each.ranks)})" if len(each.ranks) > 1 else f" (rank {each.ranks[0]})" if each.ranks else ""
            yield from self._filled(f"also seen, as a consequence: {each.id}{times}{ranks}", "  ")
        if len(consequences) > _MOST_CONSEQUENCES:
            yield f"and {len(consequences) - _MOST_CONSEQUENCES} more consequences; all of them: --json"

    def _filled(self, text: str, indent: str = "", *, before: str = "") -> list[str]:
        if not text.strip():
            return [before.rstrip()] if before.strip() else []
        return textwrap.wrap(
            text, self.width, initial_indent=before or indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )  # fmt: skip

    def _painted(self, text: str, code: str) -> str:
        return f"{code}{text}{_END}" if self.colour else text


def joined(lines: Sequence[str]) -> list[str]:
    """Return a remedy with each sentence on one line; what is to be typed, the last line always, keeps its own."""
    found: list[str] = []
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        goes_on = len(before) >= _WRAPPED and not before.rstrip().endswith((".", ":", "?"))
        if goes_on and number < len(lines) - 1 and not (typed.begins(before) or typed.begins(line)):
            found[-1] = f"{found[-1].rstrip()} {line.lstrip()}"
        else:
            found.append(line)
    return found


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers as `0-3, 5`."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
