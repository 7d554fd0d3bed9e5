"""What every test gets: its own state directory, no HPCTRAIN_* of the caller's, and no way to the caller's real cluster."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count, zip_longest
from pathlib import Path

import pytest

#: The programs that would act on a real cluster.
ACTING = ("sbatch", "scancel", "srun", "salloc", "scontrol")
SLURM = {*ACTING, "squeue", "sacct", "sinfo", "sacctmgr", "sattach", "sbcast"}
#: The files that take longest, in seconds of CI on two cores (2026-11-22). The others follow by their number of slow tests.
LONG = {"test_chaos.py": 548, "test_end_to_end.py": 268, "test_doctor_job.py": 182, "test_classify.py": 120, "test_bench_train.py": 90}


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
    """Watch over the Slurm tests in the process that sees all reports, and see to a `python`, with which jobs start their scripts."""
    if shutil.which("python") is None:
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if os.environ.get("HPCTRAIN_REQUIRE_LAB") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SlurmWasUsed())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let what takes long start first, so that no worker is left with it at the end; Slurm's, which wait, beside training's, which compute.

    The Makefile gives whole files to the workers in this order (`--dist loadfile --no-loadscope-reorder`).
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)

    def kind(path: Path) -> str:
        names = {mark.name for item in files[path] for mark in item.iter_markers()}
        return next((name for name in ("slurm", "torch", "slow") if {name, "slow"} <= names), "rest")

    def longest_first(path: Path) -> tuple[float, int, str]:
        limits = [float(mark.args[0]) for item in files[path] for mark in item.iter_markers("timeout") if mark.args]
        seconds = LONG.get(path.name, max(limits, default=0.0) / 10)
        return -seconds, -sum(item.get_closest_marker("slow") is not None for item in files[path]), str(path)

    lanes = {name: sorted((path for path in files if kind(path) == name), key=longest_first) for name in ("slurm", "torch", "slow", "rest")}
    beside = [path for each in zip_longest(lanes["slurm"], lanes["torch"]) for path in each if path is not None]
    items[:] = [item for path in (*beside, *lanes["slow"], *lanes["rest"]) for item in files[path]]
    gc.freeze()  # ten thousand tests that stay: no collection needs to look through them again


@pytest.fixture(scope="session")
def _guards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of programs that stand in front of the real sbatch and scancel, and leave `called` there."""
    guards = tmp_path_factory.mktemp("guards")
    for program in ACTING:
        guard = guards / program
        guard.write_text(
            f'#!/bin/sh\necho "a test without the slurm mark called the real {program}" >&2\ntouch "{guards}/called"\nexit 97\n'
        )
        guard.chmod(0o755)
    return guards


@pytest.fixture(scope="session")
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give new names of directories; `tmp_path_factory.mktemp` looks through all that there are, each time."""
    return (tmp_path_factory.getbasetemp() / "surroundings" / str(number) for number in count())


@pytest.fixture(autouse=True)
def _own_surroundings(
    request: pytest.FixtureRequest, _guards: Path, _surroundings: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Keep the test away from the user's jobs, config and cluster.

    A test that is not marked `slurm` finds programs in front of the real sbatch and scancel that fail it, loudly.
    """
    is_slurm = request.node.get_closest_marker("slurm") is not None
    for name in [name for name in os.environ if name.startswith(("HPCTRAIN_", "SBATCH_", "SLURM_", "PET_"))]:
        if not (is_slurm and name in ("SLURM_CONF", "HPCTRAIN_REQUIRE_LAB", "HPCTRAIN_LAB_DIR")):
            monkeypatch.delenv(name)
    own = next(_surroundings)
    for variable, name in (("HPCTRAIN_STATE_DIR", "state"), ("XDG_CONFIG_HOME", "config")):
        (own / name).mkdir(parents=True)
        monkeypatch.setenv(variable, str(own / name))
    if not is_slurm:
        monkeypatch.setenv("PATH", f"{_guards}{os.pathsep}{os.environ['PATH']}")
    yield
    called = _guards / "called"
    if called.exists():
        called.unlink()  # the next test has not called it
        assert is_slurm, "a test without the slurm mark called a real Slurm program"


@pytest.fixture
def hpctrain() -> str:
    """Return the path of the installed command."""
    return str(Path(sys.executable).with_name("hpctrain"))


@pytest.fixture(scope="session")
def _without_slurm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give a directory with all programs of a PATH but Slurm's: thousands of links, and so each PATH gets them once."""

    @cache
    def programs_of(path: str) -> Path:
        programs = tmp_path_factory.mktemp("programs")
        for directory in path.split(os.pathsep):
            for program in sorted(Path(directory).glob("*")) if Path(directory).is_dir() else []:
                if program.name not in SLURM and not (programs / program.name).exists() and os.access(program, os.X_OK):
                    (programs / program.name).symlink_to(program)
        return programs

    return programs_of


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch, _without_slurm: Callable[[str], Path]) -> None:
    """Give the test a PATH on which there is no Slurm at all."""
    monkeypatch.setenv("PATH", str(_without_slurm(os.environ["PATH"])))
