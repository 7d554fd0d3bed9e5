"""Facts of time: a hang told from a training that is slow, nodes that fall silent, empty logs, starts that come to nothing. PURE.

A training hangs where neither a step nor a line came for much longer than a step, an evaluation and a save take; it is slow where
steps came until the end. Where neither can be told, both say nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.explain import facts_job
from hpctrain.explain.case import AttemptFact, Case
from hpctrain.explain.facts_found import (
    LOGS,
    METRICS,
    SACCT,
    SAMPLES,
    Found,
    began,
    by_rank,
    clock,
    current,
    ended,
    evidence,
    groups,
    is_over,
    last_attempt,
    limit,
    newest,
    setting,
    some,
    span,
    where,
    whole,
)  # fmt: skip
from hpctrain.explain.model import Evidence
from hpctrain.memory.sample import Sample

#: Seconds without a sign of life that are no hang, whatever a step takes: file systems stall, and clocks differ.
_LEAST_S = 180.0
#: The same before the first step: a model is loaded, a dataset tokenised, kernels are compiled.
_START_S = 1200.0
#: So many times the longest usual pause is no pause any more.
_TIMES = 5.0
#: The same where the log alone tells: an evaluation, or a save, may say nothing for long. Of a short start, half of it is enough.
_LOG_TIMES = 10.0
#: Steps in the output from which on it has a rhythm.
_RHYTHM = 5
#: A log that grew within these seconds of the end got the words of the end: Slurm's, the launcher's.
_LAST_WORDS_S = 90.0
#: Starts that end sooner than that, again and again, came to nothing, whatever they did.
_AT_ONCE_S = 120.0
#: Steps between two signs of life where the config says nothing: logging_steps of TrainingArguments, and the MemoryCallback's.
_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """How long nothing had come when the job ended, or was looked at.

    Attributes:
        since: of the last sign of life; `until`: the end.
        usual: the longest pause that is usual, in seconds; None before the first step.
        least: seconds from which on it is long.
        evidence: what the sign was.
    """

    since: float
    until: float
    usual: float | None
    least: float
    evidence: Evidence

    @property
    def seconds(self) -> float:
        """How long."""
        return self.until - self.since

    @property
    def is_long(self) -> bool:
        """Whether it is much longer than usual."""
        return self.seconds > self.least


def silence(case: Case) -> Silence | None:
    """Return how long the newest start had been silent at its end; None where that is not known."""
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


def _silence_of_output(case: Case, until: float) -> Silence | None:
    """Return how long the output had not grown, where steps are printed there and nowhere else: then no line is no step.

    What is written at the end, by Slurm and the launcher, goes to the errors. In one file for both, the end hides how long nothing came.
    """
    last, since, rhythm = last_attempt(case), began(case), pause_between_lines(case)
    if last is None or last.output_at is None or since is None or rhythm is None:
        return None
    step = f" with step {case.step}" if case.step is not None else ""
    file = next(file for file in case.files if file.steps)
    words = f"{file.name} grew last {clock(last.output_at)},{step}; till then one came every {_pause(rhythm)} or sooner"
    least = max(min(_LEAST_S, (until - since) / 2), _LOG_TIMES * rhythm)
    return Silence(since=last.output_at, until=until, usual=rhythm, least=least, evidence=evidence(LOGS, words))


def pause_between_lines(case: Case) -> float | None:
    """Return the seconds between two steps of the output, at most, loading included; None where it has no rhythm that is known."""
    last, since = last_attempt(case), began(case)
    steps = sum(file.steps for file in case.files if file.stream != "err")
    if last is None or last.output_at is None or since is None or steps < _RHYTHM:
        return None
    if any(file.steps for file in case.files if file.stream == "err") or last.output_at <= since:
        return None
    return (last.output_at - since) / steps


def _signs(case: Case, until: float) -> list[tuple[float, Evidence]]:
    """Return the times at which something came, each with what it was."""
    found = []
    last = last_attempt(case)
    if last is not None and last.last_logged_at is not None:
        step = f"step {last.last_step}" if last.last_step is not None else "a row"
        found.append((last.last_logged_at, evidence(METRICS, f"{step} was logged {clock(last.last_logged_at)}, and none since")))
    samples = current(case)
    if samples:
        newest_one = samples[-1]
        found.append((newest_one.time_ms / 1000, evidence(SAMPLES, f"{where(newest_one)}: the last sample of all ranks")))
    for file in case.files:
        # A live log that grows is life; of one whose job is over, growth right at the end is what the end wrote.
        if file.size and file.grown is not None and (not is_over(case) or file.grown < until - _LAST_WORDS_S):
            found.append((min(file.grown, until), evidence(LOGS, f"{file.name} grew {clock(file.grown)}, and no more since")))
    return found


def usual_pause(case: Case) -> float | None:
    """Return the longest pause between two signs of life that is usual, in seconds; None before the first step."""
    step_s = seconds_of_a_step(case)
    if step_s is None:
        return None
    every = whole(setting(case, "training", "logging_steps")) or _EVERY
    every = min(every, _EVERY) if current(case) else every
    return step_s * every + max(_between_events(case), default=0.0)


def _between_events(case: Case) -> list[float]:
    """Return how long evaluations and saves took: from the sample of the step to theirs."""
    found = []
    for samples in by_rank(current(case)).values():
        for before, after in itertools.pairwise(samples):
            if after.event in ("evaluate", "save") and after.step == before.step:
                found.append((after.time_ms - before.time_ms) / 1000)
    return found


def seconds_of_a_step(case: Case) -> float | None:
    """Return the seconds of a step: as the training measured it, else by the samples."""
    if case.step_s is not None and case.step_s > 0:
        return case.step_s
    pairs = [(sample.step, sample.time_ms / 1000) for sample in current(case) if sample.event in ("first_step", "step")]
    if not pairs:
        return None
    (first, begun), (last, at) = min(pairs), max(pairs)
    return (at - begun) / (last - first) if last > first and at > begun else None


# -- hang, or slow -----------------------------------------------------------------------------------------------------


def hang(case: Case) -> Found | None:
    """Nothing came any more, long before the end; `rank` is the one that fell silent before the others, where one did."""
    quiet = silence(case)
    if quiet is None or not quiet.is_long or _is_done(case):
        return None
    samples = current(case)
    step = case.step if case.step is not None else max((sample.step for sample in samples), default=None)
    missing, words = _first_to_stop(case)
    usual = f"; a pause is {_pause(quiet.usual)} at most" if quiet.usual is not None else ""
    said = [
        quiet.evidence,
        evidence(SACCT if is_over(case) else METRICS, f"nothing came for {span(quiet.seconds)}, until {clock(quiet.until)}{usual}"),
    ]
    said += [evidence(SAMPLES if samples else LOGS, words)] if words else []
    said += _cpu(case)
    rank = missing.rank if missing is not None else None
    return Found(
        groups=groups(
            step=step, quiet=span(quiet.seconds), since=clock(quiet.since), rank=rank, node=missing.host if missing else None,
            usual=None if quiet.usual is None else _pause(quiet.usual),
        ),
        evidence=tuple(said), rank=rank, node=missing.host if missing else None, at=quiet.since,
        attempt=last.name if (last := last_attempt(case)) else None,
        # All ranks but one came further: the others wait for it. An evaluation that takes long leaves none behind.
        certainty="certain" if missing is not None and samples else None,
    )  # fmt: skip


def _pause(seconds: float) -> str:
    return f"{max(0.1, seconds):.2g} s" if seconds < 10 else span(seconds)


def _is_done(case: Case) -> bool:
    last = last_attempt(case)
    done = case.step is not None and case.max_steps is not None and case.step >= case.max_steps
    return done or (last is not None and last.outcome == "completed") or (case.account is not None and case.account.state == "COMPLETED")


@dataclass(frozen=True, slots=True)
class _Missing:
    rank: int
    host: str | None


def _first_to_stop(case: Case) -> tuple[_Missing | None, str]:
    """Return the one rank whose samples, or log, stopped before those of all the others, and the words for it.

    Ranks wait for each other in every step, so they take the same samples; the one that lacks the last is the one they wait for.
    """
    last = newest(current(case))
    if len(last) > 1:
        order = {rank: (sample.step, _order(sample)) for rank, sample in last.items()}
        furthest = max(order.values())
        behind = [rank for rank, reached in order.items() if reached < furthest]
        if len(behind) == 1:
            sample, other = last[behind[0]], next(one for rank, one in last.items() if order[rank] == furthest)
            words = f"{where(sample)}: its last sample, {sample.event}; {len(last) - 1} others reached {other.event} of step {other.step}"
            return _Missing(sample.rank, sample.host), words
        if behind:
            return None, f"ranks {some(behind)} took their last sample before the others did"
    files = [file for file in case.files if file.rank is not None and file.grown is not None and file.size]
    if len({file.rank for file in files}) > 1:
        files = sorted(files, key=lambda file: file.grown or 0.0)
        if (files[1].grown or 0) - (files[0].grown or 0) > _LEAST_S:
            return _Missing(files[0].rank or 0, files[0].node), f"{files[0].name} of rank {files[0].rank} stopped growing first"
    return None, ""


def _order(sample: Sample) -> int:
    return ("train_begin", "first_step", "step", "evaluate", "save", "train_end").index(sample.event)


def _cpu(case: Case) -> list[Evidence]:
    """Return how busy the job's CPUs were, where the record says it: a rank that waits in NCCL spins, one that sleeps does not."""
    found = []
    for step in case.account.steps if case.account is not None else ():
        if step.cpu_s is not None and step.elapsed_s and step.n_tasks and step.name not in ("batch", "extern"):
            part = step.cpu_s / step.elapsed_s
            found.append(
                evidence(SACCT, f"step {step.name}: {span(step.cpu_s)} of CPU time in {span(step.elapsed_s)}, {part:.2f} cores busy")
            )
    return found[:2]


