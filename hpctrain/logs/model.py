"""What a log file is. Plain values; `found.py` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Stream = Literal["out", "err", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One file that a job wrote, or writes. What its name and place do not say is None.

    Attributes:
        path: it may not exist yet.
        name: how it is called in what a person reads: relative to the current directory where it lies below it.
        stream: `both` where output and errors go into one file.
        rank: of the one process that writes it.
        node: of the one node that writes it.
        attempt: the attempt (hpctrain.runs.layout) that wrote it, where it holds no other; a requeued job appends to its files.
        order: files of one job in the order in which they began: attempts, then output, errors, ranks.
        local_rank: of its process on its node, where that is all that its name says (torchrun's log directory).
        job: the job that wrote it, as the scheduler calls it: `123`, `123_4`.
        copy: what is in it stands in another file of the job too: a rank's own lines, which are in the job's output as well.
    """

    path: Path
    name: str
    stream: Stream = "both"
    rank: int | None = None
    node: str | None = None
    attempt: str | None = None
    order: int = 0
    local_rank: int | None = None
    job: str | None = None
    copy: bool = False
