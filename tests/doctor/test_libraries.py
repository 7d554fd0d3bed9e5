"""What doctor looks for is what the training demands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from hpctrain.doctor.probes import inside


def test_each_library_of_the_training_is_looked_for() -> None:
    """What is demanded and never looked for would be called missing on every machine."""
    extra = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]["train"]
    assert {re.split(r"[^A-Za-z0-9_-]", line)[0] for line in extra} <= set(inside.PACKAGES)
