"""A callback that records the GPU and host memory of each rank.

    from hpctrain import MemoryCallback
    trainer = Trainer(..., callbacks=[MemoryCallback(every=10)])

Works in any transformers Trainer. Importing it requires transformers, but no GPU and no GPU driver.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

from transformers import TrainerCallback, TrainerState, TrainingArguments

from hpctrain.memory.reader import MemoryReader
from hpctrain.memory.sample import MARK, Event, Sample, format_line, near_limits, to_json
from hpctrain.runs.layout import RUN_DIR_VARIABLE
from hpctrain.training.process import Guard, say


class MemoryCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """Writes one line per rank to standard output, and the same sample as JSON to
    RUN_DIR/memory/rank-RANK.jsonl.

    A sample is taken every `every` steps, when training begins, after the first step, at each
    evaluation, at each save, and when training ends. `hpctrain.memory` documents the line and
    parses it (`parse_line`, `from_json`). One warning is printed when GPU or host memory first
    exceeds 95 % of its limit.

    Errors never reach the training: a value that cannot be read is written as `-`, and the reason
    is printed once to standard error.

    Args:
        every: optimizer steps between two samples, at least 1.
        run_dir: the run directory. Default: the environment's HPCTRAIN_RUN_DIR, else the Trainer's
            output_dir.

    Raises:
        ValueError: `every` is below 1.
    """

    def __init__(self, every: int = 10, run_dir: str | os.PathLike[str] | None = None) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, not {every}")
        self.every = every
        self._run_dir = None if run_dir is None else Path(run_dir)
        self._reader: MemoryReader | None = None
        self._file: IO[bytes] | None = None
        self._first_step = True
        self._said: set[str] = set()
        self._guard = Guard(f"{MARK} notice:")

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any
    ) -> None:
        self._first_step = True
        self._guard(self._open, args)
        self._sample("train_begin", state)

    def on_step_end(
        self, _args: TrainingArguments, state: TrainerState, *_: Any, **__: Any
    ) -> None:
        if self._first_step:
            self._first_step = False
            self._sample("first_step", state)
        elif state.global_step % self.every == 0:
            self._sample("step", state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if self._reader is None:  # trainer.evaluate() without train()
            self._guard(self._open, args)
        self._sample("evaluate", state)

    def on_save(self, _args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        self._sample("save", state)

    def on_train_end(
        self, _args: TrainingArguments, state: TrainerState, *_: Any, **__: Any
    ) -> None:
        self._sample("train_end", state)

    # -- implementation of the hooks ---------------------------------------------------------------

    def _open(self, args: TrainingArguments) -> None:
        if self._file is not None:
            self._file.close()
        # The rank as the Trainer has it, which is what the training really uses.
        rank = int(args.process_index)
        self._reader = MemoryReader(
            rank=rank,
            world_size=int(args.world_size),
            local_rank=max(0, int(args.local_process_index)),
            note=self._guard.note,
        )
        run_dir = self._run_dir or Path(os.environ.get(RUN_DIR_VARIABLE) or args.output_dir or ".")
        path = run_dir / "memory" / f"rank-{rank}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        # A requeued job continues in the same file, and each line is one write.
        self._file = path.open("ab", buffering=0)

    def _sample(self, event: Event, state: TrainerState) -> None:
        self._guard(self._take, event, state.global_step)

    def _take(self, event: Event, step: int) -> None:
        if self._reader is None:
            return
        sample = self._reader.read(step, event)
        say(format_line(sample))
        self._guard(self._append, sample)
        for kind, sentence in near_limits(sample).items():
            if kind not in self._said:
                self._said.add(kind)
                where = f"rank {sample.rank} on {sample.host}, step {step}"
                say(f"{MARK} warning: {where}: {sentence}")

    def _append(self, sample: Sample) -> None:
        if self._file is not None:
            os.write(self._file.fileno(), to_json(sample).encode() + b"\n")
