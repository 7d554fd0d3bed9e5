"""`hpctrain lint`: problems of any sbatch script, by line.

Pure: text in, findings out; nothing is run, read or printed.

reader.py      shell text → commands with their words, quotes and expansions (model.py)
calls.py       srun and the launchers; texts that a script passes to another shell
facts.py       facts for the rules: directives, nodes, tasks, where a command runs
rule.py        the type of rules, and predicates that they share
rules/         the rules by topic: one function each, with the reason
explain.py     the purpose of directives, options and hpctrain's own lines
"""

from __future__ import annotations

from hpctrain.checks.script.engine import Repair, fix, lint
from hpctrain.checks.script.rule import RULES, LintRule

#: All finding ids of lint.
IDS: tuple[str, ...] = tuple(RULES)

__all__ = ["IDS", "RULES", "LintRule", "Repair", "fix", "lint"]
