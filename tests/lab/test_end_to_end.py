"""The main job on a real Slurm: the rendered scripts train the demo, are watched, are cancelled,
and are killed for their memory.
"""

import json
import re
import subprocess
from pathlib import Path

import psutil
import pytest

from hpctrain.memory.sample import Sample, parse_line
from tests.lab.typist import HPCTRAIN, Typist
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

#: The lab's GPUs are files that only Slurm counts, so the training is told to use the CPU.
ON_CPU = {"ACCELERATE_USE_CPU": "true"}
LOSS = re.compile(r"^\[train\] step=(\d+)/\d+ loss=([\d.]+)", re.MULTILINE)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lab") / "demo"
    subprocess.run([HPCTRAIN, "prepare", "--demo", str(directory)], check=True, capture_output=True)
    return directory


class User(Typist):
    """Somebody whose commands succeed."""

    def type(
        self, *words: str, code: int | None = 0, **more: str
    ) -> subprocess.CompletedProcess[str]:
        return super().type(*words, code=code, **more)

    def sbatch(self, *words: str) -> str:
        return self.type("sbatch", "--parsable", *words).stdout.strip()

    def log(self, name: str = "output_sft.log") -> str:
        path = self.directory / "logs" / name
        return path.read_text() if path.exists() else ""

    def state(self, job_id: str) -> str:
        jobs = json.loads(self.type("hpctrain", "ps", "--json").stdout)["jobs"]
        return next((str(job["state"]) for job in jobs if job["job_id"] == job_id), "absent")

    def wait(self, job_id: str, timeout_s: float = 600) -> str:
        going_on = ("PENDING", "RUNNING", "COMPLETING", "absent")
        wait_until(lambda: self.state(job_id) not in going_on, f"{job_id} ends", timeout_s)
        return self.state(job_id)


