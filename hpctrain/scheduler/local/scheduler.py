"""The local scheduler's side of the protocol: job directories, one for each job, each with a supervisor process."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.scheduler import process
from hpctrain.scheduler.base import LogFiles, Submission
from hpctrain.scheduler.local import plan as planning
from hpctrain.scheduler.parse import directives, states
from hpctrain.scheduler.parse.records import JobRecord
from hpctrain.scheduler.state_dir import read_json, state_dir, write_json


class LocalScheduler:
    """Runs jobs on this machine, each at once."""

    name = "local"

    def submit(self, script: Path) -> Submission:
        """Start `script` in the background and return its job id.

        Raises:
            UsageError: sbatch would refuse the script too.
            HpctrainError: too few GPUs, or no place to write.
        """
        text = _read(script)
        self.plan(script)  # what sbatch would refuse is refused before a job id is taken
        directory = self._new_directory()
        machine = this_machine()
        plan = _plan(text, script, directory.name, machine)
        for log in (plan.output, plan.error):
            Path(log).parent.mkdir(parents=True, exist_ok=True)
        (directory / "script").write_text(text, encoding="utf-8", errors="surrogateescape")
        write_json(directory / "job.json", {"plan": plan.to_json(), "submitted": time.time()})
        with (directory / "supervisor.log").open("ab") as log_file:
            holder = subprocess.Popen(
                [sys.executable, "-P", "-m", "hpctrain.scheduler.local.supervisor", str(directory)], stdin=subprocess.DEVNULL,
                stdout=log_file, stderr=log_file, start_new_session=True, cwd="/", env=self._environment(plan, machine, directory),
            )  # fmt: skip
        write_json(directory / "supervisor.json", {"pid": holder.pid, "created": _created(holder.pid)})
        return Submission(job_id=plan.job_id, notes=plan.notes)

    def plan(self, script: Path) -> planning.Plan:
        """Return what would run, without running it; the job id in it is not taken yet.

        Raises:
            UsageError: sbatch would refuse the script too.
            HpctrainError: too few GPUs.
        """
        return _plan(_read(script), script, str(planning.FIRST_JOB_ID), this_machine())

    def status(self, job_ids: Sequence[str] | None = None) -> list[JobRecord]:
        """Return the records of these jobs, or of all that have not ended more than a day ago, the oldest first."""
        if job_ids is not None:
            return [self._record(directory) for directory in self._directories() if directory.name in set(job_ids)]
        return [self._record(directory) for directory in self._directories() if not _ended_long_ago(directory)]

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End these jobs and wait until no process of them is left, at most KillWait and a little."""
        holders = {job_id: self._supervisor(self._root() / job_id) for job_id in job_ids}
        for holder in holders.values():
            if holder is not None:
                holder.send_signal(signal.SIGTERM)
        for job_id, holder in holders.items():
            try:
                if holder is not None:
                    holder.wait(timeout=planning.KILL_WAIT_S + 15)
            except psutil.TimeoutExpired:
                raise HpctrainError(f"job {job_id} does not end", fix=f"kill -9 {holder.pid if holder else ''}") from None
            directory = self._root() / job_id
            _sweep(directory)
            if not states.is_final(str((read_json(directory / "state.json") or {}).get("state"))):
                # The supervisor was gone, or ended before it could listen.
                write_json(directory / "state.json", {"state": "CANCELLED", "exit_code": 0, "signal": int(signal.SIGTERM)})

    def logs(self, job_id: str) -> LogFiles | None:
        """Return where the job writes, or None for a job that is not local."""
        job = read_json(self._root() / job_id / "job.json") if job_id.isdigit() else None
        return None if job is None else LogFiles(Path(job["plan"]["output"]), Path(job["plan"]["error"]))

    def _environment(self, plan: planning.Plan, machine: planning.Machine, directory: Path) -> dict[str, str]:
        programs = directory / "bin"
        programs.mkdir()
        for name in ("srun", "scontrol"):
            stand_in = programs / name
            stand_in.write_text(
                f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m hpctrain.scheduler.local.{name} "$@"\n', encoding="utf-8"
            )
            stand_in.chmod(0o700)
        own = process.clean(os.environ)
        variables = planning.environment(plan, start_s=int(time.time()), machine=machine, submit_dir=str(Path.cwd()))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(str(index) for index in range(machine.gpus))
        return {
            **own, **variables, "PATH": f"{programs}:{own.get('PATH', os.defpath)}", "HPCTRAIN_LOCAL_JOB": str(directory),
            "HPCTRAIN_LOCAL_GPUS": visible if plan.gpus_per_node else "",
        }  # fmt: skip

    def _record(self, directory: Path) -> JobRecord:
        job = read_json(directory / "job.json")
        state = read_json(directory / "state.json") or {"state": "PENDING"}
        if job is None:
            return JobRecord(job_id=directory.name, scheduler="local", state="FAILED", reason="never started")
        plan = planning.Plan.from_json(job["plan"])
        name, reason = str(state["state"]), state.get("reason")
        if not states.is_final(name) and self._supervisor(directory) is None and time.time() - job["submitted"] > 1:
            state = read_json(directory / "state.json") or state  # it may have ended between the two looks
            name, reason = str(state["state"]), state.get("reason")
            if not states.is_final(name):
                name, reason = "NODE_FAIL", "its supervisor process is gone"
        start, end = state.get("start"), state.get("end")
        return JobRecord(
            job_id=plan.job_id, scheduler="local", state=name, name=plan.name, reason=reason, nodes=plan.nodes, partition="local",
            elapsed_s=None if start is None else max(0, int((end or time.time()) - start)), time_limit_s=plan.time_limit_s,
            start=None if start is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(start)),
            exit_code=state.get("exit_code"), signal=state.get("signal"),
        )  # fmt: skip

    def _supervisor(self, directory: Path) -> psutil.Process | None:
        """Return the living supervisor; a process that has its number by chance started at another time."""
        known = read_json(directory / "supervisor.json")
        if known is None:
            return None
        try:
            holder = psutil.Process(known["pid"])
            same = known["created"] is not None and abs(holder.create_time() - known["created"]) < 1
            return holder if same and holder.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None

    def _new_directory(self) -> Path:
        taken = [int(directory.name) for directory in self._directories()]
        number = max([planning.FIRST_JOB_ID - 1, *taken]) + 1
        while True:
            try:
                (self._root() / str(number)).mkdir(mode=0o700)
            except FileExistsError:
                number += 1
            else:
                return self._root() / str(number)

    def _directories(self) -> list[Path]:
        found = [directory for directory in self._root().iterdir() if directory.name.isdigit()]
        return sorted(found, key=lambda directory: int(directory.name))

    def _root(self) -> Path:
        root = state_dir() / "local"
        root.mkdir(exist_ok=True)
        return root