def slow(case: Case) -> Found | None:
    """The time limit is real: steps came until it, and the training needs longer than it had."""
    quiet = silence(case)
    if not hit_the_limit(case) or quiet is None or quiet.is_long or _is_done(case):
        return None
    step_s = seconds_of_a_step(case)
    left = left_to_do(case)
    had = case.account.time_limit_s if case.account is not None else None
    said = [quiet.evidence]
    if case.max_steps is not None and case.step is not None:
        took = f", {step_s:.3g} s a step" if step_s is not None else ""
        source = METRICS if quiet.evidence.file != LOGS or case.samples else LOGS
        said.insert(0, evidence(source, f"step {case.step} of {case.max_steps}{took}"))
    if had is not None:
        said.append(evidence(SACCT, f"the time limit was {limit(had)}"))
    return Found(
        groups=groups(
            step=case.step, max_steps=case.max_steps, step_s=None if step_s is None else f"{step_s:.3g}",
            left=None if left is None else span(left), limit=None if had is None else limit(had),
        ),
        evidence=tuple(said), at=quiet.until, attempt=last.name if (last := last_attempt(case)) else None,
    )  # fmt: skip


def hit_the_limit(case: Case) -> bool:
    """Whether the time limit ended the job, or the training stopped because of it and nobody goes on."""
    last = last_attempt(case)
    if case.account is not None and case.account.state in ("TIMEOUT", "DEADLINE"):
        return True
    return last is not None and last.reason == "deadline" and last.outcome in ("stopped", "failed")


