"""The environment section in a real job: Debian's environment-modules, a login shell, Slurm's own
environment handling.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.lab.typist import HPCTRAIN
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.extended]

MODULE = """#%Module1.0
prereq-any base/1
setenv X_MODULE loaded
"""


def run_job(
    directory: Path, lab_env: dict[str, str], environment: dict[str, object], **variables: str
) -> str:
    """Render and submit a job that shows its X_ variables; return its two logs, one behind the
    other.
    """
    config = {
        "launcher": "srun",
        "script": "train.py",
        "environment": environment,
        "launch": {"shebang": "#!/bin/bash -l"},
        "resources": {
            "cpus_per_task": 1,
            "mem": "200M",
            "partition": "boost_usr_prod",
            "account": "proj_b",
            "time": "1",
        },
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    (directory / "train.py").write_text(
        "import os; print('FOUND', sorted(n for n in os.environ if n.startswith('X_')),"
        " os.environ.get('X_KEY'))\n"
    )
    path = f"{Path(sys.executable).parent}:{lab_env['PATH']}"
    env = {
        **lab_env,
        "PATH": path,
        "HPCTRAIN_STATE_DIR": os.environ["HPCTRAIN_STATE_DIR"],
        **variables,
    }
    words = [HPCTRAIN, "submit", "--no-check", "--parsable"]
    done = subprocess.run(
        words, cwd=directory, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    log = directory / "logs" / f"output_sft_{done.stdout.strip()}.log"
    errors = log.with_name(log.name.replace("output", "error"))
    wait_until(
        lambda: (
            (log.exists() and "ended with exit code" in log.read_text())
            or (errors.exists() and "\nfix: " in errors.read_text())
        )
    )
    return "".join(
        log.with_name(log.name.replace("output", name)).read_text() for name in ("output", "error")
    )


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    for name, text in {"base/1": "#%Module1.0\nsetenv X_BASE first\n", "tool/2": MODULE}.items():
        (tmp_path / "modules" / name).parent.mkdir(parents=True)
        (tmp_path / "modules" / name).write_text(text)
    return tmp_path / "modules"


def test_modules_are_loaded_in_order(
    tmp_path: Path, modules: Path, lab_env: dict[str, str]
) -> None:
    environment = {
        "module_start": "purge",
        "module_use": [str(modules)],
        "modules_first": ["base/1"],
        "modules": ["tool/2"],
    }
    assert "FOUND ['X_BASE', 'X_MODULE'] None" in run_job(tmp_path, lab_env, environment)


def test_a_secret_of_the_shell_reaches_the_job_through_sbatch(
    tmp_path: Path, lab_env: dict[str, str]
) -> None:
    assert "FOUND ['X_KEY'] abc" in run_job(
        tmp_path, lab_env, {"secrets": {"X_KEY": "environment"}}, X_KEY="abc"
    )
