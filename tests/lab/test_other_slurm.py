"""What `other_slurm` does before it makes anything: refuse in one line, and leave nothing. Its own run is a download (README.md)."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

OTHER = Path(__file__).with_name("other_slurm")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="it refuses everybody else at once")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(OTHER.parent))
    return importlib.import_module("other_slurm_cli")


def run(*words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **({"PATH": path} if path is not None else {})}
    return subprocess.run([sys.executable, str(OTHER), *words], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_a_suite_that_is_not_known() -> None:
    done = run("woody", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert "trixie" in done.stderr


@as_root
def test_a_machine_without_debootstrap(tmp_path: Path) -> None:
    done = run("--cache", str(tmp_path / "cache"), "trixie", "true", path=str(tmp_path))
    assert (done.returncode, done.stdout) == (3, "")
    assert len(done.stderr.splitlines()) == 1
    assert "debootstrap" in done.stderr
    assert list(tmp_path.iterdir()) == []


@as_root
def test_a_tree_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, body in (("unshare", 'while [ "$1" != debootstrap ]; do shift; done; exec "$@"'), ("debootstrap", 'mkdir -p "$4"; exit 7')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    done = run("--cache", str(tmp_path / "cache"), "trixie", "true", path=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert done.returncode == (1 if Path("/sys/fs/cgroup/freezer/cgroup.procs").exists() else 3), done.stderr
    assert "error: " in done.stderr
    assert list(tmp_path.glob("cache/*")) == []


def test_the_tests_that_run_by_default_are_there(cli: ModuleType) -> None:
    assert [name for name in cli.TESTS if not OTHER.with_name(f"{name}.py").exists()] == []


def test_the_words_behind_the_suite_are_the_command(cli: ModuleType) -> None:
    options = cli.parse(["--bind", "/a", "--bind", "/b", "sid", "sacct", "--bind", "c"])
    assert (options.suite, options.command, list(map(str, options.bind))) == ("sid", ["sacct", "--bind", "c"], ["/a", "/b"])
