"""TRL's SFTTrainer that survives (hpctrain/training/survivor_trainer.py); a module of its own, because importing it imports TRL."""

from __future__ import annotations

from trl import SFTTrainer

from hpctrain.training.survivor_trainer import SurvivorMixin


class SurvivorSFTTrainer(SurvivorMixin, SFTTrainer):  # type: ignore[misc]  # TRL is not there on the login node
    """SFTTrainer that stops by agreement, saves whole checkpoints, and goes on from them as if nothing had happened."""
