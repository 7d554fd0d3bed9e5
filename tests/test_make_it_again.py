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


@pytest.mark.slow
def test_what_is_typed_now_counts_and_not_what_was_rendered_yesterday(
    hpctrain: str, tmp_path: Path
) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([hpctrain, *words], cwd=tmp_path, capture_output=True, text=True)

    def notes(*words: str) -> list[str]:
        done = run("submit", "--local", "--wait", *words)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stderr.splitlines() if line.startswith("note: sft.sbatch")]

    (tmp_path / "train.py").write_text("")
    (tmp_path / "config.yaml").write_text("script: train.py\nlauncher: srun\n")
    script = tmp_path / "sft.sbatch"
    assert run("render", "--nodes", "2", "--time", "0:30:00", "--", "--x", "1").returncode == 0
    [note] = notes("--account", "X")
    assert note.endswith("without its earlier options: --nodes 2 --time 0:30:00 -- --x 1")
    assert "--account=X " in script.read_text()
    assert "--nodes=1 " in script.read_text()
    # The same again, and with more: nothing is dropped.
    assert notes("--account", "X") == []
    assert notes("--account", "X", "--time", "0:20:00") == []
    (tmp_path / "own.yaml").write_text(
        "script: train.py\nlauncher: srun\nresources: {time: 0:20:00, account: X}\n"
    )
    [note] = notes("--config", "own.yaml")
    assert note.endswith("--account X --time 0:20:00")
    [note] = notes("--account", "Y")
    assert note.endswith("--config own.yaml")
    before = script.read_bytes()
    # What somebody has edited is not replaced.
    script.write_bytes(before + b"# mine\n")
    done = run("submit", "--local", "--config", "own.yaml", "--account", "Z")
    assert (done.returncode, script.read_bytes()) == (2, before + b"# mine\n")


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
