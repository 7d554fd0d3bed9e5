"""The functions that job scripts source: what each does, and that a script always finds them."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from hpctrain.checks.script import lint
from hpctrain.errors import UsageError
from hpctrain.jobs import header, render, script_files
from hpctrain.util import installed
from tests.jobs import any_job
from tests.jobs.stand_ins import Machine
from tests.waiting import wait_until

LIBRARY = installed.path("templates") / header.LIBRARY


def bash(directory: Path, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `text` after the functions, in the batch script of job 62 on one node."""
    programs = directory / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "scontrol").write_text(
        '#!/bin/bash\n[ "$1" = requeue ] && exec touch requeued\necho " Restarts=0 JobState=RUNNING "\n'
    )
    (programs / "scontrol").chmod(0o755)
    script = directory / "job.sbatch"
    script.write_text(f"source {LIBRARY}\nset -euo pipefail\n{text}\n")
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "62",
        "SLURM_JOB_END_TIME": "0",
        "SLURMD_NODENAME": "node1",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "HPCTRAIN_RUN_DIR": str(directory / "run"),
        "HPCTRAIN_ATTEMPT": "1",
        **variables,
    }
    return subprocess.run(
        ["bash", str(script)], cwd=directory, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("code", "finish", "restart", "ends"),
    [
        (0, "--requeue 10", 0, ("completed", 0)),
        (1, "--requeue 10", 0, ("failed", 1)),
        (86, "--requeue 10", 0, ("stopped", 86)),
        (85, "--requeue 10", 0, ("requeued", 0)),
        (85, "--requeue 0", 0, ("stopped", 85)),
        (85, "--chain", 0, ("requeued", 85)),
        (85, "", 0, ("stopped", 85)),
        (
            85,
            "--requeue 10",
            1,
            ("interrupted", 85),
        ),  # Slurm says Restarts=0: it ends the job itself
    ],
)
def test_how_an_attempt_ends(
    code: int, finish: str, restart: int, ends: tuple[str, int], tmp_path: Path
) -> None:
    outcome, exits = ends
    chain = " --chain" if finish == "--chain" else ""
    text = (
        f"hpctrain_begin sft r{chain}\nhpctrain_run bash -c 'exit {code}'\nhpctrain_finish {finish}"
    )
    done = bash(tmp_path, text, SLURM_RESTART_COUNT=str(restart))
    assert done.returncode == exits, done.stderr
    end = json.loads((tmp_path / f"runs/r/attempts/62.{restart}/end.json").read_text())
    assert (end["outcome"], end["status"]) == (outcome, code)
    requeued = outcome == "requeued" and finish.startswith("--requeue")
    assert (tmp_path / "requeued").exists() == requeued
    assert (tmp_path / "runs/r/over").exists() == (bool(chain) and code != 85)


def test_the_training_says_its_own_exit_code(tmp_path: Path) -> None:
    text = """hpctrain_begin sft r
hpctrain_run bash -c 'echo "86 deadline" >"$HPCTRAIN_RUN_DIR/attempts/$HPCTRAIN_ATTEMPT/exit"; exit 1'
hpctrain_finish"""
    assert bash(tmp_path, text).returncode == 86
    end = json.loads((tmp_path / "runs/r/attempts/62.0/end.json").read_text())
    assert (end["status"], end["reason"]) == (86, "deadline")


def test_a_run_says_its_launch_before_it_has_an_attempt(tmp_path: Path) -> None:
    """Else who looks in between takes the point of a sweep for a run of its own."""
    text = """mkdir() { command mkdir "$@" && ls -m runs/s_0; }
hpctrain_begin sft s --array 0"""
    done = bash(tmp_path, text, SLURM_ARRAY_JOB_ID="61", SLURM_ARRAY_TASK_ID="0")
    looks = [line.split(", ") for line in done.stdout.splitlines() if "attempts" in line]
    assert done.returncode == 0, done.stderr
    assert [look for look in looks if "attempts" in look]
    assert [look for look in looks if "attempts" in look and "run.json" not in look] == []


def test_the_port_is_the_next_free_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = f"MASTER_ADDR=127.0.0.1 MASTER_PORT={port}\nhpctrain_free_port"
        said = bash(tmp_path, text).stdout.split(":")
    assert said[:2] == ["rendezvous", " 127.0.0.1"]
    assert int(said[2]) > port


@pytest.mark.parametrize(("has", "code"), [("2", 1), ("4", 0), ("8", 0)])
def test_the_gpus_of_a_node_are_counted(has: str, code: int, tmp_path: Path) -> None:
    done = bash(tmp_path, "hpctrain_node 4; true", SLURM_GPUS_ON_NODE=has, TMPDIR=str(tmp_path))
    assert done.returncode == code
    assert (f"hpctrain render --gpus {has}" in done.stderr) == (has != "4")
    assert not list(tmp_path.glob("hpctrain-*")), "the compiler caches are removed"


