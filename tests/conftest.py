"""What every test gets: its own state directory, no HPCTRAIN_* of the caller's, and no way to the
caller's real cluster.
"""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings

from hpctrain.slurm import job_ids, query_cache

# The Makefile installs bitsandbytes there: the tests can import it, the trainings that they start do
# not, which is a quarter of the CPU time of each start.
sys.path.append(str(Path(sys.prefix) / "quantized"))

#: The programs that would act on a real cluster.
ACTING = ("sbatch", "scancel", "srun", "salloc", "scontrol")
SLURM = {*ACTING, "squeue", "sacct", "sinfo", "sacctmgr", "sattach", "sbcast"}
#: The files that take longest, in seconds of CI on two cores (2026-11-23); of the others,
#: `seconds_of` makes a guess.
LONG = {
    "chaos/test_chaos.py": 550,
    "explain/test_corpus.py": 30,
    "lab/test_requeue.py": 320,
    "lab/test_end_to_end.py": 230,
    "lab/test_outage.py": 215,
    "lab/test_doctor_job.py": 110,
    "lab/test_explain.py": 110,
    "lab/test_ps.py": 110,
    "lab/test_late_sbatch.py": 60,
    "lab/test_sites.py": 60,
    "lab/test_two_clusters.py": 40,
    "lab/test_oracles.py": 30,
    "training/test_bench_gpu.py": 320,
    "training/test_resume_exact.py": 200,
    "training/test_stop_training.py": 200,
    "training/test_classify.py": 110,
    "training/test_tune_job.py": 100,
    "training/test_node_check.py": 60,
    "training/test_tune_trial.py": 60,
    "training/test_sharded.py": 50,
    "training/test_sft.py": 40,
    "training/test_trackers.py": 40,
}
# A busy machine is no reason to fail, and a gate gives the same answer twice: the examples are the
# same in each run. The inner loop tries a quarter of them; --hypothesis-profile=explore tries others.
settings.register_profile("any machine", deadline=None, derandomize=True)
settings.register_profile("fast", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("explore", deadline=None)
settings.load_profile("any machine")
#: What tests do in the main: wait for Slurm, compute, wait for something else, and be quick.
KINDS = ("slurm", "torch", "slow", "rest")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write tests/golden/*/script.sbatch instead of comparing",
    )
    parser.addoption(
        "--update-docs",
        action="store_true",
        help="write the table of docs/clusters.md instead of comparing",
    )


class SlurmWasUsed:
    """Fails a run that had to use Slurm (HPCTRAIN_REQUIRE_LAB) and did not: skipped, deselected, or
    with the marks lost.
    """

    def __init__(self) -> None:
        self.passed, self.skipped = 0, 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "slurm" in report.keywords:
            self.passed += report.when == "call" and report.passed
            self.skipped += report.skipped

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.passed == 0 or self.skipped:
            print(
                f"\nHPCTRAIN_REQUIRE_LAB is set: {self.passed} tests used Slurm and {self.skipped}"
                " were skipped"
            )
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


class EveryTestRan:
    """Fails a run that lost tests on the way: xdist says nothing of those that a killed worker had."""

    def __init__(self) -> None:
        self.collected, self.reported = set[str](), set[str]()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.collected.update(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reported.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        option = session.config.getoption
        stopped = option("collectonly") or (option("maxfail") and session.testsfailed)
        lost = sorted(self.collected - self.reported)
        if lost and not stopped and exitstatus in (0, 1):
            print(
                f"\n{len(lost)} of {len(self.collected)} tests never ran:", *lost[:20], sep="\n  "
            )
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    """Watch over the Slurm tests in the process that sees all reports, and see to a `python`, with
    which jobs start their scripts.

    A training takes a thread for each core that it has, or that its job script was told of, and
    these wait for each other in busy loops. Where they are more than the machine has cores, that is
    most of what it does: four layers took 17 times as long with 8 threads. (Not
    OMP_THREAD_LIMIT: torch then counts on threads that it does not get, and its products in
    bfloat16 are nan.)
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    _hear_signals()
    if shutil.which("python") is None:
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(EveryTestRan())
        if os.environ.get("HPCTRAIN_REQUIRE_LAB"):
            config.pluginmanager.register(SlurmWasUsed())


def _hear_signals() -> None:
    """Take back what a shell in the background (`make test &` in a script) or nohup has the tests
    ignore: programs inherit it.

    A handler is not inherited, so that each program that a test starts has the signals' defaults,
    and this process still ignores them; but for SIGINT, which raises KeyboardInterrupt here too,
    where tests call hpctrain without a process.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else lambda *_: None
            )


def seconds_of(path: Path, items: list[pytest.Item]) -> float:
    """Return about how long a file takes: as measured, or by its slow tests."""
    slow = sum(item.get_closest_marker("slow") is not None for item in items)
    return LONG.get("/".join(path.parts[-2:]), 0.7 * slow + 0.02 * len(items))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let what waits (Slurm's tests, and other slow ones) run beside what computes (training's, and
    the many quick ones) to the end.

    The Makefile gives whole files to the workers in this order (`--dist loadfile
    --no-loadscope-reorder`). In each of the four kinds the longest file comes first, so that no
    worker is left with it, and all kinds have the same part of their seconds done at any time.
    """
    if "torch" in sys.modules:
        raise pytest.UsageError("a test file imports torch while it is collected: import it later")
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    kinds: dict[str, list[tuple[float, Path]]] = {}
    for path, found in files.items():
        names = {mark.name for item in found for mark in item.iter_markers()}
        kind = next((name for name in KINDS[:3] if {name, "slow"} <= names), "rest")
        kinds.setdefault(kind, []).append((seconds_of(path, found), path))
    order: list[tuple[float, str, Path]] = []
    for kind, timed in kinds.items():
        begun, whole = 0.0, sum(seconds for seconds, _ in timed)
        for seconds, path in sorted(timed, key=lambda each: (-each[0], str(each[1]))):
            order.append((begun / whole, kind, path))
            begun += seconds
    order.sort(key=lambda each: (each[0], KINDS.index(each[1]), str(each[2])))
    items[:] = [item for _, _, path in order for item in files[path]]
    # to start the command takes a fifth of a second each time, and a local job more: the inner loop
    # types in its own process
    for item in items:
        if {"hpctrain", "local_jobs"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    gc.freeze()  # ten thousand tests that stay: no collection needs to look through them again


@pytest.fixture(scope="session")
def _guards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of programs that stand in front of the real sbatch and scancel, and leave
    `called` there.
    """
    guards = tmp_path_factory.mktemp("guards")
    for program in ACTING:
        guard = guards / program
        guard.write_text(
            # which cluster this is: none, as on a machine without Slurm
            '#!/bin/sh\n[ "$1 $2" != "show config" ] || exit 1\n'
            f'echo "a test without the slurm mark called the real {program}" >&2\ntouch'
            f' "{guards}/called"\nexit 97\n'
        )
        guard.chmod(0o755)
    return guards


@pytest.fixture(scope="session")
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give new names of directories; `tmp_path_factory.mktemp` looks through all that there are,
    each time.
    """
    return (tmp_path_factory.getbasetemp() / "surroundings" / str(number) for number in count())


@pytest.fixture(autouse=True)
def _own_surroundings(
    request: pytest.FixtureRequest,
    _guards: Path,
    _surroundings: Iterator[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """Keep the test away from the user's jobs, config and cluster.

    A test that is not marked `slurm` finds programs in front of the real sbatch and scancel that
    fail it, loudly.
    """
    is_slurm = request.node.get_closest_marker("slurm") is not None
    for name in [
        name for name in os.environ if name.startswith(("HPCTRAIN_", "SBATCH_", "SLURM_", "PET_"))
    ]:
        if not (is_slurm and name in ("SLURM_CONF", "HPCTRAIN_REQUIRE_LAB", "HPCTRAIN_LAB_DIR")):
            monkeypatch.delenv(name)
    job_ids.this_cluster.cache_clear()
    query_cache.invalidate()
    query_cache._failures.clear()
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
    """Give a directory with all programs of a PATH but Slurm's: thousands of links, and so each
    PATH gets them once.
    """

    @cache
    def programs_of(path: str) -> Path:
        programs = tmp_path_factory.mktemp("programs")
        for directory in path.split(os.pathsep):
            for program in sorted(Path(directory).glob("*")) if Path(directory).is_dir() else []:
                if (
                    program.name not in SLURM
                    and not (programs / program.name).exists()
                    and os.access(program, os.X_OK)
                ):
                    (programs / program.name).symlink_to(program)
        return programs

    return programs_of


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch, _without_slurm: Callable[[str], Path]) -> None:
    """Give the test a PATH on which there is no Slurm at all."""
    monkeypatch.setenv("PATH", str(_without_slurm(os.environ["PATH"])))
