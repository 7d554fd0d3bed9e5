"""What is shown of a watched run: what its files say and what the scheduler says, put together in words."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.cli.follow import exit_status
from hpctrain.cli.watch_look import Looked
from hpctrain.cli.watch_poll import Poll
from hpctrain.report.live import View, duration
from hpctrain.runs.speed import clock
from hpctrain.runs.store import Attempt
from hpctrain.scheduler import pending_reasons
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.records import JobRecord

#: Of a run with many restarts, the jobs that are asked for.
_ASKED = 8
#: Seconds in which a job script has made its run's directory.
_BEGUN_S = 60.0
_QUIET_S, _QUIET_INTERVALS = 120.0, 5.0
#: The last line of a traceback.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception): ")
_ENDED = {
    "COMPLETED": "completed", "TIMEOUT": "ended at its time limit", "OUT_OF_MEMORY": "out of memory: the kernel killed it",
    "NODE_FAIL": "ended because a node failed", "CANCELLED": "cancelled", "PREEMPTED": "ended by preemption",
    "DEADLINE": "ended at its deadline", "BOOT_FAIL": "its node did not start", "FAILED": "failed",
}  # fmt: skip
_LAST_WORDS = {"completed": "the training is complete", "stopped": "the training saved and stopped", "failed": "the training failed"}


@dataclass(slots=True)
class Watched:
    """One run or job with its scheduler's word; `ended` and `code` say how it came out."""

    looked: Looked
    poll: Poll

    @property
    def jobs(self) -> list[str]:
        """The ids to ask for: the newest."""
        return [job for job in self.looked.jobs if job is not None][-_ASKED:]

    @property
    def current(self) -> JobRecord | None:
        """The record of the job that runs; else of the first that waits; else of the last that ended."""
        known = [record for job in self.jobs if (record := self.poll.record(job)) is not None]
        for record in known:
            if record.state in states.ACTIVE:
                return record
        waiting = [record for record in known if not record.is_final]
        return waiting[0] if waiting else known[-1] if known else None

    @property
    def job(self) -> str | None:
        """The id of the current job, of a task its own."""
        record = self.current
        if record is None:
            return self.jobs[-1] if self.jobs else None
        return next((job for job in self.jobs if self.poll.record(job) is record), record.job_id)

    @property
    def attempt(self) -> Attempt | None:
        """The start that began last."""
        return self.looked.run.last if self.looked.run is not None else None

    @property
    def has_begun(self) -> bool:
        """Whether the files know more than the scheduler's last word, which is some seconds old: a start that came after it."""
        record, last, seen = self.current, self.attempt, self.looked.started
        if record is None or last is None or seen is None or record.state not in states.WAITING:
            return False
        return last.outcome is None and last.job == self.job and seen > self.poll.taken.get(record.job_id, seen)

    @property
    def state(self) -> str | None:
        """The state in Slurm's word."""
        record = self.current
        return "RUNNING" if self.has_begun else record.state if record is not None else None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen by itself: no job of it waits or runs, as far as anybody knows."""
        records = [self.poll.record(job) for job in self.jobs]
        if any(record is not None and record.state in states.ACTIVE for record in records):
            return False
        over = self.looked.run_dir is not None and (self.looked.run_dir / "over").exists()
        if any(record is not None and not record.is_final for record in records) and not over:
            return False
        # A scheduler that has not answered leaves it open, but where the script has said its last word.
        silent = (self.poll.silent is not None or self.poll.is_asking) and any(record is None for record in records)
        last = self.attempt
        return not silent or (last is not None and last.outcome in _LAST_WORDS)

    @property
    def code(self) -> int:
        """The exit code that stands for how it ended: the job's own; 3 where nobody knows."""
        record, last = self.current, self.attempt
        if record is not None and record.is_final:
            return exit_status(record)
        if last is not None and last.status is not None:
            return last.status
        return last.exit_code if last is not None and last.exit_code is not None else 3


def view(watched: Watched, now: float) -> View:
    """Return what is shown of a run now."""
    looked, record = watched.looked, watched.current
    progress = looked.progress
    elapsed = _elapsed(watched, record, now)
    runs = watched.state in states.ACTIVE
    state, level = _state(watched, record, elapsed)
    eta = _eta(watched, now) if runs else None
    limit = record.time_limit_s if record is not None else None
    fits, verdict = _verdict(watched, eta, elapsed, limit, now) if eta is not None else (None, "")
    ended = watched.ended
    return View(
        title=looked.run_id or (record.name if record is not None else None) or watched.job or "",
        job=_job(watched),
        state=state,
        level=level,
        elapsed_s=elapsed,
        limit_s=limit,
        progress=progress,
        eta_s=eta,
        fits=fits,
        verdict=verdict,
        quiet=_quiet(watched, now) if runs else "",
        saved=_saved(looked, now),
        idle=looked.idle if runs else (),
        warnings=_warnings(list(looked.warnings.values()), failed=ended and watched.code != 0),
        notes=(*_notes(watched), *_moved(watched, elapsed)),
        next=tuple(next_steps(watched)) if ended else (),
        clock=time.strftime("%H:%M:%S", time.localtime(now)),
    )


