"""Search a job's log files for the rules' signatures: gigabytes in seconds, with bounded memory.

The rules' literals are searched in the raw bytes (Aho-Corasick); only lines with one are cleaned
and matched with regexes. For each rule and rank, the first and the last match and the count are
kept.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import itemgetter

from ahocorasick_rs import BytesAhoCorasick

from hpctrain.explain.model import ErrorExcerpt, Evidence, FirstFailed, Match, ScanResult
from hpctrain.explain.rules import (
    FailureRule,
    SearchTable,
    SearchWord,
    Signature,
    logged_exception,
)
from hpctrain.logs import excerpts, merge, read, text
from hpctrain.logs.files import LogFile
from hpctrain.util.text import is_number

_BLOCK = 1 << 20


def scan(files: Sequence[LogFile], rules: Sequence[FailureRule]) -> ScanResult:
    """Return the matches of the rules' signatures in the files, and the errors in them.

    Args:
        files: missing or unreadable files yield nothing.
        rules: the complete table.
    """
    table = _table(tuple(rules))
    found = []
    for file in files:
        one = FileScan(file, table, finder(table), year=merge.year_of(file))
        pieces = itertools.chain(read.pieces(file.path, block=_BLOCK), [b""])
        for piece, following in itertools.pairwise(pieces):
            one.feed(piece, following=len(following))
        found.append(one.finish())
    # A line in both a rank's own file and the shared one counts once; the copy provides the rank.
    shared = {hit.rule for each in found if not each.file.copy for hit in each.hits}
    silent = set[str]().union(*(each.unless for each in found))
    hits = [
        replace(hit, count=0) if each.file.copy and hit.rule in shared else hit
        for each in found
        for hit in each.hits
        if hit.rule not in silent
    ]
    return ScanResult(
        hits=tuple(hits),
        troubles=tuple(trouble.close() for each in found for trouble in each.troubles),
        first_failed=tuple(first for each in found for first in each.first_failed),
        status=next((each.status for each in reversed(found) if each.status is not None), None),
        size=sum(each.size for each in found),
    )


@lru_cache(maxsize=2)
def _table(rules: tuple[FailureRule, ...]) -> SearchTable:
    return SearchTable(rules)


# -- literals, lines, files ------------------------------------------------------------------------

#: (index of the literal, start, end) of every literal in lower-case bytes, sorted by end.
Found = list[tuple[int, int, int]]
Finder = Callable[[bytes], Found]


@lru_cache(maxsize=2)
def finder(table: SearchTable) -> Finder:
    """Return a function that finds a table's literals in lower-case bytes."""
    # Including overlapping ones: one rule's literal may be a part of another's.
    return partial(BytesAhoCorasick(table.texts).find_matches_as_indexes, overlapping=True)


#: Bytes of a long line that are cleaned and matched around a literal.
_BEFORE, _BEHIND = 2000, 3000


class LineAt:
    """The current line.

    Attributes:
        number: of the line, after a call of `count`.
        begin, end: of the line, or of the matched part of it, in the piece.
        line: its text, cleaned.
        done: literals that were already processed in it.
        weight: number of lines with the same literal that it represents.
    """

    __slots__ = ("_counted", "begin", "done", "end", "line", "number", "piece", "weight")

    def __init__(self, piece: bytes, number: int) -> None:
        self.piece, self.number = piece, number
        self.begin, self.end, self._counted = 0, -1, 0
        self.line, self.weight = "", 1
        self.done: set[int] = set()

    def move(self, at: int) -> None:
        """Move to the line around a position; carriage returns also end it, and a long line is
        limited.
        """
        piece, low, high = self.piece, max(0, at - _BEFORE), at + _BEHIND
        self.begin = max(piece.rfind(b"\n", low, at), piece.rfind(b"\r", low, at)) + 1 or low
        ends = (piece.find(b"\n", at, high), piece.find(b"\r", at, high))
        self.end = min((end for end in ends if end >= 0), default=min(high, len(piece)))
        self.line, self.done = text.clean(piece[self.begin : self.end]), set()

    def count(self) -> None:
        """Compute the line's number."""
        self.number += self.piece.count(b"\n", self._counted, self.begin)
        self._counted = self.begin


