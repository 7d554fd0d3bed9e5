"""How fast a node reads the dataset and writes a checkpoint: real files, bounded in bytes and in time, nothing left behind."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

_PIECE = 8 << 20


def read_speed(folder: str, *, most: int = 256 << 20, limit_s: float = 8.0) -> dict[str, object]:
    """Read up to `most` bytes of the largest files in `folder`, or for `limit_s` seconds.

    The node's own page cache is told to forget the files first (posix_fadvise DONTNEED); what a file server holds in its memory it
    still holds.

    Returns:
        bytes, seconds, files, and `dropped`: whether the page cache could be told; or `error`.
    """
    try:
        files = _largest(Path(folder))
        if not files:
            return {"path": folder, "error": "it holds no file"}
        done, dropped, began = 0, True, time.perf_counter()
        for path in files:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                dropped = _drop(descriptor) and dropped
                while done < most and time.perf_counter() - began < limit_s:
                    piece = os.read(descriptor, _PIECE)
                    if not piece:
                        break
                    done += len(piece)
            finally:
                os.close(descriptor)
            if done >= most or time.perf_counter() - began >= limit_s:
                break
        return {"path": folder, "bytes": done, "seconds": time.perf_counter() - began, "files": len(files), "dropped": dropped}
    except OSError as error:
        return {"path": folder, "error": error.strerror or str(error)}


def write_speed(folder: str, *, most: int = 256 << 20, limit_s: float = 8.0) -> dict[str, object]:
    """Write up to `most` bytes into a new file in `folder`, fsync included, or for about `limit_s` seconds.

    The file has no name while it is written, so nothing is left even if this process is killed; a folder that did not exist is made
    and removed again.

    Returns:
        bytes and seconds; or `error`.
    """
    made: list[Path] = []
    try:
        path = Path(folder)
        for missing in [each for each in (path, *path.parents) if not each.exists()][::-1]:
            missing.mkdir(exist_ok=True)
            made.append(missing)
        descriptor, name = tempfile.mkstemp(prefix=".hpctrain-doctor-", dir=folder)
        try:
            Path(name).unlink()
            piece = os.urandom(_PIECE)  # zeros would be compressed away by some file systems
            done, began = 0, time.perf_counter()
            while done < most and time.perf_counter() - began < limit_s:
                done += os.write(descriptor, piece)
                os.fsync(descriptor)
            return {"path": folder, "bytes": done, "seconds": time.perf_counter() - began}
        finally:
            os.close(descriptor)
    except OSError as error:
        return {"path": folder, "error": error.strerror or str(error)}
    finally:
        for each in made[::-1]:
            try:
                each.rmdir()
            except OSError:  # somebody has put something into it
                break


def _largest(folder: Path) -> list[Path]:
    """Return the files of a folder, the largest first; at most a thousand are looked at."""
    sized: list[tuple[int, Path]] = []
    for directory, _, names in os.walk(folder):
        for name in names:
            path = Path(directory) / name
            if path.is_file():
                sized.append((path.stat().st_size, path))
        if len(sized) > 1000:
            break
    return [path for size, path in sorted(sized, reverse=True) if size > 0][:32]


def _drop(descriptor: int) -> bool:
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except (OSError, AttributeError):
        return False
    return True
