"""Slurm's refusal of a script: its message verbatim, what it means, and the finding.

Pure. Sources: src/common/slurm_errno.c for Slurm's messages; a site's own (job_submit.lua, sbatch
wrappers) can be anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from hpctrain.checks.job.context import Case
from hpctrain.errors import HpctrainError
from hpctrain.finding import LEVELS, Finding

_LIMITS = "sinfo -o '%P %l %D'"
_NODES = "sinfo -o '%P %D %c %m %f %G'"
_MINE = "sacctmgr -nP show associations user=$USER format=account,partition,qos"
#: Slurm's message → its meaning, the command that lists valid values, and the findings about the
#: same problem.
_MEANINGS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        r"Invalid account|account not permitted",
        (
            "the account is misspelled, not yours, lacks its suffix, or is not accepted by "
            "this partition or QOS (--account)"
        ),
        _MINE,
        ("account-",),
    ),
    (
        r"AssocMaxSubmitJobLimit|violates accounting/QOS policy",
        "no account is given, or you may have no more jobs in the queue",
        _MINE,
        ("account-", "gpus-limit", "nodes-limit", "qos-"),
    ),
    (
        r"Requested time limit is invalid|TimeLimit|MaxWallDuration",
        "the time is longer than the partition or the QOS allows, or is missing (--time)",
        _LIMITS,
        ("time-",),
    ),
    (
        r"invalid partition",
        "the partition's name comes from another cluster, or is misspelled (--partition)",
        _LIMITS,
        ("partition-",),
    ),
    (
        r"group not permitted",
        "the partition is for other groups (--partition)",
        _LIMITS,
        ("partition-",),
    ),
    (
        r"Invalid qos",
        "the QOS is missing, misspelled, or not one of your account's (--qos)",
        _MINE,
        ("qos-",),
    ),
    (
        r"Invalid feature",
        "the constraint names a feature that no node of the partition has (--constraint)",
        _NODES,
        ("constraint-",),
    ),
    (
        r"Memory specification",
        "more memory is requested than a node has (--mem)",
        _NODES,
        ("memory-", "node-share"),
    ),
    (
        r"CPU count|More processors",
        "more cores are requested than a node has (--cpus-per-task)",
        _NODES,
        ("cores-", "nodes-limit"),
    ),
    (
        r"Node count specification",
        "more, or fewer, nodes than the partition or the QOS allows (--nodes)",
        _LIMITS,
        ("nodes-limit",),
    ),
    (
        r"Requested node configuration is not available|BadConstraints",
        "no node has so many GPUs, cores or so much memory, or that constraint",
        _NODES,
        ("gpus-per-node", "gpu-type-", "cores-limit", "memory-limit", "nodes-limit", "constraint-"),
    ),
    (
        r"Invalid generic resource",
        "GPUs are called something else here, or have no such type (--gpu-type)",
        _NODES,
        ("gpu-",),
    ),
    (
        r"reservation",
        "the reservation does not exist, is over, or is not for you (--reservation)",
        "scontrol show reservations",
        (),
    ),
    (
        r"job array",
        "the array has more tasks than Slurm accepts (--array)",
        "scontrol show config",
        (),
    ),
)
#: sbatch's prefix of Slurm's message, which follows the message of a site's policy.
_OWN = re.compile(r"(?:allocation failure|Batch job submission failed): (?P<words>.*)")
#: Messages that Slurm adds to a policy's own.
_EMPTY = frozenset({"Unspecified error", "error", ""})


def words(details: Sequence[str]) -> tuple[str, ...]:
    """Return sbatch's message from the lines of an error, without an uninformative last line of
    Slurm.
    """
    said = [line.partition(" said: ")[2].strip() for line in details if " said: " in line]
    kept = [
        line
        for line in said
        if (own := _OWN.search(line)) is None or own["words"].strip() not in _EMPTY
    ]
    return tuple(line for line in kept or said if line) or ("nothing",)


def told(found: Sequence[Finding], case: Case, said: Sequence[str]) -> list[Finding]:
    """Return the findings with Slurm's refusal added, errors first; a problem that a finding already
    reports is merged with it.
    """
    message = f"sbatch --test-only: {' / '.join(said)}"
    reason, listing, ids = _meaning(said)
    same = [each for each in found if ids and each.id.startswith(ids)]
    first = min(same, key=lambda each: LEVELS.index(each.level), default=None)
    refused = case.finding(
        "slurm-refuses",
        "error",
        "Slurm refuses the job",
        evidence=message,
        reason=reason,
        fix=listing or f"follow this message, then: {case.command()}",
    )
    if first is not None:
        refused = replace(first, level="error", evidence=f"{first.evidence}; {message}")
    merged = [refused, *(each for each in found if each is not first)]
    return sorted(merged, key=lambda finding: LEVELS.index(finding.level))


def explained(error: HpctrainError, hint: str) -> HpctrainError:
    """Return the error for a refused submission, with what Slurm's message means."""
    reason, listing, _ = _meaning(words(error.details))
    return HpctrainError(
        error.what, details=(*error.details, f"  {reason}"), fix=listing, hint=hint
    )


def _meaning(said: Sequence[str]) -> tuple[str, str | None, tuple[str, ...]]:
    """Return the reason for the refusal, the command that lists valid values, and the id prefixes
    of findings on the same problem.
    """
    found = [_OWN.search(line) for line in said]
    own = [match["words"] for match in found if match is not None]
    rows = (row for row in _MEANINGS if own and re.search(row[0], own[-1], re.IGNORECASE))
    _, meaning, listing, ids = next(rows, ("", "", None, ()))
    if None in found:
        return "this is the site's own message", None, ids
    return f"likely {meaning}" if meaning else "Slurm gives no other reason", listing, ids


def estimate(said: str) -> str | None:
    """Return Slurm's message with the estimated start: `Job 12 to start at 2026-…`; None if there
    is none.
    """
    found = re.search(r"Job \S+ to start at [^\n]*", said)
    return found[0].strip() if found is not None else None
