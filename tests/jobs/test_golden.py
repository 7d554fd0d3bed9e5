"""Whole scripts, compared whole. A case is a directory with config.yaml; `pytest --update-golden` writes its script.sbatch."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpctrain import data, yaml12
from hpctrain.clusters import load
from hpctrain.config import cluster_layer, layers, stages, to_spec
from hpctrain.config.schema import Config
from hpctrain.jobs import render, sweep
from hpctrain.jobs.spec import JobSpec

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/config.yaml"))
DIRECTORY = "/home/user/project"


def files_of(case: Path) -> dict[str, str]:
    """Return name and text of what `hpctrain render` writes for the case."""
    document = yaml12.load((case / "config.yaml").read_text(), "config.yaml")
    found = [layers.from_document(document, "config.yaml")]
    if "cluster" in document.data:
        found.append(cluster_layer.layer(load.load(document.data["cluster"], {}), found))
    config = layers.resolve(found).config
    made: dict[str, Any] = {"version": "VERSION", "directory": DIRECTORY, "arguments": ()}
    texts = {}
    for name, spec in specs_of(config, found):
        template = spec.template or render.template_name(spec)
        texts[name] = render.render(spec, data.templates(), template=template, **made)
    if config.sweep is not None:
        texts["points.tsv"] = sweep.table(config.sweep, sweep.expand(config.sweep), training=config.training).text
    return texts


def specs_of(config: Config, found: list[layers.Layer]) -> list[tuple[str, JobSpec]]:
    """Return the jobs of a case, each with the name of its file: of a sweep the array of the first group, of stages each."""
    if config.sweep is not None:
        points = sweep.expand(config.sweep)
        table = sweep.table(config.sweep, points, training=config.training)
        [group] = sweep.groups(config.sweep, points)
        parts = sweep.arrays(group.indices, 4, config.sweep.throttle)
        specs = [to_spec.of_part(config, config.sweep, part, table.name, directory=DIRECTORY) for part in parts]
        return [("script.sbatch" if not number else f"script-{number + 1}.sbatch", spec) for number, spec in enumerate(specs)]
    if config.stages is not None:
        planned = stages.read(found)
        resolved = stages.resolve_each(planned, found, lambda each: to_spec.to_spec(layers.resolve(each).config, directory=DIRECTORY))
        return [
            (f"script{f'-{stage.name}' if stage.index else ''}.sbatch", to_spec.of_stage(spec, stage, planned)) for stage, spec in resolved
        ]
    return [("script.sbatch", to_spec.to_spec(config, directory=DIRECTORY))]


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
    assert {path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/script*.sbatch")} == set(CASES)
