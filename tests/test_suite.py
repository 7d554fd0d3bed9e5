"""The suite itself: it hears Ctrl-C in the background, and a run that lost tests fails."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_tests_hear_ctrl_c_although_whoever_started_them_ignores_it() -> None:
    test = Path(__file__).parent / "cli" / "test_init.py"
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "ctrl_c_leaves_nothing",
        str(test),
    ]
    ignoring = ["bash", "-c", "trap '' INT QUIT HUP; exec \"$@\"", "bash"]
    done = subprocess.run(
        [*ignoring, *words], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


# -- What tests/conftest.py says of a run that lost tests on the way


LOSES = """\
def pytest_runtest_protocol(item, nextitem):
    if item.name == "test_lost":
        return True  # as if it had run, and nobody tells how it ended
"""


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["-n", "2"]], ids=["one process", "workers"])
def test_a_test_that_nobody_reports_fails_the_run(more: list[str], tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "loses.py").write_text(LOSES)
    (tmp_path / "test_two.py").write_text("def test_run(): pass\ndef test_lost(): pass\n")

    def pytest_of(*words: str) -> tuple[int, bool]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *more, *words],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
        return done.returncode, "test_two.py::test_lost" in done.stdout

    assert pytest_of() == (0, False)
    assert pytest_of("-p", "loses") == (1, True)
    assert pytest_of("-p", "loses", "--collect-only", "-q")[0] == 0