#: The exception in a line after a logger's or handler's prefix; each signature asks for it.
_logged = lru_cache(maxsize=16)(logged_exception)
_SHOWN = 300
#: Maximum distance of `near`, in lines and bytes.
_NEAR, _NEAR_BYTES = 40, 32768
#: Bytes between two counts of steps: a log may consist only of lines with error words.
_LEAST = 512
#: Details missing in the first line of an error may follow within this many lines.
_BELOW = 8
_MOST_WAITING, _MOST_KEYS = 1000, 4096
#: Frequent literals of a piece are sampled: only one window in so many is searched, and fewer for
#: each `_MORE` bytes of the file, so that the time depends on a file's size and not on repetitions.
#: A window is as long as an error with its context. The ends of a file are always searched
#: completely.
_OFTEN, _WINDOW, _ONE_IN, _MORE, _END = 256, 4096, 31, 4 << 20, 64 << 10
_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?|[ -/]*[0-~])"
)
_DATE = re.compile(rb"20(\d\d)-[01]\d-[0-3]\d[T ]")
_MEMORY = re.compile(rb"\[memory\] [^\n]{0,40}? host=([\w.-]+) rank=(\d+)/")
_FIRST = re.compile(
    r"time\s*:\s*(?P<time>\S+).*?host\s*:\s*(?P<host>\S+).*?rank\s*:\s*(?P<rank>\d+).*?exitcode\s*:\s*(?P<code>-?\d+)",
    re.DOTALL,
)
_STATUS = re.compile(r"ended with exit code (\d{1,3})")
#: If this many lines or steps follow a repeated first line, it is not a closing banner.
_ANOTHER_RUN, _STEPS_OF_A_RUN = 50, 3
_MOST_HEADS, _SHORTEST, _COMPARED = 100, 8, 80
_NO_HEAD = re.compile(
    rb"(?i)traceback|error|warn|\r|\A(?:srun|slurmstepd|In file included from)|\A\W*\Z|[\d\]] ?:? [EF] "
)
#: A quick test for a time. Colors and NULs have been removed.
_CLOCK = re.compile(rb"\d:\d\d:\d\d")
#: Varying parts of a repeated first line: the time, and process ids.
_VARIES = re.compile(
    rb"\d+|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b"
)
#: Seconds during which an ended job may still write, before its next start.
_EXIT_WAIT_S = 90
_WORD = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_")
#: A frame without its indentation, and the line of code behind it.
_FLAT = re.compile(
    rb"(?m)^((?: {0,5}\d{1,6}: |\[\w+\]: ?)*)(File \"[^\"\n]+\", line \d+, in [^\n]+\n)\1"
    rb"(?!File \"|\s|(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b)"
)
#: The first frame behind something that a program or container writes before each line.
_HEADED = re.compile(rb'(?m)^([^%\n"]{3,80}?)  File "[^\n]*\n([^%\n"]{3,80}?)    \S')
#: A text in which each line is quoted or indented alike: an excerpt that was pasted.
#: Each line is tried in one way only, or blank lines would take exponential time.
_PASTED = re.compile(
    rb"(`{0,3}(?:>[ \t]?){0,4}[ \t]{0,40})[^\n]*(?:\n(?:\1[^\n]*|(?!\1)[> \t\r]*))*"
)


@dataclass(slots=True)
class _Kept:
    first: Match
    last: Match
    count: int
    steps: excerpts.Place


