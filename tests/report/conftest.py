"""Within reach of these tests: their own modules, runs made by arithmetic, and a real Chromium."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report import browser, made_runs

REQUIRED = bool(os.environ.get("HPCTRAIN_REQUIRE_LAB"))
"""In CI a test that needs a browser does not skip (tests/conftest.py takes the variable away)."""


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    """Return a running browser."""
    path = browser.program()
    if path is None:
        (pytest.fail if REQUIRED else pytest.skip)(
            "this machine has no Chromium: apt-get install chromium"
        )
    running = browser.Browser(path, tmp_path_factory.mktemp("chromium"))
    yield running
    running.close()


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return `runs` with a run of 8 GPUs and two restarts, `pretrain-1`."""
    runs = tmp_path_factory.mktemp("eight") / "runs"
    made_runs.gpu_run(runs)
    return runs
