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
from hpctrain.slurm.notations import array as arrays
from hpctrain.slurm.notations import hostlist
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import stored

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
    every = files.of_run(run_dir) if run_dir is not None else ()
    return tuple(file for file in every if file.copy and file.job == job)


def processes_of(run_dir: Path | None) -> int | None:
    """Return the number of processes in a run's job, according to its script."""
    try:
        script = stored.read_regular(run_dir / "script.sbatch") if run_dir is not None else b""
    except OSError:
        return None
    match = _PROCESSES.search(script)
    return int(match[1]) if match else None


#: Seconds for which a followed line is held back for equal ones.
_HOLD_S = 1.0
#: Polls between two searches for new files.
_SEARCH_EVERY = 10
_COPY_BYTES = 1 << 20


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
        shared = chosen.files
        if self.err:
            shared = tuple(file for file in shared if file.stream == "err") or shared
        own: list[LogFile] = []
        if not self.err and (self.rank, self.node) != (None, None):
            own = [file for file in map(placed, ranks) if self.wants(file.rank, file.node)]
        return [*own, *shared]

    def wants(self, rank: int | None, node: str | None) -> bool:
        """Whether these are the selected rank and node, if any are selected."""
        wanted = None if self.node is None else self.node.partition(".")[0]
        return self.rank in (None, rank) and wanted in (None, (node or "").partition(".")[0])


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

    def passes(self, line: merge.Line) -> bool:
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
    is_all = view.rank is None and view.node is None
    groups = merge.groups(files) if is_all else [[file] for file in files]
    selected = filter(LineFilter(view).passes, _merged(groups, view))
    lines = selected if view.last is None else deque(selected, maxlen=view.last)
    shown = 0
    for job, of_job in itertools.groupby(
        lines, key=lambda line: (line.file.job, line.file.attempt)
    ):
        if several and job[0]:
            write(f"==> job {job[0]} <==\n")
        for each in merge.folded(
            of_job, processes=1 if view.rank is not None else chosen.processes
        ):
            write(rendered(each, view, many=many) + "\n")
            shown += 1
    return shown


def _merged(groups: Iterable[list[LogFile]], view: LogView) -> Iterator[merge.Line]:
    # With a filter, the last matching lines may be anywhere in the file.
    is_all = view.rank is None and view.node is None and view.since is None
    for group in groups:
        block = max(8192, min(_COPY_BYTES, (16 << 20) // len(group)))
        sources = []
        for file in group:
            start = read.tail(file.path, view.last) if view.last is not None and is_all else 0
            sources.append(merge.lines_of(file, start=start, block=block))
        yield from merge.merged(sources)


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
        self._folder = merge.Folder(processes=1 if view.rank is not None else chosen.processes)
        self._growing: dict[Path, tuple[LogFile, read.Growing]] = {}
        self._looks = 0
        self._held_since: float | None = None

    def copy(self) -> None:
        """Write new lines."""
        if self._looks % _SEARCH_EVERY == 0:
            self._search()
        self._looks += 1
        has_ended = self._take(read.Growing.look)
        held = 0.0 if self._held_since is None else time.monotonic() - self._held_since
        if has_ended or held >= _HOLD_S:
            self._print(self._folder.flush())
            self._held_since = None

    def finish(self) -> None:
        """Write the remaining lines, including incomplete ones."""
        self._search()
        self._take(read.Growing.rest)
        self._print(self._folder.flush())

    def _take(self, look: Callable[[read.Growing], bytes]) -> bool:
        """Read what is new; return whether the job script wrote its last line."""
        has_ended = False
        for file, growing in list(self._growing.values()):
            found = look(growing)
            year = merge.year_of(file) if found else None
            for raw in read.split(found):
                line = merge.line_of(file, raw, year=year)
                has_ended = has_ended or "hpctrain: job " in line.text
                if self._selector.passes(line):
                    self._held_since = self._held_since or time.monotonic()
                    self._print(self._folder.add(line))
        return has_ended

    def _print(self, ready: Iterable[merge.Folded]) -> None:
        many = sum(file.rank is not None for file, _ in self._growing.values()) > 1
        for each in ready:
            self._write(rendered(each, self._view, many=many) + "\n")
        sys.stdout.flush()

    def _search(self) -> None:
        chosen = self._chosen
        if chosen.record is not None:
            self._chosen = replace(chosen, ranks=rank_files(chosen.run_dir, chosen.record.job_id))
        for file in self._view.files(self._chosen, self._chosen.ranks):
            if file.path in self._growing:
                continue
            is_first = self._view.last is not None and self._looks == 0
            start = read.tail(file.path, self._view.last or 0) if is_first else 0
            growing = read.Growing(file.path, start=start, tell=partial(self._changed, file))
            self._growing[file.path] = file, growing

    def _changed(self, file: LogFile, change: read.Change) -> None:
        self._say(f"{file.name} was {change}; from its beginning:")


def rendered(folded: merge.Folded, view: LogView, *, many: bool = False) -> str:
    """Format a line: with its writer if that is known and not in the text, and the number of
    repetitions.
    """
    line, shown, ranks, nodes = folded.first, folded.text, folded.ranks, folded.nodes
    who = ""
    if len(ranks) > 1:
        who = f"[ranks {arrays.compress(ranks)}] "
    elif ranks:
        (rank,) = ranks
        is_wanted = view.rank is None and (many or not line.file.copy)
        named = (f"rank={rank}/", f"[Rank {rank}]", f": task {rank}: ")
        who = f"[rank {rank}] " if is_wanted and not any(name in shown for name in named) else ""
    elif nodes and view.node is None and line.file.node is None:
        is_named = any(node in shown for node in nodes)
        who = "" if is_named else f"[{hostlist.compress(sorted(nodes))}] "
    times = f"  x{folded.count}" if folded.count > 1 and shown.strip() else ""
    return f"{who}{shown}{times}"
