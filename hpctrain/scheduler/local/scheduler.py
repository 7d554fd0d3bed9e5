"""The local scheduler's side of the protocol: job directories, one for each job, each with a supervisor process."""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.scheduler import batch_script, process
from hpctrain.scheduler.base import LogFiles, Submission
from hpctrain.scheduler.local import accounts, book, claims, dependency, job_directory, launch
from hpctrain.scheduler.local import plan as planning
from hpctrain.scheduler.local.book import Meant
from hpctrain.scheduler.local.job_directory import JobDirectory
from hpctrain.scheduler.parse import array as arrays
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.accounting import Account
from hpctrain.scheduler.parse.directives import Directive
from hpctrain.scheduler.parse.records import JobRecord

#: The programs that a job finds in place of Slurm's.
STAND_INS = ("srun", "scontrol", "scancel", "squeue")
#: Seconds past KillWait for which `cancel` waits.
_PATIENCE_S = 15


class LocalScheduler:
    """Runs jobs on this machine: each at once, unless it waits for others or for GPUs; of an array, so many tasks at a time.

    Args:
        parallel: tasks of an array that run at the same time; None is the array's own limit, else what the GPUs allow, else one.
        device: the GPUs to use, `1` or `0,1`, as CUDA_VISIBLE_DEVICES names them; None is all.
    """

    name = "local"

    def __init__(self, *, parallel: int | None = None, device: str | None = None) -> None:
        self.parallel, self.device = parallel, device

    def submit(
        self,
        script: Path,
        *,
        resend: bool = False,
        arguments: Sequence[str] = (),
        dependency: str | None = None,
        array: str | None = None,
        shown: Path | None = None,
    ) -> Submission:
        """Hand `script` to a supervisor in the background and return the job id; `resend` and `shown` mean nothing here.

        SLURM_ARRAY_TASK_ID in the environment, outside of any job, is somebody's own choice of one task: that one runs alone.

        Raises:
            UsageError: sbatch would refuse the script, the array or the dependency too.
            HpctrainError: too few GPUs.
            OSError: no place to write.
        """
        del resend, shown
        text, found = batch_script.read(script)
        wish = self._wish(arguments, dependency, array)
        while True:
            machine = this_machine(self.device)
            draft = _plan(found, script, str(planning.FIRST_JOB_ID), machine, wish)  # what sbatch would refuse takes no job id
            _refuse_unknown_jobs(draft.dependency)
            job = job_directory.new(tasks=len(draft.indices))
            try:
                plan = _plan(found, script, job.path.name, machine, wish)
                if self._hand_over(job, plan, text):
                    return Submission(job_id=plan.job_id, notes=plan.notes)
            except BaseException:
                shutil.rmtree(job.path, ignore_errors=True)
                raise
            shutil.rmtree(job.path)  # another submission took the GPUs: look again

    def _hand_over(self, job: JobDirectory, plan: planning.Plan, text: str) -> bool:
        """Start the supervisor; False where a GPU that was free is not any more."""
        starts_now = plan.array is None and plan.dependency is None
        if starts_now:
            for log in (plan.output, plan.error):
                Path(log).parent.mkdir(parents=True, exist_ok=True)
        (job.path / "script").write_text(text, encoding="utf-8", errors="surrogateescape")
        environment = _environment(job)
        job.write_holder(os.getpid(), submits=True)
        job.write_job(plan)
        if starts_now and plan.total_gpus and claims.take(job, plan.total_gpus, plan.gpus) is None:
            return False
        launch.start(job, environment)
        return True

    def plan(
        self, script: Path, *, arguments: Sequence[str] = (), dependency: str | None = None, array: str | None = None
    ) -> planning.Plan:
        """Return what would run, without running it; the job id in it is not taken yet.

        Raises:
            UsageError: sbatch would refuse the script too.
            HpctrainError: too few GPUs.
        """
        wish = self._wish(arguments, dependency, array)
        return _plan(batch_script.read(script)[1], script, str(planning.FIRST_JOB_ID), this_machine(self.device), wish)

    def status(self, job_ids: Sequence[str] | None = None, *, max_age_s: float = 0.0) -> list[JobRecord]:
        """Return the records of these jobs, or of all that have not ended more than a day ago, the oldest first.

        Without ids, an array's tasks have a record each, and those that wait share one, as in squeue: `123_[4-9%2]`. The id of an array
        gives one record for the whole: running, and then the worst of what its tasks came to. `max_age_s` means nothing here.
        """
        del max_age_s
        if job_ids is None:
            return book.all_records()
        return [record for meant in _meant(job_ids) for record in book.records(meant)]

    def accounts(self, job_ids: Sequence[str], *, near: Mapping[str, float] | None = None, max_age_s: float = 0.0) -> list[Account]:
        """Return the accounts of these jobs, an array's tasks each; its ids are given out once, so `near` means nothing here."""
        del near, max_age_s
        return list({account.job_id: account for meant in _meant(job_ids) for account in accounts.of(meant)}.values())

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End these jobs, arrays or tasks, and wait until no process of them is left, at most KillWait and a little.

        Raises:
            HpctrainError: a job runs on another machine, or does not end.
        """
        all_meant = _meant(job_ids)
        for meant in all_meant:
            if (host := meant.job.other_host()) is not None:
                raise HpctrainError(f"job {meant.job.job_id} runs on {host}", fix=f"ssh {host} hpctrain cancel {meant.job.job_id}")
        for meant in all_meant:
            ask_to_end(meant)
        deadline = time.monotonic() + max(launch.kill_wait_s(), planning.KILL_WAIT_S) + _PATIENCE_S
        for meant in all_meant:
            for job in _directories(meant):
                _wait_and_sweep(job, deadline)
            while meant.indices is not None and not all(record.is_final for record in book.records(meant)):
                _give_up_at(deadline, meant.job)

    def requeue(self, job_ids: Sequence[str]) -> None:
        """Let these jobs, or array tasks, that run now end and start again, under the same id: what `scontrol requeue` does.

        Raises:
            HpctrainError: in Slurm's words: one is unknown, waits or has ended, or its script says --no-requeue. The others are requeued.
        """
        problems = [problem for job_id in job_ids for problem in request_requeue(job_id)]
        if problems:
            raise HpctrainError("not everything was requeued", details=tuple(f"  {problem}" for problem in problems), fix="hpctrain ps")

    def logs(self, job_id: str) -> LogFiles | None:
        """Return where the job or the task writes; None for a job that is not local, and for several tasks, which share no file."""
        meant = book.find(job_id)
        if meant is None or (meant.is_array and len(meant.tasks) != 1):
            return None
        plan = meant.plan.task(meant.tasks[0]) if meant.is_array else meant.plan
        return LogFiles(Path(plan.output), Path(plan.error))

    def _wish(self, arguments: Sequence[str], dependency: str | None, array: str | None) -> planning.Wish:
        by_hand = os.environ.get("SLURM_ARRAY_TASK_ID", "") if not os.environ.get("SLURM_JOB_ID") else ""
        if by_hand and not by_hand.isdigit():
            raise UsageError(f"SLURM_ARRAY_TASK_ID={by_hand} is no index of an array", fix="unset SLURM_ARRAY_TASK_ID")
        index = int(by_hand) if by_hand else None
        return planning.Wish(arguments=tuple(arguments), dependency=dependency, array=array, index=index, parallel=self.parallel)


def this_machine(device: str | None = None) -> planning.Machine:
    """Return cores (of this process's affinity), NVIDIA GPUs and who of the local jobs holds them, host and user.

    Args:
        device: the GPUs to look at; None is all.

    Raises:
        UsageError: `device` names one that is not there.
    """
    gpus = claims.present()
    if device is not None:
        chosen = list(dict.fromkeys(item.strip() for item in device.split(",") if item.strip()))
        missing = [gpu for gpu in chosen if gpu not in gpus]
        if missing or not chosen:
            here = f"this machine has {', '.join(gpus)}" if gpus else "this machine has none"
            raise UsageError(f"there is no GPU {', '.join(missing) or repr(device)}; {here}", fix="nvidia-smi -L, and CUDA_VISIBLE_DEVICES")
        gpus = chosen
    held = claims.held(gpus)
    return planning.Machine(
        cores=claims.cores(),
        gpus=tuple(gpu for gpu in gpus if gpu not in held),
        busy_gpus=tuple(held),
        host=socket.gethostname(),
        user=getpass.getuser(),
        use_cpu=os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"),
        chosen=device is not None,
    )


def ask_to_end(meant: Meant) -> None:
    """Tell whoever holds these to end them; does not wait."""
    if meant.indices is not None and meant.job.holder() is not None:
        meant.job.ask("cancel", tasks=arrays.compress(meant.indices))
        return
    for job in reversed(_directories(meant)):  # the array first: it starts no more tasks then
        holder = None if job.submitter_holds() else job.holder()
        if holder is not None:
            holder.send_signal(signal.SIGTERM)


def request_requeue(job_id: str) -> list[str]:
    """Ask the supervisors of what `job_id` stands for to start it again; return what stands against it, in Slurm's words."""
    meant = book.find(job_id)
    if meant is None:
        return [f"Invalid job id specified for job {job_id}"]
    if not meant.plan.requeue:
        return [f"Requested operation is presently disabled for job {job_id}"]
    running = [job for job in book.running(meant) if job.record().state != "PENDING"]
    for job in running:
        job.ask("requeue")
    if running:
        return []
    if any(not record.is_final for record in book.records(meant)):
        return [f"Job is pending execution for job {job_id}"]
    return [f"Job/step already completing or completed for job {job_id}"]


def _meant(job_ids: Sequence[str]) -> list[Meant]:
    return [meant for meant in map(book.find, job_ids) if meant is not None]


def _directories(meant: Meant) -> list[JobDirectory]:
    """Return the directories of what is meant: of an array, the tasks that have started, and its own where all of it is meant."""
    if not meant.is_array:
        return [meant.job]
    started = set(meant.job.started())
    tasks = [meant.job.task(index) for index in meant.tasks if index in started]
    return [*tasks, meant.job] if meant.indices is None else tasks


def _wait_and_sweep(job: JobDirectory, deadline: float) -> None:
    """Wait until nobody holds the job, end what was left behind, and write the state where nobody was there to do it."""
    while job.holder() is not None:  # a zombie counts as gone: its parent may be slow to collect it
        _give_up_at(deadline, job)
    if states.is_final(str(job.state()["state"])) and job.path.parent.name == job_directory.TASKS:
        return  # to look through all processes for each of thousands of tasks takes minutes, and the array's own look finds them all
    job.sweep()
    state = job.state()
    if not states.is_final(str(state["state"])):
        # The supervisor was gone, or ended before it could listen.
        job.write_state("CANCELLED", start=state.get("start"), end=time.time(), exit_code=0, signal=int(signal.SIGTERM))


def _give_up_at(deadline: float, job: JobDirectory) -> None:
    if time.monotonic() > deadline:
        holder = job.holder()
        raise HpctrainError(f"job {job.job_id} does not end", fix=f"kill -9 {holder.pid if holder else ''}")
    time.sleep(0.05)


def _refuse_unknown_jobs(text: str | None) -> None:
    """Raise for a dependency that sbatch would refuse.

    Raises:
        UsageError: its form, or a job in it that is not known here.
    """
    if text is None:
        return
    try:
        conditions = dependency.parse(text).conditions
        unknown = [condition.job_id for condition in conditions if condition.job_id and book.find(condition.job_id) is None]
        if unknown:
            raise ValueError(f"{dependency.PROBLEM}: {', '.join(unknown)}: no such job on this machine")
    except ValueError as error:
        raise UsageError(str(error), fix="hpctrain ps --all") from error


def _environment(job: JobDirectory) -> dict[str, str]:
    """Return the environment of the job, without what changes from start to start, with the stand-ins on PATH."""
    programs = job.path / "bin"
    programs.mkdir()
    for name in STAND_INS:
        stand_in = programs / name
        stand_in.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m hpctrain.scheduler.local.{name} "$@"\n', encoding="utf-8")
        stand_in.chmod(0o700)
    own = process.clean(os.environ)
    # The stand-ins look for jobs where this one is, whatever the script makes of XDG_STATE_HOME.
    return {**own, "PATH": f"{programs}:{own.get('PATH', os.defpath)}", "HPCTRAIN_STATE_DIR": str(job.path.parent.parent)}


def _plan(found: Sequence[Directive], script: Path, job_id: str, machine: planning.Machine, wish: planning.Wish) -> planning.Plan:
    return planning.make(found, job_id=job_id, directory=str(Path.cwd()), script=str(script), machine=machine, wish=wish)
