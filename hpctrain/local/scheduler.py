"""The Scheduler protocol for local jobs: each job has a directory and a supervisor process."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.local import gpus, jobs, supervisor
from hpctrain.local.plan import FIRST_JOB_ID, KILL_WAIT_S, Plan, make
from hpctrain.slurm import batch_script
from hpctrain.slurm.base import LogFiles
from hpctrain.slurm.ledger import Submission
from hpctrain.slurm.notations.directives import last_values
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import process, shell

#: The programs that replace Slurm's in a job, and the modules that they run.
_SHIMS = {"srun": "srun", "scontrol": "shims scontrol", "scancel": "shims scancel"}
#: Seconds that `cancel` waits beyond KillWait.
_PATIENCE_S = 15


class LocalScheduler:
    """Runs jobs locally. A job starts at once unless it waits for other jobs or for GPUs; an array
    runs a limited number of tasks at a time.

    Args:
        parallel: array tasks that run at the same time; None for the array's `%` limit, else as
            many as the GPUs allow, or one on the CPU.
        device: the GPUs to use, `1` or `0,1`, as CUDA_VISIBLE_DEVICES names them; None for all.
    """

    name = "local"

    def __init__(self, *, parallel: int | None = None, device: str | None = None) -> None:
        self.parallel, self.device = parallel, device

    def dry_run(
        self,
        script: Path,
        values: Mapping[str, str | None],
        *,
        arguments: Sequence[str] = (),
        dependencies: Sequence[tuple[str, str]] = (),
        links: int = 0,
    ) -> list[str]:
        """Return the command that would be run."""
        del values, dependencies, links
        return [shell.join(("bash", str(script), *arguments))]

    def submit(
        self,
        script: Path,
        *,
        arguments: Sequence[str] = (),
        dependency: str | None = None,
        array: str | None = None,
        shown: Path | None = None,
        draft: Submission | None = None,
        folder: Path | None = None,
    ) -> Submission:
        """Start a background supervisor for `script` and return the job id; `shown` has no
        effect.

        Raises:
            UsageError: sbatch would refuse the script, the array or the dependency, too.
            HpctrainError: too few GPUs.
            OSError: the job directory cannot be written.
        """
        del shown
        text, directives = batch_script.read(script)
        plan_for = partial(
            make,
            directives,
            directory=str(Path.cwd()),
            script=str(script),
            arguments=arguments,
            dependency=dependency,
            array=array,
            parallel=self.parallel,
        )
        while True:
            # A script that sbatch would refuse uses up no job id.
            machine = gpus.this_machine(self.device)
            planned = plan_for(job_id=str(FIRST_JOB_ID), machine=machine)
            if planned.dependency is not None:
                _refuse_unknown_jobs(planned.dependency)
            job = jobs.new(tasks=len(planned.indices))
            try:
                plan = plan_for(job_id=job.path.name, machine=machine)
                if _hand_over(job, plan, text):
                    sent = replace(
                        draft or Submission(),
                        token=uuid.uuid4().hex[:16],
                        argv=("bash", str(script), *arguments),
                        at=time.time(),
                        scheduler="local",
                        job_id=plan.job_id,
                        array=array or last_values(directives).get("array"),
                        dependency=dependency,
                        arguments=tuple(arguments),
                        notes=plan.notes,
                    )
                    break
            except BaseException:
                shutil.rmtree(job.path, ignore_errors=True)
                raise
            shutil.rmtree(job.path)  # another submission took the GPUs: try again
        if folder is not None:
            sent.write(folder)
        return sent

    def refuse_unanswered(self, text: str) -> None:
        """Do nothing: a local submission is always answered."""

    def status(
        self, job_ids: Sequence[str] | None = None, *, max_age_s: float = 0.0
    ) -> list[JobRecord]:
        """Return the records of these jobs, or of all except those that ended more than a day ago,
        oldest first.

        Without ids, each array task has a record, and pending tasks share one, as in squeue:
        `123_[4-9%2]`. The id of an array gives one record for the entire array: running, then the
        worst final state of its tasks. `max_age_s` has no effect.
        """
        del max_age_s
        if job_ids is None:
            listed = (job for job in jobs.all_jobs() if job.age_s() < jobs.LISTED_S)
            return [record for job in listed for record in jobs.rows(job)]
        return [record for selection in _find(job_ids) for record in selection.records()]

    def accounts(self, job_ids: Sequence[str], *, max_age_s: float = 0.0) -> list[JobRecord]:
        """Return the usage of these jobs, with one entry per array task."""
        del max_age_s
        found = [
            record
            for each in _find(job_ids)
            for record in (jobs.rows(each.job) if each.indices is None else each.records())
        ]
        return list({record.job_id: record for record in found}.values())

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel these jobs, arrays or tasks, and wait until none of their processes is left: at
        most KillWait and `_PATIENCE_S`.

        Raises:
            HpctrainError: a job runs on another machine, or does not end.
        """
        selected = _find(job_ids)
        for each in selected:
            if (host := jobs.other_host(each.plan)) is not None:
                raise HpctrainError(
                    f"job {each.job.job_id} runs on {host}",
                    fix=f"ssh {host} hpctrain cancel {each.job.job_id}",
                )
        for each in selected:
            ask_to_end(each)
        deadline = time.monotonic() + max(supervisor.kill_wait_s(), KILL_WAIT_S) + _PATIENCE_S
        for each in selected:
            for job in each.directories():
                _wait_for_end(job, deadline)
            while not all(record.is_final for record in each.records()):
                _wait_a_moment(deadline, each.job)

    def logs(self, job_id: str) -> LogFiles | None:
        """Return the log files of a job or a task; None for a job that is not local, or for several
        tasks, which share no file.
        """
        selection = jobs.find(job_id)
        if selection is None or (selection.is_array and len(selection.tasks) != 1):
            return None
        plan = selection.plan.task(selection.tasks[0]) if selection.is_array else selection.plan
        return LogFiles(Path(plan.output), Path(plan.error))


