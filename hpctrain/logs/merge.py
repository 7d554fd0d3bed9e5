"""Merge several logs into one: sorted by time if the lines have times, else file after file; equal
lines of many processes become one.

Memory is bounded by a window, regardless of file size. Only lines that differ just in process and
time are merged.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from hpctrain.logs import read, text
from hpctrain.logs.files import LogFile

#: Lines that are held back for equal ones, and the distance in lines at which those may follow.
WINDOW = 400
_FAR = 2000
#: Permitted differences between two equal lines: the process, an address, the time. Each regex runs
#: only on lines that contain one of its literals: it is a hundred times slower.
_PROCESS = re.compile(
    r"(\b(?:local[ _]?rank|rank|pid|tid|process|proc|worker|device|cuda|gpu|hip|task|thread)s?\b"
    r" ?[:=#]? ?\[?)[0-9]+",
    re.IGNORECASE,
)
_PROCESS_WORDS = (
    "rank",
    "pid",
    "tid",
    "proc",
    "worker",
    "device",
    "cuda",
    "gpu",
    "hip",
    "task",
    "thread",
)
#: Before digits, it occurs in each of these.
_COLON = re.compile(":[0-9]")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+", re.IGNORECASE)
_TIME = re.compile(
    r"(?:^|(?<=\[))[IWEF][0-9]{4} [0-9:.]+ +[0-9]+"
    r"|20[0-9]{2}-[0-9]{2}-[0-9]{2}[T"
    r" ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
    r"|\b[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?\b"
    r"|^[A-Za-z][\w.-]*:[0-9]+:[0-9]+ \[[0-9]+\]",
    re.IGNORECASE,
)
#: Measurements differ between processes on purpose.
_OWN = re.compile(r"^\[(?:memory|speed)\]")


@dataclass(frozen=True, slots=True)
class Line:
    """One cleaned line without the launcher's label, or several identical ones in a row.

    Attributes:
        at: seconds since the epoch.
        times: number of repetitions.
    """

    file: LogFile
    text: str
    rank: int | None = None
    node: str | None = None
    at: float | None = None
    times: int = 1


@dataclass(slots=True)
class Folded:
    """One line, or many equal ones.

    Attributes:
        text: of the first line; of a progress bar its last state.
        first: the first line.
        shape: the part that is equal in all of them.
        serial: number of lines before it.
        count: lines.
        ranks, nodes: that wrote it, if known.
        closed: no other line is added.
    """

    text: str
    first: Line
    shape: str
    serial: int
    count: int = 0
    ranks: set[int] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    closed: bool = False


def lines_of(file: LogFile, *, start: int = 0, block: int = 1 << 20) -> Iterator[Line]:
    """Yield the cleaned lines of a file, including empty ones; immediate repetitions become one.

    Args:
        file: to read.
        start: first byte.
        block: bytes per read.
    """
    year = year_of(file)
    for piece in read.pieces(file.path, start=start, block=block):
        for raw, same in itertools.groupby(read.split(piece)):
            yield line_of(file, raw, year=year, times=len(list(same)))


def line_of(file: LogFile, raw: bytes, *, year: int | None = None, times: int = 1) -> Line:
    """Return one line of a file, cleaned.

    The process is taken from the file's name, else from the label.
    """
    label = text.label(text.clean(raw))
    rank = file.rank if file.rank is not None else label.rank
    return Line(
        file, label.rest, rank, label.node or file.node, text.time_of(label.rest, year=year), times
    )


def year_of(file: LogFile) -> int | None:
    """Return the year of the file's last modification; None if it does not exist."""
    try:
        return time.localtime(file.path.stat().st_mtime).tm_year
    except OSError:
        return None


def merged(sources: Sequence[Iterable[Line]]) -> Iterator[Line]:
    """Yield the lines of several files sorted by time; a line without a time stays after the one
    before it in its file.

    A file without a time in its first 2000 lines comes completely after those with times, in its
    original order.
    """
    keyed = [_timed(source, place) for place, source in enumerate(sources)]
    for _, _, line in heapq.merge(*keyed, key=lambda each: each[:2]):
        yield line


def groups(files: Sequence[LogFile]) -> list[list[LogFile]]:
    """Group files by job and attempt, the oldest first; one group ends before the next starts.

    Clocks of two jobs' nodes may differ, so the known order takes precedence. Within a group, times
    decide.
    """
    found: dict[tuple[str | None, str | None], list[LogFile]] = {}
    for file in files:
        found.setdefault((file.job, file.attempt), []).append(file)
    return list(found.values())


