"""The callback that measures a training: the start table, a line every N steps, the remaining time,
the wait for data, and fit.json.

Between two lines there is no GPU synchronization and no communication: tokens are counted on the
batch's device, and time is wall time. When a line is due, each process reads its counters, and one
gather of small values over the training's process group combines them. It does not change the
training: no random numbers, no values, not the Trainer's own log.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hpctrain.memory.reader import MemoryReader
from hpctrain.memory.sample import Sample
from hpctrain.runs import predicted, progress
from hpctrain.training import start_table
from hpctrain.training.monitoring.run_files import RunFiles
from hpctrain.training.process import Guard, Ranks, say
from hpctrain.training.survival import ResilienceContext, time_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Counters over some steps, of one process or of all (`together`). A count is NaN if it is
    unknown for one of the batches.

    Attributes:
        seconds: duration of these steps, without evaluations and saves.
        wait: of these, seconds spent waiting for the data loader.
        tokens: tokens processed by the model, including padding.
        useful: of these, tokens other than padding.
        trained: unmasked tokens, which contribute to the loss.
    """

    steps: int = 0
    seconds: float = 0.0
    wait: float = 0.0
    tokens: float = 0
    useful: float = 0
    trained: float = 0

    def __add__(self, other: Window) -> Window:
        return Window(
            **{each: getattr(self, each) + getattr(other, each) for each in self.__slots__}
        )

    def per_second(self, number: float) -> float | None:
        """Return a count as a rate per second; None if unknown."""
        return None if isnan(number) or self.seconds <= 0 else number / self.seconds


def together(windows: Sequence[Window]) -> Window:
    """Return the counters of all processes: sums of tokens, steps and seconds of the slowest, and
    the wait of the one that waited for the largest fraction of its time.
    """
    whole = sum(windows[1:], windows[0])
    seconds = max(window.seconds for window in windows)
    waits = (window.wait / window.seconds for window in windows if window.seconds > 0)
    return replace(
        whole,
        steps=max(window.steps for window in windows),
        seconds=seconds,
        wait=max(waits, default=0.0) * seconds,
    )


def token_counts(batch: Mapping[str, Any]) -> list[Any]:
    """Return `tokens`, `useful` and `trained` of a Window for a batch with `input_ids` of shape
    (rows, length): numbers, or tensors on its device.
    """
    ids = batch.get("input_ids")
    if ids is None or ids.dim() != 2:
        return [0, nan, nan]
    mask, ends, positions = (
        batch.get(name) for name in ("attention_mask", "cu_seq_lens_q", "position_ids")
    )
    useful: Any = nan
    if mask is not None and mask.dim() == 2:
        useful = mask.sum()
    elif ends is not None or (positions is not None and positions.shape == ids.shape):
        useful = ids.numel()  # padding-free: examples are concatenated
    shifted, labels = batch.get("shift_labels"), batch.get("labels")
    trained: Any = nan
    if shifted is not None:
        trained = shifted.ne(-100).sum()
    elif labels is not None and labels.shape == ids.shape:
        trained = labels[..., 1:].ne(-100).sum()
    return [ids.numel(), useful, trained]


class Meter:
    """Measures the time of steps, except the first, which compiles, allocates and fills caches.

    Args:
        clock: returns seconds that never decrease.

    Attributes:
        steps: steps measured since `take`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Start from scratch: the next step is the first."""
        self._mark: float | None = None  # end of the last step, evaluation or save
        self._reset()

    def _reset(self) -> None:
        self.steps, self._seconds, self._wait = 0, 0.0, 0.0
        self._tokens: list[Any] = [0, 0, 0]

    def count(self, batch: Mapping[str, Any]) -> None:
        """Count the tokens of a batch, without waiting for its device."""
        counts = token_counts(batch)
        self._tokens = [total + each for total, each in zip(self._tokens, counts, strict=True)]

    def batches(self, source: Iterator[Any]) -> Iterator[Any]:
        """Return the batches of the next step; the time until they arrive counts as wait."""
        began = self._clock()
        for batch in source:
            self._wait += self._clock() - began
            yield batch
            began = self._clock()

    def step_ended(self) -> bool:
        """Record the end of a step; return whether it was measured."""
        before, self._mark = self._mark, self._clock()
        if before is None:
            self._reset()
            return False
        self.steps += 1
        self._seconds += self._mark - before
        return True

    def skip(self) -> None:
        """Record the end of an evaluation or a save, which are not part of a step."""
        if self._mark is not None:
            self._mark = self._clock()

    def take(self) -> Window:
        """Return what was measured since the last call; this synchronizes with the GPU, to include
        its work.
        """
        if self._mark is None:
            return Window()
        tokens, useful, trained = map(float, self._tokens)
        before, self._mark = self._mark, self._clock()
        found = Window(
            steps=self.steps,
            seconds=self._seconds + self._mark - before,
            wait=self._wait,
            tokens=tokens,
            useful=useful,
            trained=trained,
        )
        self._reset()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """The measurements of one process.

    Attributes:
        sample: memory sample.
        window: counters since the last report.
        host: current host memory including data loader workers, in MiB.
        host_peak: peak host memory likewise.
    """

    sample: Sample
    window: Window
    host: int | None
    host_peak: int


