"""Within reach of these tests: their own modules, runs made by arithmetic, and a real Chromium."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import browser
import made_runs

REQUIRED = bool(os.environ.get("HPCTRAIN_REQUIRE_LAB"))
"""In CI a test that needs a browser does not skip (tests/conftest.py takes the variable away)."""


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    """Return a running browser; where it is required, Debian's package is installed."""
    path = browser.program()
    if path is None and REQUIRED:
        path = _installed()
    if path is None:
        pytest.skip("this machine has no Chromium (apt-get install chromium)")
    running = browser.Browser(path, tmp_path_factory.mktemp("chromium"))
    yield running
    running.close()


def _installed() -> str:
    """Install Debian's Chromium; several test processes may want to."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        pytest.fail("HPCTRAIN_REQUIRE_LAB is set, and there is no Chromium, and no apt-get to install it with", pytrace=False)
    with (Path(tempfile.gettempdir()) / "hpctrain-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        order = [apt, "install", "--yes", "--quiet", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for attempt in range(2):
            if browser.program() is not None:
                break
            if attempt:
                subprocess.run([apt, "update", "--quiet"], env=environment, capture_output=True, timeout=300)
            subprocess.run(order, env=environment, capture_output=True, timeout=900)
    path = browser.program()
    if path is None:
        pytest.fail(f"HPCTRAIN_REQUIRE_LAB is set, and {' '.join(order)} did not bring a Chromium", pytrace=False)
    return path


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return `runs` with a run of 8 GPUs and two restarts, `pretrain-1`."""
    runs = tmp_path_factory.mktemp("eight") / "runs"
    made_runs.gpu_run(runs)
    return runs


@pytest.fixture(scope="session")
def sixty_four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return `runs` with a run of 64 GPUs, on whose nodes the clocks differ."""
    runs = tmp_path_factory.mktemp("many") / "runs"
    made_runs.gpu_run(runs, ranks=64, steps=1200, clock_off_s=37.0)
    return runs
