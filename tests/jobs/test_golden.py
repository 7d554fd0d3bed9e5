"""Whole scripts, compared whole.

A case is a directory with config.yaml; `pytest --update-golden` writes its script.sbatch.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpctrain.clusters import load
from hpctrain.config import layers, stages, sweep, to_spec
from hpctrain.config.profile_layer import cluster_layer
from hpctrain.config.schema import Config
from hpctrain.config.spec import JobSpec
from hpctrain.jobs import header, render
from hpctrain.util import installed, yaml12

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/config.yaml"))
DIRECTORY = "/home/user/project"


def files_of(case: Path) -> dict[str, str]:
    """Return name and text of what `hpctrain render` writes for the case."""
    document = yaml12.load((case / "config.yaml").read_text(), "config.yaml")
    found = [layers.from_document(document, "config.yaml")]
    if "cluster" in document.data:
        found.append(cluster_layer(load.load(document.data["cluster"], {}), found))
    config = layers.resolve(found).config
    made: dict[str, Any] = {"version": "VERSION", "directory": DIRECTORY, "arguments": ()}
    texts = {}
    for name, spec in specs_of(config, found):
        template = spec.template or render.template_name(spec)
        # The name of the library has the digest of its text: of this text, whatever the library is.
        templates = installed.templates() | {header.LIBRARY: ""}
        texts[name] = render.render(spec, templates, template=template, **made)
    if config.sweep is not None:
        texts["points.tsv"] = sweep.table(
            config.sweep, sweep.expand(config.sweep), training=config.training
        ).text
    return texts


def specs_of(config: Config, found: list[layers.Layer]) -> list[tuple[str, JobSpec]]:
    """Return the jobs of a case, each with the name of its file: of a sweep the array of the first
    group, of stages each.
    """
    if config.sweep is not None:
        points = sweep.expand(config.sweep)
        table = sweep.table(config.sweep, points, training=config.training)
        [group] = sweep.groups(config.sweep, points)
        parts = sweep.arrays(group.indices, 4, config.sweep.throttle)
        specs = [
            to_spec.of_part(config, config.sweep, part, table.name, directory=DIRECTORY)
            for part in parts
        ]
        return [
            ("script.sbatch" if not number else f"script-{number + 1}.sbatch", spec)
            for number, spec in enumerate(specs)
        ]
    if config.stages is not None:
        planned = stages.read(found)
        return [
            (
                f"script{f'-{stage.name}' if stage.index else ''}.sbatch",
                to_spec.of_stage(_spec([stages.layer(stage, found), *found]), stage, planned),
            )
            for stage in planned
        ]
    return [("script.sbatch", to_spec.to_spec(config, directory=DIRECTORY))]


def _spec(found: list[layers.Layer]) -> JobSpec:
    return to_spec.to_spec(layers.resolve(found).config, directory=DIRECTORY)


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


@pytest.mark.parametrize(
    ("text", "in_container"),
    [
        ("notify: {on: [failed], webhook: ~/.hpctrain_webhook}", True),
        ("notify: {on: [failed], command: ./tell.sh}", False),
    ],
)
def test_python_outside_the_training_runs_in_the_container(text: str, in_container: bool) -> None:
    head = "environment: {container: {image: images/a.sif, engine: apptainer}}\n"
    training = "training: {model_name_or_path: models/m, dataset_name: data/d}\n"
    document = yaml12.load(head + training + text, "config.yaml")
    config = layers.resolve([layers.from_document(document, "config.yaml")]).config
    made: dict[str, Any] = {"version": "VERSION", "directory": DIRECTORY, "arguments": ()}
    spec = to_spec.to_spec(config, directory=DIRECTORY)
    script = render.render(spec, installed.templates(), template=render.template_name(spec), **made)
    assert ("\nfirst_node=(" in script) == in_container
