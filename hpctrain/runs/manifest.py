"""The manifest of a checkpoint: what was saved, with the size and the digest of every file, written when all else is on the disk.

A directory without one, or whose files are not those of its manifest, does not count as a checkpoint. The manifest carries a digest of
itself and is compared byte for byte with what hpctrain would write, so that no change of it goes unseen either. Knows no torch.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shlex
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpctrain.errors import HpctrainError
from hpctrain.runs import files
from hpctrain.runs.layout import CHECKPOINT_MANIFEST

SCHEMA = 1
CHECKPOINT = re.compile(r"checkpoint-([0-9]+)\Z")
_CHUNK = 1 << 20
_OWN_DIGEST = "manifest_sha256"
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class FileDigest(NamedTuple):
    """One file of a checkpoint: its size in bytes and the SHA-256 of what is in it (64 hex digits)."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint says of itself.

    Attributes:
        step: optimizer steps done.
        world_size: processes that trained.
        saved_at: seconds since the epoch.
        seconds: how long the save took, the digests and the syncs included; None where nobody measured it.
        run_id: the run that saved it.
        attempt: the attempt that saved it (see layout.attempt_name).
        state: what is in it: of "model", "optimizer", "scheduler", "rng", "trainer".
        files: name below the directory, with `/`, to size and digest; the manifest itself is not among them.
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
    threads: int = 4,
) -> Manifest:
    """Digest and sync all files below `directory`, then write their manifest; call it when every process has written its files.

    Args:
        directory: the checkpoint, complete but for its manifest.
        step: optimizer steps done.
        world_size: processes that train.
        state: what was saved, see Manifest.
        run_id: the run that saves.
        attempt: the attempt that saves.
        began: `time.monotonic()` of when the save began; the manifest says how long it took, this function included.
        threads: files that are read at once.

    Raises:
        HpctrainError: it holds something that is no plain file.
        OSError: the disk is full, or refuses; there is no manifest then.
    """
    found = [(name, path) for name, path in walk(directory) if name != CHECKPOINT_MANIFEST]
    for name, path in found:
        if not path.is_file():
            raise HpctrainError(
                f"the checkpoint holds {name!r}, which is no plain file",
                details=(str(directory),),
                fix=f"ls -l {shlex.quote(str(directory))}",
            )
    digests = _digest_all(found, threads=threads, sync=True)
    for folder in sorted({path.parent for _, path in found}):
        sync_directory(folder)
    manifest = Manifest(
        step=step, world_size=world_size, saved_at=round(time.time(), 3),
        seconds=None if began is None else round(time.monotonic() - began, 3), run_id=run_id, attempt=attempt,
        state=tuple(state), files=dict(sorted(digests.items())),
    )  # fmt: skip
    files.write_text(directory / CHECKPOINT_MANIFEST, _render(_value(manifest)))
    sync_directory(directory)
    return manifest


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a checkpoint; None where there is none, or it is damaged."""
    manifest, _ = _read(directory)
    return manifest


def problems(
    directory: Path,
    *,
    digests: bool,
    extra: bool = True,
    threads: int = 4,
    progress: Callable[[int], None] | None = None,
) -> tuple[str, ...]:
    """Return what is wrong with a checkpoint, each in a few words; nothing when it is complete. Damage never raises.

    Args:
        directory: the checkpoint.
        digests: read all files and compare digests; without it, names and sizes only.
        extra: name files that the manifest does not know. They harm nothing that was saved, so that resuming does without.
        threads: files that are read at once.
        progress: told the number of bytes read since its last call, from several threads.
    """
    manifest, why = _read(directory)
    if manifest is None:
        return (why,)
    wrong: list[str] = []
    name = CHECKPOINT.match(directory.name)
    if name and int(name[1]) != manifest.step:
        wrong.append(f"{CHECKPOINT_MANIFEST} says step {manifest.step}")
    sound: list[tuple[str, Path]] = []
    for file, saved in manifest.files.items():
        path = directory / file
        said = _size_problem(file, path, saved)
        if said:
            wrong.append(said)
        else:
            sound.append((file, path))
    if digests:
        wrong += _digest_problems(manifest, sound, threads=threads, progress=progress)
    if extra:
        wrong += _extra(directory, manifest)
    return tuple(wrong)


def walk(directory: Path, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Yield everything below `directory` but directories, as (name with `/`, path), in order of names; links are not followed.

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
    """Make the names in `directory` durable, where the file system can (some network file systems refuse, and do it on their own)."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EROFS):
            raise
    finally:
        os.close(descriptor)


def is_inside(name: str) -> bool:
    """Say whether `name` is a relative path, with `/`, that stays below where it is put."""
    parts = name.split("/")
    return "\0" not in name and all(part not in ("", ".", "..") for part in parts)


