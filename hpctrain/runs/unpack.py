"""The way back from an archive (runs/archive.py): all of it is checked before any of it can be seen.

It is unpacked into `runs/.importing-…`, compared with its digests, and renamed. What goes wrong on the way, a full disk included, leaves
nothing. The archive is not trusted: names that lead elsewhere, links, devices, and files that are not announced are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import UsageError
from hpctrain.runs import checkpoints, files, layout, manifest
from hpctrain.runs.archive import DIGESTS, HEAD, SCHEMA
from hpctrain.runs.tar_stream import Member, Reader

IMPORTING = ".importing-"
_LARGEST_LIST = 1 << 25


@dataclass(frozen=True, slots=True)
class Head:
    """What an archive says it holds: "runs" or "checkpoint", when it was made (seconds since the epoch), run ids, files and sizes."""

    kind: str
    created: int
    runs: tuple[str, ...]
    files: dict[str, int]


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import brought: directories, how many files and how many bytes; `present` where the same checkpoint was there already."""

    paths: tuple[Path, ...]
    files: int
    bytes: int
    present: bool = False


def read_head(archive: Path) -> Head:
    """Return what an archive says it holds.

    Raises:
        ArchiveError: it is damaged, or no archive of hpctrain.
        OSError: it cannot be read.
    """
    with Reader(archive) as reader:
        return _head(reader)


def import_runs(archive: Path, runs: Path, *, as_: str | None = None, progress: Callable[[int], None] | None = None) -> Imported:
    """Unpack runs into the directory `runs`.

    Args:
        archive: what `export_runs` wrote.
        runs: where runs lie; made if missing.
        as_: the new id, where the archive holds one run.
        progress: told the number of bytes written since its last call.

    Raises:
        UsageError: a run of this id exists, or the archive holds checkpoints.
        ArchiveError: it is damaged, cut off, or not to be trusted.
        OSError: the disk is full, or refuses. There is nothing of it in `runs` in all these cases.
    """
    with Reader(archive) as reader:
        head = _head(reader)
        if head.kind != "runs":
            raise UsageError(f"{archive.name} holds a checkpoint, and no run", fix=f"hpctrain checkpoints import {archive}")
        target = _targets(head, runs, as_)
        with _Staging(runs) as staging:
            _unpack(reader, head, staging.path, progress)
            for old, new in target.items():
                _settle(staging.path / old, new.name)
            for old, new in target.items():
                if new.exists():
                    raise _exists([new.name])
                (staging.path / old).rename(new)
            manifest.sync_directory(runs)
    return Imported(tuple(target.values()), len(head.files), sum(head.files.values()))


def import_checkpoint(archive: Path, runs: Path, *, as_: str | None = None, progress: Callable[[int], None] | None = None) -> Imported:
    """Unpack a checkpoint into the run it comes from, or into run `as_`; the run is made if missing.

    The arguments and errors are those of `import_runs`; another checkpoint of that name is a UsageError.
    """
    with Reader(archive) as reader:
        head = _head(reader)
        if head.kind != "checkpoint":
            raise UsageError(f"{archive.name} holds {len(head.runs)} runs", fix=f"hpctrain runs import {archive}")
        source, inside = _checkpoint_in(reader, head)
        run = runs / _id(source if as_ is None else as_)
        final = run / inside
        with _Staging(runs) as staging:
            _unpack(reader, head, staging.path, progress)
            arrived = staging.path / source / inside
            wrong = manifest.problems(arrived, digests=False)
            if wrong:
                raise reader.wrong(f"{inside} in it is not complete: {wrong[0]}")
            size = Imported((final,), len(head.files), sum(head.files.values()))
            if final.exists():
                if manifest.read_manifest(final) == manifest.read_manifest(arrived) and not manifest.problems(final, digests=False):
                    return Imported((final,), size.files, size.bytes, present=True)
                raise UsageError(
                    f"run {run.name} has another {final.name}", details=(str(final),),
                    fix=f"hpctrain checkpoints import {archive} --as {run.name}-imported",
                )  # fmt: skip
            if run.exists():
                final.parent.mkdir(exist_ok=True)
                arrived.rename(final)
                manifest.sync_directory(final.parent)
            else:
                _settle(staging.path / source, run.name)
                (staging.path / source).rename(run)
                manifest.sync_directory(runs)
    return size


