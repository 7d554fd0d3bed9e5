"""Watching the gradient norm for NaN and infinity at every step, without making a GPU wait."""

from __future__ import annotations

import math
import shlex
from typing import Any

from hpctrain.errors import HpctrainError


class NotFiniteError(HpctrainError):
    """The gradient norm is NaN or infinite: the weights are lost, those of the last checkpoint are not."""

    reason = "nan"


class GradNormWatch:
    """Keeps the gradient norm of the last step.

    The value of a GPU is on its way to the host while the GPU goes on, and is looked at one step later: reading it at once would wait for
    all that the GPU has to do.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[int, Any, Any]] = []

    def keep(self, step: int, value: Any) -> None:
        """Note the norm of a step: a number or a tensor."""
        event = None
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        if getattr(value, "is_cuda", False):
            import torch

            value = value.detach().to("cpu", non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        elif hasattr(value, "detach"):
            value = value.detach().clone()
        self._kept = [*self._kept[-1:], (step, value, event)]

    def bad(self, *, wait: bool) -> tuple[int, float] | None:
        """Return the step and the norm of the first one kept that is not finite.

        Args:
            wait: look at the last step as well, for which a GPU is waited for. On the CPU nothing has to be waited for.
        """
        for number, (step, value, event) in enumerate(self._kept):
            if event is not None:
                if not wait and number == len(self._kept) - 1:
                    continue
                event.synchronize()
            norm = float(value)
            if not math.isfinite(norm):
                return step, norm
        return None


def not_finite(step: int, norm: float | None, *, saved: str | None = None) -> NotFiniteError:
    """Return the error for a step whose gradient norm is not finite.

    Args:
        step: its number.
        norm: as this rank knows it.
        saved: the folder with the batch of that step (hpctrain/training/bad_batch.py); None where it could not be saved.
    """
    look = "look at the data of that step" if saved is None else f"python -m hpctrain.training.bad_batch {shlex.quote(saved)}"
    details = ("the weights since then are lost; checkpoints were saved before it only",)
    return NotFiniteError(
        f"the gradient norm of step {step} is {'nan or inf' if norm is None else norm}",
        details=details if saved is None else (*details, f"the batch of that step is in {saved}"),
        fix=f"{look}; then --learning_rate (lower), --max_grad_norm 1.0, --warmup_steps (more), --bf16 true instead of fp16;"
        " --stop_on_nan false goes on regardless",
    )
