"""The processes that prepare: how many, how they start and end, and what each does with one piece.

A worker reads and writes files and gives back counts, so that nothing large travels between processes. It ends when its parent does,
however that ended. Nothing here decides what is prepared.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hpctrain.preparation import tokenised
from hpctrain.preparation.encode import Encoded, Encoder, Recipe
from hpctrain.preparation.rows import Dropped, Row
from hpctrain.preparation.sources import Piece, read
from hpctrain.preparation.specials import Specials

#: What is set while processes start: the tokenizers' own threads would fight with the processes, and nothing is asked of the network.
SWITCHES = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
NOTHING_TRAINED = "no token to train on"
_PRELOADED = ["hpctrain.preparation.assemble", "hpctrain.preparation.workers", "numpy", "pyarrow", "pyarrow.compute"]
_WITHOUT_TORCH = "hpctrain.preparation.without_torch"
_BATCH_ROWS, _BATCH_CHARACTERS = 256, 1 << 21
_WORKER_MIB = 600
"""What one worker may need: 90 MiB of its own at rest, a window of four million tokens at 100 bytes each, and a tokenizer of some size."""
T = TypeVar("T")
J = TypeVar("J")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One piece to be tokenised into the file `path`; `columns` are the only ones that are read."""

    number: int
    piece: Piece
    path: Path
    columns: tuple[str, ...] | None = None


