"""An error as a program shows it: a Python traceback whole, or the lines around the first error word; cut out of a log while it is read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpctrain.explain.hit import DEADLY, Done, Trouble
from hpctrain.logs import text
from hpctrain.logs.model import LogFile
from hpctrain.logs.scan_steps import Place, Steps

#: Of one start of the job, in one file.
MOST = 4
#: Steps behind an error, and what comes then is another one.
_OVER = 3
#: An error word so many lines behind another belongs to it.
LINES = 60
BYTES = 48 * 1024
_SHOWN_HEAD, _SHOWN_TAIL, _AROUND = 12, 24, 6
_BEGIN = re.compile(r"[\s+|\u256d\u2500]*(?:Exception Group )?Traceback \(most recent call last\)")
#: Of a traceback, and of one that rich draws a frame around.
_INNER = (" ", "\t", "\u2502", "\u2570", "\u256d")
#: What begins a line of another writer, or another message.
_OTHER = re.compile(
    r"(?:srun|slurmstepd|hpctrain|wandb|salloc|mpirun|prterun|step\w*|epoch\w*|iter\w*)\b|[WEIF]\d{4} |[\[{=*#<-]|Traceback"
    r"|\d{4}-\d\d|\d+[%/ ]|During handling|The above|Set the environment",
    re.IGNORECASE,
)
_HEAD = "Traceback (most recent call last)"
_FRAME = re.compile(r"  +File \"")
_DIGITS = re.compile(r"(\d+)")
#: Who wrote a line, in what a collector put in front of it.
_RANK = re.compile(r"\brank[ =:]{0,2}(\d{1,6})\b")
#: What stands in front of a number that tells a process from others.
_PROCESS = re.compile(r"(?i)(?:rank|worker|task|proc(?:ess)?|pid|node|host|gpu|replica|pod|actor)s?\W{0,3}$")
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
        steps: `place` of the file's steps.
    """

    file: LogFile
    line: int
    label: text.Label
    rank: int | None
    node: str | None
    at: float | None
    part: int
    steps: Place
    before: bytes
    text: bytes
    parts: int = 0
    steps_after: int = 0
    done_after: Done = None
    bytes_after: int = 0

    def add(self, piece: bytes) -> None:
        """Take the piece behind those that were read."""
        if len(self.text) < BYTES:
            self.text += piece[: BYTES - len(self.text)]

    def close(self) -> Trouble:
        """Return what there is to show."""
        labelled = [text.label(text.clean(raw)) for raw in self.text.split(b"\n")]
        mine = _own(labelled, self.label)
        rank = self.rank
        if found := _collected(mine):
            front, mine = found
            rank = int(said[1]) if rank is None and (said := _RANK.search(front)) else rank
        is_traceback = bool(mine) and _BEGIN.match(mine[0]) is not None and not _IGNORED.search(self.before.rstrip().rpartition(b"\n")[2])
        if is_traceback:
            shown = [line for line in _traceback(mine) if line.strip()]
            error = next((line for line in reversed(shown) if _EXCEPTION.match(line)), shown[-1])
        else:
            before = [each.rest for each in map(text.label, map(text.clean, self.before.split(b"\n")[-4:])) if each.rank == self.label.rank]
            first, mine = mine[0] if mine else "", [line for line in mine if line.strip()]
            shown = [*(line for line in before[-3:] if line.strip()), *(line for line in mine[: _AROUND + 1] if line.strip())]
            error = next((line for line in mine[: _AROUND + 1] if DEADLY.search(line)), first)
        return Trouble(
            file=self.file.name, line=self.line, lines=tuple(_cut(shown)), error=error, traceback=is_traceback,
            order=(self.file.order, self.line), at=self.at, rank=rank, node=self.node, attempt=self.file.attempt,
            part=self.part, parts=self.parts, steps_after=self.steps_after, done_after=self.done_after,
            bytes_after=self.bytes_after,
        )  # fmt: skip


