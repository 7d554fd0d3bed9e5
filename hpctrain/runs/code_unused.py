"""Snapshots of the code that nothing refers to any more, and their removal."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpctrain.runs import code_store, files, layout

#: Seconds for which a snapshot stays though nothing refers to it: its launch may be about to be written.
SPARED_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Unused:
    """A snapshot that nothing refers to; `bytes` are the sizes of its files, some of which others may share."""

    digest: str
    files: int
    bytes: int


def unused_code(runs: Path, *, now: float, spared_s: float = SPARED_S) -> list[Unused]:
    """Return the snapshots that no launch and no run refers to, and that nobody has used in the last `spared_s` seconds.

    Args:
        runs: the directory `runs`.
        now: seconds since the epoch, of the machine whose file system this is.
        spared_s: seconds.
    """
    used = set(_used(runs))
    found = []
    for path in _snapshots(runs):
        if path.name not in used and _age(path / code_store.MANIFEST, now) > spared_s:
            entries = code_store.read(runs, path.name) or {}
            found.append(Unused(path.name, len(entries), sum(entry.size for entry in entries.values())))
    return found


def remove_unused_code(runs: Path, digests: Iterable[str], *, now: float, spared_s: float = SPARED_S) -> list[str]:
    """Remove snapshots, then the contents that no snapshot has any more, and what killed processes left; return what was removed.

    A snapshot that somebody refers to by now, or has used meanwhile, stays.
    """
    asked, removed = set(digests), []
    for digest in [one.digest for one in unused_code(runs, now=now, spared_s=spared_s) if one.digest in asked]:
        away = runs / layout.CODE / f".removing-{uuid.uuid4().hex}"
        (runs / layout.CODE / digest).rename(away)
        removed.append(digest)
        shutil.rmtree(away, ignore_errors=True)
    for path in (runs / layout.CODE).glob(".*ing-*"):
        if _age(path, now) > spared_s:
            shutil.rmtree(path, ignore_errors=True)
    _remove_objects(runs, now, spared_s)
    return removed


def _remove_objects(runs: Path, now: float, spared_s: float) -> None:
    kept = set()
    for path in _snapshots(runs):
        entries = code_store.read(runs, path.name)
        if entries is None:
            return  # what it needs is not known
        kept |= {code_store.object_name(entry) for entry in entries.values()}
    for directory in (runs / layout.CODE / code_store.OBJECTS).glob("??"):
        for path in directory.iterdir():
            # A snapshot that is being made has links to it, or will have in a moment: the last change of links is its ctime.
            if f"{directory.name}/{path.name}" not in kept and _age(path, now, changed=True) > spared_s:
                path.unlink(missing_ok=True)


def _snapshots(runs: Path) -> list[Path]:
    found = (path for path in (runs / layout.CODE).glob("*") if not path.name.startswith(".") and path.name != code_store.OBJECTS)
    return sorted(path for path in found if path.is_dir())


def _used(runs: Path) -> Iterator[str]:
    """Yield the digests that launches and runs refer to, those of earlier versions of a launch among them."""
    for record in (runs / layout.LAUNCHES).glob("*/code*.json"):
        yield str((files.read_json(record) or {}).get("digest"))
    for pattern in (f"{layout.LAUNCHES}/*/code", "*/code"):
        for link in runs.glob(pattern):
            try:
                yield Path(os.readlink(link)).name  # noqa: PTH115
            except OSError:
                continue


def _age(path: Path, now: float, *, changed: bool = False) -> float:
    try:
        found = path.lstat()
    except OSError:
        return 0.0
    return now - (found.st_ctime if changed else found.st_mtime)
