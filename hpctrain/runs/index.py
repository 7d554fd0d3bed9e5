"""All runs at once, and what makes that fast: `runs/.index/`, which may be thrown away at any time.

The index remembers what was read of each run, with the stamp of everything that it was read from (times in nanoseconds, inode, size).
An entry counts only while the files still have that stamp; what has changed is read again. A file system may tell time in steps of one or
two seconds, or take it from the clock of each node: so what changed within SETTLED_NS of the reading, by the file system's own clock, is
not remembered at all. There is one file, replaced whole by a rename: of two writers, one wins, and the other has lost nothing but time.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.runs import layout, store
from hpctrain.runs.store import Attempt, Run, RunReader

#: More than the steps of any file system's clock (2 s), and than the difference between the clocks of two nodes.
SETTLED_NS = 10_000_000_000
#: Of fewer changed runs, or fewer than a hundredth, the index is not written anew: reading them again costs less.
WORTH_WRITING = 16
#: Format of the index; another one is not read.
_VERSION = 1
_FILE = "runs.json"
_NEW = ".new-"
_MAX_BYTES = 500_000_000


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies in a runs/.

    Attributes:
        runs: by id.
        foreign: the directories that are no runs.
        reread: how many runs were read from their files.
    """

    runs: tuple[Run, ...]
    foreign: tuple[str, ...]
    reread: int = 0


def read_all(runs: Path, *, index: bool = True, settled_ns: int = SETTLED_NS) -> Listing:
    """Return all runs in `runs`.

    Args:
        runs: the directory.
        index: read and write the index; without, every file is read, and nothing is written.
        settled_ns: see the module.

    Raises:
        OSError: `runs` is not there, or cannot be read.
    """
    base = str(runs)
    names, foreign = store.names(runs)
    entries = _load(base) if index else {}
    known: dict[str, Run | None] = {}  # None is no run
    for name in names:
        try:
            known[name] = _still_true(f"{base}/{name}", name, entries[name])
        except (KeyError, TypeError, ValueError):
            continue
    changed = [name for name in names if name not in known]
    worth = index and (len(changed) >= max(WORTH_WRITING, len(names) // 100) or len(entries) > 2 * len(names))
    writer = _Writer(base) if worth else None
    before = writer.now_ns - settled_ns if writer is not None and writer.now_ns is not None else None
    kept = {name: entries[name] for name in known}
    for name in changed:
        reader = RunReader(base, name)
        run = known[name] = reader.read()
        if before is not None and not reader.problems:
            stamp, newest_ns = _stamp(reader.path, reader.looked)
            if stamp is not None and newest_ns < before:
                kept[name] = [stamp, reader.looked, _to_json(run)]
    if writer is not None:
        writer.write(kept)
    foreign += [name for name, run in known.items() if run is None]
    return Listing(tuple(run for name in names if (run := known[name]) is not None), tuple(sorted(foreign)), len(changed))


def _stamp(base: str, looked: list[str]) -> tuple[int | None, int]:
    """Return one number for the state of the files that a run was read from, None where one is gone, and when they changed last."""
    parts: list[int] = []
    newest = 0
    try:
        for name in looked:
            found = os.stat(f"{base}/{name}")  # noqa: PTH116 - as in store
            times = (found.st_mtime_ns, found.st_ctime_ns)
            parts += (found.st_ino, *times, found.st_size)
            newest = max(newest, *times)
    except OSError:
        return None, 0
    return hash(tuple(parts)), newest  # of whole numbers, the same in every process


def _still_true(base: str, name: str, entry: Any) -> Run | None:
    """Return what an entry of the index holds: a run, or None for a directory that is none.

    Raises:
        ValueError, TypeError: the files have changed since, or the entry is none of ours.
    """
    stamp, looked, values = entry
    if stamp is None or _stamp(base, looked)[0] != stamp:
        raise ValueError(name)
    return _from_json(name, values)


def _to_json(run: Run | None) -> list[Any]:
    if run is None:
        return []
    attempts = [[getattr(attempt, name) for name in Attempt.__slots__] for attempt in run.attempts]
    return [run.tag, run.name, run.stage, run.index, run.created, attempts, run.last_step, run.last_loss, run.checkpoints]


def _from_json(run: str, values: list[Any]) -> Run | None:
    if not values:
        return None
    tag, name, stage, index, created, attempts, step, loss, checkpoints = values
    return Run(
        id=run, tag=tag, name=name, stage=stage, index=index, created=created, last_step=step, last_loss=loss, checkpoints=checkpoints,
        attempts=tuple(Attempt(**dict(zip(Attempt.__slots__, each, strict=True))) for each in attempts),
    )  # fmt: skip


def _load(base: str) -> dict[str, Any]:
    """Return the entries of the index; none where there is no index, or it is damaged: its first line is the digest of the rest."""
    try:
        with store.opened(f"{base}/{layout.INDEX}/{_FILE}") as file:
            if os.fstat(file.fd).st_size > _MAX_BYTES:
                return {}
            with os.fdopen(os.dup(file.fd), "rb") as stream:
                digest, _, body = stream.read().partition(b"\n")
        if hashlib.blake2b(body).hexdigest().encode() != digest:
            return {}
        value = json.loads(body)
    except (OSError, ValueError, RecursionError):
        return {}
    usable = isinstance(value, dict) and value.get("version") == _VERSION and isinstance(value.get("runs"), dict)
    return value["runs"] if usable else {}


class _Writer:
    """Writes the index; where that is not possible, as in somebody else's runs/, does nothing.

    Attributes:
        now_ns: the file system's own time, from the file that becomes the index; None where none can be written.
    """

    def __init__(self, base: str) -> None:
        self.folder = Path(base, layout.INDEX)
        self.path = self.folder / f"{_NEW}{uuid.uuid4().hex}"
        self.now_ns: int | None = None
        try:
            self.folder.mkdir(exist_ok=True)
            self.path.touch(exist_ok=False)
            self.now_ns = self.path.stat().st_mtime_ns
        except OSError:
            return
        self._clean(self.now_ns)

    def write(self, entries: dict[str, Any]) -> None:
        """Replace the index; not synced, because a damaged one is seen and costs only time."""
        if self.now_ns is None:
            return
        body = json.dumps({"version": _VERSION, "runs": entries}, separators=(",", ":")).encode()
        try:
            self.path.write_bytes(hashlib.blake2b(body).hexdigest().encode() + b"\n" + body)
            self.path.replace(self.folder / _FILE)
        except OSError:
            self.path.unlink(missing_ok=True)

    def _clean(self, now_ns: int) -> None:
        """Remove what a writer that was killed left behind an hour ago."""
        try:
            found = list(self.folder.glob(f"{_NEW}*"))
        except OSError:  # somebody removes the index just now
            return
        for left in found:
            try:
                if left.stat().st_mtime_ns < now_ns - 3_600_000_000_000:
                    left.unlink()
            except OSError:
                continue
