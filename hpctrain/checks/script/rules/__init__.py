"""The rules of `hpctrain lint`, by topic; importing them fills `rule.RULES`."""

from hpctrain.checks.script.rules import allocation, directives, launch, shell, slurm

__all__ = ["allocation", "directives", "launch", "shell", "slurm"]
