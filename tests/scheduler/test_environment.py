"""The environment section on the local scheduler: the job finds what config.yaml says, and a secret is seen by nobody else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

SECRET = "hf_" + "s3cr3t" * 5
PROGRAM = """import json, os, sys
print("FOUND " + json.dumps({"prefix": sys.prefix, "status": os.environ.get("HOOK"), **{
    name: value for name, value in os.environ.items() if name.startswith(("X_", "NCCL_", "CUDA_LAUNCH", "TORCH_"))}}))
"""


class Project:
    """A project directory with a training script that shows its environment."""

    def __init__(self, directory: Path, hpctrain: str) -> None:
        self.directory, self.hpctrain = directory, hpctrain
        (directory / "train.py").write_text(PROGRAM)

    def config(self, **environment: Any) -> None:
        config = {"launcher": "srun", "script": "train.py", "environment": environment, "resources": {"cpus_per_task": 1}}
        (self.directory / "config.yaml").write_text(yaml.safe_dump(config))

    def type(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": "", **variables}
        return subprocess.run([self.hpctrain, *words], cwd=self.directory, env=environment, capture_output=True, text=True, timeout=120)

    def found(self, **variables: str) -> dict[str, str]:
        """Run the job and return what its training found."""
        done = self.type("submit", "--local", "--wait", "--no-check", **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        match = re.search(r"^FOUND (.*)$", self.log(), re.MULTILINE)
        assert match is not None, self.log()
        found: dict[str, str] = json.loads(match[1])
        return found

    def log(self) -> str:
        return "".join((self.directory / "logs" / f"{name}_sft.log").read_text() for name in ("output", "error"))

    def texts(self) -> str:
        """Return every text that hpctrain or the job wrote, but for the secret's own file."""
        state = Path(os.environ["HPCTRAIN_STATE_DIR"])
        files = [path for root in (self.directory, state) for path in root.rglob("*") if path.is_file() and path.name != "token"]
        return "".join(path.read_text(errors="replace") for path in files)


@pytest.fixture
def project(tmp_path: Path, hpctrain: str, monkeypatch: pytest.MonkeyPatch, no_slurm: None) -> Project:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return Project(tmp_path, hpctrain)


def test_a_secret_comes_from_its_file_and_is_written_nowhere(project: Project) -> None:
    token = project.directory / "token"
    token.write_text(f"{SECRET}\n")
    token.chmod(0o600)
    project.config(secrets={"X_TOKEN": str(token), "X_KEY": "environment"})
    (project.directory / "train.py").write_text("import os; assert os.environ['X_TOKEN'][::-1] == os.environ['X_KEY']; print('FOUND {}')")
    project.found(X_KEY=SECRET[::-1])
    shown = "".join(
        done.stdout + done.stderr
        for words in (["submit", "--local", "--dry-run"], ["render", "--to", "-"], ["ps", "--json"], ["check", "--json", "--show-origin"])
        for done in [project.type(*words, X_KEY=SECRET[::-1])]
    )
    assert "X_TOKEN" in shown
    for secret in (SECRET, SECRET[::-1]):
        assert secret not in shown + project.texts()


@pytest.mark.parametrize(
    ("mode", "message"), [(0o644, "others can read"), (0o640, "others can read"), (None, "cannot read the secret X_TOKEN")]
)
def test_a_secret_that_others_can_read_stops_the_job(project: Project, mode: int | None, message: str) -> None:
    token = project.directory / "token"
    if mode is not None:
        token.write_text(SECRET)
        token.chmod(mode)
    project.config(secrets={"X_TOKEN": str(token)})
    done = project.type("submit", "--local", "--wait", "--no-check")
    assert done.returncode == 1
    assert message in project.log()
    assert "fix: " in project.log()
    assert SECRET not in project.log() + done.stdout + done.stderr


def test_a_secret_of_the_shell_that_is_not_set(project: Project) -> None:
    project.config(secrets={"X_KEY": "environment"})
    assert project.type("submit", "--local", "--wait", "--no-check").returncode == 1
    assert "error: X_KEY is not set\nfix: export X_KEY in the shell that submits" in project.log()


