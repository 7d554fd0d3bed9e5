"""A project for the tests of `hpctrain fit`: a job config, a model's config.json, a prepared
dataset.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpctrain.data.manifest import NAME, DatasetManifest, Split
from tests.cli.conftest import Desk

MODELS = Path(__file__).parents[2] / "fit" / "models"
CONFIG = """\
# My job
cluster: leonardo  # where it runs
resources:
  nodes: 1
  gpus_per_node: 4   # all of a node
  mem: 400G
training:
  model_name_or_path: model   # a folder
  max_steps: 1000
  # the end
"""


def model(desk: Desk, name: str) -> None:
    desk.write("model/config.json", (MODELS / name / "config.json").read_text())


def document(desk: Desk, *words: str) -> dict[str, Any]:
    said = desk.run("fit", "--json", *words)
    assert said.code in (0, 1), said.err
    return json.loads(said.out)


def checked(desk: Desk) -> list[str]:
    return [
        finding["id"]
        for finding in json.loads(desk.run("check", "--no-slurm", "--json").out)["findings"]
    ]


def dataset(desk: Desk, **changes: Any) -> None:
    split = Split(
        rows=1000,
        examples=1000,
        tokens=400_000,
        trained=300_000,
        longest=900,
        histogram=((512, 700), (1024, 300)),
        padded=1.5,
    )
    made = DatasetManifest(
        sources=(),
        form="text",
        columns={},
        loss_on="all",
        tokenizer="",
        tokenizer_name="",
        template=None,
        vocabulary=1,
        max_length=2048,
        packed=False,
        splits={"train": replace(split, **changes.pop("split", {}))},
    )
    desk.write(f"data/{NAME}", replace(made, **changes).to_json())
