"""Facts of the job as a whole: its processes, its nodes, and whether it ever began. PURE."""

from __future__ import annotations

from hpctrain.explain.case import Case
from hpctrain.explain.facts_found import (
    CONFIG,
    SACCT,
    SAMPLES,
    Found,
    current,
    evidence,
    groups,
    newest,
    processes_asked,
    setting,
    span,
    where,
    whole,
)  # fmt: skip
from hpctrain.explain.model import Certainty
from hpctrain.scheduler.parse import states

#: A job that ended within these seconds never came to run the training.
_AT_ONCE_S = 5
#: Of a batch script whose srun was ended by SIGTERM: srun hands on the signal, bash adds 128.
_TERMINATED = (15, 143)
#: Seconds between two requeues that no time limit and no preemption explain.
_SOON_S = 900.0
#: ESLURMD_IO_ERROR, where a signal would stand.
_IO_ERROR = 53


def world_size_wrong(case: Case) -> Found | None:
    """The training has another number of processes than the job has GPUs: each trains for itself, or some are missing."""
    asked = processes_asked(case)
    last = newest(current(case))
    if asked is None or not last:
        return None
    sample = max(last.values(), key=lambda each: each.time_ms)
    if sample.world_size == asked:
        return None
    nodes, gpus = setting(case, "resources", "nodes"), setting(case, "resources", "gpus_per_node")
    product = (
        f"{nodes} node{'s' * (nodes != 1)} x {gpus} GPU{'s' * (gpus != 1)} = {asked} processes" if nodes and gpus else f"{asked} processes"
    )
    return Found(
        groups=groups(world_size=sample.world_size, expected=asked, product=product),
        evidence=(
            evidence(SAMPLES, f"{where(sample)}: one of {sample.world_size} process{'es' * (sample.world_size != 1)}"),
            evidence(CONFIG, f"the job was to have {product}"),
        ),
        at=sample.time_ms / 1000,
    )  # fmt: skip


def failed_node(case: Case) -> Found | None:
    """Slurm says that a node failed."""
    account = case.account
    if account is None or not (account.failed_node or account.state in ("NODE_FAIL", "BOOT_FAIL")):
        return None
    steps = [f"step {step.name}: {step.state}" for step in account.steps if step.state in ("NODE_FAIL", "CANCELLED", "FAILED")]
    which = f"failed node {account.failed_node}" if account.failed_node else f"of nodes {account.nodes or 'unknown'}"
    return Found(
        groups=groups(node=account.failed_node, nodes=account.nodes, state=account.state),
        evidence=tuple(evidence(SACCT, text) for text in (f"job {account.job_id}: {account.state}, {which}", *steps[:2])),
        node=account.failed_node, at=account.ended,
    )  # fmt: skip


def cancelled_by_root(case: Case) -> Found | None:
    """Slurm says that user 0 cancelled the job: an administrator, or a service of the cluster."""
    account = case.account
    if account is None or account.cancelled_by != 0 or account.state != "CANCELLED" or account.user == "root":
        return None
    return Found(evidence=(evidence(SACCT, f"job {account.job_id}: CANCELLED by 0"),), at=account.ended)


def cancelled_by(case: Case) -> Found | None:
    """Slurm says which user cancelled the job: its owner, or another one, as an operator or the coordinator of its account may."""
    account = case.account
    if account is None or account.cancelled_by is None or account.state != "CANCELLED" or cancelled_by_root(case) is not None:
        return None
    by, owner, name = account.cancelled_by, whole(case.extra.get("owner_uid")), case.extra.get("canceller")
    who = f"user {by}" + (f" ({name})" if name else "")
    if owner is not None:
        who = f"{account.user or 'its owner'}, the user of the job" if by == owner else f"{who}, and not {account.user or 'its owner'}"
    said = evidence(SACCT, f"job {account.job_id}: CANCELLED by {by}")
    return Found(groups=groups(who=who), evidence=(said,), at=account.ended)


def step_cancelled(case: Case) -> Found | None:
    """A SIGTERM ended the step, and the job with it, and not the job as such: a preemption with a time of grace, or scancel of the step."""
    account = case.account
    if account is None or account.state != "FAILED" or account.exit_code not in _TERMINATED:
        return None
    step = next((step for step in account.steps if step.state == "CANCELLED" and step.signal in (None, 15)), None)
    if step is None:
        return None
    said = f"step {account.job_id}.{step.name}: CANCELLED, and the job FAILED with exit code {account.exit_code}"
    return Found(evidence=(evidence(SACCT, said),), at=account.ended)


def never_started(case: Case) -> Found | None:
    """The job ended without a word: no log has a line, no start is recorded, and Slurm gave it no, or hardly any, time."""
    account = case.account
    if account is None or account.state not in states.FAILED or case.attempts or case.samples or any(file.size for file in case.files):
        return None
    if account.started is not None and (account.elapsed_s is None or account.elapsed_s > _AT_ONCE_S):
        return None
    code = f"{account.exit_code or 0}:{account.signal or 0}" if account.exit_code is not None or account.signal is not None else None
    words = [f"job {account.job_id}: {account.state}"]
    words += [f"exit code {code}"] if code else []
    words += [f"reason {account.reason}"] if account.reason and account.reason != "None" else []
    words.append("never started" if account.started is None else f"ran for {account.elapsed_s} s")
    return Found(
        groups=groups(state=account.state, exit_code=code, reason=account.reason, elapsed=account.elapsed_s),
        evidence=(evidence(SACCT, ", ".join(words)),), node=None, at=account.ended,
    )  # fmt: skip


def requeued_at_once(case: Case) -> Found | None:
    """By the lines of a log alone: it was requeued again and again within minutes, and no step came since the first time."""
    seen = case.requeues
    if seen is None or seen.steps or seen.span_s is None or seen.span_s > _SOON_S * (seen.times - 1):
        return None
    return Found(groups=groups(requeues=seen.times, span=span(seen.span_s), job=seen.job), evidence=seen.evidence, at=seen.at)


def no_log_directory(case: Case) -> Found | None:
    """The job ended at once without a word, and the directory that it was to write to is not there.

    Slurm 20.11 says of it what it says of any script that fails, 1:0, and 22.05 says 0:53 (tried with both).
    """
    directory, ended = case.extra.get("no_log_directory"), never_started(case)
    if not isinstance(directory, str) or ended is None or case.account is None:
        return None
    said = f"job {case.account.job_id} was to write to {directory}, which is not there"
    likely: Certainty | None = None if case.account.signal == _IO_ERROR else "likely"  # nodes may see other directories than we do
    return Found(groups=groups(directory=directory), evidence=(*ended.evidence, evidence(SACCT, said)), at=ended.at, certainty=likely)
