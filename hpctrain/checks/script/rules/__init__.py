"""The rules of `hpctrain lint`, by topic; importing them fills `rule.RULES`."""

from hpctrain.checks.script.rules import directives, launch, shell

__all__ = ["directives", "launch", "shell"]