@dataclass(slots=True, kw_only=True)
class Tally:
    """What came of a piece, or of several.

    Attributes:
        read: rows of the source.
        examples, tokens: that were kept.
        truncated: examples that were cut.
        context_turns: turns of the assistant that are not trained on, because the template shows them otherwise than they were written.
        specials: special token to the rows that write it in their text; `specials_first` to the first of these, `FILE:LINE`.
        dropped: reason to rows.
        first: reason to the first such row, `FILE:LINE: detail`.
    """

    read: int = 0
    examples: int = 0
    tokens: int = 0
    truncated: int = 0
    context_turns: int = 0
    specials: dict[str, int] = field(default_factory=dict)
    specials_first: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def drop(self, row: Dropped) -> None:
        """Count a row that is left out."""
        self.dropped[row.reason] = self.dropped.get(row.reason, 0) + 1
        self.first.setdefault(row.reason, f"{row.where}: {row.detail}" if row.detail else row.where)

    def special(self, tokens: Iterable[str], where: str) -> None:
        """Count a row that writes special tokens in its text."""
        for token in tokens:
            self.specials[token] = self.specials.get(token, 0) + 1
            self.specials_first.setdefault(token, where)

    def add(self, other: Tally) -> None:
        """Count a later piece in."""
        self.read += other.read
        self.examples += other.examples
        self.tokens += other.tokens
        self.truncated += other.truncated
        self.context_turns += other.context_turns
        for mine, theirs in ((self.dropped, other.dropped), (self.specials, other.specials)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count
        self.first = {**other.first, **self.first}
        self.specials_first = {**other.specials_first, **self.specials_first}


# -- how many ------------------------------------------------------------------------------------------------------------


def cores() -> int:
    """Return the cores that this process may use: those it is bound to (srun, taskset), and no more than its cgroup gives time for."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(bound, int(quota) // int(period))) if quota != "max" else bound
    except (OSError, ValueError):
        return bound


def count() -> int:
    """Return how many workers there are where nobody asked for a number: all cores, as far as memory reaches."""
    from hpctrain.memory import cgroup, host

    free = _free_mib(host.node_mib)
    try:
        level = cgroup.find_limit()
        limit = level.limit_mib() if level is not None else None
        if level is not None and limit is not None:
            free = min(free, limit - level.used_mib())
    except (OSError, ValueError):
        pass
    return max(1, min(cores(), free // _WORKER_MIB))


def _free_mib(node: Callable[[], tuple[int, int]]) -> int:
    used, total = node()
    return total - used


# -- the pool ------------------------------------------------------------------------------------------------------------


def warm_up(*, trust_remote_code: bool) -> None:
    """Start the server that workers are forked from; it imports the libraries while the caller goes on.

    Args:
        trust_remote_code: the tokenizer brings its own code, which may want torch.
    """
    from multiprocessing import forkserver

    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED if trust_remote_code else [_WITHOUT_TORCH, *_PRELOADED])
    with _switched():
        forkserver.ensure_running()


@contextmanager
def _switched() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in SWITCHES}
    os.environ.update(SWITCHES)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextmanager
def pool(workers: int, recipe: Recipe) -> Iterator[ProcessPoolExecutor]:
    """Start the workers; when the block ends by an error they are ended too, and their unfinished files are gone.

    They are forked from a server that has imported the libraries, once: on a shared file system that is what starting costs.
    """
    warm_up(trust_remote_code=recipe.trust_remote_code)
    context = multiprocessing.get_context("forkserver")
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(recipe,))
    try:
        yield executor
    except BaseException:
        _end(executor)
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _end(executor: ProcessPoolExecutor) -> None:
    for process in list((getattr(executor, "_processes", None) or {}).values()):
        process.terminate()


def as_completed(executor: ProcessPoolExecutor, function: Callable[[J], T], jobs: Sequence[J], *, ahead: int) -> Iterator[tuple[J, T]]:
    """Yield each job with its result as it is done; no more than `ahead` jobs are waiting or running at a time.

    Raises:
        BrokenProcessPool: a worker was killed.
        Exception: whatever a job raised.
    """
    waiting = iter(jobs)
    running: dict[Future[T], J] = {}
    while True:
        while len(running) < ahead and (job := next(waiting, None)) is not None:
            running[executor.submit(function, job)] = job
        if not running:
            return
        for done in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(done), done.result()


# -- in a worker ---------------------------------------------------------------------------------------------------------

_recipe: list[Recipe] = []


def _begin(recipe: Recipe) -> None:
    """Prepare a worker: Ctrl-C is the parent's to handle, and a dead parent is the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _recipe[:] = [recipe]


def _leave(number: int, frame: Any) -> None:
    del number, frame
    raise SystemExit(143)  # through the `finally` of an unfinished file


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


@functools.cache
def _encoder() -> Encoder:
    # Not in `_begin`: what is raised there reaches nobody.
    return Encoder(_recipe[0])


@functools.cache
def _specials() -> Specials:
    return Specials.of(_encoder().tokenizer)


def tokenise(job: Job) -> Tally:
    """Read a piece, and write its examples.

    Raises:
        OSError: a file cannot be read or written.
        HpctrainError: the tokenizer or the template fails.
    """
    encoder, tally = _encoder(), Tally()
    with tokenised.writing(job.path) as batches:
        for rows in _batches(read(job.piece, columns=job.columns), tally):
            for row in rows:
                tally.special(_specials().written([row.get(name) for name in job.columns or row]), row.where)
            for example in encoder.encode(rows):
                if isinstance(example, Dropped):
                    tally.drop(example)
                else:
                    _take(example, batches, tally)
    return tally


def _take(example: Encoded, batches: tokenised.Batches, tally: Tally) -> None:
    """Store an example without its first token among the trained: nothing before it could predict it.

    In a row alone, the shift of the labels leaves it out; in a packed row, the last token of the example before would predict it. TRL's
    collator masks it there too (DataCollatorForLanguageModeling, position_ids == 0).
    """
    import numpy as np

    spans = [place for start, stop in example.trained if stop > 1 for place in (max(start, 1), stop)]
    if not spans:
        tally.drop(Dropped(NOTHING_TRAINED, example.where))
        return
    batches.add(np.frombuffer(example.input_ids, dtype=np.int32), spans)
    tally.examples += 1
    tally.tokens += len(example.input_ids)
    tally.truncated += example.truncated
    tally.context_turns += example.context_turns


def _batches(rows: Iterator[Row | Dropped], tally: Tally) -> Iterator[list[Row]]:
    """Yield rows together, up to a number and a size: what a worker holds in memory does not grow with the file."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        tally.read += 1
        if isinstance(row, Dropped):
            tally.drop(row)
            continue
        batch.append(row)
        size += _characters(row)
        if len(batch) >= _BATCH_ROWS or size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list) else 0
