"""Log lines of the values that the Trainer logs."""

from __future__ import annotations

import time
from typing import Any

from transformers import TrainerCallback, TrainerState, TrainingArguments

from hpctrain.training.process import say


class TrainLogCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """Writes `[train] step=10/120 loss=5.1234 grad_norm=1.2 learning_rate=0.00098 epoch=0.33
    elapsed=12s`.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()

    def on_train_begin(
        self, _args: TrainingArguments, state: TrainerState, *_: Any, **__: Any
    ) -> None:
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
