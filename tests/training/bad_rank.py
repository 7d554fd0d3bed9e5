"""A training whose gradients become NaN at step 3: on one rank, in one micro batch; started by
test_bad_batch.py.
"""

import os
import sys

from hpctrain.training import entry_point, sft
from hpctrain.training.survival import sft_trainer

STEP, BATCH = 3, 1


class Poisoned(sft_trainer.SurvivorSFTTrainer):
    """Multiplies the loss of one micro batch with NaN."""

    micro = 0

    def compute_loss(self, *args, **named):  # type: ignore[no-untyped-def]
        loss = super().compute_loss(*args, **named)
        if not self.model.training:
            return loss
        number = self.micro % self.args.gradient_accumulation_steps
        self.micro += 1
        last = os.environ.get("RANK", "0") == os.environ.get("BAD_RANK", "0")
        return (
            loss * float("nan")
            if last and (self.state.global_step + 1, number) == (STEP, BATCH)
            else loss
        )


sft_trainer.SurvivorSFTTrainer = Poisoned  # type: ignore[misc]
entry_point.main(sft.TASK, sys.argv[1:])
