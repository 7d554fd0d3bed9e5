"""Makes fit_project.py importable, and the project that the tests of `hpctrain fit` are typed in."""

import pytest

from tests.cli.conftest import Desk
from tests.cli.fit.fit_project import CONFIG, model


@pytest.fixture
def project(desk: Desk) -> Desk:
    desk.write("config.yaml", CONFIG)
    model(desk, "llama-3-8b")
    return desk
