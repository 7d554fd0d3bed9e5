"""What every test gets: its own state directory, no HPCTRAIN_* of the caller's, and no way to the caller's real cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

#: The programs that would act on a real cluster.
ACTING = ("sbatch", "scancel", "srun", "salloc", "scontrol")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/*/script.sbatch instead of comparing")
    parser.addoption("--update-docs", action="store_true", help="write the help into docs/verbs/*.md instead of comparing")


class SlurmWasUsed:
    """Fails a run that had to use Slurm (HPCTRAIN_REQUIRE_LAB) and did not: skipped, deselected, or with the marks lost."""

    def __init__(self) -> None:
        self.passed, self.skipped = 0, 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "slurm" in report.keywords:
            self.passed += report.when == "call" and report.passed
            self.skipped += report.skipped

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.passed == 0 or self.skipped:
            print(f"\nHPCTRAIN_REQUIRE_LAB is set: {self.passed} tests used Slurm and {self.skipped} were skipped")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    """Watch over the Slurm tests in the process that sees all reports."""
    if os.environ.get("HPCTRAIN_REQUIRE_LAB") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SlurmWasUsed())


@pytest.fixture(autouse=True)
def _own_surroundings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Keep the test away from the user's jobs, config and cluster.

    A test that is not marked `slurm` finds programs in front of the real sbatch and scancel that fail it, loudly.
    """
    for name in [name for name in os.environ if name.startswith(("HPCTRAIN_", "SBATCH_", "SLURM_", "PET_"))]:
        if not (request.node.get_closest_marker("slurm") and name in ("SLURM_CONF", "HPCTRAIN_REQUIRE_LAB", "HPCTRAIN_LAB_DIR")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HPCTRAIN_STATE_DIR", str(tmp_path_factory.mktemp("state")))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    guards = None
    if request.node.get_closest_marker("slurm") is None:
        guards = tmp_path_factory.mktemp("guards")
        for program in ACTING:
            guard = guards / program
            guard.write_text(
                f'#!/bin/sh\necho "a test without the slurm mark called the real {program}" >&2\ntouch "{guards}/called"\nexit 97\n'
            )
            guard.chmod(0o755)
        monkeypatch.setenv("PATH", f"{guards}{os.pathsep}{os.environ['PATH']}")
    yield
    if guards is not None:
        assert not (guards / "called").exists(), "a test without the slurm mark called a real Slurm program"


@pytest.fixture
def hpctrain() -> str:
    """Return the path of the installed command."""
    return str(Path(sys.executable).with_name("hpctrain"))


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give the test a PATH on which there is no Slurm at all."""
    programs = tmp_path_factory.mktemp("programs")
    slurm = {"sbatch", "scancel", "srun", "salloc", "scontrol", "squeue", "sacct", "sinfo", "sacctmgr", "sattach", "sbcast"}
    for directory in os.environ["PATH"].split(os.pathsep):
        for program in sorted(Path(directory).glob("*")) if Path(directory).is_dir() else []:
            if program.name not in slurm and not (programs / program.name).exists() and os.access(program, os.X_OK):
                (programs / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(programs))
