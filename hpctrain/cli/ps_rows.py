"""What `hpctrain ps` knows of each job: its run, how far that is, and why it waits, in words."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpctrain.runs.progress import Progress
from hpctrain.scheduler import ledger, pending_reasons
from hpctrain.scheduler.base import ASK_EVERY_S
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.records import JobRecord
from hpctrain.scheduler.pending import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job, or several tasks of an array that share a line.

    Attributes:
        job_id: as it is shown: `123_[0-7]` for several tasks.
        run: id of its run; None for a job of which none is known.
        run_dir: of the run, which need not be there yet.
        why: why it waits, or how it ended; empty for one that runs.
    """

    record: JobRecord
    job_id: str
    run: str | None = None
    run_dir: Path | None = None
    progress: Progress | None = None
    place: Place = field(default_factory=Place)
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the keys of `hpctrain ps --json`."""
        progress = self.progress or Progress()
        worst = progress.worst
        memory = None
        if worst is not None:
            memory = {"rank": worst.rank, "host": worst.host, "gpu_used_mib": worst.gpu_used_mib, "gpu_total_mib": worst.gpu_total_mib,
                      "cgroup_used_mib": worst.cgroup_used_mib, "cgroup_limit_mib": worst.cgroup_limit_mib}  # fmt: skip
        return {
            **asdict(self.record), "run": self.run, "run_dir": None if self.run_dir is None else str(self.run_dir), "why": self.why or None,
            "ahead": self.place.ahead, "ahead_mine": self.place.mine, "expected": self.place.expected, "step": progress.step,
            "max_steps": progress.max_steps, "loss": progress.loss, "tokens_per_s": progress.tokens_per_s, "eta_s": progress.eta_s,
            "memory": memory,
        }  # fmt: skip


def of(jobs: Sequence[JobRecord]) -> list[Row]:
    """Return the rows of jobs, in their order; the places of those that wait on Slurm are one question for all."""
    from hpctrain.scheduler.slurm import SlurmScheduler

    now = time.time()
    slurm = SlurmScheduler.is_available() and any(job.scheduler == "slurm" and job.state == "PENDING" for job in jobs)
    places = SlurmScheduler().places(jobs, max_age_s=ASK_EVERY_S) if slurm else {}
    runs = runs_of(jobs)
    return [_row(job, places.get(job.job_id) or Place(expected=_expected(job)), runs.get(job.job_id), now) for job in jobs]


def _row(job: JobRecord, place: Place, run_dir: Path | None, now: float) -> Row:
    run = run_dir.name if run_dir is not None else None
    # Of tasks that wait together the run is that of the whole sweep, which has no progress of its own.
    progress = _progress(run_dir) if run_dir is not None and "[" not in job.job_id else None
    return Row(record=job, job_id=job.job_id, run=run, run_dir=run_dir, progress=progress, place=place, why=why(job, place, now))


def _progress(run_dir: Path) -> Progress | None:
    from hpctrain.runs import progress

    return progress.read(run_dir) if run_dir.is_dir() else None


def _expected(job: JobRecord) -> float | None:
    from hpctrain.scheduler.slurm_accounts import epoch

    return epoch(job.start) if job.state == "PENDING" and job.start is not None else None


def why(job: JobRecord, place: Place, now: float) -> str:
    """Return why a job waits, or how it ended; nothing for one that runs as it should."""
    if job.state in states.WAITING:
        return f"waiting: {_waits_for(job, place)}" + (f"; Slurm expects {when(place.expected, now)}" if place.expected else "")
    if job.is_final and job.exit_code:
        return f"exit code {job.exit_code}"
    if job.is_final and job.signal and job.signal < 65:
        return f"signal {job.signal}"
    return job.reason or ""


def _waits_for(job: JobRecord, place: Place) -> str:
    """Return what a job waits for."""
    if job.scheduler != "slurm" and job.reason not in pending_reasons.REASONS:
        return job.reason or "its turn"
    said = pending_reasons.explain(job.reason)
    if said.kind == "queue" and place.ahead is None and place.mine:
        return f"{place.mine} of your own jobs ahead by priority"
    if place.ahead is None or said.kind != "queue":
        return said.words
    if place.ahead == 0:
        return "first in line, for nodes that are in use" if job.reason in ("Priority", "Resources") else said.words
    ahead = f"{place.ahead} job{'' if place.ahead == 1 else 's'} ahead by priority"
    if place.mine:
        ahead += " (yours)" if place.mine == place.ahead else f" ({place.mine} of them yours)"
    return ahead if job.reason in ("Priority", "Resources", "None", None) else f"{said.words}; {ahead}"


def when(at: float, now: float) -> str:
    """Return a time of this machine's clock: `14:20`, `tomorrow 14:20`, `2026-11-24 14:20`."""
    there, here = time.localtime(at), time.localtime(now)
    clock = time.strftime("%H:%M", there)
    if at <= now + 60:
        return "now"
    if there[:3] == here[:3]:
        return clock
    if there[:3] == time.localtime(now + 86_400)[:3]:
        return f"tomorrow {clock}"
    return f"{time.strftime('%Y-%m-%d', there)} {clock}"


