"""What a training must not lose besides what transformers saves: sums that are not logged yet, counters, random numbers, what is due.

One file for each rank, `hpctrain-rank-N.pt`, in each checkpoint: the sums differ among the ranks. Plain values and tensors only, so that
reading it runs nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

#: The sums that Trainer keeps between two lines of its log, and over all of them.
_SUMS = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")
#: What TRL's trainers keep for the averages that they log, each where it exists.
_OF_TRL = ("_metrics", "_stored_metrics", "_total_train_tokens")


def file_name(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"hpctrain-rank-{rank}.pt"


@dataclass
class Due:
    """What was still to be done at this step when it was saved: a stop does not wait for an evaluation.

    Attributes:
        evaluate: an evaluation.
        save: a regular save.
        boundary: the step was the last one of an epoch.
        epoch_ended: the epoch's end was told to the callbacks.
        ended: the training had reached its end, by early stopping.
        grad_norm: of the step, for a log line at the epoch's end.
        learning_rate: of the step, likewise.
        training: whether the model was in training mode; TRL logs other things after an evaluation, until the next step.
    """

    evaluate: bool = False
    save: bool = False
    boundary: bool = False
    epoch_ended: bool = False
    ended: bool = False
    grad_norm: float | None = None
    learning_rate: float | None = None
    training: bool = True

    def key(self) -> tuple[bool, ...]:
        """Return what makes two saves of one step differ."""
        return (self.evaluate, self.save, self.boundary, self.epoch_ended, self.ended)

    def as_numbers(self) -> Due:
        """Return the same with a number for the gradient norm, which is a tensor while the training runs."""
        norm = self.grad_norm
        return replace(self, grad_norm=float(norm.item() if hasattr(norm, "item") else norm) if norm is not None else None)


@dataclass
class Kept:
    """The content of a rank's file."""

    sums: dict[str, Any]
    due: Due
    epoch_rng: dict[str, Any] | None
    """The random numbers when the epoch began, from which the order of its data was drawn."""
    times: dict[str, float | None]
    """Measured: seconds of `training` so far, of a `step`, of an `evaluation`."""


def write(directory: Path, rank: int, kept: Kept) -> None:
    """Write a rank's file.

    Raises:
        OSError, RuntimeError: it cannot be written.
    """
    import torch

    torch.save({"schema": 1, **asdict(kept)}, directory / file_name(rank))


def read(directory: Path, rank: int) -> Kept | None:
    """Return a rank's file; None where there is none.

    Raises:
        Exception: it is damaged.
    """
    import torch

    path = directory / file_name(rank)
    if not path.is_file():
        return None
    value = torch.load(path, map_location="cpu", weights_only=True)
    return Kept(sums=value["sums"], due=Due(**value["due"]), epoch_rng=value["epoch_rng"], times=value["times"])


def sums_of(trainer: Any) -> dict[str, Any]:
    """Return the sums of a Trainer as plain values; reading the loss waits for a GPU."""
    found = {name: getattr(trainer, name) for name in _SUMS if hasattr(trainer, name)}
    found["_tr_loss"] = trainer._tr_loss.item()
    found["total_flos"] = trainer.state.total_flos
    return found | {name: _plain(getattr(trainer, name)) for name in _OF_TRL if hasattr(trainer, name)}


def restore_sums(trainer: Any, sums: Mapping[str, Any]) -> None:
    """Give a Trainer the sums back, at the place where it has just set them to nothing."""
    for name in _SUMS:
        if name in sums:
            setattr(trainer, name, sums[name])
    trainer._tr_loss.fill_(sums["_tr_loss"])
    trainer.state.total_flos = sums["total_flos"]
    for name in _OF_TRL:
        if name in sums and hasattr(trainer, name):
            setattr(trainer, name, _filled(getattr(trainer, name), sums[name]))


def _plain(value: Any) -> Any:
    """Return a copy made of dict and list: TRL keeps defaultdicts, which are not read back without running code."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _filled(now: Any, saved: Any) -> Any:
    """Return `now`, a mapping of any kind, with the content of `saved`; anything else is `saved` itself."""
    if not isinstance(now, dict) or not isinstance(saved, Mapping):
        return saved
    for key in list(now):
        if key not in saved:
            _filled(now[key], {}) if isinstance(now[key], dict) else now.pop(key)
    for key, value in saved.items():
        now[key] = _filled(now[key], value) if isinstance(value, Mapping) and isinstance(now.get(key), dict) else value
    return now


def random_state() -> dict[str, Any]:
    """Return the state of all random number generators of this process, as plain values and tensors."""
    import numpy as np
    import torch

    python = random.getstate()
    numpy: Any = np.random.get_state()
    state = {
        "python": [python[0], list(python[1]), python[2]],
        "numpy": [str(numpy[0]), [int(key) for key in numpy[1]], int(numpy[2]), int(numpy[3]), float(numpy[4])],
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set all random number generators of this process."""
    import numpy as np
    import torch

    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.random.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
