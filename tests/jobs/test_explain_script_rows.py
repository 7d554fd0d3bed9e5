"""The tables of words: each row is a sentence with a source, and the real programs have no option without a row."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.jobs.explain_script.command_rows import COMMANDS, KEYWORDS, PROGRAMS
from hpctrain.jobs.explain_script.directive_rows import DIRECTIVES
from hpctrain.jobs.explain_script.option_rows import ACCELERATE, CONTAINER, PYTHON, SRUN, TORCHRUN, TRAINING
from hpctrain.jobs.explain_script.rows import Row
from hpctrain.jobs.explain_script.said import Here, fill
from hpctrain.jobs.explain_script.statement_rows import COMMENTS, STATEMENTS
from hpctrain.jobs.explain_script.variable_rows import VARIABLES

ROWS: dict[str, dict[str, Row]] = {
    "directives": DIRECTIVES, "commands": COMMANDS, "programs": PROGRAMS, "srun": SRUN, "torchrun": TORCHRUN, "accelerate": ACCELERATE,
    "python": PYTHON, "container": CONTAINER, "training": TRAINING, "variables": VARIABLES,
}  # fmt: skip


@pytest.mark.parametrize("table", ROWS)
def test_a_row_is_a_sentence_with_a_source(table: str) -> None:
    for name, row in ROWS[table].items():
        said = fill(row, Here(), it="two nodes", value="2", args="a")
        assert not re.search(r"\{\w*\}", said), (name, said)
        assert row.source, name
        assert not said or said[-1] in ".:" or row.why.endswith(("{alone}", "{it}", "{args}")), (name, said)
        assert not said.startswith(" "), (name, said)


def test_a_row_of_a_statement_fills_its_places() -> None:
    for pattern, row in (*STATEMENTS, *COMMENTS):
        places = dict.fromkeys(pattern.groupindex, "x")
        assert re.search(r"[.:]$", fill(row, Here(), **places, each="")), row.why
    for sentence in KEYWORDS.values():
        assert sentence.format(args="x").endswith((".", ":"))


@pytest.mark.slurm
def test_every_option_of_the_real_sbatch_and_srun_has_a_row() -> None:
    for program, rows in (("sbatch", DIRECTIVES), ("srun", {**DIRECTIVES, **SRUN})):
        help_ = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
        options = set(re.findall(r"^ +(?:-\w, )?--([a-z][\w-]+)", help_, re.MULTILINE))
        assert len(options) > 60
        assert sorted(options - set(rows)) == []


@pytest.mark.torch
@pytest.mark.slow
def test_the_options_of_the_launchers_are_real() -> None:
    for command, rows in ((["torchrun", "--help"], TORCHRUN), (["accelerate", "launch", "--help"], ACCELERATE)):
        program = Path(sys.executable).with_name(command[0])
        help_ = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=True).stdout
        options = {name.replace("_", "-") for name in re.findall(r"--([a-z][\w-]+)", help_)}
        assert sorted(set(rows) - options) == []


@pytest.mark.torch
@pytest.mark.slow
def test_the_options_of_the_training_are_real() -> None:
    from dataclasses import fields

    from trl import ModelConfig, ScriptArguments, SFTConfig

    from hpctrain.training.classify_arguments import ClassifyArguments

    kinds = (SFTConfig, ScriptArguments, ModelConfig, ClassifyArguments)
    known = {field.name.replace("_", "-") for kind in kinds for field in fields(kind)} | {"config"}
    assert sorted(set(TRAINING) - known) == []
