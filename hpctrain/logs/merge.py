"""Several logs as one: in the order of time where lines say times, else file after file; and what many processes say alike as one line.

Memory is bounded by a window, whatever the size of the files. Nothing is told twice, and nothing that differs in more than who said it,
and when, is told once.
"""

from __future__ import annotations

import heapq
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from hpctrain.logs import read, text, when
from hpctrain.logs.model import LogFile

#: Lines that wait for others like them, and how many lines later those may come.
WINDOW = 400
_FAR = 2000
#: Bytes that are read at once, of all files together.
_BYTES = 16 << 20
#: What may differ between two lines that say the same: the process, an address, the time.
_WHO = re.compile(
    r"(?P<key>\b(?:local[ _]?rank|rank|pid|tid|process|proc|worker|device|cuda|gpu|hip|task|thread)s?\b ?[:=#]? ?\[?)[0-9]+"
    r"|(?P<glog>(?:^|(?<=\[))[IWEF][0-9]{4} [0-9:.]+ +[0-9]+)"
    r"|0x[0-9a-fA-F]+"
    r"|20[0-9]{2}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
    r"|\b[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?\b"
    r"|(?P<nccl>^[A-Za-z][\w.-]*:[0-9]+:[0-9]+ \[[0-9]+\])",
    re.IGNORECASE,
)
#: Measurements differ with the process on purpose.
_OWN = re.compile(r"^\[(?:memory|speed)\]")


@dataclass(frozen=True, slots=True)
class Line:
    """One line: cleaned, and without the launcher's label. `number` counts from 1; `at` is in seconds since the epoch."""

    file: LogFile
    number: int
    text: str
    rank: int | None = None
    node: str | None = None
    at: float | None = None

    @property
    def who(self) -> str | None:
        """The process, where it is known."""
        return None if self.rank is None else f"{self.rank}"


@dataclass(slots=True)
class Folded:
    """What one or many lines said.

    Attributes:
        text: of the first of them; of a progress bar its last state.
        count: lines.
        ranks, nodes: that said it, as far as they are known.
        files: the names of the files where it stands.
        first: the first of them.
        shape: what is equal in all of them.
        closed: no other line is counted with it.
    """

    text: str
    first: Line
    shape: str
    count: int = 1
    ranks: set[int] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    serial: int = 0
    closed: bool = False


def lines_of(file: LogFile, *, start: int = 0, number: int = 1, year: int | None = None, block: int = 1 << 20) -> Iterator[Line]:
    """Yield the lines of a file, cleaned; empty ones too. `year` is that of times that say none."""
    for count, raw in enumerate(_raw(file, start, block), start=number):
        yield line_of(file, count, raw, year=year)


def line_of(file: LogFile, number: int, raw: bytes, *, year: int | None = None) -> Line:
    """Return what one line of a file says. What the file's name says of its process holds; a label says the rest."""
    cleaned = text.clean(raw)
    label = text.label(cleaned)
    rank = file.rank if file.rank is not None else label.rank
    return Line(file, number, label.rest, rank, label.node or file.node, when.of(label.rest, year=year))


def year_of(file: LogFile) -> int | None:
    """Return the year in which a file was written last; None where it is not there."""
    try:
        return time.localtime(file.path.stat().st_mtime).tm_year
    except OSError:
        return None


def merged(sources: Sequence[Iterable[Line]]) -> Iterator[Line]:
    """Yield the lines of several files in the order of time; a line without a time stays behind the one before it in its file.

    A file that says no time in its first 2000 lines comes as a whole, behind those that do, in its place among its like.
    """
    if len(sources) == 1:
        yield from sources[0]
        return
    keyed = [_timed(source, place) for place, source in enumerate(sources)]
    for _, _, line in heapq.merge(*keyed, key=lambda each: each[:2]):
        yield line


def groups(files: Sequence[LogFile]) -> list[list[LogFile]]:
    """Return files in groups, the oldest first, of which one is over before the next begins: jobs, attempts, past rotations.

    Clocks of two jobs' nodes may differ: what is known to be earlier comes earlier. Within a group, times decide.
    """
    found: dict[tuple[str | None, str | None], list[LogFile]] = {}
    for file in files:
        found.setdefault((file.job, file.attempt), []).append(file)
    return list(found.values())