def left_to_do(case: Case) -> float | None:
    """Return the seconds that the steps which are left take."""
    step_s = seconds_of_a_step(case)
    if step_s is None or case.step is None or case.max_steps is None or case.max_steps <= case.step:
        return None
    return (case.max_steps - case.step) * step_s


# -- other ways to come to nothing -------------------------------------------------------------------------------------


def requeue_loop(case: Case) -> Found | None:
    """Three starts or more, one after the other, of which none got further than the one before."""
    if not case.attempts:
        return facts_job.requeued_at_once(case)
    tail = _no_further(case.attempts)
    chained = setting(case, "restart", "mode") == "chain"
    by_itself = sum(1 for each in tail[1:] if each.restart > 0 or chained)
    if len(tail) < 3 or by_itself < 2 or not (_tell_steps(case, tail) or _end_at_once(tail)):
        return None
    at_step = tail[-1].first_step if tail[-1].first_step is not None else tail[-1].last_step
    words = [f"attempt {each.name}: {_steps_of(each)}, ended {each.outcome or 'without a word'}{_why(each)}" for each in tail[-4:]]
    return Found(
        groups=groups(count=len(tail), step=at_step if at_step is not None else 0, reason=tail[-1].reason),
        evidence=tuple(evidence(METRICS, each) for each in words), at=tail[0].started, attempt=tail[-1].name,
    )  # fmt: skip


