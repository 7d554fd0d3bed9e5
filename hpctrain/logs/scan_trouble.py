"""An error as a program shows it: a Python traceback whole, or the lines around the first error word; cut out of a log while it is read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpctrain.explain.hit import Trouble
from hpctrain.logs import text
from hpctrain.logs.model import LogFile

#: Of one start of the job, in one file.
MOST = 4
#: An error word so many lines behind another belongs to it.
LINES = 60
BYTES = 48 * 1024
_SHOWN_HEAD, _SHOWN_TAIL, _AROUND = 12, 24, 6
_BEGIN = re.compile(r"\s*(?:[+|] *)*Traceback \(most recent call last\)")
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|NotFound|Iteration|Timeout|Failure|Failed|Child\w*)|[A-Za-z_]\w*(?:\.\w+)+)(?::|$)"
)
_CHAINED = re.compile(r"(?:During handling of the above exception|The above exception was the direct cause)")
#: Python says so of an error while it tidies up, or writes a log, and goes on.
_IGNORED = re.compile(rb"Exception ignored (?:in|while|on|due)|--- Logging error ---|Error in atexit\._run_exitfuncs:")
_WORD = re.compile(r"(?i)error|exception|fatal|abort|segmentation|killed|panic|not found")


@dataclass(slots=True)
class Open:
    """An error of which the end may not have been read yet.

    Attributes:
        before: bytes in front of it; text: it, and what is behind it, BYTES at most.
        steps: as the file's count of steps stood.
    """

    file: LogFile
    line: int
    label: text.Label
    rank: int | None
    node: str | None
    at: float | None
    part: int
    steps: int
    before: bytes
    text: bytes
    parts: int = 0
    steps_after: int = 0

    def add(self, piece: bytes) -> None:
        """Take the piece behind those that were read."""
        if len(self.text) < BYTES:
            self.text += piece[: BYTES - len(self.text)]

    def close(self) -> Trouble:
        """Return what there is to show."""
        labelled = [text.label(text.clean(raw)) for raw in self.text.split(b"\n")]
        mine = [each.rest for each in labelled if each.rank == self.label.rank and each.local_rank == self.label.local_rank]
        is_traceback = bool(mine) and _BEGIN.match(mine[0]) is not None and not _IGNORED.search(self.before.rstrip().rpartition(b"\n")[2])
        if is_traceback:
            shown = _traceback(mine)
            error = next((line for line in reversed(shown) if _EXCEPTION.match(line)), shown[-1])
        else:
            before = [each.rest for each in map(text.label, map(text.clean, self.before.split(b"\n")[-4:])) if each.rank == self.label.rank]
            first = mine[0] if mine else ""
            shown = [*(line for line in before[-3:] if line.strip()), *(line for line in mine[: _AROUND + 1] if line.strip())]
            error = first
        return Trouble(
            file=self.file.name, line=self.line, lines=tuple(_cut(shown)), error=error, traceback=is_traceback,
            order=(self.file.order, self.line), at=self.at, rank=self.rank, node=self.node, attempt=self.file.attempt,
            part=self.part, parts=self.parts, steps_after=self.steps_after,
        )  # fmt: skip


def _traceback(lines: list[str]) -> list[str]:
    """Return a traceback with its exception, and those that are chained to it."""
    end = 1
    while end < len(lines):
        line = lines[end]
        if line.startswith((" ", "\t")) or not line.strip():
            end += 1
            continue
        # The exception, perhaps of several lines; a chained traceback begins behind it.
        behind = next((n for n in range(end + 1, min(end + 40, len(lines))) if _CHAINED.match(lines[n])), None)
        between = lines[end + 1 : behind] if behind is not None else []
        if behind is None or any(_BEGIN.match(each) for each in between):
            return [*lines[:end], *_exception(lines[end:])]
        begin = next((n for n in range(behind, min(behind + 4, len(lines))) if _BEGIN.match(lines[n])), None)
        if begin is None:
            return lines[: behind + 1]
        end = begin + 1
    return [line for line in lines if line.strip()]


def _exception(lines: list[str]) -> list[str]:
    """Return the lines of an exception: a message may go on for a few, indented or not."""
    found = [lines[0]]
    for line in lines[1:12]:
        if not line.startswith((" ", "\t")):
            break
        found.append(line)
    return found


def _cut(lines: list[str]) -> list[str]:
    if len(lines) <= _SHOWN_HEAD + _SHOWN_TAIL + 1:
        return lines
    left_out = len(lines) - _SHOWN_HEAD - _SHOWN_TAIL
    return [*lines[:_SHOWN_HEAD], f"  … {left_out} lines left out …", *lines[-_SHOWN_TAIL:]]
