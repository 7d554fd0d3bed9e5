"""Show the logs of a job: filtered and folded lines with their ranks, completely or as they
grow.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hpctrain.logs import files, merge, read
from hpctrain.logs.files import LogFile
from hpctrain.logs.merge import Folded, Line
from hpctrain.runs import layout, store
from hpctrain.slurm.notations import array as arrays
from hpctrain.slurm.notations import hostlist
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import stored

_HEAD_BYTES = 1 << 16
#: The job script's first line (templates/job.sh).
_BEGINS = re.compile(
    rb"^hpctrain: attempt ([0-9]+)\.[0-9.]+ of the run ([A-Za-z0-9][A-Za-z0-9._-]{0,119}) begins",
    re.MULTILINE,
)
_PROCESSES = re.compile(rb"^export HPCTRAIN_WORLD_SIZE=([0-9]{1,7}) ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSelection:
    """The logs to show.

    Attributes:
        files: shared by all ranks, in their order; of the job, or of all jobs of its run.
        ranks: the ranks' own files, if they are kept: copies.
        record: of the job; None for files.
        run_dir: if known.
        processes: that write into the shared files.
        earlier: earlier jobs of the run, which are not shown.
        output: where the job writes.
    """

    files: tuple[LogFile, ...]
    ranks: tuple[LogFile, ...] = ()
    record: JobRecord | None = None
    run_dir: Path | None = None
    processes: int | None = None
    earlier: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    output: Path | None = None


def rank_files(run_dir: Path | None, job: str) -> tuple[LogFile, ...]:
    """Return the current per-rank logs of a job."""
    run = store.read_run(run_dir.parent, run_dir.name) if run_dir is not None else None
    if run_dir is None or run is None:
        return ()
    own = (each for each in run.attempts if each.job == job)
    return tuple(file for each in own for file in files.of_attempt(run_dir, each.name, job=job))


def run_of(output: Path) -> Path | None:
    """Return the run that the first line of a job's log names, if it is next to the log, or in the
    current directory.
    """
    match = _in_head(output, _BEGINS)
    if match is None:
        return None
    places = [
        parent / layout.RUNS / match[2].decode() for parent in (*output.parents[:3], Path.cwd())
    ]
    return next((place for place in places if place.is_dir()), None)


def processes_of(run_dir: Path | None) -> int | None:
    """Return the number of processes in a run's job, according to its script."""
    match = None if run_dir is None else _in_head(run_dir / "script.sbatch", _PROCESSES)
    return int(match[1]) if match else None


