"""Log lines of a training other than its table and its speed: notes, and the values that the
Trainer logs.
"""

from __future__ import annotations

import textwrap
import time
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hpctrain.training.process import say

MARK = "[train] "
WIDTH = 80


class Notes(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """Collects notes. They are printed once, by `say`, at the latest when the training starts or
    fails.

    Call `add` only on rank 0, because each process prints its notes.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []

    def add(self, *texts: str) -> None:
        """Add texts, without the `[train]` prefix."""
        self._texts += texts

    def say(self) -> None:
        """Print and clear the notes, in lines of 80 columns."""
        texts, self._texts = self._texts, []
        for text in texts:
            for line in textwrap.wrap(
                text, WIDTH - len(MARK), subsequent_indent="  ", break_on_hyphens=False
            ):
                say(f"{MARK}{line}")

    def on_train_begin(
        self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: Any
    ) -> None:
        """Print the notes, unless they were printed before."""
        self.say()


class TrainLogCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """Writes `[train] step=10/120 loss=5.1234 grad_norm=1.2 learning_rate=0.00098 epoch=0.33
    elapsed=12s`.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()

    def on_train_begin(
        self, _args: TrainingArguments, state: TrainerState, *_: Any, **__: Any
    ) -> None:
        """Start the clock and print what will be done."""
        self._began = time.monotonic()
        if state.is_world_process_zero:
            say(f"[train] begin: step={state.global_step}/{state.max_steps}")

    def on_log(
        self,
        _args: TrainingArguments,
        state: TrainerState,
        *_: Any,
        logs: dict[str, Any] | None = None,
        **__: Any,
    ) -> None:
        """Print what the Trainer logged, in its order."""
        if not state.is_world_process_zero or not logs:
            return
        values = " ".join(
            f"{name}={_short(name, value)}" for name, value in logs.items() if name != "total_flos"
        )
        elapsed = time.monotonic() - self._began
        say(f"[train] step={state.global_step}/{state.max_steps} {values} elapsed={elapsed:.0f}s")


def _short(name: str, value: Any) -> str:
    """Return a short form of a number; a loss keeps its decimals, so that slow progress is visible."""
    if not isinstance(value, float):
        return str(value)
    if value.is_integer():
        return f"{value:.0f}"
    return f"{value:.4f}" if name.endswith("loss") else f"{value:.4g}"
