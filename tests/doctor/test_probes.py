"""The probes, on this machine: real environments, real shells, real files, real sockets."""

import ast
import os
import re
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpctrain.doctor import environment, inside, login
from hpctrain.doctor.facts import DoctorContext, EnvironmentFacts, ProbeResult
from hpctrain.errors import SchedulerError
from hpctrain.util import process
from tests.doctor.clusters import cluster
from tests.waiting import wait_until

# -- starting programs -----------------------------------------------------------------------------


def ends(pids: list[int]) -> None:
    """Wait until these processes have ended: a killed one is there until its parent has looked."""
    wait_until(
        lambda: all(
            not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
            for pid in pids
        )
    )


@pytest.mark.slow
def test_what_a_late_program_has_started_is_killed_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(process.NoAnswerError, match="had not ended after 5 s"):
        environment.run_limited(["bash", "-c", f"sleep 300 & echo $! > {note}; wait"], timeout=5)
    ends([int(note.read_text())])


def test_a_missing_program_is_named() -> None:
    with pytest.raises(SchedulerError, match="no-such-program is not on PATH"):
        environment.run_limited(["no-such-program"], timeout=60)


def test_a_probe_that_hangs_or_breaks_hides_no_other(context: Callable[..., DoctorContext]) -> None:
    def breaks(_case: DoctorContext) -> list[ProbeResult]:
        raise ValueError("odd machine")

    def hangs(_case: DoctorContext) -> list[ProbeResult]:
        environment.run_limited(["sleep", "300"], timeout=200)
        return []

    def well(_case: DoctorContext) -> list[ProbeResult]:
        return [ProbeResult(probe="well", sentence="fine")]

    probes: login.Probes = {"hangs": (0.5, hangs), "breaks": (5, breaks), "well": (5, well)}
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    found = list(login.run_probes(context(), probes))
    assert [(verdict.probe, verdict.word) for verdict in found] == [
        ("hangs", "unknown"),
        ("breaks", "unknown"),
        ("well", "ok"),
    ]
    assert found[1].sentence == "failed: odd machine"
    ends(
        [
            child.pid
            for child in psutil.Process().children(recursive=True)
            if child.pid not in before
        ]
    )


# -- the environment -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("environments") / "empty"
    venv.create(path, with_pip=False, symlinks=True)
    return path


def started(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch
) -> tuple[EnvironmentFacts | None, list[ProbeResult]]:
    """Return what the environment's Python reported, and the lines on it."""
    seen: list[EnvironmentFacts] = []
    whole = environment.evaluate
    monkeypatch.setattr(environment, "evaluate", lambda *of: (seen.append(of[0]), whole(*of))[1])
    results = environment.job_environment(context)
    return (seen or [None])[0], results