def _warnings(found: list[tuple[str, int]], *, failed: bool) -> tuple[str, ...]:
    """Return the last of them; where the run has failed, its first exception last: what follows from that must not push it out."""
    first = next((each for each in found if _EXCEPTION.match(each[0])), None) if failed else None
    shown = found[-6:] if first is None else [*[each for each in found if each is not first][-5:], first]
    return tuple(f"{line} ({count} times)" if count > 1 else line for line, count in shown)


def _job(watched: Watched) -> str:
    job = watched.job
    if job is None:
        return ""
    local = watched.current is not None and watched.current.scheduler == "local"
    return f"job {job} {'on this machine' if local else 'on Slurm'}"


def _elapsed(watched: Watched, record: JobRecord | None, now: float) -> float | None:
    if record is None or record.elapsed_s is None or watched.has_begun:
        return None
    at = watched.poll.taken.get(record.job_id)
    return record.elapsed_s + (max(0.0, now - at) if at is not None and record.state in states.ACTIVE else 0.0)


def _state(watched: Watched, record: JobRecord | None, elapsed: float | None) -> tuple[str, str]:
    """Return the state in words, and its level (hpctrain.report.live.LEVELS)."""
    if record is None:
        return _by_files(watched)
    if watched.has_begun:
        return _active(watched, replace(record, state="RUNNING"), None), "run"
    if record.state in states.WAITING:
        return _waiting(watched, record), "wait"
    if record.state in states.ACTIVE:
        return _active(watched, record, elapsed), "run"
    return _final(watched, record, elapsed)


def _waiting(watched: Watched, record: JobRecord) -> str:
    again = watched.attempt is not None
    words = f"waiting{' to start again' if again else ''}: {pending_reasons.explain(record.reason).words}"
    if record.start and (found := re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)", record.start)):
        today = time.strftime("%Y-%m-%d") == found[1]
        words += f"; Slurm expects {found[2] if today else f'{found[1]} {found[2]}'}"
    return words


def _active(watched: Watched, record: JobRecord, elapsed: float | None) -> str:
    words = {"RUNNING": "running", "COMPLETING": "ending", "CONFIGURING": "its nodes are being prepared"}.get(
        record.state, record.state.lower()
    )
    if elapsed is not None:
        words += f" for {clock(elapsed)}" + (f" of {clock(record.time_limit_s)}" if record.time_limit_s else "")
    nodes = record.nodes or 0
    words += f" on {nodes} nodes" if nodes > 1 else ""
    last = watched.attempt
    if last is not None and watched.looked.run is not None and len(watched.looked.run.attempts) > 1:
        words += f", start {len(watched.looked.run.attempts)}"
    progress = watched.looked.progress
    if progress.step is None or (last is not None and progress.attempt not in (None, last.name)):
        words += "; no step yet"
    return words


def _final(watched: Watched, record: JobRecord, elapsed: float | None) -> tuple[str, str]:
    words = _ENDED.get(record.state, record.state)
    if record.exit_code and record.state in ("FAILED", "CANCELLED"):
        words += f" with exit code {record.exit_code}"
    elif record.signal and record.state == "FAILED":
        words += f" by signal {record.signal}"
    if elapsed is not None:
        words += f" after {clock(elapsed)}"
    last = watched.attempt
    said = _LAST_WORDS.get(last.outcome or "") if last is not None and last.job == watched.job else None
    if said is not None and last is not None:
        words += f"; {said}" + (f": {last.reason}" if last.reason and last.reason != last.outcome else "")
    if record.state == "COMPLETED":
        return words, "" if last is not None and last.outcome == "stopped" else "good"
    return words, "" if record.state == "CANCELLED" else "bad"


def _by_files(watched: Watched) -> tuple[str, str]:
    last = watched.attempt
    if last is not None and last.outcome in _LAST_WORDS:
        level = {"completed": "good", "failed": "bad"}.get(last.outcome, "")
        return _LAST_WORDS[last.outcome] + (f": {last.reason}" if last.reason and last.reason != last.outcome else ""), level
    if watched.poll.silent is not None:
        return "unknown: Slurm does not answer", ""
    if watched.poll.is_asking:
        return "unknown yet: Slurm is being asked", ""
    if not watched.looked.jobs:
        return "not submitted yet, or no job of it is known", ""
    if None in watched.looked.jobs and not watched.jobs:
        return "unknown: its submission was never answered", ""
    return f"unknown: the scheduler does not know job {watched.job} any more", ""


