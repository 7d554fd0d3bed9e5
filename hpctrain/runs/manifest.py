"""The manifest of a checkpoint: its metadata, and the size and digest of every file. It is written
last, when all other files are on disk.

A directory without a manifest, or whose files do not match it, is damaged and not used as a
checkpoint; `problems` is the one check for this. It reads file contents only on request, and stores
what it finds beside the files, so that later checks of names and sizes alone find it, too. The
manifest contains a digest of itself and is compared byte for byte with what hpctrain would write,
so that any change of it is detected. No torch.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shlex
import stat
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from hpctrain.errors import HpctrainError
from hpctrain.runs.layout import CHECKPOINT_DAMAGE, CHECKPOINT_MANIFEST
from hpctrain.util import files, stored

SCHEMA = 1
CHECKPOINT = re.compile(r"checkpoint-([0-9]+)\Z")
_CHUNK = 1 << 20
#: Files that are read at the same time.
_THREADS = 4
_OWN = (CHECKPOINT_MANIFEST, CHECKPOINT_DAMAGE)
_OWN_DIGEST = "manifest_sha256"
#: Size limit of a manifest, in bytes: some hundred thousand files.
_LARGEST = 64_000_000
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class FileDigest(NamedTuple):
    """One file of a checkpoint: its size in bytes and its SHA-256 (64 hex digits)."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a checkpoint's manifest.

    Attributes:
        step: optimizer steps done.
        world_size: number of processes.
        saved_at: seconds since the epoch.
        seconds: duration of the save, including digests and syncs; None if not measured.
        run_id: the run that saved it.
        attempt: the attempt that saved it (see hpctrain/runs/layout.py).
        state: what it contains, of "model", "optimizer", "scheduler", "rng", "trainer".
        files: relative path with `/` → size and digest; without the manifest itself.
    """

    step: int
    world_size: int
    saved_at: float
    seconds: float | None
    run_id: str | None
    attempt: str | None
    state: tuple[str, ...]
    files: dict[str, FileDigest]

    @property
    def bytes(self) -> int:
        """Return the size of all files, in bytes."""
        return sum(file.bytes for file in self.files.values())


def write_manifest(
    directory: Path,
    *,
    step: int,
    world_size: int,
    state: Iterable[str],
    run_id: str | None = None,
    attempt: str | None = None,
    began: float | None = None,
) -> Manifest:
    """Digest and sync all files below `directory`, then write their manifest; call this when all
    processes have written their files.

    Args:
        directory: the checkpoint, complete except for its manifest.
        step: optimizer steps done.
        world_size: number of processes.
        state: what was saved, see Manifest.
        run_id: the run that saves.
        attempt: the attempt that saves.
        began: `time.monotonic()` at the start of the save; the recorded duration includes this
            function.

    Raises:
        HpctrainError: the directory contains something other than regular files.
        OSError: writing failed, for instance on a full disk; there is no manifest then.
    """
    found = [(name, path) for name, path in walk(directory) if name not in _OWN]
    for name, path in found:
        if not path.is_file():
            raise HpctrainError(
                f"the checkpoint holds {name!r}, which is not a regular file",
                details=(str(directory),),
                fix=f"ls -l {shlex.quote(str(directory))}",
            )
    with ThreadPoolExecutor(_THREADS) as pool:
        digests = list(pool.map(lambda item: _digest(item[1], sync=True), found))
    for folder in sorted({path.parent for _, path in found}):
        sync_directory(folder)
    manifest = Manifest(
        step=step,
        world_size=world_size,
        saved_at=round(time.time(), 3),
        seconds=None if began is None else round(time.monotonic() - began, 3),
        run_id=run_id,
        attempt=attempt,
        state=tuple(state),
        files=dict(sorted(zip((name for name, _ in found), digests, strict=True))),
    )
    value = {
        "schema": SCHEMA,
        **asdict(manifest),
        "files": {name: file._asdict() for name, file in manifest.files.items()},
    }
    files.write_text(directory / CHECKPOINT_MANIFEST, _render(value))
    sync_directory(directory)
    return manifest


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a checkpoint; None if it is missing or damaged."""
    manifest, _ = _read(directory)
    return manifest


