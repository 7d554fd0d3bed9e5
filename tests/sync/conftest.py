"""Makes this folder's own modules importable (pytest's importlib mode does not), and a far side as
a fixture.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sync import far_side


def _need(*names: str) -> None:
    """Find or install programs. Where they are required the tests are never skipped."""
    missing = far_side.missing_programs(*names)
    if missing and (os.environ.get("CI") or os.environ.get("HPCTRAIN_REQUIRE_LAB")):
        pytest.fail(missing, pytrace=False)
    if missing:
        pytest.skip(missing)


@pytest.fixture(scope="session")
def _programs() -> None:
    _need(*far_side.SERVER)


@pytest.fixture(scope="session")
def _server(_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[far_side.Server]:
    with far_side.Server(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def far(_server: far_side.Server, tmp_path: Path) -> far_side.Host:
    """Return a machine of the test's own, behind the real sshd: its login directory is empty."""
    return _server.host(tmp_path / "far")


@pytest.fixture
def desk(
    far: far_side.Host,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> far_side.Desk:
    """Return a project directory in which commands are typed; its ssh knows the hosts of `far`."""
    (tmp_path / "project").mkdir()
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    made = far_side.Desk(tmp_path / "project", capfd, monkeypatch)
    made.program("ssh", f'exec {far_side.program("ssh")} -F "{far.server.config}" "$@"')
    return made
