"""Slurm's daemons stop answering, are killed and come back while a job runs: what hpctrain says
meanwhile, and that nothing is lost.

In a lab of its own. A daemon that is stopped (SIGSTOP) keeps its port and answers nobody; one that
is killed refuses.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.rough_lab import RoughLab
from tests.lab.typist import HPCTRAIN
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.extended]

#: Its nodes are node9 and node10.
NUMBER = 5
TRAIN = """\
import json, os, sys, time
run, attempt = os.environ["HPCTRAIN_RUN_DIR"], os.environ["HPCTRAIN_ATTEMPT"]
with open(f"{run}/attempts/{attempt}/metrics.jsonl", "a", buffering=1) as metrics:
    for step in range(1, int(sys.argv[1]) + 1):
        print(json.dumps({"event": "log", "step": step, "epoch": 0.1, "at": time.time(), "loss": 10.0}), file=metrics)
        print(f"step {step}", flush=True)
        time.sleep(0.5)
"""
#: Of a job that runs, nobody may say this.
_ENDED = re.compile(
    r"COMPLETED|CANCELLED|FAILED|NODE_FAIL|\bcompleted\b|\bcancelled\b|\bfailed\b|no longer"
    r" known|not know job",
    re.ASCII,
)


@dataclass(frozen=True)
class Said:
    """How a command came out."""

    code: int
    out: str
    err: str

    @property
    def all(self) -> str:
        return self.out + self.err


@pytest.fixture(scope="module")
def rough(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoughLab]:
    made = RoughLab(tmp_path_factory.mktemp("state"), number=NUMBER)
    # Short, for the test's sake: each question to a silent daemon takes so long.
    made.env["HPCTRAIN_SLURM_TIMEOUT"] = "6"
    yield made
    subprocess.run(
        [sys.executable, str(Path(__file__).with_name("lab")), "down"],
        env={**made.env, "HPCTRAIN_LAB_NUMBER": str(NUMBER)},
        check=True,
    )


@contextmanager
def stopped(rough: RoughLab, name: str) -> Iterator[None]:
    """Keep a daemon from doing anything."""
    pid = rough.daemon(name)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Project:
    """A project on the login node, and what is typed there."""

    def __init__(self, rough: RoughLab, folder: Path) -> None:
        self.rough, self.folder = rough, folder
        (folder / "train.py").write_text(TRAIN)
        (folder / "config.yaml").write_text(
            "script: train.py\nlauncher: srun\nresources: {time: 30, mem: 200M}\n"
            f"restart: {{mode: 'off'}}\nenvironment: {{venv: {Path(sys.executable).parents[1]}}}\n"
        )

    def type(self, *words: str, **environment: str) -> Said:
        # The time limit is the bound for each answer.
        done = subprocess.run(
            [HPCTRAIN, *words],
            cwd=self.folder,
            env={**self.rough.env, **environment},
            capture_output=True,
            text=True,
            timeout=600,
        )
        said = Said(done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in said.all, said.all
        return said

    def at_once(self, *commands: str, **environment: str) -> dict[str, Said]:
        """Type several at the same time: most of each is waiting."""
        with ThreadPoolExecutor(len(commands)) as pool:
            running = {
                command: pool.submit(self.type, *command.split(), **environment)
                for command in commands
            }
        return {command: each.result() for command, each in running.items()}

    def submit(self, run: str, steps: int, *more: str) -> Said:
        return self.type(
            "submit",
            "--no-check",
            "--no-snapshot",
            "--parsable",
            "--run-id",
            run,
            *more,
            "--",
            str(steps),
        )

    def comments(self, run: str) -> list[str]:
        """Return the comments of all jobs of a run of this project that slurmctld knows: each
        submission has one of its own. A lab that was up before knows other projects' jobs too.
        """
        lines = self.rough.run("squeue", "-h", "-t", "all", "-o", "%k|%i").splitlines()
        each = [line.partition("|")[::2] for line in lines]
        return [comment for comment, job in each if self._is_of(job, run)]

    def _is_of(self, job: str, run: str) -> bool:
        shown = self.rough.run("scontrol", "show", "job", job).replace(" \n", "\n")
        return f" {run}\n" in shown and f"WorkDir={self.folder}\n" in shown


@pytest.fixture
def project(rough: RoughLab, tmp_path: Path) -> Project:
    return Project(rough, tmp_path)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def is_not_ended(said: dict[str, Said], job: str, run: str) -> None:
    """Nothing that was said calls the job that runs, or its run, ended."""
    for command, each in said.items():
        wrong = [
            line
            for line in each.all.splitlines()
            if re.search(rf"\b({job}|{run})\b", line) and _ENDED.search(line)
        ]
        assert not wrong, (command, each.all)


def test_a_job_runs_on_through_every_outage(project: Project, tmp_path: Path) -> None:
    """One job, one `watch` and one `logs -f` live through all of it."""
    rough = project.rough
    old = project.submit("early", 1).out.strip()
    job = project.submit("train", 3000).out.strip()
    log = tmp_path / "logs" / f"output_sft_{job}.log"
    wait_until(lambda: log.exists() and "step 3\n" in log.read_text(), "the job runs")
    wait_until(
        lambda: "COMPLETED" in rough.run("sacct", "-nPX", "-j", old, "-o", "State"),
        "the first one has ended",
    )
    with (tmp_path / "watched").open("w") as watched, (tmp_path / "followed").open("w") as followed:
        more = {"cwd": tmp_path, "env": rough.env, "stdin": subprocess.DEVNULL}
        watch = subprocess.Popen(
            [HPCTRAIN, "watch", "train"], stdout=watched, stderr=subprocess.STDOUT, **more
        )  # type: ignore[call-overload]
        logs = subprocess.Popen(
            [HPCTRAIN, "logs", "-f", job], stdout=followed, stderr=subprocess.STDOUT, **more
        )  # type: ignore[call-overload]
        try:
            wait_until(lambda: "running" in (tmp_path / "watched").read_text(), "watch has begun")
            slurmdbd_is_away(project, job)
            slurmctld_hangs(project, job, tmp_path / "followed")
            slurmctld_is_killed(project, job)
            wait_until(lambda: rough.queued(job) is not None, "slurmctld is back")
            assert "running" not in rough.queued(job).lower() or project.type("ps", job).code == 0  # type: ignore[union-attr]
            said = project.type("cancel", "train")
            assert (said.code, said.out) == (0, f"cancelled job {job} (sft)\n"), said.err
            assert watch.wait(600) == 0
            assert logs.wait(600) == 0
        finally:
            watch.kill()
            logs.kill()
    what_was_followed(job, lines_of(tmp_path / "watched"), lines_of(tmp_path / "followed"))


def slurmdbd_is_away(project: Project, job: str) -> None:
    rough = project.rough
    commands = (
        "ps",
        f"ps {job}",
        f"explain {job}",
        "runs list",
        "report train",
        "resubmit train --dry-run",
    )
    with stopped(rough, "slurmdbd"):
        wait_until(
            lambda: "note: sacct" in project.type("ps").err, "what was asked before is too old"
        )
        said = project.at_once(*commands)
        is_not_ended(said, job, "train")
        assert {each.code for each in said.values()} == {0}, said
        assert re.search(rf"^{job} +\S+ +RUNNING ", said["ps"].out, re.MULTILINE)
        assert "note: sacct does not answer" in said["ps"].err
        assert (
            "what accounting would add is missing: sacct did not answer within 6 s"
            in said[f"explain {job}"].err
        )
        assert "no failure found" in said[f"explain {job}"].out
        assert "left alone, because they wait or run: train" in said["resubmit train --dry-run"].err
    rough.kill_daemon("slurmdbd", signal.SIGKILL)
    wait_until(lambda: "note: sacct" in project.type("ps").err, "it is asked again")
    said = project.at_once("ps", "ps 3", "explain train", "runs list")
    is_not_ended(said, job, "train")
    assert (said["ps"].code, said["explain train"].code, said["runs list"].code) == (0, 0, 0), said
    assert "note: sacct does not answer" in said["ps"].err
    assert said["ps 3"].code == 3, (
        "a job that slurmctld has forgotten: nobody can say that there is none"
    )
    assert said["ps 3"].err.startswith(
        "error: whether there is a job '3' is not known\n  sacct said: "
    )
    rough.up()
    wait_until(lambda: "note: sacct" not in project.type("ps").err, "accounting is back")
    assert project.type("ps", "3").err.startswith("error: there is no job '3'")


def slurmctld_hangs(project: Project, job: str, followed: Path) -> None:
    rough = project.rough
    with stopped(rough, "slurmctld"):
        wait_until(lambda: project.type("ps").code == 3, "what was asked before is too old")
        begun = len(lines_of(followed))
        commands = (
            "ps",
            "ps --json",
            f"explain {job}",
            "explain train",
            f"logs {job}",
            "logs train",
            "runs list",
            "report train",
            "watch train --once",
            f"cancel {job}",
            "resubmit train --dry-run",
            "submit --no-check --no-snapshot --parsable --run-id late -- 400",
            "check",
        )
        said = project.at_once(*commands)
        assert len(lines_of(followed)) > begun + 10, "the log is shown while Slurm is being asked"
        again = project.submit(
            "train", 5
        )  # alone: two submissions at once in one directory render the same file
    is_not_ended(said | {"submit": again}, job, "train")
    silent = "Slurm does not answer: squeue did not answer within 6 s"
    for command in ("ps", "ps --json"):
        assert said[command].code == 3
        assert (
            f"error: {silent}\nfix: sinfo\nhint: when that answers, run: hpctrain ps\n"
            in said[command].err
        )
        assert "hpctrain runs list" in said[command].err, "where to look meanwhile"
    for word in (job, "train"):
        assert said[f"explain {word}"].out == "no failure found\n"
        assert "sacct: RUNNING" in said[f"explain {word}"].err, "accounting says what it heard last"
        assert said[f"logs {word}"].out.count("\nstep 1\nstep 2\n") == 1
        assert "Slurm does not answer" in said[f"logs {word}"].err
    assert re.search(r"^train +unknown ", said["runs list"].out, re.MULTILINE)
    assert said["report train"].code == 0
    assert (
        "step 9" in said["watch train --once"].out
        or "unknown: Slurm does not answer" in said["watch train --once"].out
    )
    assert said[f"cancel {job}"].err.splitlines()[1] == "nothing was cancelled"
    assert said["resubmit train --dry-run"].code == 3
    assert (again.code, "still runs is not known" in again.err, "hpctrain cancel" in again.err) == (
        3,
        True,
        False,
    ), again.err
    late = said["submit --no-check --no-snapshot --parsable --run-id late -- 400"]
    assert (late.code, late.out) == (3, ""), late.err
    assert "whether the job exists is unknown" in late.err
    assert "not checked: Slurm: " in said["check"].out
    # What sbatch has sent lay there until slurmctld went on: the job is found by its comment, and
    # nothing is sent again.
    comment = re.search(r"its comment is (hpctrain:\w+)", late.err)
    assert comment is not None
    wait_until(
        lambda: comment[1] in rough.run("squeue", "-h", "-t", "all", "-o", "%k"),
        "the job of the submission arrives",
    )
    found = project.submit("late", 400)
    assert (found.code, "the run late is " in found.err) == (2, True), found.err
    assert project.comments("late") == [comment[1]]
    assert project.type("cancel", "late", "--yes").code == 0


def slurmctld_is_killed(project: Project, job: str) -> None:
    rough = project.rough
    rough.kill_daemon("slurmctld", signal.SIGKILL)
    wait_until(lambda: project.type("ps").code == 3, "what was asked before is too old")
    said = project.at_once(
        "ps", "logs train", f"explain {job}", "submit --no-check --no-snapshot --run-id lost -- 1"
    )
    is_not_ended(said, job, "train")
    assert (said["ps"].code, said["logs train"].code, said[f"explain {job}"].code) == (
        3,
        0,
        0,
    ), said
    lost = said["submit --no-check --no-snapshot --run-id lost -- 1"]
    assert lost.code == 3, lost.err
    rough.up()
    wait_until(lambda: project.type("ps").code == 0, "hpctrain sees that slurmctld is back")
    assert re.search(rf"^{job} +\S+ +RUNNING ", project.type("ps").out, re.MULTILINE)
    # Nobody took it. As long as that is not certain, nothing is submitted.
    if "cannot be reached" not in lost.err:
        refused = project.submit("lost", 1)
        assert (refused.code, "may still arrive" in refused.err) == (3, True), refused.err
        assert len(project.comments("lost")) == 0


def what_was_followed(job: str, watched: list[str], followed: list[str]) -> None:
    """Both went on through all of it, said each silence, and no end before the end."""
    assert watched[0].endswith("running for 0:00:05 of 0:30:00") or "running" in watched[0], (
        watched[:3]
    )
    *before, last = [line for line in watched if not line.startswith("next: ")]
    assert last.endswith("cancelled") or "cancelled after" in last, watched[-3:]
    own = [
        line for line in before if "slurmstepd" not in line and "srun: " not in line
    ]  # the others are the log's, of its end
    assert not [line for line in own if _ENDED.search(line)], own
    assert any(
        "note: Slurm does not answer" in line or "Slurm does not answer" in line for line in before
    ), before
    steps = [
        int(line.removeprefix("step ")) for line in followed if re.fullmatch(r"step \d+", line)
    ]
    assert steps == list(range(1, len(steps) + 1)), "no line is lost, and none comes twice"
    states = [line for line in followed if not line.startswith("step ")]
    assert any("asking again" in line for line in states), states
    assert f"job {job}: cancelled" in "\n".join(states[-3:]), states[-5:]
