"""TRL's SFTTrainer with SurvivorMixin (hpctrain/training/survival/trainer.py). A separate module,
because importing it imports TRL.
"""

from __future__ import annotations

from trl import SFTTrainer

from hpctrain.training.survival.trainer import SurvivorMixin


class SurvivorSFTTrainer(SurvivorMixin, SFTTrainer):  # type: ignore[misc]  # TRL is not there on the login node
    """SFTTrainer that stops by agreement, saves complete checkpoints, and resumes from them."""

    private_apis = ("transformers.Trainer", "trl.SFTTrainer")
