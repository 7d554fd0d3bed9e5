"""The callback that measures a training's speed: a line every N steps, the time to its end, the wait for data, and fit.json.

Between two lines nothing waits for a GPU and nothing is sent: tokens are counted where the batch is, and time is the wall's. When a line is
due, each process reads its counters, and one gathering of small values over the training's own group of processes puts them together.
It changes nothing of the training: not a random number, not a value, not the Trainer's own log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from hpctrain.runs import speed
from hpctrain.training import estimate
from hpctrain.training.estimate import Verdict, Work
from hpctrain.training.expectation import Expectation
from hpctrain.training.fit_file import FitFile
from hpctrain.training.guard import Guard
from hpctrain.training.meter import Meter, Window
from hpctrain.training.process import say
from hpctrain.training.run_files import RunFiles
from hpctrain.training.settings import Survival
from hpctrain.training.speed_local import MIB, Local, Sensors, Together, fullest, of_a_node, together

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from hpctrain.training.ranks import Ranks

FIRST_WORDS = (5, 20)
"""Measured steps after which the time to the end is told, whatever it was before."""
STARVED = 0.2
"""The part of the time that a training may wait for its data without a warning."""
_ENOUGH_STEPS, _ENOUGH_S = 5, 2.0
_WITHOUT_LOGGING = 50
"""Steps between two lines where the Trainer logs by epochs, or not at all."""


class SpeedCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """See the module. `attach` it to its Trainer.

    Args:
        every: steps between two lines; 0 for none, None for as often as the Trainer logs.
        survival: the job's time, and what earlier starts have measured.
        ranks: all processes of the training.
        expected: returns what was worked out before; asked on rank 0 only.
        run_files: where each line's values go; None for nowhere.
        fit_file: where the measurement goes.
    """

    def __init__(
        self,
        *,
        every: int | None,
        survival: Survival,
        ranks: Ranks,
        expected: Callable[[], Expectation],
        run_files: RunFiles | None,
        fit_file: FitFile,
    ) -> None:
        self._asked = every
        self._survival, self._ranks, self._expected = survival, ranks, expected
        self._run_files, self._fit_file = run_files, fit_file
        self._meter = Meter(time.monotonic)
        self._guard = Guard(f"{speed.MARK} notice:")
        self._warned = False
        self._sensors: Sensors | None = None
        self._begin(every=0)

    def _begin(self, *, every: int) -> None:
        self._every = every
        self._window = self._total = Window()
        self._verdict: Verdict | None = None
        self._startup = 0.0
        self._locals: list[Local | None] = []
        self._meter.begin()

    def attach(self, trainer: Any) -> None:
        """Measure the batches of a Trainer: their tokens, and how long they take to come."""
        inner = trainer.get_batch_samples

        def measured(epoch_iterator: Any, num_batches: int, device: Any) -> Any:
            self._meter.batches_asked()
            batches, items = inner(self._meter.timed(epoch_iterator), num_batches, device)
            for batch in batches:
                self._guard(self._meter.tally.add, batch)
            return batches, items

        trainer.get_batch_samples = measured

    # -- the Trainer's events ------------------------------------------------------------------------------------------

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """Begin to measure."""
        every = self._asked
        if every is None:
            every = int(state.logging_steps) if args.logging_strategy.value == "steps" else _WITHOUT_LOGGING
        self._begin(every=max(0, every))
        self._sensors = Sensors(self._ranks.rank, self._ranks.size, self._guard.note)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """Measure the step, and write a line when one is due."""
        self._meter.step_ended()
        if not self._meter.measuring:
            self._guard(self._meter.start)
            job = self._survival.job
            self._startup = max(0.0, time.time() - job.began) if job.began is not None else 0.0
            return
        if self._every and state.global_step % self._every == 0:
            self._line(args, state)
        elif self._ranks.rank == 0 and self._steps in FIRST_WORDS:
            self._guard(self._read)
            self._guard(self._tell_time, args, state)

    def on_evaluate(self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """An evaluation is no part of a step."""
        self._meter.ended("evaluate")

    def on_save(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """A save is no part of a step; what was measured by now is kept."""
        self._meter.ended("save")
        self._keep(state, "running")

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the line of the last steps, and what was measured of the whole."""
        self._line(args, state, last=True)
        done = state.global_step >= state.max_steps or control.should_training_stop
        self._keep(state, "completed" if done else "stopped")

    def interrupted(self, error: BaseException) -> None:
        """The training fails: keep what this process knows; the others may be stuck. For rank 0."""
        if self._ranks.rank != 0 or self._sensors is None:
            return
        self._guard(self._read)
        window, total, sensors = self._window, self._total, self._sensors
        self._guard(lambda: self._write_measured([sensors.read(0, window, total, thorough=True)], _ending(error)))

    # -- what they do --------------------------------------------------------------------------------------------------

    @property
    def _steps(self) -> int:
        """Steps that were measured since the training began, or was resumed."""
        return self._total.steps + self._meter.steps

    def _read(self) -> None:
        window = self._meter.take()
        self._window += window
        self._total += window

    def _gathered(self, step: int, *, thorough: bool) -> list[Local | None]:
        """Return what every process has to say; to be called by all of them."""
        local: list[Local] = []
        self._guard(self._read)
        sensors, window, total = self._sensors, self._window, self._total
        if sensors is not None:
            self._guard(lambda: local.append(sensors.read(step, window, total, thorough=thorough)))
        return self._ranks.gather(local[0] if local else None)

    def _line(self, args: TrainingArguments, state: TrainerState, *, last: bool = False) -> None:
        """Write a line; of the last steps only if there are any that no line was written of."""
        if not self._every or (last and self._window.steps + self._meter.steps == 0):
            return
        self._locals = self._gathered(state.global_step, thorough=not self._locals)
        self._window = Window()
        if self._ranks.rank == 0:
            self._guard(self._write_line, args, state)
            if not last:
                self._guard(self._tell_time, args, state)

    def _write_line(self, args: TrainingArguments, state: TrainerState) -> None:
        known = [local for local in self._locals if local is not None]
        if not known:
            return
        did = together([local.window for local in known])
        measured = speed.rounded(self._speed(args, state, did))
        say(speed.format_line(measured))
        if self._run_files is not None:
            self._run_files.write_speed(state, speed.to_values(measured))
        if did.wait is not None and did.wait > STARVED and did.steps >= _ENOUGH_STEPS and did.seconds >= _ENOUGH_S:
            self._warn_once(starvation(did.wait, int(args.dataloader_num_workers), _cores()))

    def _speed(self, args: TrainingArguments, state: TrainerState, did: Together) -> speed.Speed:
        worst = fullest(self._locals)
        useful = did.per_second(did.useful)
        work = self._work(args, state)
        return speed.Speed(
            step=state.global_step,
            max_steps=state.max_steps,
            tokens_per_s=did.per_second(did.tokens or None),
            useful_tokens_per_s=useful,
            trained_tokens_per_s=did.per_second(did.trained),
            mfu=None if useful is None else self._expected().mfu(useful, did.context, self._ranks.size),
            data_wait=did.wait,
            step_s=did.step_s,
            peak_mib=worst[1].peak if worst else None,
            reserved_mib=worst[1].reserved if worst else None,
            total_mib=worst[1].gpu_total if worst else None,
            rank=worst[0] if worst else None,
            host_mib=of_a_node(self._locals, "rss"),
            eta_s=None if work is None else work.seconds,
        )

    def _warn_once(self, lines: Sequence[str]) -> None:
        if not self._warned:
            self._warned = True
            for line in lines:
                say(line)

    # -- the time ------------------------------------------------------------------------------------------------------

    def _work(self, args: TrainingArguments, state: TrainerState) -> Work | None:
        """Return what is left to do, by what was measured since this start's first step."""
        if self._total.steps == 0:
            return None
        step, last = int(state.global_step), int(state.max_steps)
        epoch = state.global_step / state.epoch if state.epoch else None
        strategy, saving = args.eval_strategy.value, args.save_strategy.value
        return Work(
            steps=max(0, last - step),
            step_s=self._total.seconds / self._total.steps,
            evaluations=estimate.times_left(strategy, state.eval_steps or 0, step=step, last=last, epoch_steps=epoch),
            evaluation_s=self._meter.took.get("evaluate"),
            saves=estimate.times_left(saving, state.save_steps or 0, step=step, last=last, epoch_steps=epoch),
            save_s=self._meter.took.get("save", self._survival.save_seconds),
        )

    def _tell_time(self, args: TrainingArguments, state: TrainerState) -> None:
        """Say how long it still takes, after the first steps and whenever that turns out otherwise under the time limit."""
        work = self._work(args, state)
        if work is None or work.steps == 0:
            return
        job, now = self._survival.job, time.time()
        spare = estimate.reserve(work.step_s, work.save_s, self._survival.leaving_seconds)
        turned = estimate.turned(self._verdict, work.seconds, job, now=now, spare=spare, startup=self._startup)
        if turned is None and self._steps not in FIRST_WORDS:
            return
        if self._verdict is None and self._steps < FIRST_WORDS[0] and work.steps > FIRST_WORDS[0]:
            return  # too few to judge
        self._verdict = turned or self._verdict
        if self._verdict is not None:
            words = estimate.sentence(self._verdict, work.seconds, job, now=now)
            say(f"[train] time: step {state.global_step} of {state.max_steps}, {work.step_s:.3g} s a step: {words}")

    # -- fit.json ------------------------------------------------------------------------------------------------------

    def _keep(self, state: TrainerState, ended: str) -> None:
        """Write what was measured since the first step; to be called by all processes."""
        found = self._gathered(state.global_step, thorough=True)
        if self._ranks.rank == 0:
            self._guard(self._write_measured, found, ended)

    def _write_measured(self, found: list[Local | None], ended: str) -> None:
        known = [local for local in found if local is not None]
        if not known or known[0].total.steps == 0:
            return
        did, worst = together([local.total for local in known]), fullest(found)
        useful = did.per_second(did.useful)
        host = of_a_node(found, "rss_peak")
        gpu = {name: getattr(worst[1], name) if worst else None for name in ("peak", "reserved", "used")}
        sizes = {name: None if value is None else value * MIB for name, value in {**gpu, "host": host}.items()}
        self._fit_file.measured(
            {
                # What ran out of memory has not reached the peak that it has.
                "allocated": None if ended == "out-of-memory" else sizes["peak"],
                "reserved": sizes["reserved"],
                "used": sizes["used"],
                "host": sizes["host"],
                "tokens_per_s": did.per_second(did.tokens or None),
                "useful_tokens_per_s": useful,
                "mfu": None if useful is None else self._expected().mfu(useful, did.context, self._ranks.size),
                "rank": worst[0] if worst else None,
                "steps": did.steps,
                "ended": ended,
            }
        )


