"""The whole table of rules."""

from __future__ import annotations

from hpctrain.jobs.lint.rule import Rule
from hpctrain.jobs.lint.tables import directives, launchers, script

#: Every rule by its id: directives first, then the script.
RULES: dict[str, Rule] = {rule.id: rule for rule in (*directives.ROWS, *launchers.ROWS, *script.ROWS)}