def problems(
    directory: Path,
    *,
    digests: bool,
) -> tuple[str, ...]:
    """Return the problems of a checkpoint as short texts; empty if it is complete.

    Damage never raises.

    Args:
        directory: the checkpoint.
        digests: read all files, compare digests, and store the result; otherwise check names,
            sizes, and the last stored result for files that are unchanged since.
    """
    manifest, why = _read(directory)
    if manifest is None:
        return (why,)
    damage = directory / CHECKPOINT_DAMAGE
    known = (files.read_json(damage) or {}).get("changed")
    changed: dict[str, list[int]] = {}

    def look(item: tuple[str, FileDigest]) -> str:
        name, saved = item
        path = directory / name
        try:
            status = path.stat()
            # Differs once the file is replaced, even by one of the same size and time.
            state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            if not stat.S_ISREG(status.st_mode):
                return f"{name} is not a regular file"
            if status.st_size != saved.bytes:
                return f"{name} has {status.st_size} bytes, and {saved.bytes} were saved"
            if digests and _digest(path, sync=False) != saved:
                changed[name] = state
            is_known = not digests and isinstance(known, dict) and known.get(name) == state
            is_changed = name in changed or is_known
            return f"{name} has changed since it was saved (SHA-256)" if is_changed else ""
        except (FileNotFoundError, NotADirectoryError):
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"

    if digests:
        with ThreadPoolExecutor(_THREADS) as pool:
            wrong = list(pool.map(look, manifest.files.items()))
        with contextlib.suppress(OSError):  # the next one finds them again
            if changed:
                files.write_json(damage, {"schema": SCHEMA, "changed": changed})
            else:
                damage.unlink(missing_ok=True)
    else:
        wrong = list(map(look, manifest.files.items()))
    named = CHECKPOINT.match(directory.name)
    if named and int(named[1]) != manifest.step:
        wrong.insert(0, f"{CHECKPOINT_MANIFEST} says step {manifest.step}")
    return tuple(filter(None, wrong))


def walk(directory: Path, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Yield everything below `directory` except directories, as (name with `/`, path), sorted by
    name; links are not followed.

    Raises:
        OSError: a directory cannot be read.
    """
    with os.scandir(directory) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        if entry.is_dir(follow_symlinks=False):
            yield from walk(Path(entry.path), f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, Path(entry.path)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable, if the file system supports it (some network file
    systems refuse, and do it automatically).
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EROFS):
            raise
    finally:
        os.close(descriptor)


def _render(value: dict[str, Any]) -> str:
    """Return the text of a manifest: `value`, followed by the digest of its text."""
    plain = {key: item for key, item in value.items() if key != _OWN_DIGEST}
    own = hashlib.sha256(files.json_text(plain).encode("utf-8", "surrogateescape")).hexdigest()
    return files.json_text({**plain, _OWN_DIGEST: own})


def _read(directory: Path) -> tuple[Manifest | None, str]:
    try:
        content = stored.read_regular(directory / CHECKPOINT_MANIFEST, _LARGEST)
        text = content.decode("utf-8", "surrogateescape")
        value = stored.value_of(text)
        saved = {name: FileDigest(**file) for name, file in value["files"].items()}
        found = stored.made(Manifest, {**value, "files": {}})
        is_whole = _render(value) == text and all(
            # A name that cannot leave the directory, and a digest.
            "\0" not in name
            and not {"", ".", ".."} & set(name.split("/"))
            and file.bytes >= 0
            and _SHA256.match(file.sha256)
            for name, file in saved.items()
        )
    except FileNotFoundError:
        is_there = directory.is_dir()
        return None, f"no {CHECKPOINT_MANIFEST}" if is_there else "there is no such directory"
    except OSError as error:
        return None, f"{CHECKPOINT_MANIFEST} cannot be read: {error.strerror or error}"
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        is_whole = False
    if not is_whole or found is None:
        return None, f"{CHECKPOINT_MANIFEST} is damaged"
    return replace(found, files=saved), ""


def _digest(path: Path, *, sync: bool) -> FileDigest:
    """Digest one file; hashlib releases the GIL, so threads run in parallel."""
    digest, size, buffer = hashlib.sha256(), 0, bytearray(_CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(view[:count])
            size += count
        if sync:
            os.fsync(stream.fileno())
    return FileDigest(size, digest.hexdigest())