def _eta(watched: Watched, now: float) -> float | None:
    """Return the seconds to the end from now. Clocks of nodes differ: the age of a row is never more than what lies between two."""
    progress = watched.looked.progress
    if progress.eta_s is None:
        if progress.step is None or not progress.max_steps or not progress.step_s:
            return None
        return max(0.0, (progress.max_steps - progress.step) * progress.step_s)
    age = 0.0 if progress.at is None else min(max(0.0, now - progress.at), 2 * (progress.interval_s or 30.0))
    return max(0.0, progress.eta_s - age)


def _verdict(watched: Watched, eta: float, elapsed: float | None, limit: float | None, now: float) -> tuple[bool | None, str]:
    """Return whether the run ends before its limit, in the words of the training's own time line."""
    from hpctrain.training import estimate

    if elapsed is None or not limit:
        return None, f"done in about {duration(eta)}; no time limit is known"
    restart = watched.looked.config.get("restart")
    restart = restart if isinstance(restart, dict) else {}
    mode, most = restart.get("mode"), restart.get("max")
    if mode == "auto":
        mode = "off" if watched.looked.config.get("script") else "requeue"
    job = estimate.Job(
        end=now + limit - elapsed,
        began=now - elapsed,
        mode=mode if isinstance(mode, str) else None,
        restarts=watched.attempt.restart if watched.attempt is not None else 0,
        most=most if isinstance(most, int) else None,
    )
    found = estimate.judge(eta, job, now=now)
    words = estimate.sentence(found, eta, job, now=now)
    return found.fits, words.replace("hpctrain resubmit RUN", f"hpctrain resubmit {shlex.quote(watched.looked.run_id or 'RUN')}")


def _quiet(watched: Watched, now: float) -> str:
    heard = watched.looked.heard
    most = max(_QUIET_S, _QUIET_INTERVALS * (watched.looked.progress.interval_s or 0.0))
    return "" if heard is None or now - heard <= most else f"nothing new for {duration(now - heard)}"


def _saved(looked: Looked, now: float) -> str:
    progress = looked.progress
    if progress.saved_step is None:
        return ""
    ago = "" if progress.saved_at is None else f", {duration(max(0.0, now - progress.saved_at))} ago"
    return f"saved checkpoint-{progress.saved_step}{ago}"


def _notes(watched: Watched) -> tuple[str, ...]:
    silent = watched.poll.silent
    if silent is None or not any(watched.poll.record(job) is None or not watched.poll.has_ended(job) for job in watched.jobs):
        return ()
    said = silent.details[-1].strip() if silent.details else silent.what
    return (f"Slurm does not answer ({said}); asking again",)


def _moved(watched: Watched, elapsed: float | None) -> tuple[str, ...]:
    """Return that a run has no directory though its job has been running for a while: then nothing says how far it is."""
    looked = watched.looked
    if looked.run_dir is None or looked.run is not None or watched.state not in states.ACTIVE or (elapsed or 0.0) < _BEGUN_S:
        return ()
    return (f"{looked.run_dir} is not there: moved, or deleted? Its steps are written there",)


def next_steps(watched: Watched) -> Iterable[str]:
    """Yield what to type after the end."""
    word = shlex.quote(watched.looked.run_id or watched.job or "")
    bad = watched.code != 0
    if bad:
        yield f"hpctrain explain {word}"
    if watched.looked.run_id is not None:
        yield f"hpctrain report {word}"
        if bad:
            yield f"hpctrain resubmit {word}"
    elif not bad:
        yield f"hpctrain logs {word}"


def as_json(progress: Any) -> dict[str, Any]:
    """Return the values of a Progress that change with each step; what JSON has no number for is null."""
    names = ("step", "max_steps", "epoch", "loss", "eval_loss", "tokens_per_s", "mfu", "data_wait", "step_s")
    found = {name: getattr(progress, name) for name in names}
    found = {name: None if isinstance(value, float) and value - value != 0 else value for name, value in found.items()}
    worst = progress.worst
    found["worst"] = None if worst is None else {
        "rank": worst.rank, "node": worst.host, "gpu_used_mib": worst.gpu_used_mib, "gpu_total_mib": worst.gpu_total_mib,
        "cgroup_used_mib": worst.cgroup_used_mib, "cgroup_limit_mib": worst.cgroup_limit_mib,
    }  # fmt: skip
    return found
