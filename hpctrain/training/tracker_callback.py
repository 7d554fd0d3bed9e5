"""The callback around one tracker: what fails in it stays in it, and a resumed training goes on where the tracker's run stopped."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from hpctrain.runs import metrics
from hpctrain.training.trackers import Has, Identity, Tracker, notice, tell

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


_TOTAL = re.compile(r"train_|total_flos\Z")


def callback_for(tracker: Tracker, identity: Identity) -> TrackerCallback:
    """Return a callback of a class of its own: the Trainer warns of two callbacks of one class."""
    return type(f"{type(tracker).__name__}Callback", (TrackerCallback,), {})(tracker, identity)  # type: ignore[no-any-return]


class TrackerCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """Passes what the Trainer reports to the tracker's own callback of transformers.

    A tracker that cannot be reached when the training begins is left out of this start; what it misses is told to it when the run is
    started again, from attempts/*/metrics.jsonl.
    """

    def __init__(self, tracker: Tracker, identity: Identity) -> None:
        self.tracker = tracker
        self._identity = identity
        self._inner: Any = None
        self._has: Has = _nothing
        self._said: set[str] = set()

    # -- the Trainer's events ------------------------------------------------------------------------------------------

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Open the tracker's run, and tell it what it missed."""
        if self._inner is not None or not state.is_world_process_zero:
            return
        begin = lambda: self._begin(args, state, control, **more)  # noqa: E731
        if not self._guard(begin) and not (self.tracker.retreat() and self._guard(begin)):
            notice(f"{self.tracker.name}: nothing is reported to it by this start of the job")
            return
        self._guard(self._continue, args, state, control, **more)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **more: Any
    ) -> None:
        """Pass on the values that the tracker's run does not have yet."""
        if self._inner is None or not logs:
            return
        step = state.global_step
        new = {name: value for name, value in logs.items() if not self._has(self.tracker.key(name), step)}
        if new:
            self._guard(self._inner.on_log, args, state, control, logs=new, **more)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Pass it on: some trackers can be told to keep checkpoints."""
        if self._inner is not None:
            self._guard(self._inner.on_save, args, state, control, **more)

    def on_predict(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *positional: Any, **more: Any) -> None:
        """Pass it on."""
        if self._inner is not None:
            self._guard(self._inner.on_predict, args, state, control, *positional, **more)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Pass it on; the run stays open until `close` knows how it ended."""
        if self._inner is not None:
            self._guard(self._inner.on_train_end, args, state, control, **more)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self, code: int) -> None:
        """Close the tracker's run as the exit code says, and say how it can be looked at.

        Raises:
            Exception: whatever the library raises.
        """
        if self._inner is None:
            return
        self._inner = None
        self.tracker.close(code)
        tell(f"{self.tracker.name}: {self.tracker.hint()}")

    # -- what the hooks do ---------------------------------------------------------------------------------------------

    def _begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        inner = self.tracker.open()
        inner.on_train_begin(args, state, control, **more)
        self._inner = inner

    def _continue(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Learn what the run has already, and tell it what was logged before this start and did not reach it."""
        has = self.tracker.began()
        if has is None:
            return
        self._has = has
        for row in metrics.read(self._identity.directory):
            if row["event"] not in ("log", "evaluate") or not 0 < row["step"] <= self._identity.resumed_step:
                continue
            if logs := _curve(row):
                past = copy(state)
                past.global_step = row["step"]
                self.on_log(args, past, control, logs=logs, **more)

    def _guard(self, do: Callable[..., object], *arguments: Any, **more: Any) -> bool:
        """Do something that must not disturb the training, whatever happens in it, and return whether it was done."""
        try:
            do(*arguments, **more)
        except Exception as error:
            self._note(error)
            return False
        return True

    def _note(self, error: Exception) -> None:
        """Say an error of a kind once."""
        kind = type(error).__name__
        if kind not in self._said:
            self._said.add(kind)
            notice(f"{self.tracker.name}: {kind}: {error}")


def _nothing(_name: str, _step: int) -> bool:
    return False


def _curve(row: metrics.Row) -> dict[str, float]:
    """Return what a row adds to curves: not the totals that each start logs when it ends."""
    values = {name: value for name, value in metrics.values(row).items() if math.isfinite(value) and not _TOTAL.match(name)}
    return {**values, "epoch": row["epoch"]} if values and isinstance(row["epoch"], float) else values