def folded(
    lines: Iterable[Line], *, processes: int | None = None, window: int = WINDOW
) -> Iterator[Folded]:
    """Yield each distinct line once with a count, in the order of first occurrence.

    Lines with a known rank are aligned across processes: each process's own order is kept, and only
    lines of different ranks are merged. Of lines without a known process, up to `processes` equal
    ones within the window are merged.

    Args:
        lines: to fold.
        processes: that write into the same files; None if unknown; 1 merges only immediate
            repetitions.
        window: number of distinct lines that are held back for equal ones.
    """
    folder = Folder(processes=processes, window=window)
    for line in lines:
        yield from folder.add(line)
    yield from folder.flush()


class Folder:
    """Incremental version of `folded`."""

    def __init__(self, *, processes: int | None = None, window: int = WINDOW) -> None:
        self._processes, self._window = processes, window
        self._waiting: deque[Folded] = deque()
        self._by_shape: dict[str, list[Folded]] = {}
        self._newest: dict[object, Folded] = {}  # the last line of each process, or file
        self._count = 0

    def add(self, line: Line) -> list[Folded]:
        """Add a line; return those that are complete."""
        self._count += line.times
        bar = text.progress_bar(line.text)
        shape = line.text
        if bar:
            shape = f"\0{line.text.split('%', 1)[0].rstrip(' 0123456789.')[:80]}"
        elif not _OWN.match(line.text):
            shape = shape_of(line.text, line.node)
        process: object = line.rank if line.rank is not None else line.file.name
        match = self._found(line, shape, process, bar=bar)
        if match is None:
            match = Folded(line.text, line, shape, self._count)
            self._waiting.append(match)
            self._by_shape.setdefault(shape, []).append(match)
        match.text = line.text if bar else match.text
        match.count += line.times
        if line.rank is not None:
            match.ranks.add(line.rank)
        if line.node is not None:
            match.nodes.add(line.node)
        self._newest[process] = match
        ready = []
        while self._waiting and (
            len(self._waiting) > self._window or self._count - self._waiting[0].serial > _FAR
        ):
            oldest = self._waiting.popleft()
            oldest.closed = True
            self._by_shape[oldest.shape].remove(oldest)
            if not self._by_shape[oldest.shape]:
                del self._by_shape[oldest.shape]
            ready.append(oldest)
        return ready

    def flush(self) -> list[Folded]:
        """Return all held lines."""
        ready = list(self._waiting)
        for held in (self._waiting, self._by_shape, self._newest):
            held.clear()
        return ready

    def _found(self, line: Line, shape: str, process: object, *, bar: bool) -> Folded | None:
        newest = self._newest.get(process)
        if (
            newest is not None
            and not newest.closed
            and newest.shape == shape
            and (bar or newest.text == line.text)
        ):
            return newest  # immediate repetition by the same process
        candidates = self._by_shape.get(shape)
        if not candidates or not line.text.strip() or _OWN.match(line.text):
            return None
        if line.rank is None:
            most = math.inf if bar or self._processes is None else self._processes
            match = candidates[-1]
            return match if most > 1 and match.count < most else None
        since = newest.serial if newest is not None else 0
        new = (each for each in candidates if each.serial > since and line.rank not in each.ranks)
        return next(new, None)


@lru_cache(maxsize=4096)  # several ranks write the same at the same time
def shape_of(line: str, node: str | None = None) -> str:
    """Return the part that is equal in lines that differ only in the process, an address or the
    time.
    """
    if node and node in line:
        line = line.replace(node, "\1")
    low = line.lower()
    if _COLON.search(line):
        line = _TIME.sub("\1", line)
    if "0x" in low:
        line = _ADDRESS.sub("\1", line)
    if any(word in low for word in _PROCESS_WORDS):
        line = _PROCESS.sub("\\1\1", line)
    return line


def _timed(lines: Iterable[Line], place: int) -> Iterator[tuple[float, int, Line]]:
    """Yield (time, place, line) with non-decreasing times: lines before the first time get that
    one; lines of a file without any come last.
    """
    rest = iter(lines)
    first: list[Line] = []
    for line in rest:
        first.append(line)
        if line.at is not None or len(first) >= _FAR:
            break
    latest = first[-1].at if first else None
    latest = math.inf if latest is None else latest
    for line in itertools.chain(first, rest):
        latest = max(latest, line.at or 0.0)
        yield latest, place, line
