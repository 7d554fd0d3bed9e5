"""Facts that no single line shows: proved by samples, metrics, the record and the config together.
PURE.

A rule names one of them (`fact:`). Each returns None if it does not hold or too little is known.
Groups that a rule's sentences may use, if they are known:

| fact | groups |
|---|---|
| gpu_shared | ranks (`0, 1`), count, gpu, node, rank |
| cgroup_full | used, limit, node, what (`the job's cgroup`, `the node`) |
| hang | step, quiet (`41 min`), since, usual, rank, node (of the one that stopped first) |
| slow | step, max_steps, step_s, left (`1.3 h`), limit (`04:00:00`) |
| requeue_loop | count, step, reason |
| world_size_wrong | world_size, expected, product (`2 nodes x 4 GPUs = 8 processes`) |
| failed_node | node, nodes, state |
| cancelled_by_root | |
| cancelled_by | who (`user 1007 (anna)`) |
| step_cancelled | |
| no_log_directory | directory |

A training hangs if neither a step nor a line came for much longer than a step, an evaluation and a
save take. It is slow if steps came until the end. If neither can be decided, both return None.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from hpctrain.explain.model import AttemptFact, Evidence, JobContext
from hpctrain.explain.values import (
    CONFIG,
    LOGS,
    METRICS,
    MIB,
    SACCT,
    SAMPLES,
    Proof,
    began,
    by_rank,
    clock,
    current,
    ended,
    evidence,
    groups,
    is_over,
    last_attempt,
    newest,
    processes_asked,
    setting,
    some,
    where,
    whole,
)
from hpctrain.memory.sample import NEAR, Sample
from hpctrain.slurm.notations import states, units
from hpctrain.util.text import count, duration, size

# -- samples ---------------------------------------------------------------------------------------


def gpu_shared(case: JobContext) -> Proof | None:
    """Two ranks of a node share one GPU.

    Compared by UUID: each MIG instance has its own, while instances of one GPU share its index.
    """
    held: dict[tuple[str, str], list[Sample]] = {}
    for sample in newest(current(case)).values():
        # AMD: torch reports no UUID there, and there is no MIG either
        index = f"index {sample.gpu_index}" if sample.gpu_index is not None else None
        if name := sample.gpu_uuid or index:
            held.setdefault((sample.host, name), []).append(sample)
    (host, name), ranks = max(held.items(), key=lambda each: len(each[1]), default=(("", ""), []))
    if len(ranks) < 2:
        return None
    first = min(ranks, key=lambda sample: sample.rank)
    numbers = some(sorted(sample.rank for sample in ranks))
    used = [
        f"{where(sample)}: {size(sample.gpu_used_mib * MIB)} used of GPU {sample.gpu_index}"
        for sample in ranks[:3]
        if sample.gpu_used_mib is not None
    ]
    words = f"ranks {numbers} of {host} are on the same GPU, {name}"
    return Proof(
        groups=groups(
            ranks=numbers,
            gpu=name if first.gpu_index is None else first.gpu_index,
            node=host,
            rank=first.rank,
            count=len(ranks),
        ),
        evidence=tuple(evidence(SAMPLES, text) for text in (words, *used)),
        rank=first.rank,
        node=host,
        at=first.time_ms / 1000,
    )


def cgroup_full(case: JobContext) -> Proof | None:
    """The memory limit of the job, or of the node if there is none, was nearly reached in the worst
    sample.
    """
    found = []
    for sample in current(case):
        used, total, what = host_use(sample)
        if used is not None and total and used / total > NEAR:
            found.append((used / total, used * MIB, total * MIB, what, sample))
    if not found:
        return None
    part, used, total, what, sample = max(found, key=lambda each: each[0])
    words = f"{where(sample)}: {what} uses {size(used)} of {size(total)} ({part:.1%})"
    return Proof(
        groups=groups(used=size(used), limit=size(total), node=sample.host, what=what),
        evidence=(evidence(SAMPLES, words),),
        node=sample.host,
        at=min(each[-1].time_ms for each in found) / 1000,
    )


def host_use(sample: Sample) -> tuple[int | None, int | None, str]:
    """Return used and available MiB of the limit reached first: the cgroup's if it has one, else
    the node's.
    """
    if sample.cgroup_limit_mib:
        return sample.cgroup_used_mib, sample.cgroup_limit_mib, "the job's cgroup"
    return sample.node_used_mib, sample.node_total_mib, "the node"


def world_size_wrong(case: JobContext) -> Proof | None:
    """The training's world size differs from the job's GPUs: processes train alone, or some are
    missing.
    """
    asked = processes_asked(case)
    sample = max(newest(current(case)).values(), key=lambda each: each.time_ms, default=None)
    if asked is None or sample is None or sample.world_size == asked:
        return None
    nodes, gpus = (whole(setting(case, "resources", key)) for key in ("nodes", "gpus_per_node"))
    product = f"{count(nodes, 'node')} x {count(gpus, 'GPU')} = " if nodes and gpus else ""
    product += f"{asked} processes"
    seen = f"{where(sample)}: one of {count(sample.world_size, 'process', 'processes')}"
    return Proof(
        groups=groups(world_size=sample.world_size, expected=asked, product=product),
        evidence=(evidence(SAMPLES, seen), evidence(CONFIG, f"the job was to have {product}")),
        at=sample.time_ms / 1000,
    )


# -- the record ------------------------------------------------------------------------------------

#: A job that ended within these seconds did not get as far as the training.
_NOT_STARTED_S = 5
#: ESLURMD_IO_ERROR, in the field of the signal.
_IO_ERROR = 53


def failed_node(case: JobContext) -> Proof | None:
    """Slurm reports that a node failed."""
    account = case.account
    if account is None or not (account.failed_node or account.state in ("NODE_FAIL", "BOOT_FAIL")):
        return None
    failed = f"failed node {account.failed_node}"
    which = failed if account.failed_node else f"of nodes {account.nodes or 'unknown'}"
    return Proof(
        groups=groups(node=account.failed_node, nodes=account.nodes, state=account.state),
        evidence=(evidence(SACCT, f"job {account.job_id}: {account.state}, {which}"),),
        node=account.failed_node,
        at=account.ended,
    )


def _cancelled(case: JobContext, *, by_root: bool) -> Proof | None:
    """Slurm reports who cancelled the job: user 0, an administrator or a service of the cluster; or
    its owner, an operator, or the coordinator of its account.
    """
    account = case.account
    if account is None or account.cancelled_by is None or account.state != "CANCELLED":
        return None
    if by_root is not (account.cancelled_by == 0 and account.user != "root"):
        return None
    name = case.extra.get("canceller")
    who = f"user {account.cancelled_by}" + (f" ({name})" if name else "")
    said = f"job {account.job_id}: CANCELLED by {account.cancelled_by}"
    return Proof(
        groups={} if by_root else groups(who=who),
        evidence=(evidence(SACCT, said),),
        at=account.ended,
    )


#: Exit codes of a batch script whose srun got SIGTERM; bash adds 128, which Slurm 22.05 drops.
_TERMINATED = (15, 143)


def step_cancelled(case: JobContext) -> Proof | None:
    """A SIGTERM ended the step and the script but not the job: a preemption with grace time, or
    scancel of the step.
    """
    account = case.account
    if account is None or account.state != "FAILED" or account.exit_code not in _TERMINATED:
        return None
    for step in account.steps:
        if step.state == "CANCELLED" and step.signal in (None, 15):
            said = f"step {account.job_id}.{step.name}: CANCELLED, and the job FAILED"
            return Proof(evidence=(evidence(SACCT, said),), at=account.ended)
    return None


def no_log_directory(case: JobContext) -> Proof | None:
    """The job ended at once without a log, and the directory of its log is missing.

    Slurm 20.11 reports 1:0, as for any failed script, and 22.05 reports 0:53 (tried with both).
    """
    directory, account = case.extra.get("no_log_directory"), case.account
    if not isinstance(directory, str) or account is None or account.state not in states.FAILED:
        return None
    if case.attempts or case.samples or any(file.size for file in case.files):
        return None
    ran_s = account.elapsed_s if account.elapsed_s is not None else _NOT_STARTED_S + 1
    if account.started is not None and ran_s > _NOT_STARTED_S:
        return None
    ended_so = f"job {account.job_id}: {account.state}, exit code"
    ended_so += f" {account.exit_code or 0}:{account.signal or 0}"
    said = f"job {account.job_id} was to write to {directory}, which is missing"
    return Proof(
        groups=groups(directory=directory),
        evidence=(evidence(SACCT, ended_so), evidence(SACCT, said)),
        at=account.ended,
        # nodes may see other directories than the login node does
        certainty=None if account.signal == _IO_ERROR else "likely",
    )


# -- steps: hang, or slow --------------------------------------------------------------------------

#: Shorter pauses (seconds) are not a hang, regardless of the step time: file systems stall, and
#: clocks differ.
_LEAST_S = 180.0
#: The same before the first step: model loading, tokenization, kernel compilation.
_START_S = 1200.0
#: A pause is a hang from this multiple of the longest usual pause. Larger for printed steps, of which
#: there have to be so many: an evaluation or a save may print nothing for long.
_TIMES, _PRINTED_TIMES, _PRINTED_LEAST = 5.0, 10.0, 5
#: Growth of a log within these seconds of the end is the closing output of Slurm and the launcher.
_LAST_WORDS_S = 90.0
#: Steps between two signs of life if the config sets nothing: the default of logging_steps in
#: TrainingArguments, and of the MemoryCallback.
_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """How long a start had been silent when the job ended, or when it was checked.

    Attributes:
        since: of the last sign of life; `until`: the end.
        usual: the longest usual pause, in seconds; None before the first step.
        least: seconds from which the silence counts as long.
        evidence: the last sign of life.
    """

    since: float
    until: float
    usual: float | None
    least: float
    evidence: Evidence

    @property
    def seconds(self) -> float:
        """Return the duration of the silence."""
        return self.until - self.since


def silence(case: JobContext) -> Silence | None:
    """Return how long the newest start had been silent at its end; None if unknown."""
    until, since = ended(case), began(case)
    if until is None:
        return None
    signs = _signs(case, until)
    if not signs:
        return _silence_of_output(case, until)
    at, sign = max(signs, key=lambda each: each[0])
    if since is not None and at < since:
        at, sign = since, evidence(SACCT, f"started {clock(since)}, and no sign of life since")
    usual = usual_pause(case)
    least = _START_S if usual is None else max(_LEAST_S, _TIMES * usual)
    return Silence(since=at, until=until, usual=usual, least=least, evidence=sign)


def _silence_of_output(case: JobContext, until: float) -> Silence | None:
    """Return how long the output of a script had not grown that prints its steps only there.

    Closing messages of Slurm and the launcher go to stderr; in one file they hide the silence.
    """
    last, since = last_attempt(case), began(case)
    at = last.output_at if last is not None else None
    if at is None or since is None or at <= since or case.printed_steps < _PRINTED_LEAST:
        return None
    pause = max((at - since) / case.printed_steps, 1.0)
    words = f"the output grew last {clock(at)}; a step came every {duration(pause)} or sooner"
    # For a short start, half of it is enough.
    least = max(min(_LEAST_S, (until - since) / 2), _PRINTED_TIMES * pause)
    return Silence(since=at, until=until, usual=pause, least=least, evidence=evidence(LOGS, words))


def _signs(case: JobContext, until: float) -> list[tuple[float, Evidence]]:
    found, last, samples = [], last_attempt(case), current(case)
    if last is not None and last.last_logged_at is not None:
        step = f"step {last.last_step}" if last.last_step is not None else "a row"
        words = f"{step} was logged {clock(last.last_logged_at)}, and none since"
        found.append((last.last_logged_at, evidence(METRICS, words)))
    if samples:
        words = f"{where(samples[-1])}: the last sample of all ranks"
        found.append((samples[-1].time_ms / 1000, evidence(SAMPLES, words)))
    for file in case.files:
        if not file.size or file.grown is None:
            continue
        # A growing log of a running job is a sign of life. If the job is over, growth right at the
        # end is only the closing messages.
        if not is_over(case) or file.grown < until - _LAST_WORDS_S:
            words = f"{file.name} grew {clock(file.grown)}, and no more since"
            found.append((min(file.grown, until), evidence(LOGS, words)))
    return found


def usual_pause(case: JobContext) -> float | None:
    """Return the longest usual pause between two signs of life, in seconds; None before the first
    step.
    """
    step_s, samples = seconds_of_a_step(case), current(case)
    if step_s is None:
        return None
    every = whole(setting(case, "training", "logging_steps")) or _EVERY
    # Evaluations and saves: from the sample of the step to theirs.
    extra = [
        (after.time_ms - before.time_ms) / 1000
        for own in by_rank(samples).values()
        for before, after in itertools.pairwise(own)
        if after.event in ("evaluate", "save") and after.step == before.step
    ]
    return step_s * (min(every, _EVERY) if samples else every) + max(extra, default=0.0)


def seconds_of_a_step(case: JobContext) -> float | None:
    """Return the seconds per step: as the training measured it, else from the samples."""
    if case.step_s is not None and case.step_s > 0:
        return case.step_s
    pairs = [
        (sample.step, sample.time_ms / 1000)
        for sample in current(case)
        if sample.event in ("first_step", "step")
    ]
    (first, begun), (last, at) = min(pairs, default=(0, 0.0)), max(pairs, default=(0, 0.0))
    return (at - begun) / (last - first) if last > first and at > begun else None


def left_to_do(case: JobContext) -> float | None:
    """Return the seconds that the remaining steps take."""
    step_s = seconds_of_a_step(case)
    if step_s is None or case.step is None or case.max_steps is None or case.max_steps <= case.step:
        return None
    return (case.max_steps - case.step) * step_s


def hang(case: JobContext) -> Proof | None:
    """All signs of life ended long before the job did; `rank` is the one that stopped first, if
    there is one.
    """
    quiet = silence(case)
    if quiet is None or quiet.seconds <= quiet.least or _is_done(case):
        return None
    samples, last = current(case), last_attempt(case)
    rank, node, words = _first_to_stop(case)
    pause = None if quiet.usual is None else duration(quiet.usual)
    nothing = f"nothing came for {duration(quiet.seconds)}, until {clock(quiet.until)}"
    nothing += f"; a pause is {pause} at most" if pause else ""
    return Proof(
        groups=groups(
            step=case.step
            if case.step is not None
            else max((sample.step for sample in samples), default=None),
            quiet=duration(quiet.seconds),
            since=clock(quiet.since),
            rank=rank,
            node=node,
            usual=pause,
        ),
        evidence=(
            quiet.evidence,
            evidence(SACCT if is_over(case) else METRICS, nothing),
            *([evidence(SAMPLES, words)] if words else []),
        ),
        rank=rank,
        node=node,
        at=quiet.since,
        attempt=last.name if last is not None else None,
        # All other ranks got further and wait for this one. A long evaluation leaves no rank
        # behind.
        certainty="certain" if rank is not None else None,
    )


def _is_done(case: JobContext) -> bool:
    last = last_attempt(case)
    return (
        (case.step is not None and case.max_steps is not None and case.step >= case.max_steps)
        or (last is not None and last.outcome == "completed")
        or (case.account is not None and case.account.state == "COMPLETED")
    )


def _first_to_stop(case: JobContext) -> tuple[int | None, str | None, str]:
    """Return the one rank or node whose samples stopped before those of all others, and its
    description.

    Ranks synchronize in every step and so take the same samples; the others wait for the one that
    lacks the last sample.
    """
    last = newest(current(case))
    reached = {rank: (sample.step, _ORDER.index(sample.event)) for rank, sample in last.items()}
    behind = [last[rank] for rank, at in reached.items() if at < max(reached.values())]
    if behind:
        words = f"ranks {some(sample.rank for sample in behind)} stopped before the others"
        if len(behind) == 1:
            words = f"{where(behind[0])}: its last sample; the others continued"
        node = behind[0].host if len({sample.host for sample in behind}) == 1 else None
        return behind[0].rank if len(behind) == 1 else None, node, words
    return None, None, ""


_ORDER = ("train_begin", "first_step", "step", "evaluate", "save", "train_end")


def slow(case: JobContext) -> Proof | None:
    """The time limit was too short: steps came until the end, and the training needs more time."""
    quiet, last, account = silence(case), last_attempt(case), case.account
    stopped = last is not None and last.reason == "deadline" and last.outcome != "requeued"
    timed_out = account is not None and account.state in ("TIMEOUT", "DEADLINE")
    if not (timed_out or stopped) or quiet is None or quiet.seconds > quiet.least or _is_done(case):
        return None
    step_s, left = seconds_of_a_step(case), left_to_do(case)
    had = account.time_limit_s if account is not None else None
    said = [quiet.evidence]
    if case.max_steps is not None and case.step is not None:
        took = f", {step_s:.3g} s a step" if step_s is not None else ""
        said.insert(0, evidence(METRICS, f"step {case.step} of {case.max_steps}{took}"))
    if had is not None:
        said.append(evidence(SACCT, f"the time limit was {units.format_time(had)}"))
    return Proof(
        groups=groups(
            step=case.step,
            max_steps=case.max_steps,
            step_s=None if step_s is None else f"{step_s:.3g}",
            left=None if left is None else duration(left),
            limit=None if had is None else units.format_time(had),
        ),
        evidence=tuple(said),
        at=quiet.until,
        attempt=last.name if last is not None else None,
    )


# -- starts that make no progress ------------------------------------------------------------------

#: Starts that repeatedly end sooner than this made no progress.
_AT_ONCE_S = 120.0


def requeue_loop(case: JobContext) -> Proof | None:
    """Of three or more successive starts, none got further than the one before."""
    if not case.attempts:
        return None
    tail = _no_further(case.attempts)
    chained = setting(case, "restart", "mode") == "chain"
    automatic = sum(1 for each in tail[1:] if each.restart > 0 or chained)
    # A custom script records no steps: a missing step does not mean that none was done.
    tells_steps = setting(case, "script") is None or any(
        each.first_step is not None for each in tail
    )
    ends_at_once = all(
        each.started is not None
        and each.ended is not None
        and each.ended - each.started < _AT_ONCE_S
        for each in tail
    )
    if len(tail) < 3 or automatic < 2 or not (tells_steps or ends_at_once):
        return None
    at_step = tail[-1].first_step if tail[-1].first_step is not None else tail[-1].last_step
    words = [
        f"attempt {each.name}: steps {each.first_step or 0} to {each.last_step or 0}, ended"
        f" {each.outcome or 'without a message'}" + (f" ({each.reason})" if each.reason else "")
        for each in tail[-4:]
    ]
    return Proof(
        groups=groups(count=len(tail), step=at_step or 0, reason=tail[-1].reason),
        evidence=tuple(evidence(METRICS, each) for each in words),
        at=tail[0].started,
        attempt=tail[-1].name,
    )


def _no_further(attempts: Sequence[AttemptFact]) -> list[AttemptFact]:
    """Return the last starts that began at the same step as the one before: their work was lost."""
    tail = [attempts[-1]] if attempts[-1].outcome != "completed" else []
    for before in reversed(attempts[:-1] if tail else ()):
        if before.outcome == "completed" or (tail[0].first_step or 0) > (before.first_step or 0):
            break
        tail.insert(0, before)
    return tail


Fact = Callable[[JobContext], Proof | None]

FACTS: Mapping[str, Fact] = MappingProxyType(
    {
        "gpu_shared": gpu_shared,
        "cgroup_full": cgroup_full,
        "hang": hang,
        "slow": slow,
        "requeue_loop": requeue_loop,
        "world_size_wrong": world_size_wrong,
        "failed_node": failed_node,
        "cancelled_by_root": partial(_cancelled, by_root=True),
        "cancelled_by": partial(_cancelled, by_root=False),
        "step_cancelled": step_cancelled,
        "no_log_directory": no_log_directory,
    }
)