@pytest.mark.parametrize(("mode", "fix"), [(0o600, ""), (0o644, "chmod 600 token"), (0, "ls -l")])
def test_a_secret_of_the_owner_alone(mode: int, fix: str, tmp_path: Path) -> None:
    if mode:
        (tmp_path / "token").write_text("s3cret\n")
        (tmp_path / "token").chmod(mode)
    done = bash(tmp_path, 'hpctrain_secret TOKEN token; env | grep -c "^TOKEN=s3cret$"')
    assert (done.returncode, done.stdout) == ((1, "") if fix else (0, "1\n"))
    assert fix in done.stderr


def test_a_hook_that_fails_ends_the_job(tmp_path: Path) -> None:
    (tmp_path / "a hook.sh").write_text("exit 3\n")
    done = bash(
        tmp_path, "mkdir a; hpctrain_hooks 'a hook.sh'", HPCTRAIN_RUN_DIR=".", HPCTRAIN_ATTEMPT="1"
    )
    assert done.returncode == 1
    assert "exit code 3" in done.stderr
    assert done.stderr.splitlines()[-1] == "fix: bash -x a\\ hook.sh"


@pytest.mark.parametrize("own", [False, True])
def test_a_signal_reaches_the_training(own: bool, tmp_path: Path) -> None:
    """A file for a training of hpctrain's, the signal itself for one's own."""
    run = tmp_path / "attempts" / "1"
    run.mkdir(parents=True)
    program = (
        "trap 'echo got >got; exit 9' TERM; touch ready; for i in {1..600}; do sleep 0.1; done"
    )
    (tmp_path / "training.sh").write_text(
        program if own else "touch ready; until [ -e attempts/1/stop ]; do sleep 0.1; done; exit 9"
    )
    variables = {
        "HPCTRAIN_RUN_DIR": str(tmp_path),
        "HPCTRAIN_ATTEMPT": "1",
        "SLURM_JOB_ID": "62",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "TMPDIR": str(tmp_path),
        "PATH": os.environ["PATH"],
        **({"HPCTRAIN_FORWARD_SIGNALS": "1"} if own else {}),
    }
    text = f"source {LIBRARY}; hpctrain_node 0; hpctrain_wait bash training.sh"
    task = subprocess.Popen(["bash", "-c", text], cwd=tmp_path, env=variables)
    wait_until((tmp_path / "ready").exists)
    task.send_signal(signal.SIGTERM)
    assert task.wait(600) == 9
    assert ((run / "stop").exists(), (tmp_path / "got").exists()) == (not own, own)


@pytest.mark.parametrize("launcher", ["accelerate", "torchrun", "srun"])
@pytest.mark.parametrize("script", [None, "train.py"])
def test_a_standalone_script_needs_no_other_file(
    launcher: str, script: str | None, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, "project")
    config = {"launcher": launcher, **({"script": script} if script else {})}
    spec = any_job.spec_of(config, [], str(machine.directory))
    templates, where = installed.templates(), str(machine.directory)
    made = {"version": "1.2", "directory": where, "template": render.template_name(spec)}
    text = render.render(spec, templates, arguments=(header.STANDALONE,), standalone=True, **made)
    assert script_files.library_path(text) is None
    assert lint(text, "x.sbatch") == []
    said = header.read_header(text)
    assert (said and said.standalone, said and said.arguments) == (True, ())
    machine.run(text, spec)
    assert not (machine.directory / header.LIBRARY_DIRECTORY).exists()


def scripts_library(tmp_path: Path, text: str, version: str = "0.0.9") -> tuple[str, Path]:
    """Return a script that sources a library with this text, and where that is."""
    path = Path(render.library_path(str(tmp_path), text, version))
    return f"#!/bin/bash\nsource {path} || {{ exit 1; }}\n", path


def test_a_missing_library_is_put_back(tmp_path: Path) -> None:
    script, path = scripts_library(tmp_path, LIBRARY.read_text())
    script_files.ensure_library(script)
    assert path.read_text() == LIBRARY.read_text()
    before = path.stat()
    script_files.ensure_library(script)
    assert path.stat() == before, "it is never written again"
    path.write_text("exit 0\n")
    with pytest.raises(UsageError, match="was edited"):
        script_files.ensure_library(script)


def test_the_library_of_another_version_is_not_replaced(tmp_path: Path) -> None:
    script, _ = scripts_library(tmp_path, "older\n")
    with pytest.raises(UsageError, match="of another version"):
        script_files.ensure_library(script)


def test_a_job_without_its_library_says_what_to_type(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "project")
    spec = any_job.spec_of({"launcher": "torchrun"}, [], str(machine.directory))
    text = any_job.script_of(spec, [], str(machine.directory))
    (tmp_path / "job.sbatch").write_text(text)
    done = subprocess.run(
        ["bash", "job.sbatch"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    again = next(line for line in text.splitlines() if line.startswith("# make it again: "))
    assert done.stderr.splitlines()[-1] == again.replace("# make it again", "fix")
