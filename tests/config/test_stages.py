"""`stages:` of config.yaml: every problem with its place, and the layer that a stage becomes."""

from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import layers, stages
from hpctrain.config.layers import Layer, ResolvedConfig
from hpctrain.config.stages import Stage
from hpctrain.config.to_spec import to_spec
from hpctrain.errors import UsageError
from hpctrain.util import yaml12

CONFIG = """\
job_name: sft
resources: {nodes: 2, time: 02:00:00}
training:
  model_name_or_path: models/m
  max_steps: 100
  init_from: elsewhere
stages:
  - name: warmup
    start: none
    training: {max_steps: 10}
  - name: long
    resources: {nodes: 4}
  - name: more
    start: state
  - name: evaluate
    script: evaluate.py
    launcher: torchrun
    job_name: judge
    training: {split: test}
"""


def found(text: str, *options: Layer) -> list[Layer]:
    return [*options, layers.from_document(yaml12.load(text, "config.yaml"), "config.yaml")]


def resolved(text: str, *options: Layer) -> dict[str, tuple[Stage, ResolvedConfig]]:
    stack = found(text, *options)
    return {
        stage.name: (stage, layers.resolve([stages.layer(stage, stack), *stack]))
        for stage in stages.read(stack)
    }


def refused(text: str, *options: Layer) -> list[str]:
    with pytest.raises(UsageError) as caught:
        resolved(text, *options)
    return caught.value.render().splitlines()


def test_a_stage_changes_what_it_says_and_keeps_the_rest() -> None:
    made = resolved(CONFIG)
    assert list(made) == ["warmup", "long", "more", "evaluate"]
    configs = {name: one.config for name, (_, one) in made.items()}
    assert [config.resources.nodes for config in configs.values()] == [2, 4, 2, 2]
    assert {config.resources.time for config in configs.values()} == {7200}
    assert [config.job_name for config in configs.values()] == [
        "sft-warmup",
        "sft-long",
        "sft-more",
        "judge",
    ]
    arguments = {
        name: to_spec(config, directory="/p").arguments for name, config in configs.items()
    }
    assert arguments == {
        "warmup": (
            "--model_name_or_path",
            "models/m",
            "--max_steps",
            "10",
            "--init_from",
            "elsewhere",
        ),
        "long": (
            "--model_name_or_path",
            "models/m",
            "--max_steps",
            "100",
            "--init_from",
            "stage:warmup",
        ),
        "more": (
            "--model_name_or_path",
            "models/m",
            "--max_steps",
            "100",
            "--resume_from_checkpoint",
            "stage:long",
        ),
        "evaluate": ("--split", "test"),
    }
    assert made["long"][0].dependencies == (("warmup", "afterok"),)


def test_places_are_those_of_the_stage() -> None:
    long, more = (resolved(CONFIG)[name][1] for name in ("long", "more"))
    for config, key, place in (
        (long, ("resources", "nodes"), "config.yaml:12:17"),
        (long, ("resources", "time"), "config.yaml:2:23"),
        (long, ("job_name",), "config.yaml:11:5"),
        (long, ("training", "init_from"), "config.yaml:11:5"),
        (more, ("training", "resume_from_checkpoint"), "config.yaml:14:5"),
        (long, ("training", "max_steps"), "config.yaml:5:3"),
    ):
        assert config.origins[key] == place


def test_a_stage_is_stronger_than_an_option() -> None:
    options = layers.from_options({("resources", "nodes"): "8"}, [])
    made = resolved(CONFIG, options)
    assert [one.config.resources.nodes for _, one in made.values()] == [8, 4, 8, 8]


