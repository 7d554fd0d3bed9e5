"""`hpctrain lint`: what is wrong in any sbatch script, by line. PURE: text in, findings out; nothing is run, read or printed.

reader/        shell text → commands with their words, quotes and expansions
inner.py       texts that a script hands to another shell, read again in place
facts.py       what the rules ask: directives, nodes, tasks, where a command runs
rules/         the rules by topic; table.py says for each why it matters
"""

from __future__ import annotations

from hpctrain.jobs.lint.engine import Examined, examine, fix, lint
from hpctrain.jobs.lint.rule import Rule
from hpctrain.jobs.lint.table import RULES

#: The id of every finding that lint may return.
IDS: tuple[str, ...] = tuple(RULES)

__all__ = ["IDS", "RULES", "Examined", "Rule", "examine", "fix", "lint"]