def _no_further(attempts: Sequence[AttemptFact]) -> list[AttemptFact]:
    """Return the last starts that began where the one before had begun: what each did was lost."""
    if not attempts or attempts[-1].outcome == "completed":
        return []
    tail = [attempts[-1]]
    for before in reversed(attempts[:-1]):
        if before.outcome == "completed" or (tail[0].first_step or 0) > (before.first_step or 0):
            break
        tail.insert(0, before)
    return tail


def _tell_steps(case: Case, attempts: Sequence[AttemptFact]) -> bool:
    """Whether no step means that none was done: a script of one's own goes on from its own checkpoint, and says nothing of it here."""
    return setting(case, "script") is None or any(each.first_step is not None for each in attempts)


def _end_at_once(attempts: Sequence[AttemptFact]) -> bool:
    return all(each.started is not None and each.ended is not None and each.ended - each.started < _AT_ONCE_S for each in attempts)


def _steps_of(attempt: AttemptFact) -> str:
    if attempt.first_step is None or attempt.last_step is None:
        return "no step"
    return f"steps {attempt.first_step} to {attempt.last_step}"


def _why(attempt: AttemptFact) -> str:
    words = [attempt.reason or "", f"status {attempt.status}" if attempt.status is not None else ""]
    return f" ({', '.join(word for word in words if word)})" if any(words) else ""


def silent_log(case: Case) -> Found | None:
    """Steps are done, and the log stays empty: the output is buffered."""
    read = [file for file in case.files if file.stream in ("out", "both")]
    samples = current(case)
    step = max([case.step or 0, *(sample.step for sample in samples)])
    if not read or any(file.size for file in read) or step < 1:
        return None
    said = [evidence(LOGS, f"{file.name} is empty") for file in read[:2]]
    said.append(evidence(SAMPLES, f"{where(samples[-1])}: the training goes on") if samples else evidence(METRICS, f"step {step} is done"))
    return Found(groups=groups(step=step, file=read[0].name), evidence=tuple(said), at=began(case))


def lost_heartbeat(case: Case) -> Found | None:
    """The ranks of one node fell silent while those of the others went on."""
    hosts: dict[str, list[Sample]] = {}
    for sample in newest(current(case)).values():
        hosts.setdefault(sample.host, []).append(sample)
    if len(hosts) < 2:
        return None
    reached = {host: max((sample.step, _order(sample)) for sample in samples) for host, samples in hosts.items()}
    furthest = max(reached.values())
    behind = [host for host, step in reached.items() if step < furthest]
    if len(behind) != 1:
        return None
    lost = max(hosts[behind[0]], key=lambda sample: sample.time_ms)
    other = max((one for host in hosts if host != behind[0] for one in hosts[host]), key=lambda sample: sample.time_ms)
    if len(hosts[behind[0]]) == 1 and len(hosts[other.host]) > 1:
        return None  # one rank of several: `hang` says which
    return Found(
        groups=groups(node=lost.host, step=lost.step, others=other.step, quiet=span((other.time_ms - lost.time_ms) / 1000)),
        evidence=(
            evidence(SAMPLES, f"{where(lost)}: the last sample of this node"),
            evidence(SAMPLES, f"{where(other)}: another node went on"),
        ),
        node=lost.host, at=lost.time_ms / 1000,
    )  # fmt: skip
