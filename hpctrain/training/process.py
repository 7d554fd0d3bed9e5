"""What a training process says, and how it ends: one message from rank 0, and no crash after the work is done.

A process that simply returns from a distributed training aborts now and then in torch's teardown ("terminate called
without an active exception"); barrier, destroy_process_group, flush, os._exit never did in 20 of 20 runs.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

WAIT_S = 10.0
"""How long the other ranks wait for rank 0's message, in seconds: a launcher kills all as soon as one has ended. A rank that still
lives then has an error of its own, such as a node without the file system."""


def say(line: str) -> None:
    """Write one line to standard output in one piece; the ranks share the pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def own_rank() -> int:
    """Return this process's rank as its launcher set it, before there is any process group."""
    for name in ("RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 0


def leave(code: int) -> NoReturn:
    """End this process; after a success together with all other ranks.

    After a failure nobody waits for the others: they may be stuck in a collective, and the launcher ends them.
    """
    torch = sys.modules.get("torch")
    try:
        if code == 0 and torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
        _finish_trackers()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _finish_trackers() -> None:
    """Let the trackers that upload in an exit handler finish: os._exit runs no handlers."""
    for name in ("wandb", "trackio"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "run", None) is not None:
            module.finish()


def disable_progress_bars() -> None:
    """Turn off the progress bars of datasets and transformers: in a log file each step of one is a line."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()


def quiet_bitsandbytes() -> None:
    """Let bitsandbytes not say, whenever peft imports it, that the CPU lacks a kernel from the hub, which no GPU needs."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
