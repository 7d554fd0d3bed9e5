"""One log file, searched for the signatures of all rules piece by piece, in memory that does not grow with what is found.

A word of a rule is searched for in the raw bytes; the line around it is cleaned, and only then do regexes look at it. Of what one rule
finds of one rank, the first and the last place and the count are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from hpctrain.explain.hit import FirstFailed, Hit
from hpctrain.explain.model import Evidence
from hpctrain.explain.scan_table import Signature, Table, Word
from hpctrain.logs import scan_trouble, text, when
from hpctrain.logs.model import LogFile
from hpctrain.logs.scan_line import Here
from hpctrain.logs.scan_shapes import Shapes, holds
from hpctrain.logs.scan_steps import Place, Steps
from hpctrain.logs.scan_trouble import Open
from hpctrain.logs.scan_words import Finder

_SHOWN = 300
#: `near` reaches so many lines.
_NEAR = 40
_NEAR_BYTES = 32768
_MOST_WAITING = 1000
#: Bytes from one look for steps to the next one: lines with error words may be all that there is.
_LEAST = 512
#: So many lines below its first line, an error may say the name that the first one lacks.
_BELOW = 8
#: A rule that matches this often in one file is counted by a part of its lines from there on.
_OFTEN, _SAMPLED = 5000, 64
_MOST_KEYS = 4096
#: More words than one in so many bytes: lines repeat, and their shapes are looked at.
_DENSE = 512
_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_DATE = re.compile(rb"20(\d\d)-[01]\d-[0-3]\d[T ]")
#: Without it, there is no time. It may be coloured, or hold NULs, no more: those are gone.
_CLOCK = re.compile(rb":[0-5][0-9]:[0-6][0-9]")
_MEMORY = re.compile(rb"\[memory\] [^\n]{0,40}? host=([\w.-]+) rank=(\d+)/")
_FIRST = re.compile(
    r"time\s*:\s*(?P<time>\S+).*?host\s*:\s*(?P<host>\S+).*?rank\s*:\s*(?P<rank>\d+).*?exitcode\s*:\s*(?P<code>-?\d+)", re.DOTALL
)
_STATUS = re.compile(r"ended with exit code (\d{1,3})")
#: What a job that is ended still writes, and before its next start.
_EXIT_WAIT_S = 90
_WORD = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_")


@dataclass(slots=True)
class _Kept:
    """What is kept of one rule and rank; `steps`: as the count of steps stood at the last place."""

    first: Hit
    last: Hit
    count: int
    steps: Place


@dataclass(slots=True)
class Findings:
    """What one file holds. `unless`: ids of rules that the file silences."""

    hits: list[Hit] = field(default_factory=list)
    troubles: list[Open] = field(default_factory=list)
    first_failed: list[FirstFailed] = field(default_factory=list)
    unless: set[str] = field(default_factory=set)
    status: int | None = None
    size: int = 0


class FileScan:
    """Takes the pieces of one file in their order (hpctrain.logs.read.pieces).

    Args:
        file: whose pieces they are.
        table: of all signatures.
        finder: finds the table's words.
        year: of the file's last change, for lines that say none.
    """

    def __init__(self, file: LogFile, table: Table, finder: Finder, *, year: int | None) -> None:
        self.file = file
        self._table, self._find, self._year = table, finder, year
        self._year_seen = False
        self._shapes, self._dense = Shapes(table, ranked=file.rank is not None), False
        self._line = 1
        self._size = 0
        self._kept: dict[tuple[str, int | None, str | None, int], _Kept] = {}
        self._matched: dict[str, int] = {}
        self._skipped = 0
        self._waiting: list[tuple[Hit, tuple[str, ...], int]] = []
        self._dead: set[int] = set()
        self._hosts: dict[int, str] = {}
        self._steps = Steps()
        self._part, self._ended, self._lost, self._ended_steps = 0, False, False, 0
        self._ended_at: float | None = None
        self._last_at: float | None = None
        self._status: int | None = None
        self._troubles: list[Open] = []
        self._asked: tuple[list[Open], int, int] = ([], -1, -1)
        self._room = True
        self._first: list[FirstFailed] = []
        self._unless: set[str] = set()
        self._tail = b""

    # -- one piece -----------------------------------------------------------------------------------------------------

    def feed(self, piece: bytes) -> None:
        """Search one piece."""
        self._size += len(piece)
        if b"\0" in piece:
            piece = piece.replace(b"\0", b"")
        if b"\x1b" in piece:
            piece = _ESCAPE.sub(b"", piece)
        if not self._year_seen and (date := _DATE.search(piece)):
            self._year, self._year_seen = 2000 + int(date[1]), True
        if self._size <= 4 << 20:
            self._hosts.update({int(rank): host.decode() for host, rank in _MEMORY.findall(piece)})
        for trouble in self._troubles:
            trouble.add(piece)
        self._steps.begin()
        if self._waiting:
            self._look_on(piece)
        low = piece.lower()
        stands: dict[int, int] = {}
        if not self._dense:
            found = self._find(low)
            self._dense = len(found) * _DENSE > len(piece)
        if self._dense:
            found, stands = self._shapes.find(low)
        if found:
            self._search(piece, low, found, stands)
        self._steps.up_to(piece, len(piece))
        self._line += piece.count(b"\n")
        self._tail = piece[-_NEAR_BYTES:] if len(piece) >= _NEAR_BYTES else (self._tail + piece)[-_NEAR_BYTES:]

    def _search(self, piece: bytes, low: bytes, found: list[tuple[int, int, int]], stands: dict[int, int]) -> None:
        words, dead = self._table.words, self._dead
        here = Here(piece, low, self._line, stands)
        size = len(low)
        for index, at, until in found:
            if index in dead:
                continue
            word = words[index]
            if word.ends and until < size and low[until] in _WORD:
                continue
            if word.errors and at - self._steps.at < _LEAST and not self._has_room():
                continue
            if at >= here.end:
                here.move(at)
            elif index in here.done:
                continue
            here.done.add(index)
            if here.stands or not self._is_left_out(word):
                self._examine(word, here)
                if not self._unless.isdisjoint(word.silences) and all(self._is_silenced(each) for each in word.signatures):
                    dead.add(index)

    def _is_left_out(self, word: Word) -> bool:
        """Whether this place is one of those that are not looked at, of a word that has been found too often."""
        if not self._matched or not self._is_often(word.signatures):
            return False
        self._skipped += 1
        return self._skipped % _SAMPLED != 0

    def _examine(self, word: Word, here: Here) -> None:
        for signature, others in zip(word.signatures, word.others, strict=True):
            if others and not holds(others, here.around):
                continue
            if here.stands is not None and here.stands <= 0 and not signature.tells_digits:
                continue
            if not self._is_wanted(signature, here):
                continue
            match = signature.match(here.line)
            if match is None and signature.pattern[0] == "^":
                match = signature.match(text.label(here.line).rest)
            if match is not None:
                self._matches(signature, match, here)

    def _is_silenced(self, signature: Signature) -> bool:
        return signature.role == "unless" and self._unless.issuperset(signature.silenced)

    def _is_wanted(self, signature: Signature, here: Here) -> bool:
        if signature.role == "unless":
            return not self._is_silenced(signature)
        if signature.role != "error":
            return True
        self._steps.up_to(here.piece, here.end, least=_LEAST)  # those before may have been got over
        return self._has_room()

    def _has_room(self) -> bool:
        """Whether another error is wanted; asked of each line with an error's word, and so remembered."""
        asked = self._troubles, self._part, self._steps.count + self._steps.others
        if asked[0] is not self._asked[0] or asked != self._asked:
            self._asked, self._room = asked, scan_trouble.has_room(self._troubles, self._part, self._steps)
        return self._room

    def _is_often(self, signatures: list[Signature]) -> bool:
        """Whether every rule that a word may stand for has been found so often that a part of the lines will do."""
        return all(each.rule is not None and self._matched.get(each.rule.id, 0) > _OFTEN for each in signatures)

    # -- one line ------------------------------------------------------------------------------------------------------

    def _matches(self, signature: Signature, match: re.Match[str], here: Here) -> None:
        here.count()
        self._steps.up_to(here.piece, here.end)  # the line itself is no step behind it
        rule = signature.rule
        match signature.role:
            case "end" | "lost" | "start":
                self._boundary(signature.role, here.line)
            case "first":
                self._first_failed(here.piece, here.begin)
            case "done":
                self._steps.done()
            case "zero":
                self._steps.zero()
            case "unless":
                self._unless.update(signature.silenced)
            case "error":
                self._trouble(here)
            case "line" if rule is not None:
                self._matched[rule.id] = self._matched.get(rule.id, 0) + 1
                hit = self._hit(rule.id, match, here, _stands_for(here.stands, signature))
                if not rule.near:
                    self._keep(hit)
                elif len(self._waiting) < _MOST_WAITING:
                    self._look_near(hit, rule.near, here.piece, here.begin)

    def _look_near(self, hit: Hit, near: tuple[str, ...], piece: bytes, begin: int) -> None:
        """Keep a hit where one of `near` stands close by; where the piece ends before that is known, look at the next one too."""
        before = (self._tail if begin < _NEAR_BYTES else b"") + piece[max(0, begin - _NEAR_BYTES) : begin]
        behind = piece[begin : begin + _NEAR_BYTES]
        if self._stands_in([*before.split(b"\n")[-_NEAR - 1 :], *behind.split(b"\n")[: _NEAR + 1]], near):
            self._keep(hit)
        elif (left := _NEAR + 1 - behind.count(b"\n")) > 0:
            self._waiting.append((hit, near, left))

    def _look_on(self, piece: bytes) -> None:
        """Look at the beginning of this piece for what hits of the last one wait for."""
        begin = piece[:_NEAR_BYTES]
        waiting, self._waiting = self._waiting, []
        for hit, near, lines in waiting:
            if self._stands_in(begin.split(b"\n")[:lines], near):
                self._keep(hit)
            elif (left := lines - begin.count(b"\n")) > 0:
                self._waiting.append((hit, near, left))

    @staticmethod
    def _stands_in(lines: list[bytes], near: tuple[str, ...]) -> bool:
        cleaned = [text.clean(line) for line in lines]
        cleaned += [text.label(line).rest for line in cleaned]
        return any(re.search(pattern, line) for pattern in near for line in cleaned)

    def _hit(self, rule: str, match: re.Match[str], here: Here, stands: int | None) -> Hit:
        label = text.label(here.line)
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        at = self._time(here)
        self._new_part(at)
        rank = self.file.rank if self.file.rank is not None else label.rank
        if rank is None and groups.get("rank", "").isdigit():
            rank = int(groups["rank"])
        node = self.file.node or label.node or groups.get("node") or (self._hosts.get(rank) if rank is not None else None)
        weight = stands or (_SAMPLED if self._matched.get(rule, 0) > _OFTEN + 1 and not here.stands else 1)
        shown = Evidence(file=self.file.name, line=here.number, text=text.around(here.line, match.start(), _SHOWN))
        return Hit(
            rule=rule, evidence=shown, order=(self.file.order, here.number), at=at, rank=rank, node=node, attempt=self.file.attempt,
            groups=groups, count=weight, part=self._part,
        )  # fmt: skip

    def _keep(self, hit: Hit) -> None:
        key = (hit.rule, hit.rank, hit.node, hit.part)
        kept = self._kept.get(key)
        self._steps.want()
        if kept is not None and kept.last.order == hit.order:  # another regex of the rule, in the same line
            both = replace(kept.last, groups={**hit.groups, **kept.last.groups})
            kept.first, kept.last = (both if kept.first is kept.last else kept.first), both
        elif kept is not None:
            if hit.groups and not kept.first.groups and hit.order[1] - kept.first.order[1] <= _BELOW:
                kept.first = replace(kept.first, groups=hit.groups)
            kept.last, kept.count, kept.steps = hit, kept.count + hit.count, self._steps.place
        elif len(self._kept) < _MOST_KEYS:
            self._kept[key] = _Kept(hit, hit, hit.count, self._steps.place)

    def _trouble(self, here: Here) -> None:
        label = text.label(here.line)
        rank = self.file.rank if self.file.rank is not None else label.rank
        node = self.file.node or label.node or (self._hosts.get(rank) if rank is not None else None)
        if scan_trouble.goes_on(self._troubles, self._part, here.number, label, self._steps):
            return
        at = self._time(here)
        self._new_part(at)
        self._steps.want()
        before = (self._tail if here.begin < 2000 else b"") + here.piece[max(0, here.begin - 2000) : here.begin]
        behind = here.piece[here.begin : here.begin + scan_trouble.BYTES]
        found = Open(
            file=self.file, line=here.number, label=label, rank=rank, node=node, at=at, part=self._part, steps=self._steps.place,
            before=before, text=behind,
        )  # fmt: skip
        self._troubles = scan_trouble.added(self._troubles, found, self._steps)

    # -- time, steps and starts of the job -----------------------------------------------------------------------------

    def _time(self, here: Here) -> float | None:
        """Return the time of a line, or of one of the lines before it."""
        line, piece, begin = here.line, here.piece, here.begin
        at = when.of(text.label(line).rest, year=self._year)
        if at is None:
            at = when.of(line, year=self._year)
        if at is None:
            before = (self._tail if begin < 4096 else b"") + piece[max(0, begin - 4096) : begin]
            for raw in reversed(before.split(b"\n")[-60:] if _CLOCK.search(before) else []):
                if b":" in raw and (at := when.of(text.label(text.clean(raw)).rest, year=self._year)) is not None:
                    break
        if at is not None:
            self._last_at = at
        return self._last_at

    def _boundary(self, role: str, line: str) -> None:
        if role == "end":
            self._status = int(said[1]) if (said := _STATUS.search(line)) else None
            self._ended, self._ended_at = True, when.of(line, year=self._year) or self._last_at
            self._ended_steps = self._steps.count
            self._steps.want()
        elif role == "lost":
            self._lost = True  # of what follows, only a start says that the job has been started again: other nodes still write
        elif self._ended or self._lost:
            self._part, self._ended, self._lost = self._part + 1, False, False

    def _new_part(self, at: float | None) -> None:
        """Begin a new part where the job has been started again since its end was written."""
        if self._ended and (self._steps.count > self._ended_steps or _apart(at, self._ended_at) > _EXIT_WAIT_S):
            self._part, self._ended, self._lost = self._part + 1, False, False

    def _first_failed(self, piece: bytes, begin: int) -> None:
        body = "\n".join(text.label(text.clean(raw)).rest for raw in piece[begin : begin + 2000].split(b"\n")[:14])
        if (found := _FIRST.search(body)) is not None:
            at = when.of(found["time"].replace("_", " "), year=self._year)
            seen = FirstFailed(
                rank=int(found["rank"]), node=found["host"], at=at, exit_code=int(found["code"]), attempt=self.file.attempt, part=self._part
            )  # fmt: skip
            self._first.append(seen)
            del self._first[:-20]

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> Findings:
        """Return what was found."""
        if self._ended and self._steps.count > self._ended_steps:
            self._part += 1
        hits = []
        for kept in self._kept.values():
            steps, done, size = self._steps.since(kept.steps)
            lines = max(0, self._line - 1 - kept.last.order[1])
            behind: dict[str, Any] = {"steps_after": steps, "done_after": done, "lines_after": lines, "bytes_after": size}
            hits.append(replace(kept.first, count=kept.count, parts=self._part, **behind))
            if kept.last is not kept.first:
                hits.append(replace(kept.last, count=0, parts=self._part, **behind))
        for trouble in self._troubles:
            trouble.parts = self._part
            trouble.steps_after, trouble.done_after, trouble.bytes_after = self._steps.since(trouble.steps)
        first = [replace(each, parts=self._part) for each in self._first]
        return Findings(hits, self._troubles, first, self._unless, self._status, self._size)


def _stands_for(stands: int | None, signature: Signature) -> int | None:
    """Return for how many lines a match stands; None: that is to be worked out."""
    if stands is None or stands == 0:
        return None
    return 1 if stands > 0 and signature.tells_digits else abs(stands)


def _apart(one: float | None, other: float | None) -> float:
    return 0.0 if one is None or other is None else one - other
