"""Places for jobs: an empty directory for local ones, and programs on PATH in place of Slurm's."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scheduler.local_jobs import end_all


@pytest.fixture
def local_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty directory; what a failed test leaves running is ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield
    end_all()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that puts programs on PATH: name=body of a bash script; each call of one is
    a line in calls.txt, its environment is in NAME.env.
    """
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def put(**bodies: str) -> None:
        for name, body in bodies.items():
            record = f'echo "{name} $*" >> {tmp_path}/calls.txt\nenv > {tmp_path}/{name}.env'
            (folder / name).write_text(f"#!/bin/bash\n{record}\n{body}\n")
            (folder / name).chmod(0o755)

    put(squeue="", sacct="", scontrol="exit 1", scancel="")
    return put