def starvation(wait: float, workers: int, cores: int) -> tuple[str, str]:
    """Return the warning that the training waits for data, in two lines; of a process with so many workers and cores."""
    what = f"[train] warning: the training waits for its data {wait:.0%} of the time"
    has = f"{workers} now, and this process has {cores} core{'s' if cores > 1 else ''}"
    most = max(1, cores - 1)
    if cores > 1 and workers < most:
        return what, f"[train] fix: --dataloader_num_workers {min(most, max(2, 2 * workers))} ({has})"
    return what, f"[train] fix: hpctrain submit --cpus-per-gpu MORE -- --dataloader_num_workers MORE ({has})"


def _cores() -> int:
    """Return the cores of this process: its share of the node's, or what the job script has found."""
    try:
        mine = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        mine = os.cpu_count() or 1
    local, threads = (os.environ.get(name, "1") for name in ("LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"))
    share = mine // int(local) if local.isascii() and local.isdigit() and int(local) > 0 else mine
    # A process that srun has bound sees its own cores only; then its share of them would be too small.
    return max(1, share, min(mine, int(threads)) if threads.isascii() and threads.isdigit() else 1)


def _ending(error: BaseException) -> str:
    return "out-of-memory" if type(error).__name__ == "OutOfMemoryError" else "error"
