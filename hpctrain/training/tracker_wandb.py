"""Weights & Biases: offline where the Hugging Face libraries are, synced later; the same run id at each start.

Offline, each start writes a folder of its own, `RUN_DIR/wandb/offline-run-TIME-RUN_ID`, and `wandb sync` of all of them makes one
run: it uploads files of the same run one after another, in the order of their starts.
"""

from __future__ import annotations

import os
import re
import shlex
import uuid
from typing import Any

from hpctrain.runs.layout import REQUEUE, STOPPED
from hpctrain.training import wandb_file
from hpctrain.training.trackers import CLOSE_S, Has, Identity, bounded, notice, recalled, remember

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
#: What W&B refuses in the name of a project or in an id.
_REFUSED = re.compile(r"[/\\#?%:\s]")
_STEP = "train/global_step"
"""transformers' axis of steps; W&B's own `_step` counts rows, and begins at 0 in each offline folder."""


class Wandb:
    """The run of W&B whose id is the run id."""

    name = "wandb"

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def open(self) -> Any:
        """Set the variables that W&B reads, where the user has not, and return transformers' callback."""
        from transformers.integrations import WandbCallback

        for name, value in self._variables().items():
            os.environ.setdefault(name, value)
        self._identity.directory.mkdir(parents=True, exist_ok=True)
        remember(self._identity, self.name, {"id": os.environ["WANDB_RUN_ID"], "project": os.environ["WANDB_PROJECT"]})
        return WandbCallback()

    def retreat(self) -> bool:
        """Go offline: W&B could not be reached, or there is no key."""
        if os.environ.get("WANDB_MODE") != "online":
            return False
        import wandb

        # Its settings, and the id, which it holds to be in use, live in a service of its own until it is ended.
        if not bounded(wandb.teardown):
            return False
        os.environ["WANDB_MODE"] = "offline"
        notice("wandb: goes on offline")
        return True

    def _variables(self) -> dict[str, str]:
        identity = self._identity
        known = recalled(identity, self.name).get("id")
        fresh = identity.name if identity.continues else uuid.uuid4().hex[:8]
        offline = any(os.environ.get(name, "").lower() in {"1", "true", "yes", "on"} for name in _OFFLINE)
        return {
            "WANDB_MODE": "offline" if offline else "online",
            "WANDB_RUN_ID": known or _REFUSED.sub("-", fresh),
            "WANDB_RESUME": "allow",
            "WANDB_PROJECT": _REFUSED.sub("-", identity.project),
            "WANDB_NAME": identity.name,
            "WANDB_DIR": str(identity.directory),
            # The job's log has what is printed, and W&B's copying of it would split the lines that we write whole.
            "WANDB_CONSOLE": "off",
            "WANDB_QUIET": "true",
            "WANDB_INIT_TIMEOUT": "30",
            **({"WANDB_RUN_GROUP": identity.group} if identity.group else {}),
        }

    def began(self) -> Has:
        """Return what is in the offline folders of earlier starts, or, online, that the server has all up to its last step."""
        import wandb

        run = wandb.run
        if run is None:
            return lambda _name, _step: False
        if run.offline:
            files = sorted((self._identity.directory / "wandb").glob("*run-*/run-*.wandb"))
            have = {pair for path in files for pair in wandb_file.pairs(path, step=_STEP)}
            return lambda name, step: (name, step) in have
        last = int(run.summary.get(_STEP, -1)) if run.resumed else -1
        return lambda _name, step: step <= last

    def key(self, name: str) -> str:
        """Return the name of a value as transformers rewrites it."""
        from transformers.integrations.integration_utils import rewrite_logs

        return str(next(iter(rewrite_logs({name: 0}))))

    def close(self, code: int) -> None:
        """Finish the run; one that may go on is marked as preempted, which W&B's server shows as such."""
        import wandb

        run = wandb.run
        if run is None:
            return
        if code in (REQUEUE, STOPPED):
            run.mark_preempting()

        def end() -> None:
            run.finish(exit_code=code)
            wandb.teardown()  # its service: this process ends without exit handlers

        if not bounded(end):
            notice(f"wandb: did not finish within {CLOSE_S:.0f} s")
            wandb.run = None  # nobody may wait for it again

    def hint(self) -> str:
        """Return the command that uploads the run, or shows that it is there."""
        if os.environ.get("WANDB_MODE") != "offline":
            return f"run {os.environ['WANDB_RUN_ID']} of project {os.environ['WANDB_PROJECT']}"
        folder = shlex.quote(f"{os.environ['WANDB_DIR']}/wandb")
        return f"to upload this run, type where there is a network: wandb sync {folder}/offline-run-*"
