"""Whole scripts, compared whole. A case is a directory with config.yaml; `pytest --update-golden` writes its script.sbatch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpctrain import data, yaml12
from hpctrain.config import layers
from hpctrain.config.to_spec import to_spec
from hpctrain.jobs import render

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/config.yaml"))
DIRECTORY = "/home/user/project"


def script_of(case: Path) -> str:
    document = yaml12.load((case / "config.yaml").read_text(), "config.yaml")
    spec = to_spec(layers.resolve([layers.from_document(document, "config.yaml")]), directory=DIRECTORY)
    template = spec.template or render.template_name(spec)
    return render.render(spec, data.templates(), template=template, version="VERSION", directory=DIRECTORY, arguments=())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden(case: Path, request: pytest.FixtureRequest) -> None:
    text = script_of(case)
    golden = case / "script.sbatch"
    if request.config.getoption("--update-golden"):
        golden.write_text(text)
    assert golden.exists(), f"{golden} is missing; write it with: pytest --update-golden"
    assert text == golden.read_text()


def test_bash_reads_every_golden() -> None:
    for case in CASES:
        subprocess.run(["bash", "-n", str(case / "script.sbatch")], check=True)


def test_the_cases_that_must_exist() -> None:
    names = {case.name for case in CASES}
    assert {"1x1", "1x4", "2x4", "16x8"} <= names
    assert {path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/script.sbatch")} == set(CASES)