def test_every_problem_of_the_stages_at_once() -> None:
    lines = refused(
        "stages:\n"
        "  - name: train\n"
        "    start: weights\n"
        "  - name: 'a b'\n"
        "  - name: x\n"
        "    frm: train\n"
        "    sweep: {}\n"
        "    needs: train\n"
        "  - {after: ok, start: wheights}\n"
        "  - just-a-name\n"
    )
    assert lines == [
        "error: 7 problems in config.yaml",
        (
            "config.yaml:4:5: name must be letters, digits and . _ -, and start with a letter or"
            " digit, not 'a b'"
        ),
        "config.yaml:6:5: unknown key 'frm' in a stage; did you mean 'from'?",
        "config.yaml:7:5: sweep must not be in a stage: it is of the whole config",
        "config.yaml:8:5: needs must be a list, such as [a, b]",
        "config.yaml:9:5: name is missing: each stage has one",
        "config.yaml:9:17: start must be 'weights', 'state' or 'none', not 'wheights'",
        (
            "config.yaml:10:5: stage 5 must hold keys and values, such as `name: train`, not"
            " 'just-a-name'"
        ),
        "hint: edit config.yaml, then run: hpctrain render",
    ]


def test_problems_between_stages_have_places_too() -> None:
    lines = refused(
        "stages:\n"
        "  - name: train\n"
        "    start: weights\n"
        "  - {name: b, from: trai}\n"
        "  - name: c\n"
        "    needs: [b, nobody]\n"
        "  - name: C\n"
        "    script: own.py\n"
        "    start: state\n"
    )
    assert [line.split(" must")[0] for line in lines[1:-1]] == [
        "config.yaml:3:5: start",
        "config.yaml:4:15: from",
        "config.yaml:6:5: needs",
        "config.yaml:7:5: name",
        "config.yaml:9:5: start",
    ]
    assert lines[0] == "error: 5 problems in config.yaml"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "sweep: {grid: {training.seed: [1, 2]}}\nstages: [{name: a}]\n",
            "config.yaml:2:1: stages and sweep are mutually exclusive",
        ),
        (
            "array: 0-3\nstages: [{name: a}]\n",
            "config.yaml:2:1: stages and array are mutually exclusive",
        ),
        (
            "stages: [{name: a, from: b}, {name: b}]\n",
            "config.yaml:1:20: from must name an earlier stage of the list, not 'b'",
        ),
    ],
)
def test_what_cannot_be(text: str, problem: str) -> None:
    assert refused(text)[1].startswith(problem)


@pytest.mark.parametrize("text", ["stages: train\n", "stages: {a: 1}\n", "stages: []\n"])
def test_stages_are_a_list(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        layers.resolve(found(text))
    assert [line.split(" must")[0] for line in caught.value.details] == ["config.yaml:1:1: stages"]


@pytest.mark.parametrize("text", ["", "stages:\n", "stages: []\n", "job_name: sft\n"])
def test_no_stages(text: str) -> None:
    assert stages.read(found(text)) == []


def test_a_script_that_all_stages_run_keeps_its_arguments() -> None:
    text = (
        "script: own.py\ntraining: {lr: 1}\nstages: [{name: a}, {name: b, training: {lr: 2}},"
        " {name: c, script: other.py}]\n"
    )
    made = resolved(text)
    arguments = [to_spec(one.config, directory="/p").arguments for _, one in made.values()]
    assert arguments == [("--lr", "1"), ("--lr", "2"), ()]
    assert [stage.start for stage, _ in made.values()] == ["none"] * 3


def test_long_names_make_no_job_name_that_is_too_long() -> None:
    text = f"job_name: {'j' * 60}\nstages: [{{name: {'s' * 36}}}]\n"
    assert resolved(text)["s" * 36][1].config.job_name == f"{'j' * 27}-{'s' * 36}"


def test_the_shipped_example() -> None:
    directory: Any = Path(__file__).parents[2] / "examples" / "stages"
    made = list(resolved((directory / "config.yaml").read_text()).values())
    assert [(stage.name, stage.start, one.config.script) for stage, one in made] == [
        ("warmup", "none", None),
        ("refine", "weights", None),
        ("evaluate", "none", "evaluate.py"),
    ]
    for _, one in made:
        script = one.config.script
        assert script is None or (directory / script).is_file()
