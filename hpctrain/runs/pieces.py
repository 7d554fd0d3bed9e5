"""Lines from the end of a file, and from places spread over it, without reading the whole. Files that cannot be read have none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hpctrain.runs.store import opened


def end(path: Path, most: int) -> list[bytes]:
    """Return the whole lines, with their ends, in the last `most` bytes; half a line at either side is none."""
    try:
        with opened(str(path)) as file:
            size = os.fstat(file.fd).st_size
            start = max(0, size - most)
            lines = os.pread(file.fd, most, start).splitlines(keepends=True)
    except OSError:
        return []
    return [line for line in (lines[1:] if start else lines) if line.endswith(b"\n")]


def spread(path: Path, *, places: int, each: int, before: int) -> Iterator[bytes]:
    """Yield whole lines from `places` even places of a file, `each` bytes long, from its beginning to `before` bytes from its end.

    Where that is no less than all of it, all of it is read.
    """
    try:
        with opened(str(path)) as file:
            size = os.fstat(file.fd).st_size - before
            if size <= 0 or places <= 0:
                return
            all_of_it = size <= places * each
            blocks = [(0, size + each)] if all_of_it else [(index * size // places, each) for index in range(places)]
            for start, length in blocks:
                lines = os.pread(file.fd, length, start).splitlines(keepends=True)
                position = start
                for index, line in enumerate(lines):
                    # What begins behind `size` stands in the end, but for the line that the cut goes through.
                    if (index or not start) and line.endswith(b"\n") and position <= size:
                        yield line
                    position += len(line)
    except OSError:
        return


def size(path: Path) -> int:
    """Return the size of a file in bytes, 0 where there is none."""
    return stamp(path)[0]


def stamp(path: Path) -> tuple[int, int, int]:
    """Return size, time of the last change in ns, and inode: what changes when the file does; zeros where there is none."""
    try:
        said = path.stat()
    except OSError:
        return 0, 0, 0
    return said.st_size, said.st_mtime_ns, said.st_ino