def processes_of(job_id: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get("SLURM_JOB_ID") == job_id
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def samples(log: str) -> list[Sample]:
    return [sample for sample in map(parse_line, log.splitlines()) if sample is not None]


@pytest.fixture
def user(tmp_path: Path, lab_env: dict[str, str]) -> User:
    return User(tmp_path, lab_env)


@pytest.fixture
def trainer(demo: Path, lab_env: dict[str, str]) -> User:
    return User(demo, lab_env)


@pytest.mark.torch
def test_the_rendered_script_trains_the_demo_to_its_end(trainer: User) -> None:
    trainer.type(
        "hpctrain",
        "render",
        "--nodes",
        "2",
        "--gpus",
        "1",
        "--partition",
        "boost_usr_prod",
        "--account",
        "EUHPC_A06_067",
        "--mem",
        "4G",
        "--",
        "--max_steps",
        "40",
        "--eval_steps",
        "20",
        "--save_steps",
        "20",
    )
    job_id = trainer.sbatch("sft.sbatch")

    def lines_of_every_rank_while_it_runs() -> bool:
        log = trainer.log(f"output_sft_{job_id}.log")
        assert "ended with exit code" not in log, (
            "the memory lines must come while the job runs, not at its end"
        )
        return {each.rank for each in samples(log) if each.event == "first_step"} == {0, 1}

    wait_until(lines_of_every_rank_while_it_runs)
    assert samples(trainer.log()), "the stable name shows the job that runs"
    assert trainer.wait(job_id) == "COMPLETED", trainer.log("error_sft.log")

    log = trainer.log()
    assert log == trainer.log(f"output_sft_{job_id}.log"), "the stable name still shows it"
    losses = [float(loss) for _, loss in LOSS.findall(log)]
    assert len(losses) == 8
    assert losses[-1] < losses[0] - 1
    seen = samples(log)
    for rank in (0, 1):
        mine = [sample for sample in seen if sample.rank == rank]
        assert {sample.event for sample in mine} == {
            "train_begin",
            "first_step",
            "step",
            "evaluate",
            "save",
            "train_end",
        }
        assert all(
            sample.world_size == 2 and sample.rss_mib and sample.node_total_mib for sample in mine
        )
        # The job's own cgroup, four GiB, found although it sits two levels above the task's.
        assert {sample.cgroup_limit_mib for sample in mine} == {4096}
        written = (
            (trainer.directory / "runs" / f"sft-{job_id}" / "memory" / f"rank-{rank}.jsonl")
            .read_text()
            .splitlines()
        )
        assert len(written) == len(mine)
    assert {sample.host for sample in seen} == {"node1", "node2"}
    assert processes_of(job_id) == []


#: launcher, nodes, GPUs of each, cores of each task: two processes throughout.
LAUNCHES = [
    ("accelerate", 2, 1, 8),
    ("torchrun", 2, 1, 8),
    ("srun", 2, 1, 8),
    ("torchrun", 1, 2, 8),
]


@pytest.mark.extended
@pytest.mark.torch
def test_equal_losses_for_equal_world_sizes_whoever_starts_the_processes(trainer: User) -> None:
    jobs = {}
    for launcher, nodes, gpus, cores in LAUNCHES:
        name = f"{launcher}-{nodes}x{gpus}"
        trainer.type(
            "hpctrain",
            "render",
            "--job-name",
            name,
            "--launcher",
            launcher,
            "--nodes",
            str(nodes),
            "--gpus",
            str(gpus),
            "--cpus-per-task",
            str(cores),
            "--partition",
            "boost_usr_prod",
            "--account",
            "EUHPC_A06_067",
            "--mem",
            "3G",
            "--",
            "--max_steps",
            "10",
            "--logging_steps",
            "2",
            "--eval_strategy",
            "no",
            "--save_strategy",
            "no",
        )
        jobs[name] = trainer.sbatch(f"{name}.sbatch")
    losses = {}
    for name, job_id in jobs.items():
        assert trainer.wait(job_id, 240) == "COMPLETED", trainer.log(f"error_{name}.log")
        losses[name] = tuple(LOSS.findall(trainer.log(f"output_{name}.log")))
        ranks = {
            (sample.rank, sample.world_size)
            for sample in samples(trainer.log(f"output_{name}.log"))
        }
        assert ranks == {(0, 2), (1, 2)}
    assert {len(found) for found in losses.values()} == {5}, losses
    assert len(set(losses.values())) == 1, losses


@pytest.mark.torch
def test_scancel_by_name_leaves_no_process(trainer: User) -> None:
    trainer.type(
        "hpctrain",
        "render",
        "--nodes",
        "2",
        "--gpus",
        "1",
        "--mem",
        "4G",
        "--job-name",
        "endless",
        "--",
        "--max_steps",
        "100000",
    )
    job_id = trainer.sbatch("endless.sbatch")
    log = f"output_endless_{job_id}.log"
    wait_until(lambda: any(each.event == "first_step" for each in samples(trainer.log(log))))
    assert len(processes_of(job_id)) >= 4
    trainer.type("scancel", "-n", "endless")
    assert trainer.wait(job_id, 60) == "CANCELLED"
    wait_until(lambda: not processes_of(job_id), "no process is left")


def test_jobs_that_share_nodes_do_not_meet(user: User) -> None:
    """Three jobs at once, on one node and on two, each with its own rendezvous."""
    program = (
        "import os, torch, torch.distributed as d\nd.init_process_group('gloo')\nt ="
        " torch.full((1,), float(os.environ['SLURM_JOB_ID']))\n"
    )
    program += "d.all_reduce(t)\nassert t.item() == 2 * float(os.environ['SLURM_JOB_ID']), t\n"
    program += "d.barrier()\nd.destroy_process_group()\nos._exit(0)\n"
    (user.directory / "meet.py").write_text(program)
    jobs = []
    for name, nodes, gpus in (("one", 2, 1), ("two", 2, 1), ("three", 1, 2)):
        user.type(
            "hpctrain",
            "render",
            "--job-name",
            name,
            "--nodes",
            str(nodes),
            "--gpus",
            str(gpus),
            "--script",
            "meet.py",
            "--mem",
            "1500M",
            "--cpus-per-task",
            "2",
            "--launcher",
            "torchrun",
        )
        jobs.append(user.sbatch(f"{name}.sbatch"))
    assert [user.wait(job_id) for job_id in jobs] == ["COMPLETED"] * 3


def test_the_verbs_of_the_everyday_path(user: User) -> None:
    (user.directory / "train.py").write_text("import time\nprint('on my way')\ntime.sleep(600)\n")
    user.type(
        "hpctrain",
        "render",
        "--launcher",
        "srun",
        "--script",
        "train.py",
        "--mem",
        "200M",
        "--job-name",
        "path",
    )
    job_id = user.type("hpctrain", "submit", "path.sbatch", "--parsable").stdout.strip()
    wait_until(lambda: "on my way" in user.log("output_path.log"))
    assert "on my way" in user.type("hpctrain", "logs", job_id).stdout
    assert re.search(rf"{job_id} +path\S* +RUNNING .* slurm", user.type("hpctrain", "ps").stdout)
    assert f"cancelled job {job_id} (path)" in user.type("hpctrain", "cancel", "path").stdout
    assert user.wait(job_id) == "CANCELLED"
    assert "has ended already" in user.type("hpctrain", "cancel", job_id).stderr
