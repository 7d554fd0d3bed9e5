"""What `other_slurm` does before it makes anything: refuse in one line, and leave nothing.

Its own run is a download (README.md).
"""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

OTHER = Path(__file__).with_name("other_slurm")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(OTHER.parent))
    return importlib.import_module("other_slurm_cli")


def test_the_tests_that_run_by_default_are_there(cli: ModuleType) -> None:
    assert [name for name in cli.TESTS if not OTHER.with_name(f"{name}.py").exists()] == []
