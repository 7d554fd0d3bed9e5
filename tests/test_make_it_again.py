"""A script's header: the command in it makes the same bytes again, and its seal notices an edit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--nodes", "2", "--gpus", "4", "--partition", "boost_usr_prod", "--account", "EUHPC_A06_067"),
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
def test_the_command_in_the_header_makes_the_same_bytes(words: tuple[str, ...], hpctrain: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("resources: {mem: 4G}\ntraining: {max_steps: 5}\n")
    (tmp_path / "other.yaml").write_text("job_name: other\nresources: {time: 1:30:00}\n")
    environment = {**os.environ, "HPCTRAIN_QOS": "from_environment", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    first = subprocess.run([hpctrain, "render", *words], cwd=tmp_path, capture_output=True, text=True, env=environment, check=True)
    script = tmp_path / first.stdout.rstrip("\n")
    before = script.read_bytes()
    again = re.search(rb"^# make it again: (.+)$", before, re.MULTILINE)
    assert again is not None
    script.unlink()
    # From elsewhere, and without the variable: the command carries both.
    del environment["HPCTRAIN_QOS"]
    subprocess.run(["bash", "-c", again[1]], cwd="/", env=environment, check=True, capture_output=True)
    assert script.read_bytes() == before


def test_submit_refuses_a_script_that_config_yaml_has_left_behind(hpctrain: str, tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([hpctrain, *words], cwd=tmp_path, capture_output=True, text=True)

    (tmp_path / "config.yaml").write_text("resources: {mem: 4G}\n")
    assert run("render", "--nodes", "2").returncode == 0
    assert run("submit", "--local", "--dry-run").returncode == 0
    (tmp_path / "config.yaml").write_text("resources: {mem: 8G}\n")
    done = run("submit", "--local", "--dry-run")
    assert done.returncode == 2
    assert "sft.sbatch is older than what it was made from" in done.stderr
    assert done.stderr.splitlines()[-1] == "fix: hpctrain submit --nodes 2, or the script as it is: hpctrain submit sft.sbatch"
    assert run("submit", "--local", "--dry-run", "sft.sbatch").returncode == 0
    assert run("submit", "--local", "--dry-run", "--nodes", "2").returncode == 0
