"""Read log files of any size in bounded pieces, completely or as they grow. It is not an error if a
file does not exist yet, grows, shrinks, is replaced or removed meanwhile.

A line ends with a newline; one longer than `LONGEST_BYTES` is split, so memory is bounded. Growing
files are polled by position: there are no notifications for NFS writes by other nodes.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Literal, cast

from hpctrain.util import stored

LONGEST_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20
#: The first bytes of a gzip file, regardless of its name.
_PACKED = b"\x1f\x8b"


def problem(path: Path) -> str | None:
    """Return why a file cannot be read, as text; None if it can, or if it does not exist."""
    try:
        with stored.open_regular(path) as stream:
            stream.read(1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def blocks(path: Path, *, start: int = 0, block: int = _BLOCK_BYTES) -> Iterator[bytes]:
    """Yield the current content of a file, decompressed, in blocks that may end within a line.

    Data appended during the read is not included. A file that does not exist, cannot be read or is
    not a regular file yields nothing: `problem` returns the reason.
    """
    try:
        with _opened(path) as stream:
            left = math.inf
            if not isinstance(stream, gzip.GzipFile):
                left = os.fstat(stream.fileno()).st_size - start
            stream.seek(start)
            while left > 0 and (got := stream.read(int(min(block, left)))):
                left -= len(got)
                yield got
    except (OSError, EOFError, zlib.error):  # removed, or incompletely compressed
        return


def pieces(path: Path, *, start: int = 0, block: int = _BLOCK_BYTES) -> Iterator[bytes]:
    """Yield `blocks` that end with a line; the last one may not.

    Args:
        path: the file.
        start: first byte, of the decompressed file.
        block: bytes per read; a piece may be `LONGEST_BYTES` longer.
    """
    cutter = Cutter()
    for got in blocks(path, start=start, block=block):
        if piece := cutter.add(got):
            yield piece
    if rest := cutter.rest():
        yield rest


def lines(path: Path, *, start: int = 0) -> Iterator[bytes]:
    """Yield the current lines of a file, without newlines."""
    for piece in pieces(path, start=start):
        yield from split(piece)


def split(piece: bytes) -> list[bytes]:
    """Return the lines of a piece."""
    return piece.removesuffix(b"\n").split(b"\n") if piece else []


def tail(path: Path, count: int, *, most_bytes: int = 64 << 20) -> int:
    """Return the byte offset of the last `count` lines, reading from the end.

    0 for a compressed file, which cannot be read from its end. At most `most_bytes` before the end.
    """
    try:
        with _opened(path) as stream:
            if isinstance(stream, gzip.GzipFile):
                return 0
            size = position = stream.seek(0, 2)
            while position > 0 and size - position < most_bytes:
                end, position = position, max(0, position - _BLOCK_BYTES)
                stream.seek(position)
                got = stream.read(end - position)
                # The last newline ends the last line, and starts none.
                at = len(got) - (end == size and got.endswith(b"\n"))
                while count and (at := got.rfind(b"\n", 0, at)) >= 0:
                    count -= 1
                if not count:
                    return position + at + 1
            return position
    except OSError:
        return 0


class Cutter:
    """Cuts blocks into pieces that end with a line; overlong lines are split."""

    def __init__(self) -> None:
        self._held = b""  # the incomplete line

    def add(self, got: bytes) -> bytes:
        """Add bytes; return the complete lines, if any."""
        got = self._held + got
        end = got.rfind(b"\n") + 1
        if not end and len(got) > LONGEST_BYTES:
            end = len(got)
        self._held = got[end:]
        return got[:end]

    def rest(self) -> bytes:
        """Return and clear the incomplete line."""
        line, self._held = self._held, b""
        return line


def _opened(path: Path) -> IO[bytes]:
    stream = stored.open_regular(path)
    if os.pread(stream.fileno(), len(_PACKED), 0) != _PACKED:
        return stream
    return cast("IO[bytes]", gzip.GzipFile(fileobj=stream))


# -- growing files ---------------------------------------------------------------------------------

Change = Literal["truncated", "replaced"]
#: Polls after which an incomplete line is shown: a prompt, a progress bar, the last output of a
#: process that was killed.
_PATIENCE = 6
#: Bytes per poll: one file must not delay the others.
_MOST_BYTES = 8 << 20


class Growing:
    """One growing file, read from a position on.

    Args:
        path: the file; it may not exist yet.
        start: first byte: the start of a line.
        newest_bytes: if more is new at once, only the end is read.
        whole_lines: wait for complete lines; else bytes come as they are written.
        tell: called if the file was replaced or truncated.
    """

    def __init__(
        self,
        path: Path,
        *,
        start: int = 0,
        newest_bytes: int | None = None,
        whole_lines: bool = True,
        tell: Callable[[Change], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._position = start
        self._identity: tuple[int, int] | None = None
        self._cutter = Cutter()
        self._silent_looks = 0
        self._newest_bytes, self._whole_lines = newest_bytes, whole_lines
        self._tell = tell

    def look(self) -> bytes:
        """Return new complete lines; an incomplete line follows after several polls without new
        data.
        """
        try:
            with open(self._path, "rb", buffering=0, opener=_not_waiting) as stream:
                got = self._read(stream)
        except OSError:  # missing, or a stale handle: the next poll opens it again
            got = b""
        self._silent_looks = 0 if got else self._silent_looks + 1
        if self._silent_looks == _PATIENCE:
            return self._cutter.rest()
        return self._cutter.add(got) if self._whole_lines else got

    def rest(self) -> bytes:
        """Return all new data, including an incomplete line: for when writing has ended."""
        found, before = b"", -1
        while self._position != before:
            before = self._position
            found += self.look()
        return found + self._cutter.rest()

    def _read(self, stream: io.FileIO) -> bytes:
        status, before = os.fstat(stream.fileno()), b""
        now = (status.st_dev, status.st_ino)
        if self._identity not in (None, now) or status.st_size < self._position:
            self._tell("replaced" if self._identity != now else "truncated")
            self._position = 0
            before = self._cutter.rest()
            before += b"\n" * bool(before)
        self._identity = now
        skipped = status.st_size - self._position - (self._newest_bytes or status.st_size)
        if skipped > 0:
            self._cutter.rest()
            self._position += skipped
        stream.seek(self._position)
        got = stream.read(_MOST_BYTES) or b""
        self._position += len(got)
        return before + (got.partition(b"\n")[2] if skipped > 0 else got)


def _not_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