class FileScan:
    """Scans the pieces of one file in their order (hpctrain.logs.read.pieces).

    Args:
        file: that the pieces are from.
        table: of all signatures.
        finder: finds the table's literals.
        year: of the file's last change, for lines without a year.

    Attributes:
        hits: complete after `finish`; troubles: errors, whose end may be missing.
        unless: ids of rules that the file silences.
        status: the exit status that the job script wrote last.
        size: bytes.
    """

    def __init__(
        self, file: LogFile, table: SearchTable, finder: Finder, *, year: int | None
    ) -> None:
        self.file = file
        self._table, self._find, self._year = table, finder, year
        self._line = 1
        self.size = 0
        self._kept: dict[tuple[str, int | None, str | None, int], _Kept] = {}
        self._waiting: list[tuple[Match, tuple[str, ...], int]] = []
        self._skipped: Counter[int] = Counter()
        self._hosts: dict[int, str] = {}
        self._steps, self._done = excerpts.Steps(), 0
        self._errors = excerpts.Errors(self._steps)
        self._part, self._ended, self._lost, self._ended_steps = 0, False, False, 0
        self._head: tuple[bytes, re.Pattern[bytes]] | None = None
        self._heads: list[int] = []
        self._heads_seen, self._appended_at = 1, 0
        self._appended_steps = self._steps.place
        self._ended_at: float | None = None
        self._last_at: float | None = None
        self.status: int | None = None
        self.first_failed: list[FirstFailed] = []
        self.unless: set[str] = set()
        self.hits: list[Match] = []
        self._tail = b""

    @property
    def troubles(self) -> list[excerpts.Open]:
        """The errors."""
        return self._errors.found

    # -- one piece ---------------------------------------------------------------------------------

    def feed(self, piece: bytes, *, following: int = 0) -> None:
        """Search one piece; `following`: bytes of the next one, 0 at the end of the file."""
        begin = _END if self.size == 0 else 0
        if len(piece) < begin and (pasted := _PASTED.fullmatch(piece)):
            piece = re.sub(rb"(?m)^" + re.escape(pasted[1]), b"", piece)
        if self.size == 0:
            self._head = _head_of(piece)
        self.size += len(piece)
        piece = _ESCAPE.sub(b"", piece.replace(b"\0", b""))
        if b'File "' in piece:
            piece = _FLAT.sub(rb"\1  \2\1    ", _without_heads(piece))
        if date := _DATE.search(piece):
            self._year = 2000 + int(date[1])
        if self.size <= 4 << 20:
            self._hosts.update({int(rank): host.decode() for host, rank in _MEMORY.findall(piece)})
        for trouble in self.troubles:
            trouble.add(piece)
        self._steps.begin()
        waiting, self._waiting = self._waiting, []
        for hit, near, lines in waiting:
            self._look_behind(hit, near, lines, piece[:_NEAR_BYTES])
        self._heads = _heads_in(piece, self._head)
        low = piece.lower()
        if found := self._find(low):
            end = len(low) - max(0, _END - following)
            self._search(piece, low, *self._sampled(found, begin, end, self.size - len(low)))
        self._heads_before(len(piece), piece)
        self._steps.up_to(piece, len(piece))
        self._line += piece.count(b"\n")
        self._tail = (self._tail + piece[-_NEAR_BYTES:])[-_NEAR_BYTES:]

    def _sampled(
        self, found: Found, begin: int, end: int, start: int
    ) -> tuple[Found, dict[int, int]]:
        """Skip most positions of very frequent literals between `begin` and `end` of a piece, which
        starts at `start` of the file.

        Returns:
            The remaining positions; and literal index → the number of positions that each one
            represents, those of earlier pieces included of which none remained.
        """
        counts = Counter(map(itemgetter(0), found))
        often = {index for index, count in counts.items() if count > _OFTEN}
        if not often:
            return found, {}
        one_in = _ONE_IN * (1 + start // _MORE)
        kept = [
            place
            for place in found
            if place[0] not in often
            or not begin <= place[1] < end
            or not (start + place[1]) // _WINDOW % one_in
        ]
        left = Counter(map(itemgetter(0), kept))
        weights = {}
        for index in often:
            self._skipped[index] += counts[index]
            if left[index]:
                weights[index] = round(self._skipped.pop(index) / left[index])
        return kept, weights

    def _search(self, piece: bytes, low: bytes, found: Found, weights: dict[int, int]) -> None:
        words = self._table.words
        here = LineAt(piece, self._line)
        size = len(low)
        for index, at, until in found:
            word = words[index]
            if word.ends and until < size and low[until] in _WORD:
                continue
            if word.errors and at - self._steps.at < _LEAST and not self._errors.has_room():
                continue
            if at >= here.end:
                here.move(at)
            elif index in here.done:
                continue
            here.done.add(index)
            here.weight = weights.get(index, 1)
            self._heads_before(here.begin, piece)
            self._examine(word, here)

    def _examine(self, word: SearchWord, here: LineAt) -> None:
        for signature in word.signatures:
            if signature.role == "unless" and self.unless.issuperset(signature.silenced):
                continue
            if signature.role == "error":
                # Earlier errors may have been recovered from by now.
                self._steps.up_to(here.piece, here.end, least=_LEAST)
                if not self._errors.has_room():
                    continue
            match = signature.match(here.line)
            if match is None and (
                signature.role == "error"
                # at the start, or one of several alternatives
                or "|^" in "|" + signature.pattern.replace("(?:^", "|^")
            ):
                match = signature.match(text.label(here.line).rest)
            is_logged = False
            if match is None and signature.role == "line" and (said := _logged(here.line)):
                match = signature.match(said, here.line)
                is_logged = match is not None
            if match is not None:
                self._matches(signature, match, here, logged=is_logged)

    # -- one line ----------------------------------------------------------------------------------

    def _matches(
        self, signature: Signature, match: re.Match[str], here: LineAt, *, logged: bool
    ) -> None:
        here.count()
        if here.number == 1 and signature.role in ("line", "error"):
            self._head, self._heads = None, []  # the first line is an error, which may be repeated
        self._steps.up_to(here.piece, here.end)  # the line itself is not a step after it
        rule = signature.rule
        match signature.role:
            case "end" | "lost" | "start":
                self._boundary(signature.role, here.line)
            case "over":
                # What follows is of another job that appended to the file.
                self._appended_at, self._appended_steps = here.number, self._steps.place
            case "first":
                self._first_failed(here.piece, here.begin)
            case "done":
                self._steps.completes += 1
                self._done = here.number
            case "zero":
                self._steps.zeros += 1
                self._done = here.number
            case "unless":
                self.unless.update(signature.silenced)
            case "error":
                self._trouble(here)
            case "line" if rule is not None:
                hit = replace(self._hit(rule.id, match, here), logged=logged)
                if not rule.near:
                    self._keep(hit)
                elif len(self._waiting) < _MOST_WAITING:
                    self._look_near(hit, rule.near, here)

    def _look_near(self, hit: Match, near: tuple[str, ...], here: LineAt) -> None:
        """Keep a hit if one of `near` matches close by; if the piece ends too early, continue in
        the next one.
        """
        behind = here.piece[here.begin : here.begin + _NEAR_BYTES]
        before = self._before(here, _NEAR_BYTES).rsplit(b"\n", _NEAR + 1)[-_NEAR - 1 :]
        self._look_behind(hit, near, _NEAR + 1, behind, before)

    def _look_behind(
        self,
        hit: Match,
        near: tuple[str, ...],
        lines: int,
        behind: bytes,
        before: Sequence[bytes] = (),
    ) -> None:
        around = (*behind.split(b"\n", lines)[:lines], *before)
        groups = next((each for raw in around if (each := _groups_in(raw, near)) is not None), None)
        if groups is not None:
            self._keep(replace(hit, groups={**groups, **hit.groups}))
        elif (left := lines - behind.count(b"\n")) > 0:
            self._waiting.append((hit, near, left))

    def _hit(self, rule: str, match: re.Match[str], here: LineAt) -> Match:
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        rank, node = self._writer(text.label(here.line), groups)
        at = self._time(here)
        self._new_part(at)
        return Match(
            rule=rule,
            evidence=Evidence(
                file=self.file.name,
                line=here.number,
                text=text.around(here.line, match.start(), _SHOWN),
            ),
            order=(self.file.order, here.number),
            at=at,
            rank=rank,
            node=node,
            attempt=self.file.attempt,
            groups=groups,
            count=here.weight,
            part=self._part,
        )

    def _writer(
        self, label: text.Label, groups: Mapping[str, str]
    ) -> tuple[int | None, str | None]:
        rank = self.file.rank if self.file.rank is not None else label.rank
        if rank is None and is_number(groups.get("rank", "")):
            rank = int(groups["rank"])
        host = self._hosts.get(rank) if rank is not None else None
        return rank, self.file.node or label.node or groups.get("node") or host

    def _keep(self, hit: Match) -> None:
        key = (hit.rule, hit.rank, hit.node, hit.part)
        kept = self._kept.get(key)
        self._steps.want()
        if kept is not None and kept.last.order == hit.order:
            # Another regex of the rule, in the same line.
            both = replace(kept.last, groups={**hit.groups, **kept.last.groups})
            kept.first, kept.last = (both if kept.first is kept.last else kept.first), both
        elif kept is not None:
            is_below = hit.order[1] - kept.first.order[1] <= _BELOW
            if hit.groups and not kept.first.groups and is_below:
                kept.first = replace(kept.first, groups=hit.groups)
            kept.last, kept.count, kept.steps = hit, kept.count + hit.count, self._steps.place
        elif len(self._kept) < _MOST_KEYS:
            self._kept[key] = _Kept(hit, hit, hit.count, self._steps.place)

    def _keep_late(self, at: int, *, is_ending: bool) -> None:
        """Keep the error at a position of the file's last bytes, however many were kept before."""
        if at < 0:
            return
        at = self._tail.rfind(b"\n", 0, at) + 1
        number = self._line - self._tail.count(b"\n", at)
        known = next((each for each in self.troubles if each.excerpt.line == number), None)
        if number <= self._done or self._errors.is_in_traceback(number):
            return
        if known is None:
            label = text.label(text.clean(self._tail[at:].partition(b"\n")[0]))
            known = self._open(
                number, label, before=self._tail[max(0, at - 2000) : at], behind=self._tail[at:]
            )
            self.troubles.append(known)
        known.excerpt = replace(known.excerpt, ending=known.excerpt.ending or is_ending)

    def _trouble(self, here: LineAt) -> None:
        label = text.label(here.line)
        is_another_run = self._appended_at and excerpts.HEAD in here.line
        if not is_another_run and self._errors.goes_on(here.number, label):
            return
        self._new_part(self._time(here))
        self._steps.want()
        self._errors.add(
            self._open(
                here.number,
                label,
                self._before(here, 2000),
                here.piece[here.begin : here.begin + excerpts.BYTES],
            )
        )

    def _open(self, number: int, label: text.Label, before: bytes, behind: bytes) -> excerpts.Open:
        rank, node = self._writer(label, {})
        return excerpts.Open(
            ErrorExcerpt(
                file=self.file.name,
                line=number,
                lines=(),
                error="",
                order=(self.file.order, number),
                at=self._last_at,
                rank=rank,
                node=node,
                attempt=self.file.attempt,
                part=self._part,
            ),
            label,
            self._steps.place,
            before,
            behind,
        )

    def _before(self, here: LineAt, size: int) -> bytes:
        """Return what is before a line, also at the end of the last piece."""
        begin = here.begin
        return (self._tail if begin < size else b"") + here.piece[max(0, begin - size) : begin]

    # -- time, steps and starts of the job ---------------------------------------------------------

    def _time(self, here: LineAt) -> float | None:
        at = text.time_of(text.label(here.line).rest, year=self._year)
        at = text.time_of(here.line, year=self._year) if at is None else at
        before = self._before(here, 4096) if at is None else b""
        for raw in reversed(before.split(b"\n")[-60:] if _CLOCK.search(before) else []):
            if at is None and b":" in raw:
                at = text.time_of(text.label(text.clean(raw)).rest, year=self._year)
        self._last_at = self._last_at if at is None else at
        return self._last_at

    def _boundary(self, role: str, line: str) -> None:
        if role == "end":
            self.status = int(said[1]) if (said := _STATUS.search(line)) else None
            self._ended, self._ended_at = True, text.time_of(line, year=self._year) or self._last_at
            self._ended_steps = self._steps.count
            self._steps.want()
        elif role == "lost":
            # other nodes still write: only a start message means that the job was restarted
            self._lost = True
        elif self._ended or self._lost:
            self._begin_part()

    def _begin_part(self) -> None:
        self._part, self._ended, self._lost = self._part + 1, False, False
        self._errors.mine = []

    def _heads_before(self, until: int, piece: bytes) -> None:
        """Record where the file's first line is repeated after an error: another run was appended.
        If each rank writes that line, it is repeated before the first error.
        """
        while self._heads and self._heads[0] < until:
            at = self._heads.pop(0)
            has_error = self._errors.mine or any(part == self._part for *_, part in self._kept)
            if not has_error:
                self._heads_seen += 1
            elif self._heads_seen == 1 and not self._appended_at:
                self._appended_at = self._line + piece.count(b"\n", 0, at)
                self._steps.up_to(piece, at)
                self._appended_steps = self._steps.place

    def _new_part(self, at: float | None) -> None:
        """Begin a new part if the job was restarted since its end was written."""
        if self._appended_at:
            self._begin_part()
            self._heads_seen, self._appended_at = 1, 0
        if self._ended and (
            self._steps.count > self._ended_steps
            or (at or 0.0) - (self._ended_at or math.inf) > _EXIT_WAIT_S
        ):
            self._begin_part()

    def _first_failed(self, piece: bytes, begin: int) -> None:
        body = "\n".join(
            text.label(text.clean(raw)).rest
            for raw in piece[begin : begin + 2000].split(b"\n")[:14]
        )
        if (found := _FIRST.search(body)) is not None:
            at = text.time_of(found["time"].replace("_", " "), year=self._year)
            self.first_failed.append(
                FirstFailed(
                    rank=int(found["rank"]),
                    node=found["host"],
                    at=at,
                    exit_code=int(found["code"]),
                    attempt=self.file.attempt,
                    part=self._part,
                )
            )
            del self.first_failed[:-20]

    # -- end of the file ---------------------------------------------------------------------------

    def finish(self) -> FileScan:
        """Complete the results at the end of the file."""
        went_on = self._appended_at and (
            self._line - self._appended_at > _ANOTHER_RUN
            or self._steps.steps_since(self._appended_steps) >= _STEPS_OF_A_RUN
        )
        if went_on or (self._ended and self._steps.count > self._ended_steps):
            self._begin_part()
        self._keep_late(self._tail.rfind(excerpts.HEAD.encode()), is_ending=False)
        self._keep_late(excerpts.last_words(self._tail), is_ending=True)
        for kept in self._kept.values():
            lines = max(0, self._line - 1 - kept.last.order[1])
            behind = self._steps.since(kept.steps) | {"lines_after": lines, "parts": self._part}
            self.hits.append(replace(kept.first, count=kept.count, **behind))
            if kept.last is not kept.first:
                self.hits.append(replace(kept.last, count=0, **behind))
        for trouble in self.troubles:
            behind = self._steps.since(trouble.steps) | {"parts": self._part}
            trouble.excerpt = replace(trouble.excerpt, **behind)
        self.first_failed = [replace(each, parts=self._part) for each in self.first_failed]
        return self


def _without_heads(piece: bytes) -> bytes:
    """Remove what stands before each line of a traceback and is no label: a time, a level, a
    container's name.
    """
    if (
        (frame := _HEADED.search(piece)) is None
        or len({head.translate(None, b"0123456789") for head in frame.groups()}) > 1
        or not text.label(text.clean(frame[1])).rest.strip()
    ):
        return piece
    return re.sub(rb"(?m)^" + re.sub(rb"[0-9]+", rb"[0-9]+", re.escape(frame[1])), b"", piece)


def _head_of(piece: bytes) -> tuple[bytes, re.Pattern[bytes]] | None:
    """Return the longest fixed part of a file's first line, and a pattern for the same line at
    another time; None if the line is too short, or an error itself. In a line without a time,
    numbers may be ranks: they must be equal.
    """
    line = piece[:4096].lstrip().partition(b"\n")[0].rstrip()
    is_timed = _CLOCK.search(line) is not None
    parts = _VARIES.split(line[:_COMPARED]) if is_timed else [line]
    part = max(parts, key=len)
    if len(part.strip()) < _SHORTEST or _NO_HEAD.search(line):
        return None
    end = rb"\s*$" if not is_timed or len(line) < _COMPARED else b""
    return part, re.compile(rb"\w+".join(map(re.escape, parts)) + end, re.MULTILINE)


def _heads_in(piece: bytes, head: tuple[bytes, re.Pattern[bytes]] | None) -> list[int]:
    found: list[int] = []
    at = 0
    while head is not None and len(found) < _MOST_HEADS and (at := piece.find(head[0], at)) >= 0:
        begin = piece.rfind(b"\n", 0, at) + 1
        if begin and head[1].match(piece, begin):
            found.append(begin)
        at += 1
    return found


@lru_cache(maxsize=2048)
def _groups_in(raw: bytes, near: tuple[str, ...]) -> dict[str, str] | None:
    """Return the named groups of a line that matches one of `near`, else None.

    Cached: successive errors check the same lines.
    """
    line = text.clean(raw)
    rest = text.label(line).rest
    for pattern in near:
        if match := re.search(pattern, line) or re.search(pattern, rest):
            return {name: value for name, value in match.groupdict().items() if value is not None}
    return None
