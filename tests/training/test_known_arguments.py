"""The table of options that `check` has is that of the parsers."""

from __future__ import annotations

from typing import Any

import pytest

from hpctrain.jobs.check import known_arguments

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("task", ["sft", "classify"])
def test_what_check_knows_is_what_the_training_takes(task: str) -> None:
    import importlib

    from hpctrain.training import options

    module: Any = importlib.import_module(f"hpctrain.training.{task}")
    parser = options._parser(module.TASK)
    takes = {word[2:].replace("-", "_") for word in parser._option_string_actions if word.startswith("--")}
    assert known_arguments.known(task) == takes
