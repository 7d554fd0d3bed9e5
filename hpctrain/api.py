"""The Python API: the functions of the command line, without printing or exiting.

Every error is an exception of hpctrain.errors, with a command in `fix`. See docs/api.md.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.checks import service as job_checks
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.explain.model import Explanation
from hpctrain.finding import Finding
from hpctrain.jobs import (
    explanation,
    resubmit,
    schedulers,
    script_files,
    scripts,
    targets,
)
from hpctrain.jobs import submit as service
from hpctrain.jobs.request import Job
from hpctrain.jobs.scripts import Script
from hpctrain.local.scheduler import LocalScheduler
from hpctrain.logs import files as log_files
from hpctrain.logs import read
from hpctrain.runs import history, launch, layout, store
from hpctrain.runs.job_state import State
from hpctrain.slurm.client import SlurmScheduler

__all__ = ["Job", "Run", "check", "list_runs", "render", "submit"]
#: The combined state of a launch is the first of these that any of its runs has.
_WORST = ("running", "pending", "unknown", "failed", "stopped", "completed")
_ENDED = ("completed", "failed", "stopped")
#: Seconds between two polls of a job in `Run.wait`.
_LOOK_S, _LOOK_SLURM_S = 0.5, 15.0


def render(job: Job) -> list[Script]:
    """Return the batch scripts of a job, each with its `text` and `path`; nothing is written.

    Raises:
        UsageError: all config errors at once, or a file that the job needs is missing.
    """
    return list(scripts.scripts_of(job.request).scripts)


def check(job: Job, *, slurm: bool = True) -> list[Finding]:
    """Return the findings of `hpctrain check` for a job, except ignored ones.

    Args:
        job: the job to check.
        slurm: whether Slurm may be queried, if available.
    """
    return list(job_checks.check_job(job.request, slurm=slurm).findings)


def submit(
    job: Job, *, local: bool = False, run_id: str | None = None, snapshot: bool = True
) -> Run:
    """Write the scripts of a job and submit them. Of the checks of `check`, only those of the training
    script and the accelerate config are applied.

    Args:
        job: the job to submit.
        local: run it locally even if Slurm is available; without sbatch it always runs locally.
        run_id: the name of the run; an existing run continues from its newest checkpoint.
        snapshot: whether the job runs a copy of the current code.

    Returns:
        The run; for a sweep or stages, all their runs under one name.

    Raises:
        UsageError: a file is missing or would be overwritten, or the name is in use for something
            else.
        HpctrainError: the scheduler refused the job.
    """
    for finding in job_checks.check_job(job.request, slurm=False, local=local).errors:
        if finding.id in ("script-missing", "accelerate-config"):
            raise UsageError(
                finding.what, details=(finding.evidence, finding.reason), fix=finding.fix
            )
    made = scripts.scripts_of(job.request)
    script_files.write(made, force=False)
    options = service.SubmitOptions(run_id=run_id, snapshot=snapshot, argv=("hpctrain", "submit"))
    submitted = service.submit(made, _scheduler(local=local), options)
    return Run(str(submitted.tag), made.runs_dir.absolute())


def list_runs(*words: str, runs_dir: str | Path = layout.RUNS) -> list[Run]:
    """Return the runs that match the words (ids, tags, job ids, globs); without words, all.

    Raises:
        UsageError: there is no such run, or no such directory.
    """
    directory = Path(runs_dir).absolute()
    if not directory.is_dir():
        raise UsageError(f"no such directory: {directory}", fix="hpctrain submit")
    listing = store.list_runs(directory)
    found = targets.select_runs(words, listing) if words else listing.runs
    return [Run(run.id, directory) for run in found]


@dataclass(frozen=True, slots=True)
class Run:
    """A run, or all runs of a launch (a sweep or stages) under its tag.

    Attributes:
        id: the name of its directory, or the tag.
        runs_dir: the directory that contains it.
    """

    id: str
    runs_dir: Path

    @property
    def directory(self) -> Path:
        """The directory with its attempts, checkpoints and metrics."""
        return self.runs_dir / self.id

    @property
    def job_ids(self) -> list[str]:
        """The ids of its jobs, the newest last."""
        return targets.job_ids_of(self.id, self.runs_dir)

    def status(self) -> State:
        """Return its state: `word` is pending, running, completed, failed, stopped or unknown,
        `reason` explains it. For several runs, the first in the order running, pending, unknown,
        failed, stopped, completed.
        """
        return min(
            schedulers.survey(self.runs_dir, self._runs()).states.values(),
            key=lambda state: _WORST.index(state.word),
            default=State("unknown"),
        )

    def wait(self, timeout_s: float | None = None) -> State:
        """Wait until it has ended, and return its state.

        Raises:
            TimeoutError: it has not ended after `timeout_s` seconds.
            HpctrainError: no scheduler has a record of its job any more.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        local = all(schedulers.owner(job).name == "local" for job in self.job_ids)
        while True:
            state = self.status()
            if state.word in _ENDED and not state.live:
                return state
            if state.word == "unknown" and state.forgotten:
                raise HpctrainError(
                    f"how {self.id} ended is unknown: {state.reason}",
                    fix=f"hpctrain explain {self.id}",
                )
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"{self.id} is {state.word}")
            time.sleep(_LOOK_S if local else _LOOK_SLURM_S)

    def logs(self) -> str:
        """Return the logs of its jobs, oldest first."""
        found = [
            file
            for run in self._runs()
            for file in log_files.of_run(self.runs_dir / run.id)
            if not file.copy and file.path.exists()
        ]
        return "".join(
            piece.decode("utf-8", "replace") for file in found for piece in read.pieces(file.path)
        )

    def metrics(self) -> list[dict[str, Any]]:
        """Return the logged metrics; repeated steps appear once. The keys are `event`, `step`,
        `epoch`, `at` (seconds since the epoch), and the Trainer's values; for several runs also
        `run`.
        """
        several = self._runs()
        return [
            row | ({"run": run.id} if len(several) > 1 else {})
            for run in several
            for row in history.read_rows(self.runs_dir / run.id)
        ]

    def explain(self) -> Explanation:
        """Explain why it failed: `diagnoses`, the likeliest first, each with evidence and fix."""
        return explanation.explained([self.id], runs_dir=self.runs_dir).explanation

    def resubmit(self, *, apply_fix: bool = False, local: bool = False) -> Run:
        """Resubmit its missing or failed parts, which continue from the newest checkpoint; return
        the run.

        Args:
            apply_fix: first change its config as the first diagnosis suggests.
            local: run it locally.

        Raises:
            HpctrainError: nothing is left to submit, there is no fix that can be applied
                automatically, or the scheduler refused it.
        """
        plan = resubmit.find(self.runs_dir, self.id, None)
        if not plan.parts:
            raise HpctrainError(
                f"nothing is left to submit of {self.id}", fix=f"hpctrain runs list {plan.tag}"
            )
        if apply_fix:
            fixed = resubmit.plan_fix(self.runs_dir, plan)
            plan = resubmit.keep_fix(self.runs_dir, plan, fixed)
        options = service.SubmitOptions(argv=("hpctrain", "resubmit", self.id))
        submitter = service.Submitter(_scheduler(local=local), self.runs_dir, plan.tag, options)
        resubmit.submit(plan, submitter, new_code=False, say=options.say)
        return self

    def cancel(self) -> None:
        """Cancel its waiting and running jobs."""
        survey = schedulers.survey(self.runs_dir, self._runs(), every_job=True)
        for job in dict.fromkeys(job for state in survey.states.values() for job in state.live):
            schedulers.owner(job).cancel([job])

    def _runs(self) -> list[store.Run]:
        whole = launch.load(self.runs_dir, self.id)
        if whole is not None:
            return targets.launched_runs(self.runs_dir, whole)[0]
        run = store.read_run(self.runs_dir, self.id)
        return [run] if run is not None else []


def _scheduler(*, local: bool) -> SlurmScheduler | LocalScheduler:
    return LocalScheduler() if local or not SlurmScheduler.is_available() else SlurmScheduler()