def _own(labelled: list[text.Label], label: text.Label) -> list[str]:
    """Return the lines of one process; an empty one stands for those of others between them."""
    found: list[str] = []
    node = label.node if _HEAD in label.rest else None  # of any other line, it may be one that the line tells of
    for each in labelled:
        if each.rank == label.rank and each.local_rank == label.local_rank and node in (None, each.node):
            found.append(each.rest)
        elif found and found[-1]:
            found.append("")
    return found


def of_part(troubles: list[Open], part: int) -> list[Open]:
    """Return the errors of one start of the job."""
    return [each for each in troubles if each.part == part]


def has_room(troubles: list[Open], part: int, steps: Steps) -> bool:
    """Whether another error is wanted: there are few, or one of them was got over, and gives its place to the next."""
    mine = of_part(troubles, part)
    return len(mine) < MOST or any(_is_over(each, steps) for each in mine)


def added(troubles: list[Open], new: Open, steps: Steps) -> list[Open]:
    """Return the errors with another one; without the last one that was got over, where there are too many."""
    mine = of_part(troubles, new.part)
    if len(mine) < MOST:
        return [*troubles, new]
    gone = [each for each in mine if _is_over(each, steps)][-1:]
    return [*(each for each in troubles if each not in gone), new]


def goes_on(troubles: list[Open], part: int, line: int, label: text.Label, steps: Steps) -> bool:
    """Whether a line is of an error that has begun; a traceback behind a line with an error word is another one."""
    head = _HEAD in label.rest
    near = (each for each in of_part(troubles, part) if line < each.line + LINES and not _is_over(each, steps))
    return any(not head or _HEAD in each.label.rest for each in near)


def _is_over(each: Open, steps: Steps) -> bool:
    return steps.since(each.steps)[0] >= _OVER


def _collected(lines: list[str]) -> tuple[str, list[str]] | None:
    """Return what a collector of logs put in front of a traceback's lines (a time, a process), and its lines without that.

    A logger that writes a traceback puts it in front of the first line only: then somebody has caught the error, and this is None.
    """
    front, head, rest = lines[0].partition(_HEAD) if lines else ("", "", "")
    if not head or not front.strip(" +|"):
        return None
    parts = _DIGITS.split(front)
    form = re.compile(r"\d+".join(re.escape(part) for part in parts[::2]))
    second = next((line[match.end() :] for line in lines[1:20] if (match := form.match(line)) and _FRAME.match(line, match.end())), None)
    if second is None:
        return None
    # A number that is no part of a time tells this process from others.
    own = re.compile("".join(part if number % 2 else re.escape(part) for number, part in enumerate(_kept(parts))))
    return front, [head + rest, *(line[match.end() :] for line in lines[1:] if (match := own.match(line)))]


def _kept(parts: list[str]) -> list[str]:
    """Return text and numbers in turns, the numbers of times as regexes."""
    kept = list(parts)
    for at in range(1, len(parts), 2):
        of_a_time = parts[at - 1][-1:] in tuple(":.,-/T+") or parts[at + 1][:1] in tuple(":.,-/T")
        of_any = of_a_time or parts[at - 1][-1:].isspace() or not parts[at - 1]
        kept[at] = r"\d+" if of_any and not _PROCESS.search(parts[at - 1]) else parts[at]
    return kept


def _traceback(lines: list[str]) -> list[str]:
    """Return a traceback with its exception, and those that are chained to it."""
    end = 1
    while end < len(lines):
        line = lines[end]
        if line.startswith(_INNER) or not line.strip():
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
    """Return the lines of an exception: its message may go on for a few, indented or, for two, not."""
    found, plain = [lines[0]], 0
    for line in lines[1:12]:
        if not line.startswith((" ", "\t")):
            plain += 1
            if plain > 2 or not line.strip() or _OTHER.match(line):
                break
        found.append(line)
    return found


def _cut(lines: list[str]) -> list[str]:
    if len(lines) <= _SHOWN_HEAD + _SHOWN_TAIL + 1:
        return lines
    left_out = len(lines) - _SHOWN_HEAD - _SHOWN_TAIL
    return [*lines[:_SHOWN_HEAD], f"  … {left_out} lines left out …", *lines[-_SHOWN_TAIL:]]
