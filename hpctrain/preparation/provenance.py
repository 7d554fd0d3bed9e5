"""What runs beside the work: the digests of the source files, and the memory of all processes."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpctrain.preparation.request import Meaning

HASHED_BYTES = 8 << 30
"""Files that are larger together are known by size and time of change: reading them once more would take minutes."""
_LOOK_EVERY_S = 0.5


@contextmanager
def hashing(meaning: Meaning) -> Iterator[Callable[[], tuple[dict[str, Any], ...]]]:
    """Hash the source files in a thread while the block runs; give a function that waits for the list of them.

    Raises (the function):
        OSError: a file cannot be read.
    """
    leave, found, failed = threading.Event(), [], []  # type: tuple[threading.Event, list[str], list[OSError]]
    small = sum(size for size, _ in meaning.stats) <= HASHED_BYTES

    def work() -> None:
        try:
            for source in meaning.sources if small else ():
                found.append(_sha256(source.path, leave))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def listed() -> tuple[dict[str, Any], ...]:
        thread.join()
        if failed:
            raise failed[0]
        return tuple(
            {
                "path": str(source.path.absolute()),
                "bytes": size,
                **({"sha256": found[number]} if small else {"mtime_ns": changed}),
                **({"split": source.split} if source.split else {}),
            }
            for number, (source, (size, changed)) in enumerate(zip(meaning.sources, meaning.stats, strict=True))
        )

    try:
        yield listed
    finally:
        leave.set()
        thread.join()


def _sha256(path: Path, leave: threading.Event) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while not leave.is_set() and (block := stream.read(1 << 20)):
            digest.update(block)
    return digest.hexdigest()


class Memory:
    """The resident memory of this process and of its workers, looked at twice a second at most.

    Attributes:
        peak_mib: the most that was seen; None before the first look.
    """

    def __init__(self) -> None:
        from hpctrain.memory.host import ChildrenMemory

        self.peak_mib: int | None = None
        self._children, self._next, self._last = ChildrenMemory(rescan_s=_LOOK_EVERY_S), 0.0, 0

    def look(self) -> int:
        """Return the memory, in MiB; 0 where it is not known."""
        from hpctrain.memory.host import own_rss_mib

        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LOOK_EVERY_S
            try:
                self._last = own_rss_mib() + self._children.read_mib()
            except OSError:
                return 0
            self.peak_mib = max(self.peak_mib or 0, self._last)
        return self._last
