"""On PYTHONPATH: each optimizer step takes CHAOS_STEP_SECONDS longer, asleep, so that a fault meets
a training of a second or a minute.

The training itself is unchanged: torch's own hook sleeps after the step, and nothing is computed in
it.
"""

import importlib.abc
import os
import sys
import time


class _WhenTrlComes(importlib.abc.MetaPathFinder):
    """TRL is imported after torch, and before the first step."""

    def find_spec(self, fullname, path, target=None):
        """Register the hook once; find nothing."""
        if fullname == "trl":
            sys.meta_path.remove(self)
            from torch.optim.optimizer import register_optimizer_step_post_hook

            register_optimizer_step_post_hook(
                lambda *_: time.sleep(float(os.environ["CHAOS_STEP_SECONDS"]))
            )


if "CHAOS_STEP_SECONDS" in os.environ:
    sys.meta_path.insert(0, _WhenTrlComes())
