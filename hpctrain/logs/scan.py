"""All log files of a job, searched for what the rules know: gigabytes in seconds, in two processes where there are two cores."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from hpctrain.explain.hit import Scanned
from hpctrain.explain.rule import Rule
from hpctrain.explain.scan_table import Table
from hpctrain.logs import read, scan_words
from hpctrain.logs.model import LogFile
from hpctrain.logs.scan_file import FileScan, Findings
from hpctrain.logs.scan_words import Finder

#: Below it, a second process costs more than it gains.
_WORTH_A_PROCESS = 48 << 20
_MOST_PROCESSES = 8
_BLOCK = 1 << 20


def scan(files: Sequence[LogFile], rules: Sequence[Rule], *, processes: int | None = None) -> Scanned:
    """Return what the rules' signatures find in the files, and the errors that stand in them.

    Args:
        files: a file that is gone, or cannot be read, has nothing to say.
        rules: the whole table.
        processes: None: as many as this process may use cores, where there is enough to read.
    """
    table = _table(tuple(rules))
    if processes is None:
        enough = sum(_size(file.path) for file in files) >= _WORTH_A_PROCESS
        processes = min(len(os.sched_getaffinity(0)), len(files), _MOST_PROCESSES) if enough and threading.active_count() == 1 else 1
    if processes > 1:
        found = _in_processes(files, table, processes)
    else:
        finder = _finder(table)
        found = [_scan_one(file, table, finder) for file in files]
    _uncount_copies(files, found)
    silent = set[str]().union(*(each.unless for each in found))
    return Scanned(
        hits=tuple(hit for each in found for hit in each.hits if hit.rule not in silent),
        troubles=tuple(trouble.close() for each in found for trouble in each.troubles),
        first_failed=tuple(first for each in found for first in each.first_failed),
        status=next((each.status for each in reversed(found) if each.status is not None), None),
        size=sum(each.size for each in found),
    )


@lru_cache(maxsize=2)
def _table(rules: tuple[Rule, ...]) -> Table:
    return Table(rules)


@lru_cache(maxsize=2)
def _finder(table: Table) -> Finder:
    return find_words(table)


def _uncount_copies(files: Sequence[LogFile], found: Sequence[Findings]) -> None:
    """What a rank's own file and the shared one both hold is counted once; the copy says which rank it is of."""
    shared = {hit.rule for file, each in zip(files, found, strict=True) if not file.copy for hit in each.hits}
    for file, each in zip(files, found, strict=True):
        if file.copy:
            each.hits = [replace(hit, count=0) if hit.rule in shared else hit for hit in each.hits]


def find_words(table: Table, *, compiled: bool = True) -> Finder:
    """Return what finds the table's words in bytes of lower case.

    Args:
        table: of the words.
        compiled: False: the slower search, though the other is there.
    """
    return scan_words.finder(table.texts, compiled=compiled)


def _scan_one(file: LogFile, table: Table, finder: Finder) -> Findings:
    scan_of = FileScan(file, table, finder, year=_year(file.path))
    for piece in read.pieces(file, block=_BLOCK):
        scan_of.feed(piece)
    return scan_of.finish()


def _year(path: Path) -> int | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).year
    except OSError:
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


_shared: tuple[Sequence[LogFile], Table, Finder] | None = None


def _in_processes(files: Sequence[LogFile], table: Table, processes: int) -> list[Findings]:
    """Search the files in processes that this one forks; the largest first, so that none is left with a large one at the end."""
    global _shared  # noqa: PLW0603 - a forked process finds it where it was; an automaton cannot be sent
    _shared = (files, table, find_words(table))
    order = sorted(range(len(files)), key=lambda number: -_size(files[number].path))
    try:
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            found = dict(pool.imap_unordered(_scan_shared, order))
    finally:
        _shared = None
    return [found[number] for number in range(len(files))]


def _scan_shared(number: int) -> tuple[int, Findings]:
    if _shared is None:
        raise RuntimeError("called outside of a forked process")
    files, table, finder = _shared
    return number, _scan_one(files[number], table, finder)