def ask_to_end(selection: jobs.JobSelection) -> None:
    """Tell the processes that hold these jobs to end them, without waiting."""
    if selection.indices is not None and selection.job.holder() is not None:
        selection.job.drop_tasks(selection.indices)
        return
    # The array first, so that it starts no more tasks.
    for job in reversed(selection.directories()):
        if (holder := job.holder(to_signal=True)) is not None:
            holder.send_signal(signal.SIGTERM)


def request_requeue(job_id: str) -> list[str]:
    """Request a requeue from the supervisors of `job_id`; return Slurm's messages if it is refused."""
    selection = jobs.find(job_id)
    if selection is None:
        return [f"Invalid job id specified for job {job_id}"]
    if not selection.plan.requeue:
        return [f"Requested operation is presently disabled for job {job_id}"]
    running = [job for job in selection.running() if job.record().state != "PENDING"]
    for job in running:
        if (holder := job.holder()) is not None:
            holder.send_signal(supervisor.REQUEUE)
    if any(not record.is_final for record in selection.records()):
        return [] if running else [f"Job is pending execution for job {job_id}"]
    return [] if running else [f"Job/step already completing or completed for job {job_id}"]


def _find(job_ids: Sequence[str]) -> list[jobs.JobSelection]:
    return [selection for selection in map(jobs.find, job_ids) if selection is not None]


def _wait_for_end(job: jobs.LocalJob, deadline: float) -> None:
    """Wait until no process holds the job, kill what it left running, and write the state if its
    supervisor could not.
    """
    while job.holder() is not None:  # a zombie has ended, though its parent may be slow to reap it
        _wait_a_moment(deadline, job)
    if job.array is not None and job.state().is_final:
        # Scanning all processes for each of thousands of tasks takes minutes; the array's own scan
        # finds them all.
        return
    job.kill_leftovers()
    state = job.state()
    if not state.is_final:  # the supervisor was killed, or ended before it could handle signals
        job.write_state(
            "CANCELLED",
            start=state.start,
            end=time.time(),
            exit_code=0,
            signal=int(signal.SIGTERM),
        )


def _wait_a_moment(deadline: float, job: jobs.LocalJob) -> None:
    if time.monotonic() > deadline:
        holder = job.holder()
        raise HpctrainError(
            f"job {job.job_id} does not end",
            fix=f"kill -9 {holder.pid}" if holder else "hpctrain ps",
        )
    time.sleep(0.05)


def _refuse_unknown_jobs(text: str) -> None:
    try:
        for _, job_id in supervisor.parse_dependency(text):
            if jobs.find(job_id) is None:
                what = f"{supervisor.DEPENDENCY_PROBLEM}: {job_id}"
                raise ValueError(f"{what}: no such job on this machine")
    except ValueError as error:
        raise UsageError(str(error), fix="hpctrain ps --all") from error


def _hand_over(job: jobs.LocalJob, plan: Plan, text: str) -> bool:
    """Start the supervisor; False if another job has taken a GPU meanwhile."""
    starts_now = plan.array is None and plan.dependency is None
    for log in (plan.output, plan.error) if starts_now else ():
        Path(log).parent.mkdir(parents=True, exist_ok=True)
    job.script.write_text(text, encoding="utf-8", errors="surrogateescape")
    environment = _environment(job)
    job.write_holder(os.getpid(), submits=True)
    job.write_plan(replace(plan, submitted=time.time()))
    if starts_now and plan.total_gpus and gpus.take(job, plan.total_gpus, plan.gpus) is None:
        return False
    supervisor.start(job, environment)
    return True


def _environment(job: jobs.LocalJob) -> dict[str, str]:
    """Return the job's environment with the shims on PATH, without the variables that differ
    between starts.
    """
    programs = job.path / "bin"
    programs.mkdir()
    python = shlex.quote(sys.executable)
    for name, module in _SHIMS.items():
        shim = programs / name
        text = f'#!/bin/sh\nexec {python} -P -m hpctrain.local.{module} "$@"\n'
        shim.write_text(text, encoding="utf-8")
        shim.chmod(0o700)
    own = process.clean(os.environ)
    # The shims look for jobs where this one is, even if the script changes XDG_STATE_HOME.
    return {
        **own,
        "PATH": f"{programs}:{own.get('PATH', os.defpath)}",
        "HPCTRAIN_STATE_DIR": str(job.path.parent.parent),
    }
