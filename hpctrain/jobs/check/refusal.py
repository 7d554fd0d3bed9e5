"""Slurm's refusal of the script as a finding: its words verbatim, and the likely cause where the words are known.

Pure. Sources: src/common/slurm_errno.c, and the sites' own words.
"""

from __future__ import annotations

import re

from hpctrain.jobs.check.case import Case
from hpctrain.jobs.finding import Finding

#: Words of Slurm, or of a site → what they mean most likely.
_MEANINGS: tuple[tuple[str, str], ...] = (
    (
        r"IDRIS: Account \S+ -+ Job type (\w+)",
        "the account's suffix and the constraint name different nodes: -C must be what stands behind the @",
    ),
    (
        r"Invalid account or account/partition",
        "the account is misspelt, not yours, lacks its suffix, or is not taken by this partition or QOS",
    ),
    (r"AssocMaxSubmitJobLimit|violates accounting/QOS policy", "no account is given, or you may have no more jobs in the queue"),
    (
        r"Requested time limit is invalid|TimeLimit|MaxWallDuration",
        "the time is longer than the partition or the QOS allows, or is missing",
    ),
    (r"Invalid partition name|invalid partition", "the partition's name comes from another cluster, or is misspelt"),
    (r"group not permitted", "the partition is for other groups"),
    (r"Invalid qos", "the QOS is missing, misspelt, or not one of your account's"),
    (r"Invalid feature", "the constraint names a feature that no node of the partition has"),
    (r"Memory specification can not be satisfied", "more memory is asked for than a node has"),
    (r"CPU count per node can not be satisfied|More processors requested", "more cores are asked for than a node has for jobs"),
    (r"Node count specification invalid", "more, or fewer, nodes than the partition or the QOS allows"),
    (
        r"Requested node configuration is not available|BadConstraints",
        "no node has so many GPUs, cores or so much memory, or that constraint",
    ),
    (r"Invalid generic resource|gres", "GPUs are called something else here, or have no such type"),
    (r"mutually exclusive", "the script asks for one thing twice, in two dialects"),
    (r"Requested reservation is invalid|reservation", "the reservation does not exist, is over, or is not for you"),
    (r"account not permitted", "this partition does not take the account"),
)


def refused(case: Case, words: tuple[str, ...], fix: str | None) -> Finding:
    """Return the finding on a refusal.

    Args:
        case: the job.
        words: what was run and what Slurm said, as `HpctrainError.details` has it.
        fix: what to type, as the scheduler's own error says it.
    """
    said = [line.partition(" said: ")[2].strip() for line in words if " said: " in line]
    text = "\n".join(said)
    last = next((line for line in reversed(said) if line), "nothing")
    meaning = next((meaning for pattern, meaning in _MEANINGS if re.search(pattern, text, re.IGNORECASE)), None)
    return case.finding(
        "slurm-refuses", "error", "Slurm refuses the job", evidence=f"sbatch --test-only said: {'; '.join(said) or last}",
        reason=f"likely {meaning}" if meaning else "Slurm does not say more; the site's documentation may know these words",
        fix=fix or case.command(),
    )  # fmt: skip


def estimate(words: str) -> str | None:
    """Return Slurm's estimate of the start in its own words: `Job 12 to start at 2026-…`; None where it said none."""
    found = re.search(r"Job \S+ to start at [^\n]*", words)
    return found[0].strip() if found is not None else None
