"""The journal of a study: optuna's journal file, written so that it survives a shared file system and killed writers. No torch.

Optuna's own backend (5.0, `JournalFileBackend`) leaves three gaps, each of which ends a study for good or writes into it twice:
    - a writer that is killed, or meets a full disk, in the middle of a line: the next line is written behind the half one, and every
      reader raises from then on. Here the next writer cuts the half line off first, and a writer without room takes its own back.
    - a lock whose holder was killed is removed by whoever has waited 30 s, and that may be the fresh lock of another waiter. Here the lock
      says whose it is: a dead process of the same machine is seen at once, and only the lock that was judged is removed.
    - with NFS, times of files are those of a cache, so that a busy lock may look like an old one. Here waiters compare the words in the
      lock, which opening it fetches anew (close-to-open consistency, nfs(5)), by their own clocks: clocks of nodes may differ.

The lock is made by link(2), which one of several processes wins on every NFS version, on Lustre, GPFS, BeeGFS and Ceph (open(2), O_EXCL);
fcntl and flock locks are local to a node on some mounts (Lustre without `flock`), without a word. Where there are no hard links, O_EXCL
does it. The file stays optuna's: optuna-dashboard, and optuna itself, read it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.errors import HpctrainError
from hpctrain.jobs import shell

if TYPE_CHECKING:
    from optuna.storages.journal import JournalFileBackend

#: Seconds after which the lock of a process on another machine counts as left behind: writing a line takes milliseconds.
GRACE_S = 60.0
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
_MOST_REPEATS = 5


class Lock:
    """One process at a time, on every node that sees the directory.

    Args:
        path: of the lock.
        grace: seconds; see GRACE_S.
    """

    def __init__(self, path: Path, *, grace: float = GRACE_S) -> None:
        self.path, self.grace = path, grace
        self.token = ""

    def __enter__(self) -> Lock:
        """Wait until it is ours."""
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        self.release()

    def acquire(self) -> None:
        """Wait until it is ours.

        Raises:
            OSError: the file system refuses.
        """
        self.token = uuid.uuid4().hex
        text = json.dumps({"token": self.token, **_self()})
        pause, seen, since = 0.002, "", time.monotonic()
        while not self._take(text):
            found = self._read()
            if found != seen:
                seen, since = found, time.monotonic()
            if found and (_is_dead(found) or time.monotonic() - since > self.grace):
                self._remove(found)
                continue
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)

    def release(self) -> None:
        """Give it back; one that was taken from us stays with whoever has it."""
        if self.is_ours():
            self.path.unlink(missing_ok=True)

    def is_ours(self) -> bool:
        """Whether it says our name still."""
        return bool(self.token) and self.token in self._read()

    def _take(self, text: str) -> bool:
        mine = self.path.with_name(f".{self.path.name}.{self.token}")
        try:
            mine.write_text(text, encoding="ascii")
            os.link(mine, self.path)
        except FileExistsError:
            return mine.stat().st_nlink > 1  # NFS may repeat a call whose answer was lost
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._create(text)
        finally:
            mine.unlink(missing_ok=True)
        return True

    def _create(self, text: str) -> bool:
        try:
            number = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(number, "w", encoding="ascii") as stream:
            stream.write(text)
        return True

    def _read(self) -> str:
        """Return what the lock says; "" without one."""
        try:
            return self.path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            if error.errno == errno.ESTALE:  # it was removed while it was read
                return ""
            raise

    def _remove(self, stale: str) -> None:
        """Remove a lock that was left behind, and no other: between two looks it may have become somebody's."""
        aside = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}.stale")
        if self._read() != stale:
            return
        try:
            self.path.rename(aside)
        except FileNotFoundError:
            return
        with contextlib.suppress(OSError):
            if aside.read_text(encoding="ascii", errors="replace") != stale:
                os.link(aside, self.path)  # give it back
        aside.unlink(missing_ok=True)


def _self() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": _born(os.getpid()),
        "space": _space(),
        "job": os.environ.get("SLURM_JOB_ID"),
    }


def _born(pid: int) -> str | None:
    """Return when a process started, in ticks since this machine did; None where there is no such process, or no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _space() -> str | None:
    """Return which boot of which machine, and which of its process tables: a container may have one of its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _is_dead(text: str) -> bool:
    """Whether a lock's holder is a process of this machine that is gone; of other machines nothing is known."""
    try:
        said = json.loads(text)
        space, pid, born = said["space"], int(said["pid"]), said["born"]
    except (ValueError, KeyError, TypeError):
        return False
    return space is not None and space == _space() and born is not None and _born(pid) != born


def backend(path: Path, *, grace: float = GRACE_S) -> JournalFileBackend:
    """Return optuna's backend on a journal, with our way to write.

    Args:
        path: of the journal; its directory is there.
        grace: see GRACE_S.
    """
    from optuna.storages.journal import JournalFileBackend

    class Backend(JournalFileBackend):  # type: ignore[misc]  # optuna is not there everywhere
        """Reads as optuna does."""

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
            append(path, text.encode("utf-8"), grace=grace)

    return Backend(str(path))


def append(path: Path, lines: bytes, *, grace: float = GRACE_S) -> None:
    """Write whole lines at the end of a journal, behind the last whole one.

    Raises:
        HpctrainError: there is no room, or what was written does not stay there.
    """
    for _ in range(_MOST_REPEATS):
        with Lock(path.with_name(f"{path.name}.lock"), grace=grace) as lock:
            end = _cut(path)
            if not lock.is_ours():
                continue  # this process was held up for so long that its lock counted as left behind
            _write(path, lines, end)
        if _is_there(path, end, lines):
            return
    raise HpctrainError(
        f"what is written into the journal of the study does not stay there, after {_MOST_REPEATS} tries", details=(str(path),),
        fix=f"ls -la {shell.quote(path.parent)}, and whether another program writes there",
    )  # fmt: skip


def _write(path: Path, lines: bytes, end: int) -> None:
    # O_APPEND: should two write after all, neither writes over the other's lines, but for NFS, where `_is_there` sees it.
    with path.open("ab", buffering=0) as stream:
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[stream.write(rest) or 0 :]
            os.fsync(stream.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(stream.fileno(), end)
            raise HpctrainError(
                f"cannot write the journal of the study: {error.strerror}",
                details=(str(path),),
                fix=f"df -h {shell.quote(path.parent)}; quota -s",
            ) from error


def _cut(path: Path) -> int:
    """Cut off what is no whole line of JSON at the end, which a killed writer has left, and return where the file ends.

    Readers leave such a last line out; once another stands behind it, none of them reads the journal any more.
    """
    with path.open("r+b") as stream:
        end = start = stream.seek(0, os.SEEK_END)
        kept = b""
        while start > 0 and kept.count(b"\n") < 2:
            size = min(65536, start)
            start -= size
            stream.seek(start)
            kept = stream.read(size) + kept
        kept = kept[: kept.rfind(b"\n") + 1]
        last = kept[kept[:-1].rfind(b"\n") + 1 :]
        whole = start + len(kept) - (0 if _is_json(last) else len(last))
        if whole != end:
            stream.truncate(whole)
        return whole


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _is_there(path: Path, at: int, lines: bytes) -> bool:
    with path.open("rb") as stream:
        stream.seek(at)
        return lines in stream.read()
