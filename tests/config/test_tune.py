"""`tune:` of config.yaml: every problem at once and in its place, the job that it makes, and the
config of the best trial.
"""

import json
from typing import Any

import pytest

from hpctrain.config import layers, to_spec
from hpctrain.config import study as tune
from hpctrain.config.study import definition, with_values
from hpctrain.errors import UsageError
from hpctrain.util import yaml12

CONFIG = """\
job_name: search
training: {model_name_or_path: m, dataset_name: d, learning_rate: 2e-5, eval_strategy: steps, eval_steps: 50, max_steps: 400}
tune:
  space:
    learning_rate: {low: 1e-5, high: 1e-3, log: true}
    lora_r: {choices: [8, 16, 32]}
    warmup_steps: {low: 0, high: 200, step: 50}
    optim: {choices: [adamw_torch, null]}
  trials: 12
"""


def resolved(text: str) -> Any:
    return layers.resolve(
        [layers.from_document(yaml12.load(text, "config.yaml"), "config.yaml")]
    ).config


def refused(text: str) -> str:
    with pytest.raises(UsageError) as error:
        resolved(text)
    return error.value.render()


def test_a_study_and_its_definition() -> None:
    config = resolved(CONFIG)
    found = definition(config)
    assert found.study == "search"
    assert found.first == {"learning_rate": 2e-5}
    assert (found.metric, found.direction, found.value) == ("eval_loss", "minimize", "last")
    assert found.space["learning_rate"] == tune.Space(low=1e-5, high=1e-3, log=True)
    assert found.space["warmup_steps"] == tune.Space(low=0, high=200, step=50)
    assert found.space["optim"].choices == ("adamw_torch", None)
    assert found.pruner.kind == "median"
    assert tune.from_json(json.loads(found.text)) == found
    assert (
        resolved(
            CONFIG.replace("trials: 12", "trials: 12\n  study: other\n  pruner: none")
        ).tune.pruner.kind
        == "none"
    )


def test_the_job_of_a_study() -> None:
    spec = to_spec.to_spec(resolved(CONFIG), directory="/srv")
    assert spec.array == "0-11%4"
    assert (spec.study.name, spec.study.keys) == (
        "search",
        ("learning_rate", "lora_r", "warmup_steps", "optim"),
    )
    assert "--learning_rate" not in spec.arguments, "the trial says it"
    assert "--max_steps" in spec.arguments
    assert to_spec.to_spec(resolved(CONFIG + "array: 3,5\n"), directory="/srv").array == "3,5%4"
    assert to_spec.to_spec(resolved(CONFIG + "array: 3,5%1\n"), directory="/srv").array == "3,5%1"


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ("load_best_model_at_end: true", "best"),
        ("early_stopping_patience: 2", "best"),
        ("load_best_model_at_end: false", "last"),
    ],
)
def test_the_value_is_that_of_the_weights_that_are_kept(more: str, kept: str) -> None:
    assert (
        definition(resolved(CONFIG.replace("max_steps: 400", f"max_steps: 400, {more}"))).value
        == kept
    )


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("eval_test_loss", "minimize"),
        ("eval_wer", "minimize"),
        ("eval_accuracy", "maximize"),
        ("eval_f1_macro", "maximize"),
    ],
)
def test_where_a_metric_should_go(metric: str, direction: str) -> None:
    assert definition(resolved(f"{CONFIG}  metric: {metric}\n")).direction == direction


