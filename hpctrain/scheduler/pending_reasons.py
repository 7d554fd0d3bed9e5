"""Why a job waits, in plain words: a table of Slurm's reasons, and the grammar of those that name a limit. Data and pure functions.

The reasons are all of `job_state_reason_string` (src/common/job_state_reason.c and, before 23.11, slurm_protocol_defs.c; Slurm 20.11 to
26.05) that a waiting job can have; what they mean is from squeue(1), resource_limits.html and job_reason_codes.html of SchedMD. What is not
here is shown as Slurm says it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

#: queue: it starts by itself, sooner or later, and less of what it asks for may start sooner; later: by itself, at a time or after
#: something; limit: a limit has to have room, or be another; person: somebody has to do something; never: as it stands it cannot start.
Kind = Literal["queue", "later", "limit", "person", "never"]


@dataclass(frozen=True, slots=True)
class Reason:
    """What one of Slurm's reasons means.

    Attributes:
        words: what stands behind `waiting: `.
        kind: who or what can change it.
        fix: what to type, `{job}` in it stands for the id; None where waiting is all.
    """

    words: str
    kind: Kind
    fix: str | None = None


_OPEN = "scontrol show job {job}"
_SUPPORT = f"{_OPEN}, then ask your site's support"
_CANCEL = "hpctrain cancel {job}"
_OTHER_NODES = f"{_CANCEL}, and submit for nodes that exist: sinfo -N -l"
_THROTTLE = "scontrol update JobId={job} ArrayTaskThrottle=N"

REASONS: dict[str, Reason] = {
    # the queue
    "None": Reason("not looked at yet by the scheduler", "queue"),
    "Priority": Reason("jobs with a higher priority are ahead", "queue"),
    "Resources": Reason("first in line, for nodes that are in use", "queue"),
    "Prolog": Reason("its nodes are being prepared", "later"),
    "Cleaning": Reason("what is left of its last start is being cleaned up", "later"),
    "SchedDefer": Reason("the scheduler puts off jobs that want to start at once", "queue"),
    "Licenses": Reason("licenses it asks for are in use", "queue"),
    "JobArrayTaskLimit": Reason("as many tasks of its array run as its %limit allows", "later", _THROTTLE),
    "FedJobLock": Reason("the clusters of the federation agree on where it starts", "later"),
    "FrontEndDown": Reason("no front end node is up", "person"),
    # of the user's own making
    "Dependency": Reason("a job it depends on has not ended yet", "later"),
    "DependencyNeverSatisfied": Reason("a job it depends on did not end as it should: it will never start", "never", _CANCEL),
    "BeginTime": Reason("its begin time has not come (a requeued job waits some minutes too)", "later"),
    "JobHeldUser": Reason("held by you", "person", "scontrol release {job}"),
    "JobHeldAdmin": Reason("held by an administrator, or by Slurm after a failed start", "person", _SUPPORT),
    "JobHoldMaxRequeue": Reason("held: it was requeued too often", "person", "scontrol release {job}, once you know why it failed"),
    "RequeueExit": Reason("requeued because of its exit code", "later"),
    "RequeueExitHold": Reason("requeued and held because of its exit code", "person", "scontrol release {job}"),
    "launch failed requeued held": Reason("held: its nodes could not start it", "person", "scontrol release {job}"),
    "job requeued in held state": Reason("requeued and held", "person", "scontrol release {job}"),
    "user env retrieval failed requeued held": Reason("held: your login environment could not be read on the node", "person",
                                                      "scontrol release {job}"),
    "Reservation": Reason("its reservation has not begun, or has no room", "later", "scontrol show reservation"),
    "ReservationDeleted": Reason("its reservation was deleted", "never", "scontrol update JobId={job} ReservationName="),
    "ReservationInvalid": Reason("its reservation cannot be used any more", "never", "scontrol update JobId={job} ReservationName="),
    "ReqNodeNotAvail": Reason("nodes it needs are down, drained or reserved, often for a maintenance it would run into", "queue",
                              "scontrol show reservation; a shorter --time may end before it"),
    "DeadLine": Reason("it cannot end before its --deadline", "never", _CANCEL),
    # partitions
    "PartitionDown": Reason("its partition is down: jobs may be submitted and do not start", "person", "sinfo -s"),
    "PartitionInactive": Reason("its partition is inactive", "person", "sinfo -s"),
    "PartitionNodeLimit": Reason("it asks for more or fewer nodes than its partition allows", "never",
                                 "scontrol show partition, then submit with other --nodes or --partition"),
    "PartitionTimeLimit": Reason("its time limit is longer than its partition allows", "never",
                                 "scontrol show partition, then: scontrol update JobId={job} TimeLimit=LIMIT"),
    "PartitionConfig": Reason("its partition does not allow what it asks for", "never", "scontrol show partition"),
    "AccountNotAllowed": Reason("its account may not use its partition", "never", "submit with another --account or --partition"),
    "QOSNotAllowed": Reason("its QOS may not be used in its partition, or by its account", "never", "submit with another --qos"),
    "InvalidAccount": Reason("its account is not valid any more", "never", "submit with another --account"),
    "InvalidQOS": Reason("its QOS is not valid any more", "never", "submit with another --qos"),
    "NodeDown": Reason("a node it needs is down", "queue", "sinfo -R"),
    "BadConstraints": Reason("no node can ever give what it asks for", "never", _OTHER_NODES),
    "Constraints": Reason("no node can ever give what it asks for", "never", _OTHER_NODES),
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": Reason(
        "nodes it needs are down, drained, or kept for partitions of higher priority", "queue", "sinfo -R"),
    "MaxMemPerLimit": Reason("it asks for more memory of a node or CPU than is allowed", "never", "submit with a smaller --mem"),
    # burst buffers, power, and what Slurm did not manage
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
    "QOSUsageThreshold": Reason("your account's fair share is below what its QOS asks for", "limit"),
}  # fmt: skip

#: What a limit counts, as it stands in the reason's name; lower case.
_RESOURCES = {
    "cpu": "CPUs", "gres": "GPUs (or other GRES)", "mem": "memory", "memory": "memory", "node": "nodes", "energy": "energy",
    "license": "licenses", "bb": "burst buffer", "billing": "billing units", "unknown": "a resource Slurm does not name",
    "jobs": "running jobs", "job": "running jobs", "submitjobs": "submitted jobs", "submitjob": "submitted jobs", "wall": "wall-clock time",
    "wallduration": "wall-clock time",
}  # fmt: skip
_LIMIT = re.compile(
    r"(?P<whose>Assoc|QOS|)(?P<kind>Grp|Max|Min)(?P<resource>SubmitJobs?|WallDuration|CPU|Cpu|GRES|Memory|Mem|Node|Energy|License|BB|"
    r"Billing|Unknown|Jobs?|Wall)(?P<time>RunMinutes|Minutes)?(?P<per>Per(?:Job|Node|User|Account))?(?:Limit|NotSatisfied)?\Z"
)
_PER = {"PerJob": "one job", "PerNode": "one node", "PerUser": "one user", "PerAccount": "one account"}


def explain(reason: str | None) -> Reason:
    """Return what a reason means, as squeue, sacct or scontrol print it; an unknown one in Slurm's own word."""
    text = (reason or "None").strip().removeprefix("(").removesuffix(")").strip() or "None"
    for name in (text, text.replace("_", " ")):
        if name in REASONS:
            return REASONS[name]
    word = re.split(r"[,:(\s]", text, maxsplit=1)[0]  # ReqNodeNotAvail, UnavailableNodes:node[1-2]
    if word in REASONS and word != text:
        more = text[len(word) :].lstrip(",:( ")
        return Reason(f"{REASONS[word].words} ({_detail(more)})" if more else REASONS[word].words, REASONS[word].kind, REASONS[word].fix)
    return _limit(word) or Reason(text, "queue")


