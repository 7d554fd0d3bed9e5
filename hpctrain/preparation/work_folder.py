"""`.NAME.preparing`, the folder beside the result: who works in it, for which request, and what is finished. Plain files.

    lock          held (flock) by the one command that works here, and touched while it does; says on which machine
    request.json  what the pieces and the shards were made for
    pieces/       NUMBER.arrow: finished pieces (hpctrain/preparation/tokenised.py)
    finished.jsonl  one line for each finished piece or shard, written when it is on the disk: what counts at a resume
    result/       the dataset, until it is whole

A name is whole or not there: files are written under other names, which a killed command leaves behind and the next one removes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell
from hpctrain.runs import files

SILENT_S = 120.0
"""Seconds without a touch of the lock after which a command on another machine counts as gone, where locks do not reach."""
_TOUCH_S = 15.0
#: A file system without flock: Lustre mounted without it, some FUSE file systems.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class WorkFolder:
    """The folder, held by this process.

    Attributes:
        path: the folder.
        pieces: the folder of finished pieces.
        result: the dataset that is being written.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self._lock = path, lock
        self.pieces, self.result = path / "pieces", path / "result"
        self._touched = 0.0

    def alive(self) -> None:
        """Say that this command still works; cheap, to be called often."""
        if time.monotonic() - self._touched > _TOUCH_S:
            self._touched = time.monotonic()
            os.utime(self._lock)

    def begin(self, *, pieces: str, rows: str) -> str:
        """Keep what was made for the same request and remove the rest; return what was found: `nothing`, `pieces` or `stale`.

        Args:
            pieces: digest of what the pieces depend on.
            rows: digest of what the shards depend on besides.

        Raises:
            OSError: the file system refuses.
        """
        asked = {"schema": 1, "pieces": pieces, "rows": rows}
        before = files.read_json(self.path / "request.json")
        found = "nothing" if before is None else "pieces" if before.get("pieces") == pieces else "stale"
        if found != "pieces":
            shutil.rmtree(self.pieces, ignore_errors=True)
            (self.path / "finished.jsonl").unlink(missing_ok=True)
        if before != asked:
            shutil.rmtree(self.result, ignore_errors=True)
            files.write_json(self.path / "request.json", asked)
        for folder in (self.pieces, self.result):
            folder.mkdir(exist_ok=True)
            for left in folder.rglob(".*"):
                left.unlink(missing_ok=True)
        return found

    def finished(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return what is finished, by name: `kind` is `piece` or `shard`. A torn last line is no finished piece."""
        try:
            lines = (self.path / "finished.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return {}
        found: dict[str, dict[str, Any]] = {}
        for line in lines:
            try:
                entry = json.loads(line)
                if entry["kind"] == kind and (self.path / entry["file"]).stat().st_size == entry["bytes"]:
                    found[entry["name"]] = entry["values"]
            except (ValueError, KeyError, TypeError, OSError):
                continue
        return found

    def finish(self, kind: str, name: str, path: Path, values: Mapping[str, Any]) -> None:
        """Write down that a file is finished, with what is to be known of it.

        Raises:
            OSError: the file system refuses.
        """
        entry = {"kind": kind, "name": name, "file": str(path.relative_to(self.path)), "bytes": path.stat().st_size, "values": values}
        # A line break first: what a killed command left behind has none.
        with (self.path / "finished.jsonl").open("ab") as stream:
            stream.write(b"\n" + json.dumps(entry, ensure_ascii=True).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())


def beside(target: Path) -> Path:
    """Return the work folder of a result."""
    return target.with_name(f".{target.name}.preparing")


@contextmanager
def held(target: Path) -> Iterator[WorkFolder]:
    """Hold the work folder of a result, made when missing; it stays, with what is in it, unless `remove` took it away.

    Raises:
        UsageError: another command is preparing the same result.
        OSError: the file system refuses.
    """
    path = beside(target)
    path.mkdir(parents=True, exist_ok=True)
    lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(lock, path, target)
        try:
            yield WorkFolder(path, lock)
        finally:
            os.ftruncate(lock, 0)  # whoever comes next on another machine need not wait
    finally:
        os.close(lock)


def _take(lock: int, path: Path, target: Path) -> None:
    holder = _holder(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy(target, holder) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        if holder.get("host") == socket.gethostname() and Path(f"/proc/{holder.get('pid')}").exists():
            raise _busy(target, holder) from None
    try:
        gone = os.fstat(lock).st_ino != (path / "lock").stat().st_ino
    except FileNotFoundError:
        gone = True
    elsewhere = bool(holder) and holder.get("host") != socket.gethostname()
    if gone or (elsewhere and not _silent(lock, path)):  # gone: the other command has finished this moment
        raise _busy(target, holder)
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0)


def remove(folder: WorkFolder) -> None:
    """Remove the folder, once its result is in place; the lock goes last."""
    for entry in folder.path.iterdir():
        if entry.name != "lock":
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
    shutil.rmtree(folder.path, ignore_errors=True)


def _holder(lock: int) -> dict[str, Any]:
    try:
        content = json.loads(os.pread(lock, 4096, 0))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _silent(lock: int, path: Path) -> bool:
    """Tell whether the lock was not touched for a while, by the file system's own clock."""
    probe = path / f".probe-{os.getpid()}"
    try:
        probe.touch()
        return probe.stat().st_mtime - os.fstat(lock).st_mtime > SILENT_S
    finally:
        probe.unlink(missing_ok=True)


def _busy(target: Path, holder: Mapping[str, Any]) -> HpctrainError:
    who = f"  on {holder.get('host', 'some machine')}, process {holder.get('pid', 'unknown')}"
    return UsageError(
        f"another command is preparing {target}",
        details=(who, f"  a command that was killed on another machine is forgotten {SILENT_S:.0f} s after its last sign of life"),
        fix=f"wait for it, or: --to {shell.quote(f'{target}_2')}",
    )