def this_machine() -> planning.Machine:
    """Return cores (of this process's affinity), NVIDIA GPUs, host and user."""
    return planning.Machine(
        cores=len(psutil.Process().cpu_affinity() or [0]) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1,
        gpus=_gpus(),
        host=socket.gethostname(),
        user=getpass.getuser(),
        use_cpu=os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"),
    )


def _gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([item for item in visible.split(",") if item.strip() not in ("", "-1")])
    return sum(1 for entry in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", entry.name))


def _read(script: Path) -> str:
    # newline="": Slurm refuses DOS line ends, and Python would hide them.
    with script.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
        return stream.read()


def _plan(text: str, script: Path, job_id: str, machine: planning.Machine) -> planning.Plan:
    try:
        found = directives.read(text)
    except ValueError as error:
        raise UsageError(f"{script} is not a batch script", details=(str(error),), fix="hpctrain render") from error
    return planning.make(found, job_id=job_id, directory=str(Path.cwd()), machine=machine)


def _sweep(directory: Path) -> None:
    """End what a supervisor that was killed left behind: processes that carry the job in their environment.

    Looks again until a look finds none, because a process may have started another in between.
    """
    while left := [candidate for candidate in psutil.process_iter() if _belongs_to(candidate, directory)]:
        for candidate in left:
            try:
                candidate.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(left, timeout=5)


def _belongs_to(candidate: psutil.Process, directory: Path) -> bool:
    try:
        ours = candidate.environ().get("HPCTRAIN_LOCAL_JOB") == str(directory)
        return ours and candidate.pid != os.getpid() and bool(candidate.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _ended_long_ago(directory: Path) -> bool:
    end = (read_json(directory / "state.json") or {}).get("end")
    return end is not None and time.time() - end > 86_400


def _created(pid: int) -> float | None:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None
