"""What a job script says to type where it cannot start: the last line is a command, and a shell
takes it as it stands.
"""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpctrain.jobs import script_files
from tests.jobs import any_job

ENVIRONMENT = "my envs/$(touch CANARY) [train]"


@pytest.mark.parametrize(
    ("environment", "typed"),
    [
        ({"venv": ENVIRONMENT}, ["doctor", "--venv", ENVIRONMENT]),
        ({"uv": ENVIRONMENT}, ["doctor", "--uv", ENVIRONMENT]),
        ({}, ["render", "--venv", "DIRECTORY"]),
    ],
)
def test_a_launcher_that_is_not_there(
    environment: dict[str, Any], typed: list[str], tmp_path: Path
) -> None:
    project = tmp_path / "project"
    (project / "logs").mkdir(parents=True)
    for name, activate in (("venv", "bin/activate"), ("uv", ".venv/bin/activate")):
        if name in environment:
            (project / ENVIRONMENT / activate).parent.mkdir(parents=True)
            (project / ENVIRONMENT / activate).write_text("")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "hpctrain").write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
    (programs / "hpctrain").chmod(0o755)
    spec = any_job.spec_of({"launcher": "accelerate", "environment": environment}, [], str(project))
    script = tmp_path / "job.sbatch"
    script.write_text(any_job.script_of(spec, [], str(project)))
    script_files.ensure_library(script.read_text())
    variables = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "SLURM_JOB_ID": "62",
        "SLURM_CPUS_PER_TASK": "1",
    }
    said = subprocess.run(
        ["bash", str(script)], cwd=project, env=variables, capture_output=True, text=True
    )
    assert (said.returncode, said.stderr.splitlines()[0]) == (1, "error: accelerate is not on PATH")
    fix = said.stderr.splitlines()[-1].rpartition("fix: ")[2].rpartition(": ")[2]
    done = subprocess.run(
        ["bash", "-c", fix], cwd=project, env=variables, capture_output=True, check=True
    )
    assert done.stdout.decode().split("\0")[:-1] == typed == shlex.split(fix)[1:]