def _in_head(path: Path, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
    try:
        with stored.open_regular(path) as stream:
            return pattern.search(stream.read(_HEAD_BYTES))
    except OSError:
        return None


#: Seconds for which a followed line is held back for equal ones.
_HOLD_S = 1.0
#: Polls between two searches for new files.
_SEARCH_EVERY = 10
_COPY_BYTES = 1 << 20
#: Lines per write: each write is a system call if PYTHONUNBUFFERED is set.
_AT_ONCE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """The filters of a log view.

    Attributes:
        rank, node: show only these; None: all.
        err: only the error logs.
        since: seconds since the epoch.
        last: maximum number of lines, from the end.
    """

    rank: int | None = None
    node: str | None = None
    err: bool = False
    since: float | None = None
    last: int | None = None

    def files(self, chosen: LogSelection, ranks: Iterable[LogFile]) -> list[LogFile]:
        """Return the files to read: the shared ones, and those of the selected ranks.

        Lines in both are shown once.
        """
        shared = list(chosen.files)
        if self.err:
            shared = [file for file in shared if file.stream == "err"] or [
                file for file in shared if file.stream == "both"
            ]
        wanted = (
            [placed(file) for file in ranks]
            if self.rank is not None or self.node is not None
            else []
        )
        return [
            *(file for file in wanted if self.wants(file.rank, file.node) and not self.err),
            *shared,
        ]

    def wants(self, rank: int | None, node: str | None) -> bool:
        """Whether these are the selected rank and node, if any are selected."""
        if self.rank is not None and rank != self.rank:
            return False
        return self.node is None or (
            node is not None
            and (node == self.node or node.partition(".")[0] == self.node.partition(".")[0])
        )


#: Maximum number of ranks' own lines that are recognized in the shared log.
_MOST_KNOWN = 200_000


class LineFilter:
    """Filters the lines of a view and removes duplicates: a rank's own file comes first, and its
    lines are in the shared log too.
    """

    def __init__(self, view: LogView) -> None:
        self._view = view
        self._is_new: dict[str, bool] = {}
        self._starts: set[str] = set()
        self._own: set[tuple[int | None, str]] = set()

    def passes(self, line: Line) -> bool:
        """Whether a line is shown."""
        view = self._view
        if view.since is not None:
            if line.at is not None:  # a line without a time is as old as the one before it
                self._is_new[line.file.name] = line.at >= view.since
            if not self._is_new.get(line.file.name, False):
                return False
        # The start message is in both the output and the error log.
        is_start = line.text.startswith("hpctrain: attempt ")
        if not view.wants(line.rank, line.node) or (is_start and line.text in self._starts):
            return False
        self._starts |= {line.text} if is_start else set()
        if line.file.copy and len(self._own) < _MOST_KNOWN:
            self._own.add((line.rank, merge.shape_of(line.text)))
        return line.file.copy or (line.rank, merge.shape_of(line.text)) not in self._own


def placed(file: LogFile) -> LogFile:
    """Add the node to a rank's own file, from its first line: `hpctrain: rank 3 of 8 on n01`."""
    if file.node is not None:
        return file
    words = next(read.lines(file.path), b"").decode("utf-8", "replace").split()
    said = words[:2] == ["hpctrain:", "rank"] and words[5:6] == ["on"] and len(words) > 6
    return replace(file, node=words[6]) if said else file


def whole(chosen: LogSelection, view: LogView, write: Callable[[str], None]) -> int:
    """Write the current content of the logs, folded; return the number of lines."""
    files = [file for file in view.files(chosen, chosen.ranks) if file.path.exists()]
    many = len({file.rank for file in files if file.rank is not None}) > 1
    several = len({file.job for file in files}) > 1
    shown = 0
    is_all = view.rank is None and view.node is None
    groups = merge.groups(files) if is_all else [[file] for file in files]
    for group, lines in _chosen_lines(groups, view):
        title = f"==> job {group[0].job} <==" if several and group[0].job else ""
        said = (
            rendered(each, view, many=many)
            for each in merge.folded(lines, processes=_folded_processes(chosen, view))
        )
        while part := list(itertools.islice(said, _AT_ONCE)):
            write("".join(f"{line}\n" for line in ([title, *part] if title else part)))
            title = ""
            shown += len(part)
    return shown


def _chosen_lines(
    groups: list[list[LogFile]], view: LogView
) -> Iterator[tuple[list[LogFile], Iterable[Line]]]:
    selector = LineFilter(view)

    def lines_of(group: list[LogFile]) -> Iterator[Line]:
        sources = [_source(file, view, len(group)) for file in group]
        return filter(selector.passes, merge.merged(sources))

    if view.last is None:
        yield from ((group, lines_of(group)) for group in groups)
        return
    ends = [(group, list(deque(lines_of(group), maxlen=view.last))) for group in groups]
    more = sum(len(lines) for _, lines in ends) - view.last
    for group, lines in ends:
        yield group, lines[max(0, more) :]
        more -= len(lines)


class FollowedLogs:
    """The logs of a running job, as they grow: used by `follow.until_the_end`."""

    def __init__(
        self,
        chosen: LogSelection,
        view: LogView,
        write: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._chosen, self._view, self._write, self._say = chosen, view, write, say
        self._selector = LineFilter(view)
        self._folder = merge.Folder(processes=_folded_processes(chosen, view))
        self._growing: dict[Path, tuple[LogFile, read.Growing]] = {}
        self._looks = 0
        self._since: float | None = None
        self._search()

    def copy(self) -> None:
        """Write new lines."""
        self._looks += 1
        if self._looks % _SEARCH_EVERY == 0:
            self._search()
        said = self._take(lambda growing: growing.look())
        if self._since is not None and (
            time.monotonic() - self._since >= _HOLD_S or "hpctrain: job " in said
        ):
            self._flush()

    def finish(self) -> None:
        """Write the remaining lines, including incomplete ones."""
        self._search()
        self._take(lambda growing: growing.rest())
        self._flush()

    def _take(self, look: Callable[[read.Growing], bytes]) -> str:
        said = []
        for file, growing in list(self._growing.values()):
            found = look(growing)
            year = merge.year_of(file) if found else None
            for raw in read.split(found):
                line = merge.line_of(file, raw, year=year)
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
        many = sum(file.rank is not None for file, _ in self._growing.values()) > 1
        for each in ready:
            self._write(rendered(each, self._view, many=many) + "\n")

    def _search(self) -> None:
        chosen = self._chosen
        run_dir = chosen.run_dir or (run_of(chosen.files[0].path) if chosen.files else None)
        if run_dir is not None and chosen.record is not None:
            ranks = rank_files(run_dir, chosen.record.job_id)
            self._chosen = replace(chosen, run_dir=run_dir, ranks=ranks)
        for file in self._view.files(self._chosen, self._chosen.ranks):
            if file.path in self._growing or (self._growing and not read.exists(file.path)):
                continue
            is_first = self._view.last is not None and self._looks == 0
            start = read.tail(file.path, self._view.last or 0) if is_first else 0
            growing = read.Growing(file.path, start=start, tell=partial(self._changed, file))
            self._growing[file.path] = file, growing

    def _changed(self, file: LogFile, change: read.Change) -> None:
        self._say(f"{file.name} was {change}; from its beginning:")


def rendered(folded: Folded, view: LogView, *, many: bool = False) -> str:
    """Format a line: with its writer if that is known and not in the text, and the number of
    repetitions.
    """
    line, shown = folded.first, folded.text
    ranks, nodes = folded.ranks, folded.nodes
    if len(ranks) > 1:
        shown = f"[ranks {arrays.compress(ranks)}] {shown}"
    elif (
        ranks
        and view.rank is None
        and (many or not line.file.copy)
        and not _names(shown, min(ranks))
    ):
        shown = f"[rank {min(ranks)}] {shown}"
    elif (
        nodes
        and not ranks
        and view.node is None
        and line.file.node is None
        and not any(node in shown for node in nodes)
    ):
        shown = f"[{hostlist.compress(sorted(nodes))}] {shown}"
    if folded.count == 1 or not folded.text.strip():
        return shown
    return f"{shown}  x{folded.count}"


def _names(shown: str, rank: int) -> bool:
    return f"rank={rank}/" in shown or f"[Rank {rank}]" in shown or f": task {rank}: " in shown


def _folded_processes(chosen: LogSelection, view: LogView) -> int | None:
    return 1 if view.rank is not None else chosen.processes


def _source(file: LogFile, view: LogView, files: int) -> Iterator[Line]:
    start = 0
    # With a filter, the last matching lines may be anywhere in the file.
    if view.last is not None and view.rank is None and view.node is None and view.since is None:
        start = read.tail(file.path, view.last)
    block = max(8192, min(_COPY_BYTES, (16 << 20) // max(1, files)))
    return merge.lines_of(file, start=start, block=block)
