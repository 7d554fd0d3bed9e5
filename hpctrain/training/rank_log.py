"""A rank's own lines, beside the log that all ranks share: runs/ID/attempts/ATTEMPT/ranks/rank-N.log, for `hpctrain logs --rank N`.

What Python writes to stdout and stderr goes where it always went, first and unchanged, and then into the file too; nothing stands between
the process and its log, so that nothing is lost when it is killed. What C++ writes by itself is in the shared log only, where torch puts
the rank in front.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO, cast

from hpctrain.memory.reader import node_name
from hpctrain.runs import layout
from hpctrain.training.process import own_rank

SWITCH = "HPCTRAIN_RANK_LOGS"
"""`0`: no rank keeps a file; for runs of so many ranks that the number of files counts."""


def keep(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Let this process keep what it writes, where it is one of several of a run; return the file, or None.

    A file system that refuses is no reason not to train.
    """
    run_dir, attempt = environ.get(layout.RUN_DIR_VARIABLE), environ.get(layout.ATTEMPT_VARIABLE)
    world = environ.get("WORLD_SIZE", "")
    if not run_dir or not attempt or environ.get(SWITCH) == "0" or not world.isdecimal() or int(world) < 2:
        return None
    path = Path(run_dir, "attempts", attempt, "ranks", f"rank-{own_rank()}.log")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError:
        return None
    copy = _Copy(handle)
    copy.write(f"hpctrain: rank {own_rank()} of {world} on {node_name(environ)}\n")
    sys.stdout, sys.stderr = cast("TextIO", _Both(sys.stdout, copy)), cast("TextIO", _Both(sys.stderr, copy))
    return path


class _Copy:
    """The file. Each write is one of the system's: workers of a data loader, which are forks, append to it too."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    def write(self, text: str) -> None:
        if self._handle is None:
            return
        try:
            os.write(self._handle, text.encode("utf-8", "backslashreplace"))
        except OSError:  # a full disk: the shared log goes on
            self._handle = None


class _Both:
    """A stream that is copied. Whatever else is asked of it, the stream itself answers."""

    def __init__(self, stream: TextIO, copy: _Copy) -> None:
        self._stream, self._copy = stream, copy

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        self._copy.write(text)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
