"""Slurm's job states, grouped by meaning for a user.

Source: squeue(1) and sacct(1), JOB STATE CODES.
"""

from __future__ import annotations

#: The job will run, or run again, without any action.
WAITING = frozenset(
    {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
ACTIVE = frozenset(
    {
        "RUNNING",
        "CONFIGURING",
        "COMPLETING",
        "RESIZING",
        "SIGNALING",
        "STAGE_OUT",
        "STOPPED",
        "SUSPENDED",
        "POWER_UP_NODE",
    }
)
FAILED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "REVOKED",
        "TIMEOUT",
    }
)
COMPLETED = frozenset({"COMPLETED"})
#: hpctrain's own state: sbatch did not answer and the job has not been found since, so it may or
#: may not exist.
UNKNOWN = "UNKNOWN"


def normalise(text: str) -> str:
    """Return the state that squeue or sacct printed: `CANCELLED by 1000` is CANCELLED."""
    return text.split(maxsplit=1)[0] if text.split() else UNKNOWN


def is_final(state: str) -> bool:
    """Whether `state` never changes again (a requeue creates a new record)."""
    return state in FAILED or state in COMPLETED