def test_without_an_environment_it_is_that_of_the_shell(
    context: Callable[..., DoctorContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, results = started(context(spec={"launcher": "srun"}), monkeypatch)
    assert (facts and facts.kind, results[0].probe) == ("caller", "environment")


def test_an_environment_says_what_it_is(
    context: Callable[..., DoctorContext], empty_venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"venv": str(empty_venv), "launcher": "srun"}
    facts, results = started(context(spec=spec), monkeypatch)
    assert facts is not None
    assert (facts.prefix, facts.place) == (str(empty_venv), None)
    assert (dict(facts.packages), facts.torch) == ({}, None)
    assert facts.launcher == str(empty_venv / "bin/python")
    assert [each.word for each in results] == ["ok", "error", "unknown"]
    assert any(re.match(r"torch\b.*>=", line) for line in environment.demands())


@pytest.mark.torch
def test_this_environment_with_its_packages_and_torch(
    context: Callable[..., DoctorContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.metadata

    import torch

    spec = {"venv": sys.prefix, "launcher": "srun"}
    facts, _ = started(context(spec=spec), monkeypatch)
    assert facts is not None
    assert facts.packages["hpctrain"] == importlib.metadata.version("hpctrain")
    for name, version in facts.packages.items():
        assert version == importlib.metadata.version(name)
    assert facts.torch == {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }


def test_an_old_python_can_read_the_question() -> None:
    """Python 3.6 is what RHEL 8 calls python3; it has to get as far as saying so."""
    ast.parse(Path(inside.__file__).read_text(), feature_version=(3, 6))


def test_an_environment_whose_python_is_gone(
    context: Callable[..., DoctorContext], tmp_path: Path
) -> None:
    found = environment.job_environment(context(spec={"venv": "nowhere"}))
    assert [each.word for each in found] == ["error", "unknown", "unknown"]
    (finding,) = found[0].findings
    assert finding.id == "doctor-environment-broken"
    assert "cannot activate the virtual environment nowhere" in finding.evidence


def test_the_variables_and_the_directory_of_the_job(
    context: Callable[..., DoctorContext],
    empty_venv: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "late/torch").mkdir(parents=True)
    (tmp_path / "late/torch/__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    (tmp_path / "late/torch/version.py").write_text(
        "__version__ = '9.9+rocm'\ncuda: 'str | None' = None\nhip: 'str | None' = '6.4'\n"
    )
    spec = {"venv": str(empty_venv), "launcher": "srun", "env": (("PYTHONPATH", "late"),)}
    facts, _ = started(context(spec=spec), monkeypatch)
    assert facts is not None
    assert facts.torch == {"version": "9.9+rocm", "cuda": None, "hip": "6.4"}


# -- modules ---------------------------------------------------------------------------------------

#: Environment Modules' own way of failing: words on standard error, and (before version 5) exit
#: status 0.
MODULE = """module() {
    case "$1 $2" in
        "load good/"*) export LOADEDMODULES="$LOADEDMODULES:$2" ;;
        "load old") echo "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for '$2'" >&2 ;;
        "load bad") echo "Lmod has detected the following error: The following module(s) are unknown: \\"$2\\"" >&2; return 1 ;;
        "load hangs") sleep 300 ;;
        "load broken") echo "ERROR: Load of requirement gcc failed" >&2; return 1 ;;
        "load ends") exit 0 ;;
        "load needs") [[ $LOADEDMODULES == *good/1* ]] ;;
    esac
}
"""


@pytest.fixture
def shell_with_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "modules.sh").write_text(MODULE)
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "modules.sh"))


def of_modules(context: Callable[..., DoctorContext], *names: str, **more: Any) -> ProbeResult:
    (found,) = login.modules(context(spec={"modules": names}, **more))
    return found


@pytest.mark.usefixtures("shell_with_modules")
def test_modules_load_one_after_the_other_in_the_jobs_shell(
    context: Callable[..., DoctorContext],
) -> None:
    assert of_modules(context, "good/1", "needs").word == "ok"
    found = of_modules(context, "good/1", "needs", "old", "bad", "broken").findings
    assert {finding.id for finding in found} == {"doctor-module-unknown"}
    assert [finding.what for finding in found] == [
        "the module old does not load here",
        "the module bad does not load here",
        "the module broken does not load here",
    ]
    assert "Unable to locate a modulefile for 'old'" in found[0].evidence
    ended = of_modules(context, "good/1", "ends", "old")
    assert (ended.word, ended.sentence) == ("error", "1 of 3 do not load")


@pytest.mark.usefixtures("shell_with_modules")
@pytest.mark.slow
def test_a_module_that_hangs(
    context: Callable[..., DoctorContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "ENVIRONMENT_S", 1.0)
    assert of_modules(context, "hangs").word == "unknown"


ELSEWHERE = cluster(modules={"on_login_nodes": False})


@pytest.mark.usefixtures("shell_with_modules")
def test_modules_of_compute_nodes_alone(context: Callable[..., DoctorContext]) -> None:
    found = of_modules(context, "old", cluster=ELSEWHERE)
    assert (found.word, found.findings) == ("unknown", ())
    assert "compute nodes" in found.sentence


def test_no_module_command_in_the_jobs_shell(
    context: Callable[..., DoctorContext], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("BASH_FUNC_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("BASH_ENV", raising=False)
    (tmp_path / ".bash_profile").write_text(MODULE)
    monkeypatch.setenv("HOME", str(tmp_path))
    (finding,) = of_modules(context, "good/1").findings
    assert finding.id == "doctor-module-command"
    assert "'#!/bin/bash -l'" in finding.fix
    assert of_modules(context, "good/1", cluster=ELSEWHERE).word == "unknown"
    (found,) = login.modules(context(spec={"modules": ("good/1",), "shebang": "#!/bin/bash -l"}))
    assert found.word == "ok"
