"""`hpctrain doctor` as it is typed: on a login node, and the preflight job on this machine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.conftest import Desk
from tests.waiting import wait_until

OWN = ("--script", "train.py", "--launcher", "srun", "--venv", sys.prefix)


def read_json(text: str) -> Any:
    found = json.loads(text)
    assert found["schema"] == 1
    return found


@pytest.fixture
def project(desk: Desk) -> Desk:
    desk.write("train.py", "import json\nprint('trained')\n")
    return desk


@pytest.mark.usefixtures("no_slurm")
def test_all_is_well_for_a_script_in_this_environment(project: Desk) -> None:
    said = project.run("doctor", "--json", *OWN)
    found = read_json(said.out)
    words = {probe["probe"]: probe["result"] for probe in found["probes"]}
    assert (said.code, found["ok"]) == (0, True)
    assert list(words) == [
        "cluster",
        "slurm",
        "modules",
        "environment",
        "versions",
        "torch",
        "quotas",
        "offline",
    ]
    assert {words[name] for name in ("modules", "environment", "versions")} == {"ok"}
    assert project.snapshot().keys() == {"train.py"}, "looking writes nothing"


def test_a_silent_slurm_is_an_error(project: Desk) -> None:
    project.program(
        "sinfo",
        "echo 'sinfo: error: slurm_load_partitions: Unable to contact slurm controller (connect"
        " failure)' >&2; exit 1",
    )
    project.program(
        "scontrol sacctmgr",
        "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1",
    )
    said = project.run("doctor", "--json", "--quick", *OWN)
    probe = next(probe for probe in read_json(said.out)["probes"] if probe["probe"] == "slurm")
    assert probe["result"] == "error"
    assert probe["findings"][0]["id"] == "doctor-slurm-silent"
    assert "Unable to contact slurm controller" in probe["findings"][0]["evidence"]


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--job", "--quick", *OWN), 2),
        (("--local", *OWN), 2),
        (("--job", "--to", "-", *OWN), 2),
        (("--job", "--array", "1-4", *OWN), 2),
        (("--no-wait", *OWN), 2),
        (("--nodes", "none"), 2),
        (("--of", "90000001"), 1),
    ],
)
def test_wrong_words(project: Desk, words: tuple[str, ...], code: int) -> None:
    project.refused("doctor", *words, code=code)


def command_of(process: psutil.Process) -> str:
    """Return the command line; nothing of a process that has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_ctrl_c_leaves_no_process(project: Desk, hpctrain: str) -> None:
    project.write("slow/bin/activate", "sleep 1200\n")
    out, err = project.directory / "out", project.directory / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        running = subprocess.Popen(
            [hpctrain, "doctor", *OWN[:-1], "slow"], stdout=stdout, stderr=stderr
        )
    watched = psutil.Process(running.pid)

    def started() -> list[psutil.Process]:
        return [
            child for child in watched.children(recursive=True) if "sleep 1200" in command_of(child)
        ]

    def interrupted() -> bool:
        running.send_signal(signal.SIGINT)
        return running.poll() is not None

    # What is known is said before all is.
    children = wait_until(lambda: "unknown cluster" in out.read_text() and started())
    # The first may come in an instant in which Python drops it: while a module is imported.
    wait_until(interrupted)
    assert (running.returncode, err.read_text().strip().splitlines()[-1]) == (130, "interrupted")
    assert "unknown cluster" in out.read_text(), "what was known by then has been said"
    _, alive = psutil.wait_procs(children, timeout=240)
    assert alive == []


# -- the preflight job -----------------------------------------------------------------------------


class Job:
    """The preflight job on this machine, as a person would start it."""

    def __init__(self, directory: Path, hpctrain: str) -> None:
        self.directory, self.hpctrain = directory, hpctrain
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        }
        path = f"{Path(sys.executable).parent}:{kept['PATH']}"
        self.environment = kept | {
            "PATH": path,
            "ACCELERATE_USE_CPU": "true",
            "CUDA_VISIBLE_DEVICES": "",
        }

    def run(self, *words: str, code: int) -> Any:
        done = subprocess.run(
            [self.hpctrain, "doctor", "--json", *words],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return read_json(done.stdout)


@pytest.fixture
def job(tmp_path: Path, hpctrain: str) -> Job:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/part.arrow").write_bytes(os.urandom(4 << 20))
    return Job(tmp_path, hpctrain)


DATA = ("--", "--dataset_name", "data")


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_two_played_nodes_report(job: Job) -> None:
    found = job.run("--job", "--local", "--nodes", "2", "--gpus", "1", *DATA, code=0)
    assert (found["state"], found["ok"]) == ("COMPLETED", True)
    assert [node["host"] for node in found["nodes"]] == ["127.0.0.1", "127.0.0.2"]
    for node in found["nodes"]:
        assert node["read"]["error"] is None
        assert node["write"]["error"] is None
    assert [rank["done"] for rank in found["ranks"]] == [True, True]
    largest = max(found["all_reduce"], key=lambda each: each["bytes"])
    assert largest["group"] == "all"
    assert largest["right"] is True
    # Of two ranks the bus bandwidth is size / time.
    assert largest["bandwidth"] == pytest.approx(largest["bytes"] / largest["seconds"])
    assert [finding["id"] for finding in found["findings"]] == ["node-gpus-missing"]
    assert found["findings"][0]["level"] == "note"
    left = sorted(
        path.name
        for path in job.directory.rglob("*")
        if "checkpoints" in path.name or path.name.startswith(".hpctrain-")
    )
    assert left == [], "the test files are gone"

    again = job.run("--of", found["job_id"], code=0)
    assert again["ranks"] == found["ranks"], "a report can be read again, without the options"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_what_is_broken_on_the_nodes_is_said(job: Job) -> None:
    """A rank bound to one core by a hook, a checkpoint directory that cannot be written, a dataset
    that is not there.
    """
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one core")
    core = min(os.sched_getaffinity(0))
    (job.directory / "pin.sh").write_text(f"taskset -cp {core} $$ >/dev/null\n")
    (job.directory / "config.yaml").write_text("environment: {before: [pin.sh]}\n")
    words = ("--job", "--local", "--gpus", "1", "--cpus-per-task", "2", "--launcher", "torchrun")
    found = job.run(*words, "--", "--dataset_name", "nowhere", "--output_dir", "/proc/sys", code=1)
    ids = {finding["id"]: finding for finding in found["findings"] if finding["level"] != "note"}
    assert set(ids) == {"node-cores-few", "node-checkpoint-unwritable", "node-dataset-unreadable"}
    assert f"all ranks on 1 core (CPU {core}) of 2 for each task" in ids["node-cores-few"]["what"]
    assert "/proc/sys" in ids["node-checkpoint-unwritable"]["evidence"]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_a_rank_that_dies_is_missed(job: Job) -> None:
    wrapper = job.directory / "bin/python"
    wrapper.parent.mkdir()
    wrapper.write_text(
        '#!/bin/sh\n[ "$SLURM_PROCID" = 1 ] && sleep 6 && echo "error: this node has no disk" >&2'
        f' && exit 7\nexec {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    job.environment["PATH"] = f"{wrapper.parent}:{job.environment['PATH']}"
    found = job.run(
        "--job", "--local", "--nodes", "2", "--gpus", "1", "--launcher", "srun", *DATA, code=1
    )
    assert found["state"] == "FAILED"
    silent = [finding for finding in found["findings"] if finding["id"] == "node-silent"]
    assert "1 of 2 processes never reported" in silent[0]["what"]
    assert "error: this node has no disk" in silent[0]["evidence"]