def test_every_problem_at_once_and_in_its_place() -> None:
    text = refused("""\
tune:
  trials: 0
  metrics: eval_loss
  metric: loss
  sampler: bayes
  pruner: {kind: mean, startup_trial: 3}
  space:
    learning_rate: {low: 1e-3, high: 1e-5}
    lora_r: {choices: [8]}
    warmup_steps: {low: 0, high: 10, log: true}
    optim: {choices: [a, [b]]}
    weight_decay: 0.1
    seed: {low: 1, hihg: 2}
    max_grad_norm: {low: 0.5, high: 2, step: 9}
    weight-decay: {choices: [a, b]}
    neftune: {choices: [1, 1.0]}
""")
    for expected in (
        "config.yaml:2:3: trials must be between 1 and 1000, not 0",
        "config.yaml:3:3: unknown key 'metrics' in tune; did you mean 'metric'?",
        "config.yaml:4:3: metric must be a metric of an evaluation, such as eval_loss, not 'loss'",
        "config.yaml:5:3: sampler must be 'tpe' or 'random', not 'bayes'",
        "config.yaml:6:12: kind must be 'median' or 'none', not 'mean'",
        (
            "config.yaml:6:24: unknown key 'startup_trial' in tune.pruner; did you mean"
            " 'startup_trials'?"
        ),
        "config.yaml:8:5: learning_rate must have low below high, not 0.001 and 1e-05",
        "config.yaml:9:14: choices must be a list of two choices or more",
        "config.yaml:10:5: warmup_steps has log, which needs a low above 0",
        "config.yaml:11:13: choices must be numbers, words, true, false or null, not a list",
        "config.yaml:12:5: weight_decay must hold keys and values, not '0.1'",
        "config.yaml:13:20: unknown key 'hihg' in tune.space.seed; did you mean 'high'?",
        "config.yaml:14:5: max_grad_norm must have a step above 0 and at most 1.5",
        "config.yaml:16:15: choices has the choice 1.0 twice",
    ):
        assert expected in text, text
    assert text.splitlines()[-1] == "hint: edit config.yaml, then run: hpctrain render"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("tune:", "sweep: {grid: {seed: [1, 2]}}\ntune:"), "tune and sweep are two ways"),
        (("tune:", "stages: [{name: a}]\ntune:"), "tune and stages are two ways"),
        (
            ("  trials: 12", "  metric: eval_novelty"),
            "direction is missing: eval_novelty does not tell the direction",
        ),
        (
            ("learning_rate: 2e-5", "learning_rate: 2e-2"),
            ("config.yaml:5:5: learning_rate is 0.02 in training, which the first trial takes"),
        ),
        (
            ("eval_steps: 50", "lora_r: 9"),
            ("lora_r is 9 in training, which the first trial takes"),
        ),
        (("  space:", "  space: {}\n  spaces:"), "must hold arguments of the training"),
        (("  space:", "  spaces:"), "space is missing"),
        (
            ("optim: {choices: [adamw_torch, null]}", "output-dir: {choices: [a, b]}"),
            "output-dir cannot be searched",
        ),
        (("[adamw_torch, null]", "[1, true]"), "choices has the choice true twice"),
        (("[adamw_torch, null]", '[1, "1"]'), "choices has the choice 1 twice"),
        (("[adamw_torch, null]", '[true, "true"]'), "choices has the choice true twice"),
    ],
)
def test_what_cannot_be_together(change: tuple[str, str], expected: str) -> None:
    assert expected in refused(CONFIG.replace(*change))


def test_a_choice_of_null_is_not_the_word_none() -> None:
    assert resolved(CONFIG.replace("[adamw_torch, null]", '["None", null]')).tune.space[
        "optim"
    ].choices == ("None", None)


def test_what_training_says_may_be_left_out_of_the_trials() -> None:
    assert definition(resolved(CONFIG.replace("2e-5", "7") + "  try_training: false\n")).first == {}


# -- values ----------------------------------------------------------------------------------------


def test_what_a_space_holds() -> None:
    real = tune.Space(low=0.1, high=0.5, step=0.1)
    assert [real.holds(value) for value in (0.3, 0.35, 0.6, "0.3", True)] == [
        True,
        False,
        False,
        False,
        False,
    ]
    flags = tune.Space(choices=(True, "a", None))
    assert [flags.holds(value) for value in (True, 1, "a", None, "b")] == [
        True,
        False,
        True,
        True,
        False,
    ]


def test_another_form_is_no_definition() -> None:
    for said in (
        {},
        {"schema": 2},
        {"schema": 1, "space": 3},
        [],
        "a text",
        None,
        {"schema": 1, "study": "s", "space": {"lr": {"kind": "other"}}},
    ):
        with pytest.raises(ValueError, match="not a definition"):
            tune.from_json(said)


# -- the config of the best trial ------------------------------------------------------------------

BEST = {
    "learning_rate": 0.000123,
    "lora_r": 16,
    "optim": None,
    "target": "all-linear",
    "odd": "a: 'b' # c",
    "digits": "08",
    "flag": True,
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# a\njob_name: s # b\ntraining:\n  optim: adamw\n  x: 1:30:00\n  y: '1e-5'\ntune: {trials: 3}\n",
        "tune: {trials: 3}\n",
        "training:\ntune:\n  trials: 3",
        "training: {}\n",
        "training: {a: b, learning_rate: 1}\ntune: {trials: 3}\n",
        "tune: {trials: 3}\ntraining:\n    a: b",
        "training:\n  a:\n    - 1\n    - {b: 2}\n\n\n# z\n",
        "training:\n  a: >\n    long\n    text\ntune:\n  x: 1\n",
        'training: {"a b": "no", offline: no}\nsbatch: {requeue: true, x: null, y: [1, "2"]}\n',
    ],
)
def test_whatever_the_form_it_says_what_was_meant(text: str) -> None:
    before = yaml12.load(text, "before").data
    made = with_values(text, BEST)
    after = yaml12.load(made, "after").data
    wanted = {
        key: value for key, value in (before.get("training") or {}).items() if key not in BEST
    }
    assert after == {
        **{key: value for key, value in before.items() if key != "tune"},
        "training": (
            wanted | {key: tune.spoken(value) for key, value in BEST.items() if value is not None}
        ),
    }
    assert type(after["training"]["digits"]) is str, "quoted: 08 is no number"
    assert type(after["training"]["lora_r"]) is yaml12.Plain