def fullest(reports: Sequence[RankReport]) -> Sample | None:
    """Return the sample of the rank whose GPU memory is the fullest; None if unknown."""
    known = [each.sample for each in reports if each.sample.torch_peak_mib is not None]
    return max(known, key=lambda sample: sample.torch_peak_mib or 0, default=None)


def fullest_node(reports: Sequence[RankReport], attribute: str) -> int | None:
    """Return the host memory (`host` or `host_peak`) of all processes of the node where it is
    highest, in MiB.
    """
    sums = Counter[str]()
    for report in reports:
        if (mib := getattr(report, attribute)) is not None:
            sums[report.sample.host] += mib
    return max(sums.values(), default=None)


MIB = 2**20
#: The fraction of the time spent waiting for data above which a warning is printed, and of how many
#: steps and seconds.
STARVED, _ENOUGH_STEPS, _ENOUGH_S = 0.2, 5, 2.0
#: Steps between two lines if the Trainer logs by epochs, or not at all.
_WITHOUT_LOGGING = 50


class SpeedCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """See the module; call `attach` with the Trainer.

    Args:
        every: steps between two lines; 0 for none, None for as often as the Trainer logs.
        survival: the job's time limit, and measurements of earlier starts.
        ranks: all processes of the training.
        options: hpctrain.training.options.Options, for the start table; None for no table.
        run_files: where the values of each line are written, or None.
    """

    def __init__(
        self,
        *,
        every: int | None,
        survival: ResilienceContext,
        ranks: Ranks,
        run_files: RunFiles | None,
        options: Any = None,
    ) -> None:
        self._asked, self._run_files = every, run_files
        self._survival, self._ranks, self._options = survival, ranks, options
        self._record = dict[str, Any]()
        self._expected = start_table.Expectation(why="nothing was worked out")
        self._meter = Meter(time.monotonic)
        self._guard = Guard(f"{progress.MARK} notice:")
        self._said, self._first = set[str](), (0.0, 0)
        self._trainer: Any = None
        self._window = self._total = Window()
        self._reader = MemoryReader(
            rank=ranks.rank, world_size=ranks.size, local_rank=0, note=self._guard.note
        )

    def attach(self, trainer: Any) -> None:
        """Measure a Trainer's batches (tokens and wait), and put this callback before its others."""
        inner = trainer.get_batch_samples

        def measured(epoch_iterator: Any, num_batches: int, device: Any) -> Any:
            batches, items = inner(self._meter.batches(epoch_iterator), num_batches, device)
            for batch in batches:
                self._guard(self._meter.count, batch)
            return batches, items

        trainer.get_batch_samples = measured
        if self._options is None:
            return
        self._trainer = trainer
        # Counted now: a sharded model no longer has its full size.
        self._parameters = start_table.count_parameters(trainer.model)
        callbacks = trainer.callback_handler.callbacks
        callbacks.insert(0, callbacks.pop(callbacks.index(self)))

    # -- the Trainer's events ----------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any
    ) -> None:
        if self._trainer is not None:
            if self._ranks.rank == 0:
                self._guard(self._write_table, state)
            self._ranks.highest(0)  # the table comes before the memory lines of all ranks
        every = self._asked
        if every is None:
            by_steps = args.logging_strategy.value == "steps"
            every = int(state.logging_steps) if by_steps else _WITHOUT_LOGGING
        self._every = max(0, every)
        self._window = self._total = Window()
        self._lined = int(state.global_step)
        self._meter.begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if not self._meter.step_ended():
            self._first = time.monotonic(), int(state.global_step)
            self._lined = int(state.global_step)
        elif self._every and state.global_step % self._every == 0:
            self._lined = int(state.global_step)
            self._gather(self._write_line, state, args)

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        self._meter.skip()

    def on_save(self, _args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        self._meter.skip()
        self._gather(self._write_measured, state, "running")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._every and state.global_step > self._lined:
            self._gather(self._write_line, state, args)
        done = state.global_step >= state.max_steps or control.should_training_stop
        self._gather(self._write_measured, state, "completed" if done else "stopped")

    # -- implementation ----------------------------------------------------------------------------

    def _write_table(self, state: TrainerState) -> None:
        self._expected, lines = start_table.begin(
            self._trainer, self._options, state, self._parameters
        )
        self._record = {**self._expected.as_record(), "measured": None}
        self._write_record()
        for line in lines:
            say(line)

    def _write_record(self) -> None:
        if self._survival.run_dir is not None:
            predicted.write(self._survival.run_dir, self._record)

    def _report(self, step: int) -> RankReport:
        sample = self._reader.read(step, "step")
        unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, KiB elsewhere
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // MIB
        workers = sample.children_rss_mib or 0
        return RankReport(
            sample=sample,
            window=self._meter.take(),
            host=None if sample.rss_mib is None else sample.rss_mib + workers,
            host_peak=most + workers,
        )

    def _gather(self, write: Callable[..., None], state: TrainerState, *more: Any) -> None:
        """Call `write` on rank 0 with the reports of all processes."""
        mine, step = list[RankReport](), state.global_step
        self._guard(lambda: mine.append(self._report(step)))
        reports = [report for each in self._ranks.gather(mine) for report in each]
        if self._ranks.rank == 0 and reports:
            did = together([report.window for report in reports])
            self._window, self._total = self._window + did, self._total + did
            self._guard(write, state, reports, *more)

    def _write_line(
        self, state: TrainerState, reports: list[RankReport], args: TrainingArguments
    ) -> None:
        did, self._window = self._window, Window()
        sample, waited = fullest(reports), did.wait / did.seconds if did.seconds > 0 else None
        # At the pace since this start's first step, with its evaluations and saves.
        began, first = self._first
        pace = (time.monotonic() - began) / max(1, int(state.global_step) - first)
        left = pace * max(0, int(state.max_steps) - int(state.global_step))
        measured = progress.rounded(
            progress.Speed(
                step=state.global_step,
                max_steps=state.max_steps,
                tokens_per_s=did.per_second(did.tokens or nan),
                useful_tokens_per_s=did.per_second(did.useful),
                trained_tokens_per_s=did.per_second(did.trained),
                mfu=self._mfu(did),
                data_wait=waited,
                step_s=did.seconds / did.steps if did.steps else None,
                peak_mib=sample.torch_peak_mib if sample else None,
                reserved_mib=sample.torch_reserved_mib if sample else None,
                total_mib=sample.gpu_total_mib if sample else None,
                rank=sample.rank if sample else None,
                host_mib=fullest_node(reports, "host"),
                eta_s=left,
            )
        )
        say(progress.format_line(measured))
        if self._run_files is not None:
            self._run_files.write(progress.EVENT, state, progress.to_values(measured))
        if left and self._total.steps >= _ENOUGH_STEPS and "time" not in self._said:
            self._said.add("time")
            _, words = time_limit.outlook(left, self._survival.end, now=time.time())
            say(f"[train] time: {words}")
        enough = did.steps >= _ENOUGH_STEPS and did.seconds >= _ENOUGH_S
        if enough and (waited or 0) > STARVED and "wait" not in self._said:
            self._said.add("wait")
            workers = int(args.dataloader_num_workers)
            say(f"[train] warning: the training waits for its data {waited:.0%} of the time")
            say(
                f"[train] hint: use --dataloader_num_workers {max(2, 2 * workers)} (now {workers});"
                " each of them needs its own core: hpctrain submit --cpus-per-gpu"
            )

    def _mfu(self, did: Window) -> float | None:
        useful = did.per_second(did.useful)
        return None if useful is None else self._expected.mfu(useful, self._ranks.size)

    def _write_measured(self, _state: TrainerState, reports: list[RankReport], ended: str) -> None:
        did, sample = self._total, fullest(reports)
        if did.steps == 0:
            return
        memory = {
            "allocated": sample.torch_peak_mib if sample else None,
            "reserved": sample.torch_reserved_mib if sample else None,
            "used": sample.gpu_used_mib if sample else None,
            "host": fullest_node(reports, "host_peak"),
        }
        self._record["measured"] = {
            **{name: None if mib is None else mib * MIB for name, mib in memory.items()},
            "tokens_per_s": did.per_second(did.tokens or nan),
            "useful_tokens_per_s": did.per_second(did.useful),
            "mfu": self._mfu(did),
            "rank": sample.rank if sample else None,
            "steps": did.steps,
            "ended": ended,
        }
        self._write_record()