def runs_of(jobs: Iterable[JobRecord]) -> dict[str, Path]:
    """Return job id to the directory of its run: as its launch says, else as an attempt in ./runs does."""
    from hpctrain.runs import layout

    jobs = list(jobs)
    launched = _launched(jobs)
    here = Path(layout.RUNS).absolute()
    found: dict[str, Path] = {}
    rest = []
    for job in jobs:
        runs, tag = launched.get(job.job_id.partition("_")[0], (here, None))
        run_dir = _of_launch(runs, tag, job.job_id) if tag is not None else None
        if run_dir is not None:
            found[job.job_id] = run_dir
        else:
            rest.append(job.job_id)
    if rest and here.is_dir():
        found.update(_of_attempts(here, set(rest)))
    return found


def _launched(jobs: Sequence[JobRecord]) -> dict[str, tuple[Path, str]]:
    """Return number of the job to the directory of runs and the tag that it was submitted with: the first argument of its script."""
    from hpctrain.runs import layout
    from hpctrain.scheduler.local import book

    found = {
        entry.job_id: (Path(entry.directory) / layout.RUNS, entry.arguments[0])
        for entry in ledger.entries()
        if entry.job_id is not None and entry.arguments and layout.NAME.match(entry.arguments[0])
    }
    for number in {job.job_id.partition("_")[0] for job in jobs if job.scheduler == "local"}:
        meant = book.find(number)
        if meant is not None and meant.plan.arguments and layout.NAME.match(meant.plan.arguments[0]):
            found[number] = (Path(meant.plan.submit_dir or meant.plan.chdir) / layout.RUNS, meant.plan.arguments[0])
    return found


def _of_launch(runs: Path, tag: str, job_id: str) -> Path | None:
    """Return the run of a job, or of tasks, of a launch; of several tasks the launch's own name."""
    from hpctrain.runs import launch, layout

    number, _, task = job_id.partition("_")
    whole = launch.load(runs, tag)
    if whole is None:
        return runs / tag if (runs / tag).is_dir() else None
    submission = next((each for each in reversed(whole.submissions) if each.job_id == number), None)
    if submission is None:
        return None
    index = int(task) + submission.offset if task.isdigit() and submission.array is not None else None
    return runs / layout.run_id(tag, stage=submission.stage, index=index)


def _of_attempts(runs: Path, jobs: set[str]) -> dict[str, Path]:
    from hpctrain.errors import HpctrainError
    from hpctrain.runs.index import read_all

    try:
        listing = read_all(runs)
    except (OSError, HpctrainError):
        return {}
    return {job: runs / run.id for run in listing.runs for job in run.job_ids if job in jobs}
