"""Output and exit of a training process: one message from rank 0, and no crash after the work is
done.

A process that simply returns from a distributed training sometimes aborts in torch's teardown
("terminate called without an active exception"). With barrier, destroy_process_group, flush and
os._exit, 20 of 20 runs did not.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from hpctrain.errors import HpctrainError
from hpctrain.memory.sample import node_name
from hpctrain.runs import layout
from hpctrain.util.text import integer

#: Variables that keep the Hugging Face libraries from the network.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
#: Seconds that the other ranks wait for rank 0's message: the launcher kills all ranks once one has
#: ended. A rank still alive then has its own error, such as a missing file system on its node.
WAIT_S = 10.0


def say(line: str) -> None:
    """Write one line to standard output in one write, because the ranks share the pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a text after `[train]`, in lines of 80 columns."""
    for line in textwrap.wrap(text, 72, subsequent_indent="  ", break_on_hyphens=False):
        say(f"[train] {line}")


def own_rank() -> int:
    """Return this process's rank from the launcher's environment, for use before the process group
    exists.
    """
    for name in ("RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 0


def cpu_requested() -> bool:
    """Return whether accelerate is told to use the CPU."""
    word = os.environ.get("ACCELERATE_USE_CPU", "").strip().lower()
    return word in ("1", "true", "yes", "y", "on")


def nodes_of(world_size: int) -> tuple[int, int]:
    """Return nodes and processes per node, from the launcher's environment."""
    each = int(os.environ.get("LOCAL_WORLD_SIZE") or world_size)
    return max(1, world_size // each), each


def leave(code: int, *, together: bool | None = None) -> NoReturn:
    """End this process.

    After a failure no rank waits for the others, which may be stuck in a collective; the launcher
    ends them.

    Args:
        code: the exit code.
        together: all ranks call this, so wait for them; by default only after success.
    """
    torch = sys.modules.get("torch")
    try:
        if (
            (code == 0 if together is None else together)
            and torch is not None
            and torch.distributed.is_available()
            and torch.distributed.is_initialized()
        ):
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def disable_progress_bars() -> None:
    """Turn off the progress bars of datasets and transformers: in a log file every update is a
    line.
    """
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()


class Ranks:
    """All processes of a training; create it in all of them, once the process group exists.

    With one process, nothing is communicated.

    Args:
        timeout_s: seconds to wait for the other processes before failing.
    """

    def __init__(self, timeout_s: float = 1800.0) -> None:
        from torch import distributed

        self._group: Any = None
        self.rank, self.size = 0, 1
        if distributed.is_available() and distributed.is_initialized():
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        if self.size > 1:
            self._group = distributed.new_group(
                backend="gloo", timeout=datetime.timedelta(seconds=timeout_s)
            )

    def highest(self, *values: int) -> list[int]:
        """Return, for each value, the highest of all ranks."""
        if self._group is None:
            return list(values)
        import torch

        tensor = torch.tensor(values, dtype=torch.int64)
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX, group=self._group)
        return [int(value) for value in tensor.tolist()]

    def share(self, value: Any) -> Any:
        """Return rank 0's value; values of other ranks are ignored."""
        if self._group is None:
            return value
        import torch

        box = [value]
        torch.distributed.broadcast_object_list(
            box, src=0, group=self._group, device=torch.device("cpu")
        )
        return box[0]

    def from_first(self, do: Callable[[], Any]) -> Any:
        """Call `do` on rank 0, and return its result on all ranks.

        Raises:
            Exception: what rank 0 raises; on the others an HpctrainError instead, since they
                would wait for it until the group's timeout.
        """
        value: Any = None
        failure: Exception | None = None
        told: HpctrainError | None = None
        if self.rank == 0:
            try:
                value = do()
            except HpctrainError as error:
                failure = told = error
            except Exception as error:
                failure, text = error, f"rank 0 failed: {type(error).__name__}: {error}"
                told = HpctrainError(text)
        value, told = self.share((value, told))
        if told is not None:
            raise failure or told
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order of rank."""
        if self._group is None:
            return [value]
        from torch import distributed

        found = [None] * self.size
        distributed.all_gather_object(found, value, group=self._group)
        return found


class Guard:
    """Calls a function such that its errors do not reach the training.

    Args:
        begin: prefix of each notice, such as `[memory] notice:`.
        clean: removes secrets from a text.
    """

    def __init__(self, begin: str, clean: Callable[[str], str] = str) -> None:
        self._begin, self._clean = begin, clean
        self._said: set[str] = set()

    def __call__(self, do: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
        """Call `do`, and return whether it succeeded; each kind of error is printed once."""
        try:
            do(*arguments, **named)
        except Exception as error:
            kind = type(error).__name__
            self.note(f"{kind}: {error}", kind=kind)
            return False
        return True

    def note(self, text: str, *, kind: str | None = None) -> None:
        """Print a notice once, in one write; never raises."""
        if (kind or text) in self._said:
            return
        self._said.add(kind or text)
        with contextlib.suppress(Exception):  # standard error may be closed
            sys.stderr.write(f"{self._begin} {self._clean(' '.join(text.split()))}\n")
            sys.stderr.flush()


#: `0` disables the log file per rank, for runs with too many ranks.
SWITCH = "HPCTRAIN_RANK_LOGS"


def keep_rank_log(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Copy this process's output to a file if the run has several processes; return the file, or
    None.

    File system errors do not stop the training.
    """
    run_dir, attempt = environ.get(layout.RUN_DIR_VARIABLE), environ.get(layout.ATTEMPT_VARIABLE)
    world = integer(environ.get("WORLD_SIZE", "")) or 1
    if not run_dir or not attempt or environ.get(SWITCH) == "0" or world < 2:
        return None
    path = Path(run_dir, "attempts", attempt, "ranks", f"rank-{own_rank()}.log")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError:
        return None
    head = f"hpctrain: rank {own_rank()} of {world} on {node_name(environ)}\n"
    with contextlib.suppress(OSError):
        os.write(handle, head.encode())
    sys.stdout = cast("TextIO", _Copied(sys.stdout, handle))
    sys.stderr = cast("TextIO", _Copied(sys.stderr, handle))
    return path


class _Copied:
    """A stream whose writes are also copied to a file.

    Each write is one system call, because forked data loader workers append to the file, too.
    """

    def __init__(self, stream: TextIO, handle: int) -> None:
        self._stream, self._handle = stream, handle

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        with contextlib.suppress(OSError):  # a full disk: the shared log continues
            os.write(self._handle, text.encode("utf-8", "backslashreplace"))
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
