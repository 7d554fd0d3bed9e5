"""The environment section on the local scheduler: the job finds what config.yaml says, and a secret
is seen by nobody else.
"""

import json
import os
import re
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

    def config(
        self, *, launcher: str = "srun", resources: dict[str, Any] | None = None, **environment: Any
    ) -> None:
        config = {
            "launcher": launcher,
            "script": "train.py",
            "environment": environment,
            "resources": resources or {"cpus_per_task": 1},
        }
        (self.directory / "config.yaml").write_text(yaml.safe_dump(config))

    def type(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "ACCELERATE_USE_CPU": "true",
            "CUDA_VISIBLE_DEVICES": "",
            **variables,
        }
        return subprocess.run(
            [self.hpctrain, *words],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def found(self, **variables: str) -> dict[str, str]:
        """Run the job and return what its training found."""
        done = self.type("submit", "--local", "--wait", "--no-check", **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        match = re.search(r"^FOUND (.*)$", self.log(), re.MULTILINE)
        assert match is not None, self.log()
        found: dict[str, str] = json.loads(match[1])
        return found

    def log(self) -> str:
        return "".join(
            (self.directory / "logs" / f"{name}_sft.log").read_text()
            for name in ("output", "error")
        )

    def texts(self) -> str:
        """Return every text that hpctrain or the job wrote, but for the secret's own file."""
        state = Path(os.environ["HPCTRAIN_STATE_DIR"])
        files = [
            path
            for root in (self.directory, state)
            for path in root.rglob("*")
            if path.is_file() and path.name != "token"
        ]
        return "".join(path.read_text(errors="replace") for path in files)


@pytest.fixture
def project(
    tmp_path: Path, hpctrain: str, monkeypatch: pytest.MonkeyPatch, no_slurm: None
) -> Project:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return Project(tmp_path, hpctrain)


def test_a_secret_comes_from_its_file_and_is_written_nowhere(project: Project) -> None:
    token = project.directory / "token"
    token.write_text(f"{SECRET}\n")
    token.chmod(0o600)
    project.config(secrets={"X_TOKEN": str(token), "X_KEY": "environment"})
    (project.directory / "train.py").write_text(
        "import os; assert os.environ['X_TOKEN'][::-1] == os.environ['X_KEY']; print('FOUND {}')"
    )
    project.found(X_KEY=SECRET[::-1])
    shown = "".join(
        done.stdout + done.stderr
        for words in (
            ["submit", "--local", "--dry-run"],
            ["render", "--to", "-"],
            ["ps", "--json"],
            ["check", "--json", "--show-origin"],
        )
        for done in [project.type(*words, X_KEY=SECRET[::-1])]
    )
    assert "X_TOKEN" in shown
    for secret in (SECRET, SECRET[::-1]):
        assert secret not in shown + project.texts()


def test_own_variables_are_laid_over_a_profile_of_your_own(project: Project) -> None:
    profiles = {"mine": {"env": {"X_A": "profile", "X_B": "profile"}, "unset": ["NCCL_DEBUG"]}}
    project.config(
        profile="mine",
        profiles=profiles,
        env={"X_B": "own $HOME `id`", "CUDA_LAUNCH_BLOCKING": "1"},
        unset=["X_C"],
    )
    found = project.found(X_C="shell", X_D="shell", NCCL_DEBUG="INFO")
    assert found["X_A"] == "profile"
    assert found["X_B"] == "own $HOME `id`"
    assert found["X_D"] == "shell"
    assert found["CUDA_LAUNCH_BLOCKING"] == "1"
    assert not {"X_C", "NCCL_DEBUG"} & set(found)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"profile": "huge"}, "there is no environment profile 'huge'"),
        (
            {"profile": "a", "profiles": {"a": {"extends": "debug"}}},
            "unknown key 'extends' in environment.profiles.a",
        ),
        ({"env": {"WORLD_SIZE": "2"}}, "is set by Slurm, the launcher or the script itself"),
        ({"secrets": {"X": "~/x"}, "env": {"X": "1"}}, "has X in secrets and in env"),
        ({"container": {"image": "a.sif"}, "venv": "v"}, "has a container and venv"),
        ({"container": {"engine": "pyxis"}}, "needs an image"),
        ({"secrets": {"HF_TOKEN": SECRET}}, "the secret itself does not belong here"),
    ],
)
def test_what_cannot_be(project: Project, environment: dict[str, Any], message: str) -> None:
    project.config(**environment)
    done = project.type("render")
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert SECRET not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(("fix: ", "hint: "))


