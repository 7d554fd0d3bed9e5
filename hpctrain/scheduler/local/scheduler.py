"""The local scheduler's side of the protocol: job directories, one for each job, each with a supervisor process."""

from __future__ import annotations

import fcntl
import getpass
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from hpctrain.errors import HpctrainError
from hpctrain.scheduler import batch_script, process
from hpctrain.scheduler.base import LogFiles, Submission
from hpctrain.scheduler.local import job_directory
from hpctrain.scheduler.local import plan as planning
from hpctrain.scheduler.local.job_directory import JobDirectory
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.directives import Directive
from hpctrain.scheduler.parse.records import JobRecord


class LocalScheduler:
    """Runs jobs on this machine, each at once."""

    name = "local"

    def submit(self, script: Path, *, resend: bool = False) -> Submission:
        """Start `script` in the background and return its job id; `resend` means nothing here.

        Raises:
            UsageError: sbatch would refuse the script too.
            HpctrainError: too few GPUs.
            OSError: no place to write.
        """
        del resend
        text, found = batch_script.read(script)
        # One submission at a time, so that two do not take the same GPUs.
        with _lock():
            machine = this_machine()
            _plan(found, script, str(planning.FIRST_JOB_ID), machine)  # what sbatch would refuse takes no job id
            job = job_directory.new()
            try:
                plan = _plan(found, script, job.job_id, machine)
                for log in (plan.output, plan.error):
                    Path(log).parent.mkdir(parents=True, exist_ok=True)
                (job.path / "script").write_text(text, encoding="utf-8", errors="surrogateescape")
                environment = _environment(plan, machine, job)
                job.write_job(plan)
            except BaseException:
                shutil.rmtree(job.path, ignore_errors=True)
                raise
            with (job.path / "supervisor.log").open("ab") as log_file:
                holder = subprocess.Popen(
                    [sys.executable, "-P", "-m", "hpctrain.scheduler.local.supervisor", str(job.path)], stdin=subprocess.DEVNULL,
                    stdout=log_file, stderr=log_file, start_new_session=True, cwd="/", env=environment,
                )  # fmt: skip
            job.write_holder(holder.pid)
        return Submission(job_id=plan.job_id, notes=plan.notes)

    def plan(self, script: Path) -> planning.Plan:
        """Return what would run, without running it; the job id in it is not taken yet.

        Raises:
            UsageError: sbatch would refuse the script too.
            HpctrainError: too few GPUs.
        """
        return _plan(batch_script.read(script)[1], script, str(planning.FIRST_JOB_ID), this_machine())

    def status(self, job_ids: Sequence[str] | None = None) -> list[JobRecord]:
        """Return the records of these jobs, or of all that have not ended more than a day ago, the oldest first."""
        if job_ids is not None:
            return [job.record() for job in job_directory.all_jobs() if job.job_id in set(job_ids)]
        return [job.record() for job in job_directory.all_jobs() if job.age_s() < job_directory.LISTED_S]

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End these jobs and wait until no process of them is left, at most KillWait and a little.

        Raises:
            HpctrainError: a job runs on another machine, or does not end.
        """
        jobs = [JobDirectory(job_directory.root() / job_id) for job_id in job_ids]
        for job in jobs:
            if (host := job.other_host()) is not None:
                raise HpctrainError(f"job {job.job_id} runs on {host}", fix=f"ssh {host} hpctrain cancel {job.job_id}")
        holders = [job.holder() for job in jobs]
        for holder in holders:
            if holder is not None:
                holder.send_signal(signal.SIGTERM)
        for job, holder in zip(jobs, holders, strict=True):
            deadline = time.monotonic() + planning.KILL_WAIT_S + 15
            while job.holder() is not None:  # a zombie counts as gone: its parent may be slow to collect it
                if time.monotonic() > deadline:
                    raise HpctrainError(f"job {job.job_id} does not end", fix=f"kill -9 {holder.pid if holder else ''}")
                time.sleep(0.05)
            job.sweep()
            if not states.is_final(str(job.state()["state"])):
                # The supervisor was gone, or ended before it could listen.
                job.write_state("CANCELLED", exit_code=0, signal=int(signal.SIGTERM))

    def logs(self, job_id: str) -> LogFiles | None:
        """Return where the job writes, or None for a job that is not local."""
        plan = JobDirectory(job_directory.root() / job_id).plan() if job_id.isdigit() else None
        return None if plan is None else LogFiles(Path(plan.output), Path(plan.error))


def this_machine() -> planning.Machine:
    """Return cores (of this process's affinity), NVIDIA GPUs that no local job uses, host and user."""
    held = {gpu for job in job_directory.all_jobs() for gpu in job.holds_gpus()}
    gpus = _gpus()
    return planning.Machine(
        cores=len(psutil.Process().cpu_affinity() or [0]) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1,
        gpus=tuple(gpu for gpu in gpus if gpu not in held),
        busy_gpus=len(held & set(gpus)),
        host=socket.gethostname(),
        user=getpass.getuser(),
        use_cpu=os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"),
    )


def _gpus() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [item.strip() for item in visible.split(",") if item.strip() not in ("", "-1")]
    return sorted(match[1] for entry in Path("/dev").glob("nvidia*") if (match := re.fullmatch(r"nvidia(\d+)", entry.name)))


def _environment(plan: planning.Plan, machine: planning.Machine, job: JobDirectory) -> dict[str, str]:
    programs = job.path / "bin"
    programs.mkdir()
    for name in ("srun", "scontrol"):
        stand_in = programs / name
        stand_in.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m hpctrain.scheduler.local.{name} "$@"\n', encoding="utf-8")
        stand_in.chmod(0o700)
    own = process.clean(os.environ)
    variables = planning.environment(plan, start_s=int(time.time()), machine=machine, submit_dir=str(Path.cwd()))
    return {**own, **variables, "PATH": f"{programs}:{own.get('PATH', os.defpath)}", "HPCTRAIN_LOCAL_JOB": str(job.path)}


def _plan(found: Sequence[Directive], script: Path, job_id: str, machine: planning.Machine) -> planning.Plan:
    return planning.make(found, job_id=job_id, directory=str(Path.cwd()), script=script.name, machine=machine)


@contextmanager
def _lock() -> Iterator[None]:
    with (job_directory.root() / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
