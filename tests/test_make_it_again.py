"""A script's header: the command in it makes the same bytes again, and its seal notices an edit."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "words",
    [
        (),
        (
            "--nodes",
            "2",
            "--gpus",
            "4",
            "--partition",
            "boost_usr_prod",
            "--account",
            "EUHPC_A06_067",
        ),
        (
            "--launcher",
            "torchrun",
            "--sbatch",
            "comment=it's $(date) # 100%",
            "--sbatch",
            "exclusive",
            "--",
            "--x",
            "a 'b' $(c)\nd\té",
            "-n",
            "",
        ),
        ("--config", "other.yaml", "--to", "a b.sbatch", "--", "--to", "x"),
    ],
)
def test_the_command_in_the_header_makes_the_same_bytes(
    words: tuple[str, ...], hpctrain: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("resources: {mem: 4G}\ntraining: {max_steps: 5}\n")
    (tmp_path / "other.yaml").write_text("job_name: other\nresources: {time: 1:30:00}\n")
    environment = {
        **os.environ,
        "HPCTRAIN_QOS": "from_environment",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    first = subprocess.run(
        [hpctrain, "render", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    script = tmp_path / first.stdout.rstrip("\n")
    before = script.read_bytes()
    again = re.search(rb"^# make it again: (.+)$", before, re.MULTILINE)
    assert again is not None
    script.unlink()
    # From elsewhere, and without the variable: the command carries both.
    del environment["HPCTRAIN_QOS"]
    subprocess.run(
        ["bash", "-c", again[1]], cwd="/", env=environment, check=True, capture_output=True
    )
    assert script.read_bytes() == before


def test_submit_refuses_a_script_that_config_yaml_has_left_behind(
    hpctrain: str, tmp_path: Path
) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([hpctrain, *words], cwd=tmp_path, capture_output=True, text=True)

    (tmp_path / "config.yaml").write_text("resources: {mem: 4G}\n")
    assert run("render", "--nodes", "2").returncode == 0
    assert run("submit", "--local", "--dry-run").returncode == 0
    (tmp_path / "config.yaml").write_text("resources: {mem: 8G}\n")
    done = run("submit", "--local", "--dry-run")
    assert done.returncode == 2
    assert "sft.sbatch is older than what it was made from" in done.stderr
    assert done.stderr.splitlines()[-2:] == [
        "fix: hpctrain submit --local --dry-run --nodes 2",
        "hint: or submit the script as it is: hpctrain submit --local --dry-run sft.sbatch",
    ]
    assert run("submit", "--local", "--dry-run", "sft.sbatch").returncode == 0
    assert run("submit", "--local", "--dry-run", "--nodes", "2").returncode == 0


def test_submit_never_guesses_which_job_is_meant(hpctrain: str, tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([hpctrain, *words], cwd=tmp_path, capture_output=True, text=True)

    def fix(done: subprocess.CompletedProcess[str]) -> str:
        assert done.returncode == 2, done.stdout + done.stderr
        return next(line for line in done.stderr.splitlines() if line.startswith("fix: "))

    assert (
        run(
            "render", "--job-name", "exp1", "--nodes", "4", "--gpus", "4", "--", "--x", "1"
        ).returncode
        == 0
    )
    # Another name than the default: the one script that is here is meant, not a new default job.
    assert fix(run("submit", "--local", "--dry-run")) == (
        "fix: hpctrain submit --local --dry-run exp1.sbatch"
    )
    assert not (tmp_path / "sft.sbatch").exists()
    before = (tmp_path / "exp1.sbatch").read_bytes()
    # Trials write nothing.
    assert (
        run(
            "submit", "--local", "--dry-run", "--force", "--job-name", "exp1", "--mem", "1G"
        ).returncode
        == 0
    )
    assert (tmp_path / "exp1.sbatch").read_bytes() == before
    (tmp_path / "exp1.sbatch").write_bytes(before + b"# mine\n")
    edited = run(
        "submit",
        "--local",
        "--dry-run",
        "--job-name",
        "exp1",
        "--nodes",
        "4",
        "--gpus",
        "4",
        "--",
        "--x",
        "1",
    )
    assert edited.returncode == 2
    assert "was edited after hpctrain wrote it" in edited.stderr
    assert "there is no script 'exp2'" in run("submit", "exp2").stderr


def test_home_directories_and_variables(hpctrain: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "environment: {venv: ~/envs/a b}\ntraining: {model_name_or_path: ~/models/x, text: a~b}\n"
    )
    environment = {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "HPCTRAIN_GPUS_PER_NODE": "2",
    }
    done = subprocess.run(
        [hpctrain, "render", "--to", "-"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert f"source '{tmp_path}/home/envs/a b/bin/activate'" in done.stdout
    assert f"--model_name_or_path {tmp_path}/home/models/x\n" in done.stdout
    assert "--text 'a~b'" in done.stdout or "--text a~b" in done.stdout
    assert "--num_processes 2 " in done.stdout
