"""A lab of tests/lab: Slurm's commands in it, its daemons, and the processes of its jobs.

The campaign's is the second one.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

LAB = Path(__file__).parents[1] / "lab" / "lab"
CANNOT_RUN_HERE = 3
# What an outer job, or the user's habits, would change about the commands below.
SCRUBBED = (
    "SLURM",
    "SBATCH_",
    "SRUN_",
    "SACCT_",
    "SQUEUE_",
    "HPCTRAIN_",
    "PYTEST_",
    "PYTHONPATH",
    "RANK",
    "WORLD_SIZE",
    "MASTER_",
)


class LabError(Exception):
    """The lab does not do what it is asked for."""


class RoughLab:
    """The running lab.

    Args:
        state: HPCTRAIN_STATE_DIR for everything that is started.
        number: 2 is the lab whose nodes may die; 1 is everybody's.
    """

    def __init__(self, state: Path, number: int = 2) -> None:
        self.number = number
        self.cluster = "lab" if number == 1 else f"lab{number}"
        self.nodes = (f"node{2 * number - 1}", f"node{2 * number}")
        conf = self.up()
        self.directory = conf.parent.parent
        kept = {name: value for name, value in os.environ.items() if not name.startswith(SCRUBBED)}
        self.env = kept | {
            "SLURM_CONF": str(conf),
            "HPCTRAIN_STATE_DIR": str(state),
            "ACCELERATE_USE_CPU": "true",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parent / "slow_steps"),
        }

    def up(self) -> Path:
        """Start what of the lab is not running, and return its slurm.conf; nodes that were down
        come back.

        Raises:
            LabError: it does not start.
            SystemExit: with status 3: it cannot run on this machine.
        """
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "HPCTRAIN_LAB_DIR" or self.number == 1
        }
        environment["HPCTRAIN_LAB_NUMBER"] = str(self.number)
        done = subprocess.run(
            [sys.executable, str(LAB), "up"], env=environment, capture_output=True, text=True
        )
        if done.returncode == CANNOT_RUN_HERE:
            sys.stderr.write(done.stderr)
            raise SystemExit(CANNOT_RUN_HERE)
        if done.returncode:
            raise LabError(done.stderr)
        return Path(done.stdout.strip().partition("=")[2])

    def run(
        self,
        *argv: str,
        cwd: Path | None = None,
        check: bool = True,
        timeout_s: float = 120,
        **more: str,
    ) -> str:
        """Run a command and return what it says on stdout.

        Raises:
            LabError: with its words, if it fails and `check` is true.
        """
        done = subprocess.run(
            argv,
            env={**self.env, **more},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode:
            raise LabError(f"{' '.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def queued(self, job_id: str) -> str | None:
        """Return `STATE REASON` of a job that pends, runs or completes; None for one that is over.

        Raises:
            LabError: squeue fails, which says nothing about the job.
        """
        try:
            lines = self.run(
                "squeue", "--noheader", f"--jobs={job_id}", "--format=%T %r"
            ).splitlines()
        except LabError as error:
            if "Invalid job id specified" in str(error):  # forgotten, five minutes after its end
                return None
            raise
        return lines[0] if lines else None

    def daemon(self, name: str) -> int:
        """Return the pid of a daemon of the lab: `slurmctld`, `slurmd-node4`."""
        return int(json.loads((self.directory / "state.json").read_text())[name][0])

    def kill_daemon(self, name: str, number: signal.Signals) -> None:
        daemon = psutil.Process(self.daemon(name))
        daemon.send_signal(number)
        daemon.wait(600)

    def wait_for_node(self, node: str, state: str) -> bool:
        return state in self.run(
            "sinfo", "--noheader", "--Node", f"--nodes={node}", "--partition=debug", "--format=%T"
        )

    def processes_of(self, job_ids: set[str]) -> list[psutil.Process]:
        """Return the living processes that the lab started for these jobs, on whichever of its
        nodes.
        """
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                ours = (
                    environment.get("SLURM_CLUSTER_NAME") == self.cluster
                    and environment.get("SLURM_JOB_ID") in job_ids
                )
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def cgroups_of(self, job_ids: set[str]) -> list[Path]:
        return [
            path
            for job in job_ids
            for node in self.nodes
            for path in Path("/sys/fs/cgroup").glob(f"*/slurm_{node}/uid_*/job_{job}")
        ]

    def pids_on(self, node: str, job_ids: set[str]) -> set[int]:
        """Return every process of these jobs on one node, the step managers included: what a power
        failure takes away.
        """
        found: set[int] = set()
        for top in Path("/sys/fs/cgroup").glob(f"*/slurm_{node}/uid_*/job_*"):
            if top.name.removeprefix("job_") in job_ids:
                for file in top.rglob("cgroup.procs"):
                    found.update(int(pid) for pid in file.read_text().split())
        return found