def left_from_earlier(runs: Path) -> list[Path]:
    """Return what imports that were killed left, or ones that still run."""
    return sorted(runs.glob(IMPORTING + "*"))


class _Staging:
    """A directory beside the runs that goes away whatever happens; what is wanted has been renamed out of it by then."""

    def __init__(self, runs: Path) -> None:
        self.path = runs / f"{IMPORTING}{uuid.uuid4().hex[:12]}"

    def __enter__(self) -> _Staging:
        self.path.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _head(reader: Reader) -> Head:
    member = reader.next()
    if member is None or member.name != HEAD:
        raise reader.wrong(f"it does not begin with {HEAD}")
    value = _json(reader, member)
    if isinstance(value.get("schema"), int) and value["schema"] > SCHEMA:
        raise reader.wrong(f"it has schema {value['schema']}, and this hpctrain knows {SCHEMA}")
    try:
        listed = [(str(name), int(size)) for name, size in value["files"]]
        head = Head(str(value["kind"]), int(value["created"]), tuple(str(run) for run in value["runs"]), dict(listed))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise reader.wrong(f"{HEAD} is damaged") from error
    if len(listed) != len(head.files):
        raise reader.wrong("it names a file twice")
    if not head.runs or len(set(head.runs)) != len(head.runs) or not all(layout.NAME.match(run) for run in head.runs):
        raise reader.wrong("the ids of its runs are not valid")
    _check_names(reader, head)
    return head


def _check_names(reader: Reader, head: Head) -> None:
    folders: set[str] = set()
    for name, size in head.files.items():
        parts = name.split("/")
        if not _can_be_a_name(name) or not manifest.is_inside(name) or parts[0] not in head.runs or len(parts) < 2:
            raise reader.wrong(f"{name!r} would lie outside of its run")
        if size < 0:
            raise reader.wrong(f"{name!r} has a negative size")
        folders.update("/".join(parts[:count]) for count in range(1, len(parts)))
    both = sorted(folders & head.files.keys())
    if both:
        raise reader.wrong(f"{both[0]!r} is a file and a directory in it")


def _can_be_a_name(name: str) -> bool:
    try:
        return bool(os.fsencode(name))
    except UnicodeEncodeError:
        return False


def _targets(head: Head, runs: Path, as_: str | None) -> dict[str, Path]:
    """Return, for each run in the archive, where it goes."""
    if as_ is not None and len(head.runs) > 1:
        raise UsageError(f"--as names one run, and the archive holds {len(head.runs)}", fix="the same command without --as")
    names = {run: _id(run if as_ is None else as_) for run in head.runs}
    there = [name for name in names.values() if (runs / name).exists() or (runs / name).is_symlink()]
    if there:
        raise _exists(there)
    return {run: runs / name for run, name in names.items()}


def _exists(names: list[str]) -> UsageError:
    what = f"run {names[0]} exists" if len(names) == 1 else f"{len(names)} of the runs exist: {', '.join(names)}"
    return UsageError(
        what, fix=f"the same command with --as {names[0]}-imported" if len(names) == 1 else f"hpctrain runs drop {' '.join(names)}"
    )


def _id(name: str) -> str:
    if not layout.NAME.match(name):
        raise UsageError(f"{name!r} cannot be a run's id: letters, digits, '.', '_' and '-', at most 120", fix="--as NEWID")
    return name


def _checkpoint_in(reader: Reader, head: Head) -> tuple[str, str]:
    """Return the run and, below it, the directory of the one checkpoint in the archive."""
    manifests = [name for name in head.files if name.endswith(f"/{layout.CHECKPOINT_MANIFEST}")]
    if len(manifests) == 1 and len(head.runs) == 1:
        inside = manifests[0].removeprefix(f"{head.runs[0]}/").removesuffix(f"/{layout.CHECKPOINT_MANIFEST}")
        folder, _, name = inside.rpartition("/")
        if inside == checkpoints.MODEL or (folder == checkpoints.CHECKPOINTS and manifest.CHECKPOINT.match(name)):
            return head.runs[0], inside
    raise reader.wrong("it does not hold exactly one checkpoint")


