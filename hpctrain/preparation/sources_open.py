"""Files opened as bytes, whatever they are compressed with."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast

from hpctrain.errors import HpctrainError

COMPRESSIONS: Final = {".gz": "gz", ".bz2": "bz2", ".xz": "xz", ".zst": "zst"}
_TOOL = {"gz": "gzip -t", "bz2": "bzip2 -t", "xz": "xz -t", "zst": "zstd -t"}
_BUFFER = 1 << 20


def open_bytes(path: Path, compression: str | None) -> IO[bytes]:
    """Return the file's content as a stream of bytes, unpacked.

    Raises:
        OSError: it cannot be opened.
    """
    if compression is None:
        return path.open("rb", buffering=_BUFFER)
    if compression == "zst":
        import pyarrow

        stream: Any = pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd")
        return cast("IO[bytes]", io.BufferedReader(stream, _BUFFER))
    openers: Any = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}
    return cast("IO[bytes]", io.BufferedReader(openers[compression](path, "rb"), _BUFFER))


@contextmanager
def said_where(path: Path, compression: str | None) -> Iterator[None]:
    """Turn what a broken archive raises into an error that names the file.

    Raises:
        HpctrainError: the file ends early, or is no archive.
    """
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise _broken(path, compression, error) from error
    except OSError as error:
        if error.errno is None and compression is not None:  # bz2, gzip and pyarrow say so of bad data
            raise _broken(path, compression, error) from error
        raise


def _broken(path: Path, compression: str | None, error: Exception) -> HpctrainError:
    return HpctrainError(
        f"{path} is damaged or ends early: the rest of it cannot be unpacked",
        details=(f"{type(error).__name__}: {error}",),
        fix=f"fetch it again; what it is worth says: {_TOOL.get(compression or '', 'file')} {path}",
    )
