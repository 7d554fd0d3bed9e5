"""A job that is checked, and what `hpctrain check --json` says of it."""

import json
from typing import Any

from tests.cli.conftest import Desk

#: A job that needs nothing but a script; PATH has its launcher.
JOB = "script: train.py\nlauncher: srun\nresources:\n  cpus_per_task: 4\n"


def with_job(desk: Desk) -> Desk:
    """Put a job there that needs nothing but its script."""
    desk.write("train.py", "print('trained')\n")
    desk.write("config.yaml", JOB)
    return desk


def document(desk: Desk, *words: str) -> dict[str, Any]:
    said = desk.run("check", "--json", "--no-slurm", *words)
    found: dict[str, Any] = json.loads(said.out)
    assert said.code == (1 if found["counts"]["error"] else 0)
    return found


def ids(desk: Desk, *words: str) -> set[str]:
    return {finding["id"] for finding in document(desk, *words)["findings"]}


def shared(found: set[str]) -> set[str]:
    """Without what is true of a test's directory."""
    return found - {"path-not-shared"}