def _detail(text: str) -> str:
    """Return Slurm's own detail of a reason, at most a line of it."""
    said = re.sub(r"\s+", " ", text.replace("UnavailableNodes:", "unavailable: ")).strip()
    return said if len(said) <= 60 else f"{said[:59]}…"


def _limit(name: str) -> Reason | None:
    """Return what a reason that names a limit means: AssocGrpGRES, QOSMaxJobsPerUserLimit, MaxCpuPerAccount, QOSMinGRES and so on."""
    match = _LIMIT.match(name)
    if match is None:
        return None
    whose, kind, resource, spent, per = match.group("whose", "kind", "resource", "time", "per")
    of = "your account" if whose == "Assoc" else "its QOS"
    what = _RESOURCES[resource.lower()]
    if spent:
        # Minutes: of all jobs so far; RunMinutes: of what runs now, until its time limits (resource_limits.html).
        what = f"{what} times minutes" + (" that running jobs may still use" if spent == "RunMinutes" else "")
    if kind == "Min":
        return Reason(f"it asks for less than {of} wants: limit on {what}", "never", "submit for more, or with another --qos")
    if kind == "Grp":
        return Reason(f"{of} has no room now: limit on {what} of all its jobs together", "limit")
    which = _PER.get(
        per or "", "one job" if resource in ("WallDuration",) else "one user" if resource.lower().startswith(("job", "sub")) else ""
    )
    scope = f" of {which}" if which else ""
    if which in ("one job", "one node"):
        return Reason(f"it asks for more than {of} allows: limit on {what}{scope}", "never", "submit for less, or with another --qos")
    return Reason(f"{of} has no room now: limit on {what}{scope}", "limit")