@pytest.mark.parametrize("value", [SECRET, "sk-123", "12345"])
def test_the_secret_itself_in_the_config_is_refused_and_not_repeated(project: Project, value: str) -> None:
    project.config(secrets={"HF_TOKEN": value})
    done = project.type("render")
    assert done.returncode == 2
    assert "the secret itself does not belong here" in done.stderr
    assert value not in done.stderr.replace("config.yaml:", "")


def test_named_profiles_of_variables_are_laid_over_one_another(project: Project) -> None:
    profiles = {"mine": {"extends": "large-scale", "env": {"X_A": "profile", "X_B": "profile"}, "unset": ["NCCL_DEBUG"]}}
    project.config(profile="mine", profiles=profiles, env={"X_B": "own $HOME `id`", "CUDA_LAUNCH_BLOCKING": "1"}, unset=["X_C"])
    shell = {"X_C": "shell", "X_D": "shell", "NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "INFO"}
    found = project.found(**shell)
    assert found["X_A"] == "profile"
    assert found["X_B"] == "own $HOME `id`"
    assert found["X_D"] == "shell"
    assert found["CUDA_LAUNCH_BLOCKING"] == "1"
    assert found["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert not {"X_C", "NCCL_P2P_DISABLE", "NCCL_DEBUG"} & set(found)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"profile": "huge"}, "there is no environment profile 'huge'"),
        ({"profile": "a", "profiles": {"a": {"extends": "b"}, "b": {"extends": "a"}}}, "extends itself"),
        ({"env": {"WORLD_SIZE": "2"}}, "is set by Slurm, the launcher or the script itself"),
        ({"env": {"A B": "2"}}, "is no name of an environment variable"),
        ({"secrets": {"X": "~/x"}, "env": {"X": "1"}}, "has X in secrets and in env"),
        ({"container": {"image": "a.sif"}, "venv": "v"}, "has a container and venv"),
        ({"container": {"engine": "pyxis"}}, "needs an image"),
        ({"conda": "a", "pixi": "b"}, "exclude each other"),
    ],
)
def test_what_cannot_be(project: Project, environment: dict[str, Any], message: str) -> None:
    project.config(**environment)
    done = project.type("render")
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert done.stderr.splitlines()[-1].startswith("fix: ")


def test_hooks_run_before_and_after(project: Project) -> None:
    (project.directory / "before.sh").write_text("export HOOK=seen\n")
    (project.directory / "after.sh").write_text('echo "after: $status"\n')
    project.config(before=["before.sh"], after=["after.sh"])
    assert project.found()["status"] == "seen"
    assert "after: 0" in project.log()
    (project.directory / "before.sh").write_text("false\n")
    assert project.type("submit", "--local", "--wait", "--no-check").returncode == 1


def test_a_uv_environment(project: Project) -> None:
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "--quiet", "--offline", "--python", sys.executable, project.directory / ".venv"], check=True)
    project.config(uv=".")
    assert project.found()["prefix"] == str(project.directory / ".venv")
    shutil.rmtree(project.directory / ".venv")
    assert project.type("submit", "--local", "--wait", "--no-check").returncode == 1
    assert "error: there is no uv environment in .\nfix: uv sync --project ." in project.log()


def test_a_container_command_wraps_every_process(project: Project) -> None:
    """The engine is a stand-in that runs what it is given: the real ones need an image and are not packaged for this system."""
    programs = project.directory / "bin"
    programs.mkdir()
    engine = programs / "apptainer"
    engine.write_text('#!/bin/bash\nexport X_ARGV="$*"\nwhile [ "$1" != image.sif ]; do shift; done\nshift\nexec "$@"\n')
    engine.chmod(0o755)
    (project.directory / "image.sif").touch()
    project.config(container={"image": "image.sif", "binds": ["/scratch:/data"], "gpu_libraries": "rocm"})
    found = project.found(PATH=f"{programs}:{os.environ['PATH']}")
    where = str(project.directory)
    script = next((project.directory / "runs/.code").glob("*/train.py"))
    assert found["X_ARGV"] == f"exec --rocm --bind {where} --pwd {where} --bind /scratch:/data image.sif python -u {script}"
