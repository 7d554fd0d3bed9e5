"""Reading log files of any size, in bounded pieces: a file may grow, shrink, be replaced or vanish meanwhile, and that is no error.

A line is what ends with a newline, as in every editor. One that is longer than `LONGEST_BYTES` comes as its two ends, with a mark between
them: memory is bounded whatever is in a file.
"""

from __future__ import annotations

import io
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from hpctrain.logs.model import LogFile

LONGEST_BYTES = 1 << 20
_KEPT_BYTES = 1 << 18
_BLOCK_BYTES = 1 << 20
#: What gzip begins a file with; its name may not say so, or say so wrongly.
_PACKED = b"\x1f\x8b"


def problem(file: LogFile | Path) -> str | None:
    """Return why a file cannot be read, in words; None for one that can be, and for one that is not there."""
    path = file.path if isinstance(file, LogFile) else file
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return "a folder"
        if not stat.S_ISREG(mode):
            return "no regular file"
        with path.open("rb") as stream:
            stream.read(1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def pieces(file: LogFile | Path, *, start: int = 0, block: int = _BLOCK_BYTES) -> Iterator[bytes]:
    """Yield what is in a file now, in pieces that end where a line does; the last one may not.

    What a file gets while it is read is left for the next time. One that is packed by gzip is unpacked. A file that is not there,
    cannot be read or is no regular file yields nothing: `problem` says why.

    Args:
        file: to read.
        start: byte where to begin, of the unpacked file.
        block: bytes that are read at once; a piece may be `LONGEST_BYTES` longer.
    """
    path = file.path if isinstance(file, LogFile) else file
    cutter = Cutter()
    try:
        with _opened(path) as stream:
            left = None if _is_packed(stream) else max(0, os.fstat(stream.fileno()).st_size - start)
            stream.seek(start)
            while left is None or left > 0:
                got = stream.read(block if left is None else min(block, left))
                if not got:
                    break
                left = None if left is None else left - len(got)
                if piece := cutter.add(got):
                    yield piece
    except (OSError, EOFError, zlib.error):  # gone, or half packed
        pass
    if rest := cutter.rest():
        yield rest


def lines(file: LogFile | Path, *, start: int = 0, number: int = 1) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) of what is in a file now, without newlines; `number` is that of the line that begins at byte `start`."""
    for piece in pieces(file, start=start):
        found = piece.split(b"\n")
        if not found[-1]:
            found.pop()
        for line in found:
            yield number, line
            number += 1


def tail(file: LogFile | Path, count: int, *, most_bytes: int = 64 << 20) -> tuple[int, bool]:
    """Return the byte where the last `count` lines begin, and whether that is the beginning of a line; reads from the end.

    Of a packed file it is 0: there is no reading from its end. Lines that are longer than `most_bytes` together are not all found: then
    it is the byte that lies so far before the end.
    """
    path = file.path if isinstance(file, LogFile) else file
    try:
        with _opened(path) as stream:
            if _is_packed(stream):
                return 0, True
            size = stream.seek(0, 2)
            position, wanted = size, count
            while position > 0 and size - position < most_bytes:
                begin = max(0, position - _BLOCK_BYTES)
                stream.seek(begin)
                got = stream.read(position - begin)
                if position == size and got.endswith(b"\n"):
                    got = got[:-1]  # it ends the last line, and begins none
                at = len(got)
                while wanted and (at := got.rfind(b"\n", 0, at)) >= 0:
                    wanted -= 1
                if not wanted:
                    return begin + at + 1, True
                position = begin
            return position, position == 0
    except OSError:
        return 0, True


def blocks(file: LogFile | Path, *, start: int = 0) -> Iterator[bytes]:
    """Yield what is in a file now, byte for byte, unpacked, in blocks that end anywhere; as `pieces` otherwise."""
    path = file.path if isinstance(file, LogFile) else file
    try:
        with _opened(path) as stream:
            stream.seek(start)
            while got := stream.read(_BLOCK_BYTES):
                yield got
    except (OSError, EOFError, zlib.error):
        return


class Cutter:
    """Makes pieces that end where lines do, out of blocks that end anywhere, and cuts lines that are too long."""

    def __init__(self) -> None:
        self._held: list[bytes] = []  # the line that has not ended
        self._size = 0
        self._head = b""
        self._dropped = 0

    def add(self, got: bytes) -> bytes:
        """Take the next bytes; return what ends with a line's end, or nothing."""
        end = got.rfind(b"\n") + 1
        if not end:
            self._hold(got)
            return b""
        self._hold(got[: got.index(b"\n") + 1])
        first = self.rest()
        self._hold(got[end:])
        return first + _short(got[got.index(b"\n") + 1 : end])

    def rest(self) -> bytes:
        """Return what is held, and forget it."""
        line = b"".join(self._held)
        if self._dropped or len(line) > LONGEST_BYTES:
            line = _cut(self._head + line, self._dropped)
        self._held, self._size, self._head, self._dropped = [], 0, b"", 0
        return line

    @property
    def holds(self) -> bool:
        """Whether a line has begun and not ended."""
        return self._size > 0 or self._dropped > 0

    def _hold(self, got: bytes) -> None:
        if not got:
            return
        self._held.append(got)
        self._size += len(got)
        if self._size > LONGEST_BYTES + _BLOCK_BYTES:
            line = b"".join(self._held)
            if not self._head:
                self._head, line = line[:_KEPT_BYTES], line[_KEPT_BYTES:]
            self._dropped += len(line) - _KEPT_BYTES
            self._held, self._size = [line[-_KEPT_BYTES:]], _KEPT_BYTES


def _short(piece: bytes) -> bytes:
    """Return whole lines, the long ones cut: there are none but in pieces of larger blocks than usual."""
    if len(piece) <= LONGEST_BYTES:
        return piece
    return b"\n".join(line if len(line) <= LONGEST_BYTES else _cut(line, 0) for line in piece.split(b"\n"))


def _cut(line: bytes, dropped: int) -> bytes:
    """Return the two ends of a line. Carriage returns keep halves of progress bars apart, and the mark from both."""
    more = len(line) - 2 * _KEPT_BYTES + dropped
    return b"%b\r[... %d bytes left out ...]\r%b" % (line[:_KEPT_BYTES], more, line[-_KEPT_BYTES:])


def _is_packed(stream: IO[bytes]) -> bool:
    return not isinstance(stream, io.FileIO)


def _opened(path: Path) -> IO[bytes]:
    """Open a file that is one: a named pipe would keep the reader waiting.

    Raises:
        OSError: it is not there, cannot be read, or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is no regular file")
        if os.pread(handle, len(_PACKED), 0) != _PACKED:
            return os.fdopen(handle, "rb", buffering=0)
    except BaseException:
        os.close(handle)
        raise
    import gzip

    return cast("IO[bytes]", gzip.GzipFile(fileobj=os.fdopen(handle, "rb")))
