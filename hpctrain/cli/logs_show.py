"""How `hpctrain logs` shows lines: which of them, folded, and with whom they are of."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from hpctrain.cli.logs_chosen import Chosen, ranks_now, with_run
from hpctrain.logs import grow, merge, read
from hpctrain.logs.merge import Folded, Line
from hpctrain.logs.model import LogFile
from hpctrain.scheduler.parse import hostlist

#: Seconds for which a line that is followed waits for others like it.
_HOLD_S = 1.0
#: Looks between two searches for files that have come.
_SEARCH_EVERY = 10
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What of the logs is wanted.

    Attributes:
        rank, node: of whom; None: of all.
        err: only the error logs.
        since: seconds since the epoch.
        last: so many lines at most, from the end.
    """

    rank: int | None = None
    node: str | None = None
    err: bool = False
    since: float | None = None
    last: int | None = None

    def files(self, chosen: Chosen, ranks: Iterable[LogFile]) -> list[LogFile]:
        """Return the files to read: the shared ones, and those of the ranks that are meant. What is in both is shown once."""
        shared = list(chosen.files)
        if self.err:
            shared = [file for file in shared if file.stream == "err"] or [file for file in shared if file.stream == "both"]
        wanted = [placed(file) for file in ranks] if self.rank is not None or self.node is not None else []
        return [*(file for file in wanted if self._is_of(file.rank, file.node) and not self.err), *shared]

    def wants(self, line: Line) -> bool:
        """Whether a line is of the rank and the node that are meant; without either, every line."""
        return (self.rank is None and self.node is None) or self._is_of(line.rank, line.node)

    def _is_of(self, rank: int | None, node: str | None) -> bool:
        if self.rank is not None and rank != self.rank:
            return False
        return self.node is None or (node is not None and (node == self.node or node.partition(".")[0] == self.node.partition(".")[0]))


class Selector:
    """Lets the lines pass that a view wants, each once: a rank's own line may stand in the shared log too, with a label."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._own: dict[tuple[int | None, str], int] = {}
        self._since: dict[str, bool] = {}
        self._starts: set[str] = set()

    def passes(self, line: Line) -> bool:
        """Whether a line is shown. The lines of a rank's own file come before those of the shared ones."""
        view = self._view
        if line.text.startswith("hpctrain: attempt "):  # which a start anew says in the output and in the error log
            if line.text in self._starts:
                return False
            self._starts.add(line.text)
        if view.since is not None and not self._is_new(line, view.since):
            return False
        if not view.wants(line):
            return False
        if view.rank is None and view.node is None:
            return True
        key = (line.rank, merge.shape_of(line.text))
        if line.file.copy:
            if len(self._own) < 200_000:
                self._own[key] = self._own.get(key, 0) + 1
            return True
        if self._own.get(key, 0) > 0:
            self._own[key] -= 1
            return False
        return True

    def _is_new(self, line: Line, since: float) -> bool:
        """A line without a time is as old as the one before it in its file."""
        if line.at is not None:
            self._since[line.file.name] = line.at >= since
        return self._since.get(line.file.name, False)


def placed(file: LogFile) -> LogFile:
    """Return a rank's own file with the node that its first line names: `hpctrain: rank 3 of 8 on n01`."""
    if file.node is not None:
        return file
    for _, raw in read.lines(file):
        words = raw.decode("utf-8", "replace").split()
        if words[:2] == ["hpctrain:", "rank"] and words[5:6] == ["on"] and len(words) > 6:
            return replace(file, node=words[6])
        break
    return file


def whole(chosen: Chosen, view: View, write: Callable[[str], None]) -> int:
    """Write what is in the logs now, folded; return how many lines."""
    files = [file for file in view.files(chosen, chosen.ranks) if file.path.exists()]
    many = len({file.rank for file in files if file.rank is not None}) > 1
    shown = 0
    groups = merge.groups(files) if view.rank is None and view.node is None else [[file] for file in files]
    jobs = {file.job for file in files}
    for group, lines in _chosen_lines(groups, view):
        title = f"==> job {group[0].job} <==" if len(jobs) > 1 and group[0].job else ""
        for each in merge.folded(lines, processes=_processes(chosen, view)):
            if title:
                write(f"{title}\n")
                title = ""
            write(rendered(each, view, many=many) + "\n")
            shown += 1
    return shown


def _chosen_lines(groups: list[list[LogFile]], view: View) -> Iterator[tuple[list[LogFile], Iterable[Line]]]:
    """Yield each group with the lines of it that are shown; where only the last are wanted, the groups are read from the last one back."""
    selector = Selector(view)

    def lines_of(group: list[LogFile]) -> Iterator[Line]:
        return (line for line in merge.merged([_source(file, view, len(group)) for file in group]) if selector.passes(line))

    if view.last is None:
        for group in groups:
            yield group, lines_of(group)
        return
    left, kept = view.last, []
    # A rank's own file is read before the shared ones, which have its lines too: these are few files, and all are read.
    own = [group for group in groups if group[0].copy]
    ends = {id(group): deque(lines_of(group), maxlen=view.last) for group in own}
    for group in reversed(groups):
        if not left:
            break
        end = list(ends[id(group)] if group in own else deque(lines_of(group), maxlen=left))[-left:]
        left -= len(end)
        kept.append((group, end))
    yield from reversed(kept)


