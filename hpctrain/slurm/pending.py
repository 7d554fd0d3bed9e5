"""Why a job is pending.

The table of reasons, with the grammar of those that name a limit, covers all of
`job_state_reason_string` that a pending job can have (src/common/job_state_reason.c and, before
23.11, slurm_protocol_defs.c; Slurm 20.11 to 26.05). Their meanings are from squeue(1),
resource_limits.html and job_reason_codes.html of SchedMD. Other reasons are shown verbatim.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

#: queue: starts automatically, a smaller request perhaps sooner; later: starts automatically, at a
#: time or after an event; limit: usage must fall, or the limit change; person: needs an action;
#: never: cannot start unchanged.
Kind = Literal["queue", "later", "limit", "person", "never"]


@dataclass(frozen=True, slots=True)
class Reason:
    """The meaning of one of Slurm's reasons.

    Attributes:
        words: the text after `waiting: `.
        kind: what can end the wait.
        fix: the suggested command, with `{job}` for the id; None if there is nothing to do but
            wait.
    """

    words: str
    kind: Kind
    fix: str | None = None


_OPEN = "scontrol show job {job}"
_CANCEL = "hpctrain cancel {job}"
_OTHER_NODES = f"{_CANCEL}, and submit for nodes that exist: sinfo -N -l"

REASONS: dict[str, Reason] = {
    # the queue
    "None": Reason("not looked at yet by the scheduler", "queue"),
    "Priority": Reason("jobs with a higher priority are ahead", "queue"),
    "Resources": Reason("next in the queue, waiting for nodes in use", "queue"),
    "Prolog": Reason("its nodes are being prepared", "later"),
    "Cleaning": Reason("its previous attempt is being cleaned up", "later"),
    "SchedDefer": Reason("the scheduler puts off jobs that want to start at once", "queue"),
    "Licenses": Reason("the licenses it requests are in use", "queue"),
    "JobArrayTaskLimit": Reason(
        "as many tasks of its array run as its %limit allows",
        "later",
        "scontrol update JobId={job} ArrayTaskThrottle=N",
    ),
    "FedJobLock": Reason("the clusters of the federation agree on where it starts", "later"),
    "FrontEndDown": Reason("no front end node is up", "person"),
    # caused by the user
    "Dependency": Reason("a job it depends on has not ended yet", "later"),
    "DependencyNeverSatisfied": Reason(
        "a job it depends on did not end as it should: it will never start", "never", _CANCEL
    ),
    "BeginTime": Reason(
        "its begin time has not come (a requeued job waits some minutes too)", "later"
    ),
    "JobHeldUser": Reason("held by you", "person", "scontrol release {job}"),
    "JobHeldAdmin": Reason(
        "held by an administrator, or by Slurm after a failed start",
        "person",
        f"{_OPEN}, then ask your site's support",
    ),
    "JobHoldMaxRequeue": Reason(
        "held: it was requeued too often",
        "person",
        "scontrol release {job}, once you know why it failed",
    ),
    "RequeueExit": Reason("requeued because of its exit code", "later"),
    "RequeueExitHold": Reason(
        "requeued and held because of its exit code", "person", "scontrol release {job}"
    ),
    "launch failed requeued held": Reason(
        "held: its nodes could not start it", "person", "scontrol release {job}"
    ),
    "job requeued in held state": Reason("requeued and held", "person", "scontrol release {job}"),
    "user env retrieval failed requeued held": Reason(
        "held: your login environment could not be read on the node",
        "person",
        "scontrol release {job}",
    ),
    "Reservation": Reason(
        "its reservation has not begun, or has no room", "later", "scontrol show reservation"
    ),
    "ReservationDeleted": Reason(
        "its reservation was deleted", "never", "scontrol update JobId={job} ReservationName="
    ),
    "ReservationInvalid": Reason(
        "its reservation cannot be used any more",
        "never",
        "scontrol update JobId={job} ReservationName=",
    ),
    "ReqNodeNotAvail": Reason(
        "nodes it needs are down, drained or reserved, often for a maintenance it would run into",
        "queue",
        "scontrol show reservation; a shorter --time may end before it",
    ),
    "DeadLine": Reason("it cannot end before its --deadline", "never", _CANCEL),
    # partitions
    "PartitionDown": Reason(
        "its partition is down: jobs may be submitted and do not start", "person", "sinfo -s"
    ),
    "PartitionInactive": Reason("its partition is inactive", "person", "sinfo -s"),
    "PartitionNodeLimit": Reason(
        "it requests more or fewer nodes than its partition allows",
        "never",
        "scontrol show partition, then submit with other --nodes or --partition",
    ),
    "PartitionTimeLimit": Reason(
        "its time limit is longer than its partition allows",
        "never",
        "scontrol show partition, then: scontrol update JobId={job} TimeLimit=LIMIT",
    ),
    "PartitionConfig": Reason(
        "its partition does not allow what it requests", "never", "scontrol show partition"
    ),
    "AccountNotAllowed": Reason(
        "its account may not use its partition",
        "never",
        "submit with another --account or --partition",
    ),
    "QOSNotAllowed": Reason(
        "its QOS may not be used in its partition, or by its account",
        "never",
        "submit with another --qos",
    ),
    "InvalidAccount": Reason(
        "its account is not valid any more", "never", "submit with another --account"
    ),
    "InvalidQOS": Reason("its QOS is not valid any more", "never", "submit with another --qos"),
    "NodeDown": Reason("a node it needs is down", "queue", "sinfo -R"),
    "BadConstraints": Reason("no node can satisfy the request", "never", _OTHER_NODES),
    "Constraints": Reason("no node can satisfy the request", "never", _OTHER_NODES),
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": (
        Reason(
            "nodes it needs are down, drained, or kept for partitions of higher priority",
            "queue",
            "sinfo -R",
        )
    ),
    "MaxMemPerLimit": Reason(
        "it requests more memory per node or CPU than is allowed",
        "never",
        "submit with a smaller --mem",
    ),
    # burst buffers, power, and failures of Slurm
    "BurstBufferResources": Reason("no room in the burst buffer yet", "queue"),
    "BurstBufferStageIn": Reason("its files are being copied into the burst buffer", "later"),
    "BurstBufferOperation": Reason("its burst buffer could not be set up", "person", _OPEN),
    "PowerNotAvail": Reason("there is not enough power for its nodes now", "queue"),
    "PowerReserved": Reason("the power for its nodes is reserved", "queue"),
    "SystemFailure": Reason("Slurm failed to start it", "person", _OPEN),
    "JobLaunchFailure": Reason("its nodes could not start it", "person", _OPEN),
    # limits without a resource in their name
    "AccountingPolicy": Reason("a limit of your account or QOS", "limit"),
    "AssociationJobLimit": Reason("as many jobs of your account run as it may have", "limit"),
    "AssociationResourceLimit": Reason("your account uses as much as it may", "limit"),
    "AssociationTimeLimit": Reason("your account has used the time it may", "limit"),
    "QOSJobLimit": Reason("as many jobs of its QOS run as may", "limit"),
    "QOSResourceLimit": Reason("its QOS uses as much as it may", "limit"),
    "QOSTimeLimit": Reason("the time of its QOS is used up", "limit"),
    "QOSUsageThreshold": Reason(
        "your account's fair share is below what its QOS requires", "limit"
    ),
}

_LIMIT = re.compile(
    r"(?P<whose>Assoc|QOS|)(?P<kind>Grp|Max|Min)(?P<resource>SubmitJobs?|WallDuration|CPU|Cpu|GRES|Memory|Mem|Node|Energy|License|BB|"
    r"Billing|Unknown|Jobs?|Wall)(?P<time>RunMinutes|Minutes)?(?P<per>Per(?:Job|Node|User|Account))?(?:Limit|NotSatisfied)?\Z"
)


def explain(reason: str | None) -> Reason:
    """Return the meaning of a reason that squeue, sacct or scontrol printed; unknown reasons are
    returned verbatim.
    """
    text = (reason or "None").strip().removeprefix("(").removesuffix(")").strip() or "None"
    for name in (text, text.replace("_", " ")):
        if name in REASONS:
            return REASONS[name]
    word = re.split(r"[,:(\s]", text, maxsplit=1)[0]  # ReqNodeNotAvail, UnavailableNodes:node[1-2]
    if word in REASONS and word != text:
        more = text[len(word) :].lstrip(",:( ")
        return Reason(
            f"{REASONS[word].words} ({_detail(more)})" if more else REASONS[word].words,
            REASONS[word].kind,
            REASONS[word].fix,
        )
    return _limit(word) or Reason(text, "queue")


def _detail(text: str) -> str:
    said = re.sub(r"\s+", " ", text.replace("UnavailableNodes:", "unavailable: ")).strip()
    return said if len(said) <= 60 else f"{said[:59]}…"


def _limit(name: str) -> Reason | None:
    """Return the meaning of a reason that names a limit: AssocGrpGRES, QOSMaxJobsPerUserLimit,
    MaxCpuPerAccount, QOSMinGRES.
    """
    match = _LIMIT.match(name)
    if match is None:
        return None
    of = "your account" if match["whose"] == "Assoc" else "its QOS"
    is_of_one_job = match["per"] in ("PerJob", "PerNode") or match["resource"] == "WallDuration"
    if match["kind"] == "Min":
        return Reason(
            f"it requests less than {of} wants: {name}",
            "never",
            "submit for more, or with another --qos",
        )
    if is_of_one_job and match["kind"] == "Max":
        return Reason(
            f"it requests more than {of} allows: {name}",
            "never",
            "submit for less, or with another --qos",
        )
    return Reason(f"{of} has no room now: {name}", "limit")
