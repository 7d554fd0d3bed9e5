"""Rules that find problems of a job before it queues.

Pure: the job, the site and the environment are values, gathered by `hpctrain.checks.gather` and
`clusters.discover`. A rule reports only what is known, as an error only on attested facts, and with
a fix.
"""

from __future__ import annotations

from hpctrain.checks.job import environment, files, hardware, limits, site, training
from hpctrain.checks.job.context import RULES, Case
from hpctrain.finding import LEVELS, Finding

_TOPICS = [each.__name__ for each in (site, limits, hardware, files, environment, training)]
RULES.sort(key=lambda each: _TOPICS.index(each[2].__module__))  # not the order of the imports
#: All finding ids of `check`, by topic; each has a section in docs/findings.md.
IDS = tuple(dict.fromkeys((*(id_ for ids, _, _ in RULES for id_ in ids), "slurm-refuses")))


def check(case: Case) -> list[Finding]:
    """Return the findings on a job, errors first."""
    asked = (find for _, on, find in RULES if on == "job" or not case.local)
    found = [finding for find in asked for finding in find(case)]
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))