def folded(lines: Iterable[Line], *, processes: int | None = None, window: int = WINDOW) -> Iterator[Folded]:
    """Yield what is said, each once with a count, in the order in which it was first said.

    Lines of processes that are known by their rank are laid one beside the other: each process's own order stays, and only lines of
    different ranks become one. Of lines whose process is not known, up to `processes` equal ones within the window are one.

    Args:
        lines: to fold.
        processes: that write into the same files; None where that is not known, and 1 folds only what is repeated at once.
        window: how many different lines wait for others like them.
    """
    folder = Folder(processes=processes, window=window)
    for line in lines:
        yield from folder.add(line)
    yield from folder.flush()


class Folder:
    """Folds lines as they come: see `folded`."""

    def __init__(self, *, processes: int | None = None, window: int = WINDOW) -> None:
        self._processes, self._window = processes, window
        self._waiting: deque[Folded] = deque()
        self._by_shape: dict[str, list[Folded]] = {}
        self._newest: dict[object, Folded] = {}  # of each process, or file: the last that it said
        self._count = 0

    def add(self, line: Line) -> list[Folded]:
        """Take a line; return what need not wait any longer."""
        self._count += 1
        bar = text.progress_bar(line.text)
        shape = f"\0{line.text.split('%', 1)[0].rstrip(' 0123456789.')[:80]}" if bar else shape_of(line.text, line.node)
        process: object = line.rank if line.rank is not None else line.file.name
        match = self._found(line, shape, process, bar=bar)
        if match is None:
            match = Folded(line.text, line, shape, count=0, serial=self._count)
            self._waiting.append(match)
            self._by_shape.setdefault(shape, []).append(match)
        if bar:
            match.text = line.text
        match.count += 1
        match.files.add(line.file.name)
        if line.rank is not None:
            match.ranks.add(line.rank)
        if line.node is not None:
            match.nodes.add(line.node)
        self._newest[process] = match
        return self._ready()

    def flush(self) -> list[Folded]:
        """Return all that waits."""
        ready = list(self._waiting)
        self._waiting.clear()
        self._by_shape.clear()
        self._newest.clear()
        return ready

    def _found(self, line: Line, shape: str, process: object, *, bar: bool) -> Folded | None:
        newest = self._newest.get(process)
        if newest is not None and newest.shape == shape and not newest.closed and (bar or newest.text == line.text):
            return newest  # the same process again, at once
        candidates = self._by_shape.get(shape)
        if not candidates or not line.text.strip() or _OWN.match(line.text):
            return None
        if line.rank is None:
            if self._processes == 1 and not bar:
                return None
            match = candidates[-1]
            return match if bar or self._processes is None or match.count < self._processes else None
        since = newest.serial if newest is not None else 0
        return next((each for each in candidates if each.serial > since and line.rank not in each.ranks), None)

    def _ready(self) -> list[Folded]:
        ready = []
        while self._waiting and (len(self._waiting) > self._window or self._count - self._waiting[0].serial > _FAR):
            oldest = self._waiting.popleft()
            oldest.closed = True
            same = self._by_shape[oldest.shape]
            same.remove(oldest)
            if not same:
                del self._by_shape[oldest.shape]
            ready.append(oldest)
        return ready


@lru_cache(maxsize=4096)  # what one says, others say at the same time
def shape_of(line: str, node: str | None = None) -> str:
    """Return what is equal in lines that differ only in the process, an address or the time."""
    if node and node in line:
        line = line.replace(node, "\1")
    return _WHO.sub(_mark, line)


def _mark(match: re.Match[str]) -> str:
    return f"{match['key'] or ''}\1"


def _raw(file: LogFile, start: int, block: int) -> Iterator[bytes]:
    for piece in read.pieces(file, start=start, block=block):
        found = piece.split(b"\n")
        if not found[-1]:
            found.pop()
        yield from found


def _timed(lines: Iterable[Line], place: int) -> Iterator[tuple[float, int, Line]]:
    """Yield (time, place, line), times never falling: lines before the first time have that one, and without any they come last."""
    rest = iter(lines)
    first: list[Line] = []
    for line in rest:
        first.append(line)
        if line.at is not None or len(first) >= _FAR:
            break
    latest = first[-1].at if first and first[-1].at is not None else float("inf")
    for line in first:
        yield latest, place, line
    for line in rest:
        if line.at is not None and line.at > latest:
            latest = line.at
        yield latest, place, line


def sources(files: Sequence[LogFile]) -> list[Iterator[Line]]:
    """Return the lines of files, read in blocks that are the smaller the more files there are."""
    block = max(8192, min(1 << 20, _BYTES // max(1, len(files))))
    return [lines_of(file, year=year_of(file), block=block) for file in files]
