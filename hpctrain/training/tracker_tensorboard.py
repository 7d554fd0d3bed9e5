"""TensorBoard: event files in the run directory; steps that are done again after a kill hide the older ones (purge_step)."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from hpctrain.training.trackers import Identity, recalled, remember


class TensorBoard:
    """All starts of a run write to one directory: RUN_DIR/tensorboard, or TENSORBOARD_LOGGING_DIR/RUN_ID."""

    name = "tensorboard"

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        chosen = os.environ.get("TENSORBOARD_LOGGING_DIR")
        # One directory for several runs would be one curve that jumps.
        self.directory = Path(chosen).expanduser().absolute() / identity.name if chosen else identity.directory / "tensorboard"

    def open(self) -> Any:
        """Return transformers' callback with a writer of ours, which it would make without purge_step.

        Raises:
            OSError: the directory cannot be written.
        """
        from transformers.integrations import TensorBoardCallback

        callback = TensorBoardCallback()
        older = bool(recalled(self._identity, self.name)) or next(self.directory.glob("events.*"), None) is not None
        # Readers drop what earlier files have from this step on.
        purge = self._identity.resumed_step + 1 if older and self._identity.continues else None
        callback.tb_writer = callback._SummaryWriter(log_dir=str(self.directory), purge_step=purge)
        remember(self._identity, self.name, {"directory": str(self.directory)})
        return callback

    def retreat(self) -> bool:
        """There is no other place."""
        return False

    def began(self) -> None:
        """Repeated steps are hidden by the files themselves."""
        return

    def key(self, name: str) -> str:
        """Return the tag; it is asked for no steps."""
        return name

    def close(self, code: int) -> None:
        """Nothing: transformers flushes after each log and closes the file when the training ends."""

    def hint(self) -> str:
        """Return the command that shows the run; `--logdir runs` would show all."""
        return f"tensorboard --logdir {shlex.quote(str(self.directory))}"