def _value(manifest: Manifest) -> dict[str, Any]:
    return {
        "schema": SCHEMA, "step": manifest.step, "world_size": manifest.world_size, "saved_at": manifest.saved_at,
        "seconds": manifest.seconds, "run_id": manifest.run_id, "attempt": manifest.attempt, "state": list(manifest.state),
        "files": {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in manifest.files.items()},
    }  # fmt: skip


def _render(value: dict[str, Any]) -> str:
    """Return the text of a manifest: `value` and, last, the digest of `value`'s own text."""
    plain = {key: item for key, item in value.items() if key != _OWN_DIGEST}
    own = hashlib.sha256(_text(plain).encode("utf-8", "surrogateescape")).hexdigest()
    return _text({**plain, _OWN_DIGEST: own})


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _read(directory: Path) -> tuple[Manifest | None, str]:
    """Return the manifest, or None and why."""
    path = directory / CHECKPOINT_MANIFEST
    try:
        if path.exists() and not path.is_file():  # a named pipe would be waited for
            return None, f"{CHECKPOINT_MANIFEST} is no plain file"
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        value = json.loads(text)
    except FileNotFoundError:
        return None, f"no {CHECKPOINT_MANIFEST}" if directory.is_dir() else "there is no such directory"
    except OSError as error:
        return None, f"{CHECKPOINT_MANIFEST} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return None, f"{CHECKPOINT_MANIFEST} is damaged"
    if isinstance(value, dict) and isinstance(value.get("schema"), int) and value["schema"] > SCHEMA:
        return None, f"{CHECKPOINT_MANIFEST} has schema {value['schema']}; this hpctrain knows {SCHEMA}"
    if not isinstance(value, dict) or _rendered(value) != text:
        return None, f"{CHECKPOINT_MANIFEST} is damaged"
    try:
        return _manifest(value), ""
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None, f"{CHECKPOINT_MANIFEST} is damaged"


def _rendered(value: dict[str, Any]) -> str | None:
    try:
        return _render(value)
    except (ValueError, RecursionError):  # lone surrogates, written as escapes
        return None


def _manifest(value: dict[str, Any]) -> Manifest:
    """Return the manifest that `value` stands for; a wrong value raises."""
    saved = {}
    for name, file in value["files"].items():
        if not is_inside(name) or not isinstance(file["bytes"], int) or file["bytes"] < 0 or not _SHA256.match(file["sha256"]):
            raise ValueError(name)
        saved[name] = FileDigest(file["bytes"], file["sha256"])
    seconds = value["seconds"]
    return Manifest(
        step=int(value["step"]), world_size=int(value["world_size"]), saved_at=float(value["saved_at"]),
        seconds=None if seconds is None else float(seconds), run_id=_word(value["run_id"]), attempt=_word(value["attempt"]),
        state=tuple(str(part) for part in value["state"]), files=saved,
    )  # fmt: skip


def _word(value: object) -> str | None:
    return None if value is None else str(value)


def _size_problem(name: str, path: Path, saved: FileDigest) -> str | None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return f"{name} is no plain file"
    if status.st_size != saved.bytes:
        return f"{name} has {status.st_size} bytes, and {saved.bytes} were saved"
    return None


def _digest_problems(
    manifest: Manifest, sound: list[tuple[str, Path]], *, threads: int, progress: Callable[[int], None] | None
) -> list[str]:
    def look(item: tuple[str, Path]) -> str | None:
        name, path = item
        try:
            now = _digest(path, sync=False, progress=progress)
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        return None if now == manifest.files[name] else f"{name} has changed since it was saved (SHA-256)"

    with ThreadPoolExecutor(max(1, threads)) as pool:
        return [said for said in pool.map(look, sound) if said]


def _extra(directory: Path, manifest: Manifest) -> list[str]:
    try:
        return [
            f"{name} was not saved with it" for name, _ in walk(directory) if name != CHECKPOINT_MANIFEST and name not in manifest.files
        ]
    except OSError as error:
        return [f"the directory cannot be read: {error.strerror}"]


def _digest_all(found: list[tuple[str, Path]], *, threads: int, sync: bool) -> dict[str, FileDigest]:
    with ThreadPoolExecutor(max(1, threads)) as pool:
        digests = pool.map(lambda item: _digest(item[1], sync=sync), found)
        return {name: digest for (name, _), digest in zip(found, digests, strict=True)}


def _digest(path: Path, *, sync: bool, progress: Callable[[int], None] | None = None) -> FileDigest:
    """Read one file; hashlib works without the interpreter's lock, so that threads do it side by side."""
    digest, size, buffer = hashlib.sha256(), 0, bytearray(_CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(view[:count])
            size += count
            if progress is not None:
                progress(count)
        if sync:
            os.fsync(stream.fileno())
    return FileDigest(size, digest.hexdigest())
