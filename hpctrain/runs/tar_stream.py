"""Tar archives as a stream of plain files: written by `write_member`, read by `Reader`, which takes nothing else than what was written so.

Python's tarfile reads every dialect of tar, and headers of any size into memory. An archive that comes from elsewhere gets no such
freedom: no links, devices, directories or sparse files, and limits on what is read at once.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

from hpctrain.errors import HpctrainError

BLOCK = 512
CHUNK = 1 << 20
_LONGEST_HEADER = 1 << 16
_KINDS = {
    tarfile.LNKTYPE: "a hard link", tarfile.SYMTYPE: "a symbolic link", tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe", tarfile.DIRTYPE: "a directory",
}  # fmt: skip


class ArchiveError(HpctrainError):
    """The archive is damaged, cut off, or not one that hpctrain wrote."""


class Member(NamedTuple):
    """The head of one file: its name, size in bytes, permission bits, and seconds since the epoch."""

    name: str
    bytes: int
    mode: int
    mtime: int


def open_for_writing(path: Path, *, compress: bool) -> IO[bytes]:
    """Create `path`, which must not exist; with `compress`, what is written is compressed (gzip, fast: weights hardly shrink)."""
    plain = path.open("xb", buffering=CHUNK)
    if not compress:
        return plain
    return cast(IO[bytes], _Compressed(plain))


class _Compressed(gzip.GzipFile):
    """A GzipFile that owns its file; no name and no time in its head, so that the same files give the same bytes."""

    def __init__(self, plain: IO[bytes]) -> None:
        super().__init__(filename="", mode="wb", compresslevel=1, fileobj=plain, mtime=0)
        self._plain = plain

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._plain.close()


def write_member(stream: IO[bytes], member: Member, chunks: Iterator[bytes]) -> None:
    """Write one file; the chunks must add up to its size."""
    head = tarfile.TarInfo(member.name)
    head.size, head.mode, head.mtime = member.bytes, member.mode, member.mtime
    stream.write(head.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
    for chunk in chunks:
        stream.write(chunk)
    stream.write(bytes(-member.bytes % BLOCK))


def write_end(stream: IO[bytes]) -> None:
    """Write the two empty blocks that end an archive."""
    stream.write(bytes(2 * BLOCK))


class Reader:
    """Reads an archive, compressed or not, from its beginning to its end.

    Args:
        path: the archive.

    Raises:
        ArchiveError: by every method: it is damaged, cut off, or holds what hpctrain does not write.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=CHUNK)
        magic = self._file.read(2)
        self._file.seek(0)
        packed = magic == b"\x1f\x8b"
        self._stream = cast(IO[bytes], gzip.GzipFile(fileobj=self._file, mode="rb")) if packed else self._file
        self._path = path

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def wrong(self, why: str) -> ArchiveError:
        """Return the error that says why this archive is not taken."""
        return ArchiveError(
            f"{self._path.name} is not taken: {why}",
            details=("nothing was imported",),
            fix="export it again, and compare the sizes of the copies",
        )

    def next(self) -> Member | None:
        """Return the head of the next file, whose content must be read then; None at the end."""
        block = self._read(BLOCK)
        name = size = None
        if not any(block):
            return None
        head = self._head(block)
        if head.type == tarfile.XHDTYPE:
            name, size = self._extended(head)
            head = self._head(self._read(BLOCK))
        if head.type != tarfile.REGTYPE:
            raise self.wrong(f"{head.name!r} is {_KINDS.get(head.type, 'something else than a file')}, and hpctrain writes files only")
        mtime = min(max(0, int(head.mtime)), 1 << 33)
        return Member(name if name is not None else head.name, size if size is not None else head.size, head.mode & 0o777, mtime)

    def content(self, member: Member, limit: int | None = None) -> Iterator[bytes]:
        """Yield the content of the file whose head was read last; with `limit`, a longer one is refused."""
        if limit is not None and member.bytes > limit:
            raise self.wrong(f"{member.name!r} has {member.bytes} bytes, more than there can be")
        left = member.bytes
        while left:
            chunk = self._read(min(left, CHUNK))
            left -= len(chunk)
            yield chunk
        self._read(-member.bytes % BLOCK)

    def _head(self, block: bytes) -> tarfile.TarInfo:
        try:
            head = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise self.wrong("it is damaged, or no archive of hpctrain") from error
        if head.size < 0:
            raise self.wrong(f"{head.name!r} has a negative size")
        return head

    def _extended(self, head: tarfile.TarInfo) -> tuple[str | None, int | None]:
        """Return the name and the size that an extended header gives to the file behind it."""
        if head.size > _LONGEST_HEADER:
            raise self.wrong("a header in it is longer than any that hpctrain writes")
        text = self._read(head.size)
        self._read(-head.size % BLOCK)
        values = {}
        while text:
            length, _, _ = text.partition(b" ")
            if not length.isdigit() or not len(length) < int(length) <= len(text):
                raise self.wrong("a header in it is damaged")
            key, equals, value = text[len(length) + 1 : int(length) - 1].partition(b"=")
            if not equals:
                raise self.wrong("a header in it is damaged")
            values[key] = value
            text = text[int(length) :]
        size = values.get(b"size")
        if size is not None and (not size.isdigit() or len(size) > 19):
            raise self.wrong("a header in it is damaged")
        name = values.get(b"path")
        return None if name is None else name.decode("utf-8", "surrogateescape"), None if size is None else int(size)

    def _read(self, count: int) -> bytes:
        """Return exactly `count` bytes."""
        parts = io.BytesIO()
        while parts.tell() < count:
            try:
                part = self._stream.read(count - parts.tell())
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise self.wrong(f"it is damaged or cut off ({error})") from error
            if not part:
                raise self.wrong("it is cut off")
            parts.write(part)
        return parts.getvalue()


def read_file(path: Path, size: int, seen: Callable[[bytes], None]) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file in pieces, each shown to `seen`; a log may grow meanwhile.

    Raises:
        HpctrainError: the file has become shorter, or is gone.
        OSError: it cannot be read.
    """
    left = size
    try:
        stream = path.open("rb", buffering=0)
    except FileNotFoundError as error:
        raise went_away(error) from error
    with stream:
        while left:
            chunk = stream.read(min(left, CHUNK))
            if not chunk:
                raise HpctrainError(f"{path.name} became shorter while it was read", details=(str(path),), fix="the same command again")
            seen(chunk)
            left -= len(chunk)
            yield chunk


def went_away(error: OSError) -> HpctrainError:
    """Return the error for a file that was removed while it was about to be read: a run that goes on thins out its checkpoints."""
    return HpctrainError(f"{Path(str(error.filename)).name} went away", details=(str(error.filename),), fix="the same command again")
