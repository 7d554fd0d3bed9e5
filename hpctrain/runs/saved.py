"""What a run has saved, for people: its checkpoints and its final weights, complete or not, and which is the best."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.runs import checkpoints, manifest, store

_STATE = "trainer_state.json"
#: It holds all that was logged; a larger one is no file of the Trainer's.
_LARGEST_STATE = 1 << 28


@dataclass(frozen=True, slots=True)
class Saved:
    """One directory among a run's checkpoints, or its `model`.

    Attributes:
        run: the run's id.
        path: the directory.
        manifest: what it says of itself; None where it says nothing, or it is damaged.
        wrong: why it is not complete, as far as names and sizes tell; empty when it is.
        best: the Trainer's choice by `metric_for_best_model`.
        unfinished: a save that is under way, or was not finished.
    """

    run: str
    path: Path
    manifest: manifest.Manifest | None
    wrong: tuple[str, ...]
    best: bool = False
    unfinished: bool = False

    @property
    def name(self) -> str:
        """Return what to type for it: `RUN/checkpoint-40`."""
        return f"{self.run}/{self.path.name}"

    @property
    def is_checkpoint(self) -> bool:
        """Whether a training can go on from it, were it complete."""
        return self.path.name != checkpoints.MODEL and not self.unfinished

    def size(self) -> int:
        """Return the bytes of its files, as they are on the disk."""
        total = 0
        try:
            for _, path in manifest.walk(self.path):
                total += path.stat().st_size
        except OSError:  # it is being removed, or not ours to read
            pass
        return total


def saved_in(run: Path) -> list[Saved]:
    """Return what the run in the directory `run` has saved, oldest step first, the final weights last.

    Raises:
        HpctrainError: its checkpoints cannot be listed.
    """
    folder = run / checkpoints.CHECKPOINTS
    found = [_look(run, path) for path in checkpoints.all_of(folder)]
    best = _best([one for one in found if not one.wrong])
    found = [Saved(one.run, one.path, one.manifest, one.wrong, one.path.name == best) for one in found]
    found += [Saved(run.name, path, None, ("its save was not finished",), unfinished=True) for path in checkpoints.unfinished_of(folder)]
    if (run / checkpoints.MODEL).is_dir():
        found.append(_look(run, run / checkpoints.MODEL))
    return found


def _look(run: Path, path: Path) -> Saved:
    return Saved(run.name, path, manifest.read_manifest(path), manifest.problems(path, digests=False, extra=False))


def _best(complete: list[Saved]) -> str | None:
    """Return the name of the best checkpoint, as the newest one remembers it."""
    said = _trainer_state(complete[-1].path / _STATE) if complete else None
    if said is None:
        return None
    name, step = said.get("best_model_checkpoint"), said.get("best_global_step")
    if isinstance(name, str) and name:
        return Path(name).name
    return f"checkpoint-{step}" if isinstance(step, int) and step > 0 else None


def _trainer_state(path: Path) -> dict[str, Any] | None:
    try:
        with store.opened(str(path)) as file, open(file.fd, "rb", closefd=False) as stream:
            value = json.loads(stream.read(_LARGEST_STATE))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
