"""Whole scripts, compared whole. A case is a directory with config.yaml; `pytest --update-golden` writes its script.sbatch."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpctrain import data, yaml12
from hpctrain.clusters import load
from hpctrain.config import cluster_layer, layers
from hpctrain.config.to_spec import to_spec
from hpctrain.jobs import render

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/config.yaml"))
DIRECTORY = "/home/user/project"


def files_of(case: Path) -> dict[str, str]:
    """Return name and text of what `hpctrain render` writes for the case."""
    document = yaml12.load((case / "config.yaml").read_text(), "config.yaml")
    found = [layers.from_document(document, "config.yaml")]
    if "cluster" in document.data:
        found.append(cluster_layer.layer(load.load(document.data["cluster"], {}), found))
    spec = to_spec(layers.resolve(found).config, directory=DIRECTORY)
    template = spec.template or render.template_name(spec)
    made: dict[str, Any] = {"version": "VERSION", "directory": DIRECTORY, "arguments": ()}
    return {"script.sbatch": render.render(spec, data.templates(), template=template, **made)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden(case: Path, request: pytest.FixtureRequest) -> None:
    files = files_of(case)
    if request.config.getoption("--update-golden"):
        for name, text in files.items():
            (case / name).write_text(text)
    missing = [name for name in files if not (case / name).exists()]
    assert not missing, f"{case}: write {missing} with: pytest --update-golden"
    assert {name: (case / name).read_text() for name in files} == files
    assert {path.name for path in case.iterdir()} == {"config.yaml", *files}


def test_bash_reads_every_golden() -> None:
    for case in CASES:
        subprocess.run(["bash", "-n", str(case / "script.sbatch")], check=True)


def test_the_cases_that_must_exist() -> None:
    names = {case.name for case in CASES}
    assert {"1x1", "1x4", "2x4", "16x8"} <= names
    assert {f"{cluster}-{nodes}" for cluster in load.available({}) for nodes in (1, 2)} <= names, (
        "each cluster has two: see docs/clusters.md"
    )
    launchers, shardings = ("accelerate", "torchrun", "srun"), ("ddp", "fsdp", "zero2", "zero3")
    assert {f"leonardo-{launcher}-{sharding}" for launcher in launchers for sharding in shardings} <= names
    assert {path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/script.sbatch")} == set(CASES)