def _unpack(reader: Reader, head: Head, into: Path, progress: Callable[[int], None] | None) -> None:
    """Write all files of the archive below `into`, and compare them with the digests at its end."""
    written: dict[str, str] = {}
    while (member := reader.next()) is not None and member.name != DIGESTS:
        if member.name not in head.files:
            raise reader.wrong(f"{member.name!r} is not in its list of files")
        if member.name in written:
            raise reader.wrong(f"{member.name!r} is in it twice")
        if member.bytes != head.files[member.name]:
            raise reader.wrong(f"{member.name!r} has {member.bytes} bytes, and its list says {head.files[member.name]}")
        written[member.name] = _unpack_file(reader, member, into / member.name, progress)
    if member is None:
        raise reader.wrong(f"{DIGESTS}, its last file, is missing")
    missing = sorted(head.files.keys() - written.keys())
    if missing:
        raise reader.wrong(f"{len(missing)} files are missing, such as {missing[0]!r}")
    said = _digests(reader, _json(reader, member))
    if said.keys() != head.files.keys():
        raise reader.wrong(f"{HEAD} and {DIGESTS} do not name the same files")
    for name, digest in written.items():
        if said[name] != (head.files[name], digest):
            raise reader.wrong(f"{name!r} has changed since it was exported (SHA-256)")
    if reader.next() is not None:
        raise reader.wrong(f"something follows {DIGESTS}")
    for folder in sorted({path.parent for _, path in manifest.walk(into)}):
        manifest.sync_directory(folder)


def _unpack_file(reader: Reader, member: Member, path: Path, progress: Callable[[int], None] | None) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with path.open("xb") as stream:
        for chunk in reader.content(member):
            digest.update(chunk)
            stream.write(chunk)
            if progress is not None:
                progress(len(chunk))
        stream.flush()
        os.fchmod(stream.fileno(), (member.mode & 0o755) | 0o600)
        os.fsync(stream.fileno())
    os.utime(path, (member.mtime, member.mtime))
    return digest.hexdigest()


def _digests(reader: Reader, value: dict[str, Any]) -> dict[str, tuple[int, str]]:
    try:
        return {str(name): (int(size), str(digest)) for name, size, digest in value["files"]}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise reader.wrong(f"{DIGESTS} is damaged") from error


def _json(reader: Reader, member: Member) -> dict[str, Any]:
    try:
        value = json.loads(b"".join(reader.content(member, _LARGEST_LIST)))
    except (ValueError, RecursionError) as error:
        raise reader.wrong(f"{member.name} is damaged") from error
    if not isinstance(value, dict):
        raise reader.wrong(f"{member.name} is damaged")
    return value


def _settle(run: Path, name: str) -> None:
    """Fit a run to its new place: its id, and a last attempt that no scheduler of this machine may be asked about.

    A job id of another cluster can be that of somebody else's job here.
    """
    value = files.read_json(run / "run.json")
    if value is not None and name != run.name:
        files.write_json(run / "run.json", {**value, "run_id": name, "tag": name, "imported_as": run.name})
    attempts = [entry for entry in (run / "attempts").iterdir() if entry.is_dir()] if (run / "attempts").is_dir() else []
    if not attempts:
        return
    last = max(attempts, key=_started)
    end = files.read_json(last / "end.json")
    if end is None or end.get("outcome") == "requeued":
        stopped = {"status": layout.STOPPED, "reason": "imported", "outcome": "stopped"}
        files.write_json(last / "end.json", {"schema": 1, "at": int(time.time()), **(end or {}), **stopped})


def _started(attempt: Path) -> tuple[float, str]:
    at = (files.read_json(attempt / "start.json") or {}).get("at")
    return (float(at) if isinstance(at, int | float) else 0.0, attempt.name)
