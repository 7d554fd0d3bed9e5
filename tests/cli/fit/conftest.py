"""Makes fit_project.py importable, and the project that the tests of `hpctrain fit` are typed in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fit_project import CONFIG, model

if TYPE_CHECKING:
    from tests.cli.conftest import Desk


@pytest.fixture
def project(desk: Desk) -> Desk:
    desk.write("config.yaml", CONFIG)
    model(desk, "llama-3-8b")
    return desk
