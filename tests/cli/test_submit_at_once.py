"""Several `hpctrain submit` in one directory at the same moment: each sends the script that it rendered."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Desk

TRAIN = """\
import json, os, sys
with open(os.path.join(os.environ["HPCTRAIN_RUN_DIR"], "seen.json"), "w") as stream:
    json.dump(sys.argv[1:], stream)
"""
CONFIG = "script: train.py\nlauncher: srun\n"


@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_each_of_many_that_submit_at_once_runs_its_own_script(desk: Desk) -> None:
    """Among them a sweep, which renders the same file."""
    desk.write("train.py", TRAIN)
    desk.write("config.yaml", CONFIG)
    desk.write("sweep.yaml", CONFIG + "sweep: [{dim: 70}]\n")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    wanted = {**{f"R{number}": ["--dim", str(number)] for number in range(4)}, "S": []}
    commands = {run: ["--", *words] if words else ["--config", "sweep.yaml"] for run, words in wanted.items()}
    submits = {
        run: subprocess.Popen(
            ["hpctrain", "submit", "--local", "--wait", "--no-snapshot", "--force", "--run-id", run, *words],
            cwd=desk.directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for run, words in commands.items()
    }  # fmt: skip
    for run, submit in submits.items():
        said = submit.communicate()[0]
        assert submit.returncode == 0, f"{run}: {said}"
    runs = desk.directory / "runs"
    trained = {run: runs / (run if words else f"{run}_0") for run, words in wanted.items()}
    assert {run: json.loads((where / "seen.json").read_text()) for run, where in trained.items()} == wanted | {"S": ["--dim", "70"]}
    for run, where in trained.items():
        kept = (runs / f".launches/{run}/scripts/sft.sbatch").read_text()
        assert (where / "script.sbatch").read_text() == kept, "what ran is what is kept"
        assert re.findall(r"--dim (\d+)", kept) == ([] if run == "S" else wanted[run][1:] * 2), "the command to make it again, and the job"
    left = [path.name for path in desk.directory.iterdir() if path.name.startswith(".")]
    assert left == []
    assert not list((runs / ".launches").glob(".*"))


def test_sbatch_gets_what_was_rendered_though_the_file_says_something_else_by_then(desk: Desk, tmp_path: Path) -> None:
    desk.write("train.py", TRAIN)
    desk.write("config.yaml", CONFIG)
    script = desk.directory / "sft.sbatch"
    desk.program("sbatch", f'echo "#!/bin/bash" > {script}; cp "${{@: -2:1}}" {tmp_path}/sent; echo 101')
    for name in ("squeue", "sacct", "scontrol", "sinfo", "scancel"):
        desk.program(name, "true")
    assert desk.run("render", "--to", "rendered.sbatch").code == 0
    said = desk.run("submit", "--no-check", "--run-id", "R", "--time", "10")
    assert said.code == 0, said.err
    assert script.read_text() == "#!/bin/bash\n"
    sent = (tmp_path / "sent").read_text()
    assert "#SBATCH --time=" in sent
    assert "hpctrain.training" in sent or "train.py" in sent
    assert (desk.directory / "runs/.launches/R/scripts/sft.sbatch").read_text() == sent


def test_what_slurm_refuses_is_called_by_the_name_that_the_user_knows(desk: Desk) -> None:
    desk.write("train.py", TRAIN)
    desk.write("config.yaml", CONFIG)
    desk.program("sbatch", 'echo "sbatch: error: Something that nobody has seen before" >&2; exit 1')
    for name in ("squeue", "sacct", "scontrol", "sinfo", "scancel"):
        desk.program(name, "true")
    said = desk.run("submit", "--no-check", "--run-id", "R")
    assert said.code == 1
    assert said.lines[-1] == "fix: edit config.yaml, then: hpctrain render && hpctrain submit --test-only sft.sbatch"
    assert not (desk.directory / "runs").exists()