def test_hooks_run_before_and_after(project: Project) -> None:
    (project.directory / "before.sh").write_text("export HOOK=seen\n")
    (project.directory / "after.sh").write_text('echo "after: $status"\n')
    project.config(before=["before.sh"], after=["after.sh"])
    assert project.found()["status"] == "seen"
    assert "after: 0" in project.log()
    (project.directory / "before.sh").write_text("false\n")
    assert project.type("submit", "--local", "--wait", "--no-check").returncode == 1


def test_a_hook_on_each_node(project: Project) -> None:
    """Once on each node, before any process there, also with one task per GPU; a name that ends the
    quotes around it stays a name.
    """
    (project.directory / "it's.sh").write_text(
        'sleep 0.5; echo "$SLURM_NODEID" >>"hook.$SLURMD_NODENAME"\n'
    )
    (project.directory / "train.py").write_text(
        'import os\nprint("FOUND", len(open("hook." + os.environ["SLURMD_NODENAME"]).read()))\n'
    )
    project.config(
        launcher="srun",
        resources={"nodes": 2, "gpus": 2, "cpus_per_task": 1},
        before_each_node=["it's.sh"],
    )
    done = project.type("submit", "--local", "--wait", "--no-check")
    assert done.returncode == 0, project.log()
    assert re.findall(r"^FOUND (\d+)$", project.log(), re.MULTILINE) == ["2"] * 4
    assert sorted(path.read_text() for path in project.directory.glob("hook.*")) == ["0\n", "1\n"]


def test_a_hook_that_fails_on_one_node_ends_the_job(project: Project) -> None:
    (project.directory / "node.sh").write_text('[ "$SLURM_NODEID" -eq 0 ] || exit 7\n')
    # With one task per GPU, the other node's tasks may have started: nothing makes them wait.
    (project.directory / "train.py").write_text(
        'import os\nprint("FOUND", os.environ["SLURMD_NODENAME"])\n'
    )
    project.config(
        launcher="torchrun",
        resources={"nodes": 2, "gpus": 2, "cpus_per_task": 1},
        before_each_node=["node.sh"],
    )
    assert project.type("submit", "--local", "--wait", "--no-check").returncode not in (0, 2)
    [error] = re.findall(r"^error: (.*hook.*)$", project.log(), re.MULTILINE)
    assert {"./node.sh", "127.0.0.2", "7"} <= set(error.split())
    assert "FOUND 127.0.0.2" not in project.log()


@pytest.mark.parametrize(
    ("wanted", "stays"),
    [
        ({"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "ib0"}, set()),
        (
            {"NCCL_SOCKET_IFNAME": "ib0,lo", "GLOO_SOCKET_IFNAME": "lo"},
            {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"},
        ),
        ({"NCCL_SOCKET_IFNAME": "l", "GLOO_SOCKET_IFNAME": "l"}, {"NCCL_SOCKET_IFNAME"}),
        ({"NCCL_SOCKET_IFNAME": "b) $(touch canary) ("}, set()),
    ],
)
def test_a_network_interface_that_the_node_lacks_is_not_exported(
    project: Project, wanted: dict[str, str], stays: set[str]
) -> None:
    (project.directory / "train.py").write_text(PROGRAM.replace('"NCCL_"', '"NCCL_", "GLOO_"'))
    project.config(env=wanted)
    found = project.found()
    assert {name: value for name, value in found.items() if name in wanted} == {
        name: wanted[name] for name in stays
    }
    assert not (project.directory / "canary").exists()


def test_a_container_command_wraps_every_process(project: Project) -> None:
    """The engine is a stand-in that runs what it is given: the real ones need an image and are not
    packaged for this system.
    """
    programs = project.directory / "bin"
    programs.mkdir()
    engine = programs / "apptainer"
    engine.write_text(
        '#!/bin/bash\nexport X_ARGV="$*"\nwhile [ "$1" != image.sif ]; do shift; done\nshift\nexec'
        ' "$@"\n'
    )
    engine.chmod(0o755)
    (project.directory / "image.sif").touch()
    project.config(
        container={"image": "image.sif", "binds": ["/scratch:/data"], "gpu_libraries": "rocm"}
    )
    found = project.found(PATH=f"{programs}:{os.environ['PATH']}")
    where = str(project.directory)
    script = next((project.directory / "runs/.code").glob("*/train.py"))
    assert (
        found["X_ARGV"]
        == f"exec --rocm --bind {where} --pwd {where} --bind /scratch:/data image.sif python -u"
        f" {script}"
    )