class Followed:
    """The logs of a job that runs, as they grow: what `follow.until_the_end` copies."""

    def __init__(self, chosen: Chosen, view: View, write: Callable[[str], None], say: Callable[[str], None]) -> None:
        self._chosen, self._view, self._write, self._say = chosen, view, write, say
        self._selector = Selector(view)
        self._folder = merge.Folder(processes=_processes(chosen, view))
        self._growing: dict[str, grow.Growing] = {}
        self._looks = 0
        self._since: float | None = None
        self._search()

    def copy(self) -> str:
        """Write what is new; return it as it was written, for whoever waits for last words."""
        self._looks += 1
        if self._looks % _SEARCH_EVERY == 0:
            self._search()
        said = self._take(lambda growing: growing.look())
        if self._since is not None and (time.monotonic() - self._since >= _HOLD_S or "hpctrain: job " in said):
            self._flush()
        return said

    def finish(self) -> None:
        """Write what is left, ends of lines that never came included."""
        self._search()
        self._take(lambda growing: growing.rest())
        self._flush()

    def _take(self, look: Callable[[grow.Growing], bytes]) -> str:
        said = []
        for growing in list(self._growing.values()):
            found = look(growing)
            if not found:
                continue
            file, year = growing.file, merge.year_of(growing.file)
            for number, raw in grow.lines(growing, found):
                line = merge.line_of(file, number, raw, year=year)
                if "hpctrain: job " in line.text:
                    said.append(line.text)
                if self._selector.passes(line):
                    self._since = self._since if self._since is not None else time.monotonic()
                    self._print(self._folder.add(line))
        sys.stdout.flush()
        return "\n".join(said)

    def _flush(self) -> None:
        self._print(self._folder.flush())
        self._since = None
        sys.stdout.flush()

    def _print(self, ready: Iterable[Folded]) -> None:
        many = sum(growing.file.rank is not None for growing in self._growing.values()) > 1
        for each in ready:
            self._write(rendered(each, self._view, many=many) + "\n")

    def _search(self) -> None:
        """Find files that have come: of ranks, once they write, and of the run, once the job has said which it is."""
        self._chosen = with_run(self._chosen)
        for file in self._view.files(self._chosen, ranks_now(self._chosen)):
            if str(file.path) in self._growing or (self._growing and not grow.exists(file.path)):
                continue
            start = 0
            if self._view.last is not None and self._looks == 0:
                start, _ = read.tail(file, self._view.last)
            self._growing[str(file.path)] = grow.Growing(file, start=start, tell=self._changed)

    def _changed(self, file: LogFile, change: grow.Change) -> None:
        self._say(f"{file.name} was {change}; from its beginning:")


def rendered(folded: Folded, view: View, *, many: bool = False) -> str:
    """Return what is shown of a line: whom it is of, where that is known and not said in it, and how many said it."""
    line, shown = folded.first, folded.text
    ranks, nodes = folded.ranks, folded.nodes
    if len(ranks) > 1:
        shown = f"[ranks {numbers(ranks)}] {shown}"
    elif ranks and view.rank is None and (many or not line.file.copy) and not _names(shown, min(ranks)):
        shown = f"[rank {min(ranks)}] {shown}"
    elif nodes and not ranks and view.node is None and line.file.node is None and not any(node in shown for node in nodes):
        shown = f"[{hostlist.compress(sorted(nodes))}] {shown}"
    if folded.count == 1 or not folded.text.strip():
        return shown
    return f"{shown}  x{folded.count}"


def numbers(ranks: Iterable[int]) -> str:
    """Return ranks as people write them: `0-3,7`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ",".join("-".join(map(str, part)) for part in parts)


def _names(shown: str, rank: int) -> bool:
    return f"rank={rank}/" in shown or f"[Rank {rank}]" in shown or f": task {rank}: " in shown


def _processes(chosen: Chosen, view: View) -> int | None:
    """Return how many processes may say the same in what is shown."""
    return 1 if view.rank is not None else chosen.processes


def _source(file: LogFile, view: View, files: int) -> Iterator[Line]:
    start = 0
    # The last lines that are wanted may lie anywhere, unless every line is.
    if view.last is not None and view.rank is None and view.node is None and view.since is None:
        start, _ = read.tail(file, view.last)
    block = max(8192, min(_COPY_BYTES, (16 << 20) // max(1, files)))
    return merge.lines_of(file, start=start, year=merge.year_of(file), block=block)
