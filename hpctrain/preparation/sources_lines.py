"""Files of lines: cut at ends of lines, read with a bound on a line's length, and text examples made of lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpctrain.preparation.rows import Dropped, Row
from hpctrain.preparation.sources_open import open_bytes, said_where
from hpctrain.preparation.sources_types import Piece, Source

MAX_LINE = 256 << 20
"""Bytes of a line at most; a longer one is left out without being held in memory."""
_CHUNK = 16 << 20
_BOM = b"\xef\xbb\xbf"

TOO_LONG = f"a line of more than {MAX_LINE >> 20} MiB"
NOT_UTF8 = "not UTF-8"


def pieces(source: Source, target_bytes: int) -> Iterator[Piece]:
    """Yield the pieces of an uncompressed file of lines; of blocks of text, each begins after a blank line.

    The file is read once, for the number of each piece's first line. Memory: one chunk of 16 MiB.
    """
    start, first = 0, 1
    for at, line in _cuts(source.path, target_bytes, blank=source.unit == "block"):
        yield Piece(source=source, start=start, stop=at, first=first, bytes=at - start)
        start, first = at, line
    if start < source.bytes or start == 0:
        yield Piece(source=source, start=start, stop=None, first=first, bytes=max(0, source.bytes - start))


def _cuts(path: Path, target: int, *, blank: bool) -> Iterator[tuple[int, int]]:
    """Yield (byte, number of the line that begins there) of the first end of a line, or of a blank line, after each `target` bytes."""
    offset, lines, wanted = 0, 1, target
    kept = b""  # of the chunk before: a blank line may lie across two
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            text, base = kept + chunk, offset - len(kept)
            at = 0
            while base + len(text) > wanted:
                cut = _line_end(text, max(at, wanted - base, 0), blank=blank)
                if cut is None or base + cut <= 0:
                    break
                yield base + cut, lines + text.count(b"\n", len(kept), cut)
                at, wanted = cut, base + cut + target
            lines += chunk.count(b"\n")
            offset += len(chunk)
            kept = text[-3:] if blank else b""


def _line_end(text: bytes, after: int, *, blank: bool) -> int | None:
    """Return where the first line (or the first line after a blank one) after a place begins."""
    if not blank:
        at = text.find(b"\n", after)
        return at + 1 if at >= 0 else None
    ends = [found + len(words) for words in (b"\n\n", b"\n\r\n") if (found := text.find(words, max(0, after - len(words) + 1))) >= 0]
    return min((end for end in ends if end > after), default=None)


def lines(piece: Piece) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number and the bytes of each line of a piece, its end and a byte order mark left out; None for one that is too long.

    Raises:
        HpctrainError: a compressed file ends early.
    """
    source = piece.source
    with said_where(source.path, source.compression), open_bytes(source.path, source.compression) as file:
        if piece.start:
            file.seek(piece.start)
        left = None if piece.stop is None else piece.stop - piece.start
        number = piece.first
        while left is None or left > 0:
            line = file.readline(MAX_LINE + 1)
            if not line:
                return
            read = len(line)
            whole = len(line) <= MAX_LINE
            while len(line) > MAX_LINE and not line.endswith(b"\n"):
                line = file.readline(MAX_LINE + 1)
                read += len(line)
            left = None if left is None else left - read
            if number == 1 and line.startswith(_BOM):
                line = line[len(_BOM) :]
            yield number, line.rstrip(b"\r\n") if whole else None
            number += 1


def read_text(piece: Piece) -> Iterator[Row | Dropped]:
    """Yield the examples of a text file, with the column `text`: lines, blocks between blank lines, or the whole file."""
    unit, name = piece.source.unit, piece.source.path
    if unit == "line":
        for number, line in lines(piece):
            row = _row([line], f"{name}:{number}")
            if row is not None:
                yield row
        return
    block: list[bytes | None] = []
    began, size = piece.first, 0
    for number, line in lines(piece):
        if unit == "block" and line is not None and not line.strip():
            row = _row(block, f"{name}:{began}")
            if row is not None:
                yield row
            block, began, size = [], number + 1, 0
        elif size <= MAX_LINE:
            block.append(line)
            size += len(line or b"") + 1
            if size > MAX_LINE:
                block = [None]
    row = _row(block, f"{name}:{began}")
    if row is not None:
        yield row


def _row(block: list[bytes | None], where: str) -> Row | Dropped | None:
    """Return the lines as one text; None where there is nothing in them."""
    whole = [line for line in block if line is not None]
    if len(whole) < len(block):
        return Dropped(TOO_LONG, where)
    content = b"\n".join(whole)
    if not content.strip():
        return None
    try:
        return Row({"text": content.decode()}, where)
    except UnicodeDecodeError as error:
        return Dropped(NOT_UTF8, where, f"byte 0x{content[error.start]:02x} at {error.start}")
