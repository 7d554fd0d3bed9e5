"""Files that grow, read on by position: what another node writes over NFS, no notification tells of.

Each look opens the file anew, because NFS asks the server for a file's size when it is opened (close-to-open). A file may not be there yet,
may be cut short, replaced or rotated away, and may be read faster than its writer ends its lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from hpctrain.logs import read
from hpctrain.logs.model import LogFile

Change = Literal["truncated", "replaced"]
#: Looks after which a line without an end is shown as it is: a question, a bar, the last words of a process that was killed.
_PATIENCE = 6
#: Bytes of one look: what one file has may not keep the others waiting.
_MOST_BYTES = 8 << 20
#: Of what was read last, by which a file is known that was emptied and has grown again between two looks.
_MARK_BYTES = 64


class Growing:
    """One file, from a position on.

    Args:
        file: to read; it may not exist yet.
        start: byte where to begin: the beginning of a line.
        number: of the line that begins there.
        tell: gets a word where the file is not the one that it was.

    Attributes:
        number: of the line that comes next.
        behind: whether the last look left something unread.
    """

    def __init__(self, file: LogFile, *, start: int = 0, number: int = 1, tell: Callable[[LogFile, Change], None] | None = None) -> None:
        self.file = file
        self.number = number
        self.behind = False
        self._position = start
        self._identity: tuple[int, int] | None = None
        self._cutter = read.Cutter()
        self._silent_looks = 0
        self._mark = b""
        self._tell = tell or (lambda _file, _change: None)

    def look(self) -> bytes:
        """Return what is new, whole lines only; a line that does not end comes after some looks at which nothing came."""
        try:
            handle = os.open(self.file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return self._waited(b"")
        try:
            status = os.fstat(handle)
            now = (status.st_dev, status.st_ino)
            before = b""
            if self._identity not in (None, now):
                before = self._rest_of_old() + self._begin_anew("replaced")
            elif status.st_size < self._position or self._is_another(handle, status.st_size):
                before = self._begin_anew("truncated")
            self._identity = now
            got = self._read(handle)
            self._silent_looks = 0 if got else self._silent_looks
            return self._waited(before + self._cutter.add(got))
        except OSError:  # a stale handle: the next look opens another
            return self._waited(b"")
        finally:
            os.close(handle)

    def rest(self) -> bytes:
        """Return what is new, and the line that has not ended: for when nobody writes any more."""
        found = self.look()
        while self.behind:
            found += self.look()
        return found + self._cutter.rest()

    def _read(self, handle: int) -> bytes:
        got = os.pread(handle, _MOST_BYTES, self._position)
        self._position += len(got)
        self._mark = (self._mark + got[-_MARK_BYTES:])[-_MARK_BYTES:]
        self.behind = len(got) == _MOST_BYTES
        return got

    def _is_another(self, handle: int, size: int) -> bool:
        """Whether a file that has grown was emptied before: what stood before the position stands there no more.

        NULs are no mark: a client of NFS may see them where another node's bytes have not come yet.
        """
        if size == self._position or not self._mark or 0 in self._mark:
            return False
        return os.pread(handle, len(self._mark), self._position - len(self._mark)) != self._mark

    def _begin_anew(self, change: Change) -> bytes:
        self._tell(self.file, change)
        left = self._cutter.rest()
        self._position, self.number, self._mark = 0, 1, b""
        return left if not left or left.endswith(b"\n") else left + b"\n"

    def _rest_of_old(self) -> bytes:
        """Return what the old file still got before it was rotated away, where it can be found under its new name."""
        for name in (f"{self.file.path}.1", f"{self.file.path}-old"):
            try:
                handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                status = os.fstat(handle)
                if (status.st_dev, status.st_ino) == self._identity:
                    return self._cutter.add(os.pread(handle, _MOST_BYTES, self._position))
            finally:
                os.close(handle)
        return b""

    def _waited(self, found: bytes) -> bytes:
        if found:
            self._silent_looks = 0
            return found
        self._silent_looks += 1
        if self._cutter.holds and self._silent_looks == _PATIENCE:
            return self._cutter.rest()
        return b""


def lines(growing: Growing, found: bytes) -> list[tuple[int, bytes]]:
    """Return (number, line) of what a look has found, and count on."""
    parts = found.split(b"\n")
    if not parts[-1]:
        parts.pop()
    numbered = list(enumerate(parts, start=growing.number))
    growing.number += len(parts)
    return numbered


def exists(path: Path) -> bool:
    """Whether a file is there, as the server sees it: listing its folder makes an NFS client forget that it was not."""
    try:
        with os.scandir(path.parent) as entries:
            next(entries, None)
    except OSError:
        return False
    return path.exists()
