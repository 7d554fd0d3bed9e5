"""The classifier really trains on timelines: learns, keeps the best, stops and goes on to the last
bit, and says what cannot be.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import survival

pytestmark = [pytest.mark.torch, pytest.mark.slow]

CLASSIFY = "hpctrain.training.classify"
EXAMPLE = Path(__file__).parents[2] / "examples" / "classify"
PROGRAM = Path(__file__).with_name("stopped_everywhere.py")
TRAINING: dict[str, Any] = {
    "learning_rate": 2e-3,
    "per_device_train_batch_size": 32,
    "num_train_epochs": 2,
    "logging_steps": 50,
    "memory_every": 0,
}

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Run:
    def start(*argv: object, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [*survival.PYTHON, *map(str, argv)]
        return subprocess.run(
            command,
            env=environment | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return start


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return a function that trains in this process, which has imported the libraries already, and
    gives what was written to stdout.
    """
    from hpctrain.training import classify, loop
    from hpctrain.training.options import read_options

    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.chdir(tmp_path)

    def start(*words: object, **variables: str) -> str:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        capfd.readouterr()
        loop.train(read_options([str(word) for word in words], classify.TASK))
        return capfd.readouterr().out

    return start


@pytest.fixture(scope="session")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as a user makes it: timelines, their dataset, and the folder of the model's
    shape.
    """
    folder = tmp_path_factory.mktemp("visits")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    shutil.copytree(EXAMPLE / "model", folder / "model")
    for words in (
        [EXAMPLE / "make_timelines.py", "visits.jsonl"],
        [
            "-m",
            "hpctrain.data.timelines",
            "visits.jsonl",
            "--to",
            "dataset",
            "--group",
            "patient",
        ],
    ):
        subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
        )
    return folder


def options(visits: Path, **more: Any) -> list[str]:
    given = {
        "model_name_or_path": visits / "model",
        "dataset_name": visits / "dataset",
        "from_scratch": True,
        **TRAINING,
        **more,
    }
    return survival.words({name: value for name, value in given.items() if value is not None})


def evaluations(output: str, name: str) -> list[float]:
    return [float(found) for found in re.findall(rf"eval_{name}=(\S+)", output)]


@pytest.fixture(scope="module")
def learned(
    visits: Path, surroundings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The run directory of a training from scratch on two ranks, and what it said."""
    place = tmp_path_factory.mktemp("learned") / "run"
    done = subprocess.run(
        survival.argv(*options(visits, per_device_train_batch_size=16), ranks=2, program=CLASSIFY),
        env=surroundings | {"HPCTRAIN_RUN_DIR": str(place)},
        cwd=place.parent,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return place, done


def test_it_learns_from_scratch_and_keeps_the_best(visits: Path, learned: Any) -> None:
    place, done = learned
    assert "[train] classes: back " in done.stdout
    assert "batches padded on the right with 0" in done.stdout
    losses, areas = evaluations(done.stdout, "loss"), evaluations(done.stdout, "auroc")
    assert len(losses) == len(areas) == 2, "an evaluation at each epoch's end"
    assert (
        max(evaluations(done.stdout, "accuracy")) > 0.8
    )  # 0.57 by saying the more frequent class, 0.9 at most
    assert max(areas) > 0.8
    best = re.search(r"\[train\] best: loss (\S+) at step (\d+)", done.stdout)
    assert float(best[1]) == min(losses)
    assert areas == pytest.approx(
        [scored(visits, place / "checkpoints" / f"checkpoint-{step}") for step in (113, 226)],
        abs=2e-4,
    )
    model = place / "model"
    assert survival.digests(model) == survival.digests(
        place / "checkpoints" / f"checkpoint-{best[2]}"
    )
    assert json.loads((model / "vocabulary.json").read_text())["<pad>"] == 0


def scored(visits: Path, folder: Path) -> float:
    """AUROC of a folder on the held-out rows, each alone and without padding, by transformers
    alone.
    """
    import datasets
    import numpy as np
    import torch
    from transformers import AutoModelForSequenceClassification

    from hpctrain.training.classifier import auroc

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert model.config.id2label == {0: "back", 1: "well"}
    rows = datasets.load_from_disk(str(visits / "dataset"))["test"]
    with torch.no_grad():
        said = [
            model(
                input_ids=torch.tensor([[event for event in row["input_ids"] if event != 0]])
            ).logits[0]
            for row in rows
        ]
    scores = np.array([float(each[1] - each[0]) for each in said])
    return float(auroc(scores, np.array([row["label"] == "well" for row in rows])) or 0)


@pytest.mark.extended
def test_an_adapter_on_a_classifier_is_trained_saved_and_merged(
    visits: Path, run: Run, learned: Any, tmp_path: Path, hpctrain: str
) -> None:
    """First a training of all weights, then LoRA on what it saved, then the merge: it scores as the
    last evaluation said.
    """
    place, _ = learned
    more = {
        "model_name_or_path": place / "model",
        "from_scratch": None,
        "use_peft": True,
        "lora_r": 4,
        "lora_target_modules": "all-linear",
        "seed": 3,
    }
    done = run(
        "-m",
        CLASSIFY,
        *options(visits, **more, metric_for_best_model="auroc", num_train_epochs=1),
        HPCTRAIN_RUN_DIR=str(tmp_path / "runs" / "lora"),
    )
    assert done.returncode == 0, done.stderr
    model = tmp_path / "runs" / "lora" / "model"
    assert (model / "adapter_model.safetensors").is_file()
    assert "score.weight" in (model / "adapter_model.safetensors").read_bytes()[:6000].decode(
        "latin-1"
    )
    merged = subprocess.run(
        [hpctrain, "checkpoints", "merge", model, "--to", "served"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert merged.returncode == 0, merged.stderr
    assert merged.stdout == "served\n"
    assert scored(visits, tmp_path / "served") == pytest.approx(
        evaluations(done.stdout, "auroc")[-1], abs=2e-4
    )
    assert (tmp_path / "served" / "vocabulary.json").is_file()


SMALL = {
    "max_steps": 9,
    "num_train_epochs": None,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "logging_steps": 2,
}
STOPS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "two processes, by length": (
        2,
        "2,5e",
        {
            "dataloader_num_workers": 1,
            "per_device_eval_batch_size": 1,
            "train_sampling_strategy": "group_by_length",
        },
    ),
    "LoRA": (
        1,
        "2,5",
        {
            "use_peft": True,
            "from_scratch": None,
            "lora_dropout": 0.2,
            "lora_target_modules": "all-linear",
        },
    ),
}


@pytest.fixture(scope="session")
def few(visits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty rows to train on, stored padded, so that an epoch has five steps, and a classifier that
    is there already.
    """
    import datasets
    from transformers import AutoConfig, AutoModelForSequenceClassification

    folder = tmp_path_factory.mktemp("few")
    data = datasets.load_from_disk(str(visits / "dataset"))
    longest = max(len(ids) for rows in data.values() for ids in rows["input_ids"])

    def padded(row: dict[str, Any]) -> dict[str, Any]:
        ids = row["input_ids"]
        empty = [0] * (longest - len(ids))
        return {"input_ids": ids + empty, "attention_mask": [1] * len(ids) + empty}

    datasets.DatasetDict(
        train=data["train"].select(range(37)).map(padded),
        test=data["test"].select(range(9)).map(padded),
    ).save_to_disk(str(folder / "dataset"))
    shutil.copy(visits / "dataset" / "hpctrain.json", folder / "dataset")
    config = AutoConfig.from_pretrained(
        visits / "model", num_labels=2, attention_dropout=0.1, hidden_size=16, vocab_size=47
    )
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder / "model")
    return folder


@pytest.mark.extended
@pytest.mark.parametrize("case", STOPS)
def test_stopped_and_resumed_is_never_stopped(
    case: str, few: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    ranks, steps, more = STOPS[case]
    launch = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
        if ranks > 1
        else []
    )
    words = options(few, **{**SMALL, "per_device_train_batch_size": 4 // ranks, **more})
    done = subprocess.run(
        [*survival.PYTHON, *launch, str(PROGRAM), str(tmp_path), steps, *words],
        env=environment | {"TRAINING": CLASSIFY},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert json.loads((tmp_path / "compared.json").read_text()) == {
        step: [] for step in steps.split(",")
    }
    lines = survival.logged(tmp_path / "whole")
    assert any("eval_auroc" in line[1] for line in lines)


def test_other_kinds_of_labels_are_trained_too(
    few: Path, here: Callable[..., str], tmp_path: Path
) -> None:
    import datasets

    data = datasets.load_from_disk(str(few / "dataset"))
    kinds: dict[str, Callable[[dict[str, Any]], Any]] = {
        "multi": lambda row: [int(2 in row["input_ids"]), int(5 in row["input_ids"])],
        "regression": lambda row: sum(row["attention_mask"]) / 40,
    }
    for kind, of in kinds.items():
        made = data.map(lambda row, of=of: {"target": of(row)}, remove_columns=["label"])
        made.save_to_disk(str(tmp_path / kind))
        words = options(
            few,
            **{
                **SMALL,
                "dataset_name": tmp_path / kind,
                "label_column": "target",
                "pad_token_id": 0,
            },
        )
        said = here(
            *words, "--class_weights", "balanced", HPCTRAIN_RUN_DIR=str(tmp_path / "runs" / kind)
        )
        config = json.loads((tmp_path / "runs" / kind / "model" / "config.json").read_text())
        assert config["problem_type"] == (
            "multi_label_classification" if kind == "multi" else "regression"
        )
        name = "loss" if kind == "regression" else "f1_macro"
        assert len(evaluations(said, name)) == 2


def changed(
    few: Path, to: Path, change: Callable[[dict[str, list[Any]]], None], *, manifest: bool = False
) -> Path:
    import datasets

    data = datasets.load_from_disk(str(few / "dataset"))
    splits = {}
    for name, rows in data.items():
        values = rows.to_dict()
        if name == "train":
            change(values)
        splits[name] = datasets.Dataset.from_dict(values)
    datasets.DatasetDict(splits).save_to_disk(str(to))
    if manifest:
        shutil.copy(few / "dataset" / "hpctrain.json", to)
    return to


def end_with_padding(values: dict[str, list[Any]]) -> None:
    values["input_ids"][3][sum(values["attention_mask"][3]) - 1] = 0


def too_high(values: dict[str, list[Any]]) -> None:
    values["input_ids"][3][0] = 100


def one_class(values: dict[str, list[Any]]) -> None:
    values["label"] = ["back"] * len(values["label"])


TRAPS: dict[str, tuple[Any, bool, list[str], str]] = {
    "no padding known": (
        lambda _: None,
        False,
        [],
        "neither the model's config.json nor the dataset names the padding id",
    ),
    "an event that is the padding": (
        end_with_padding,
        True,
        [],
        "rows end with the event 0, which is the padding's id too",
    ),
    "padding outside of the vocabulary": (
        lambda _: None,
        False,
        ["--pad_token_id", "500"],
        "the padding's id is 500",
    ),
    "event outside of the vocabulary": (
        too_high,
        True,
        [],
        "the data has the event id 100, and the model 47 ids",
    ),
    "all rows of one class": (
        one_class,
        False,
        ["--pad_token_id", "0"],
        "labels that are no class; the classes are back: well",
    ),
    "a class that no row has": (
        lambda _: None,
        True,
        ["--class_names", "back", "dead"],
        "labels that are no class; the classes are back, dead: well",
    ),
    "unknown metric": (
        lambda _: None,
        True,
        ["--metric_for_best_model", "auc"],
        "--metric_for_best_model auc is not measured here",
    ),
    "no such label": (
        lambda _: None,
        True,
        ["--label_column", "outcome"],
        "split 'train' has no outcome; it has input_ids",
    ),
    "LoRA from nothing": (
        lambda _: None,
        True,
        ["--use_peft", "true"],
        "--from_scratch makes one that has learned nothing",
    ),
    "quantised": (
        lambda _: None,
        True,
        ["--load_in_4bit", "true"],
        "a classifier on a quantized base is not known here",
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_silent_traps_are_errors(
    trap: str,
    few: Path,
    tmp_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this process: none of them starts a training."""
    from hpctrain.errors import UsageError
    from hpctrain.training import classify, loop
    from hpctrain.training.options import read_options

    change, manifest, more, said = TRAPS[trap]
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.chdir(tmp_path)
    data = changed(few, tmp_path / "data", change, manifest=manifest)
    words = options(few, **{**SMALL, "dataset_name": data, "output_dir": "out"})
    with pytest.raises(UsageError) as caught:
        loop.train(read_options([*words, *more], classify.TASK))
    assert said in caught.value.render(), caught.value.render()
    assert "\nhint: " in caught.value.render()
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_rows_longer_than_the_models_positions_are_refused_or_cut(
    few: Path, here: Callable[..., str], tmp_path: Path
) -> None:
    from hpctrain.errors import UsageError

    shutil.copytree(few / "model", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(
        json.dumps({**config, "max_position_embeddings": 20})
    )
    words = options(
        few, **{**SMALL, "max_steps": 2, "model_name_or_path": "model", "output_dir": "out"}
    )
    with pytest.raises(UsageError) as caught:
        here(*words)
    assert "events, and the model 20 positions" in caught.value.render()
    assert "hint: use --max_events 20, which keeps the last ones" in caught.value.render()
    assert "rows of at most 20 events" in here(*words, "--max_events", 20)


def test_the_classes_of_another_classifier_are_not_taken_for_these(
    few: Path, here: Callable[..., str], tmp_path: Path
) -> None:
    from hpctrain.errors import UsageError

    shutil.copytree(few / "model", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    for names, said, fix in (
        (
            ["well", "back"],
            "the classes of model are well, back, and those of the data back, well",
            "--class_names well back",
        ),
        (
            ["a", "b", "c"],
            "the classes of model are a, b, c, and those of the data back, well",
            "--model_name_or_path FOLDER",
        ),
    ):
        labels = {
            "id2label": dict(enumerate(names)),
            "label2id": {name: number for number, name in enumerate(names)},
        }
        (tmp_path / "model" / "config.json").write_text(json.dumps({**config, **labels}))
        words = options(
            few,
            **{**SMALL, "model_name_or_path": "model", "from_scratch": None, "output_dir": "out"},
        )
        with pytest.raises(UsageError) as caught:
            here(*words)
        assert said in caught.value.render()
        assert f"hint: use {fix}" in caught.value.render()


def test_a_class_without_training_rows_is_said(few: Path, here: Callable[..., str]) -> None:
    words = options(few, **{**SMALL, "max_steps": 2, "output_dir": "out"})
    said = here(*words, "--class_names", "back", "well", "dead")
    assert "warning: no training row has the class dead: it cannot be learned" in said


STEPS = {"eval_strategy": "steps", "eval_steps": 30}


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ({}, {"save_strategy": "epoch", "load_best_model_at_end": True}),
        ({}, {"metric_for_best_model": "eval_loss", "greater_is_better": False}),
        ({"metric_for_best_model": "auroc"}, {"greater_is_better": True}),
        ({"metric_for_best_model": "eval_loss"}, {"greater_is_better": False}),
        (STEPS, {"save_strategy": "steps", "save_steps": 30, "load_best_model_at_end": True}),
        ({**STEPS, "save_steps": 45}, {"load_best_model_at_end": False}),
        ({"save_strategy": "steps"}, {"load_best_model_at_end": False}),
        ({"save_strategy": "best"}, {"load_best_model_at_end": True}),
        ({"eval_strategy": "no"}, {"load_best_model_at_end": False, "save_strategy": "epoch"}),
    ],
)
def test_defaults_that_go_together(asked: dict[str, Any], chosen: dict[str, Any]) -> None:
    from hpctrain.training.classify import _defaults

    names = ("save_strategy", "eval_steps", "save_steps", "metric_for_best_model")
    given = {"eval_strategy": "epoch", "logging_steps": 10, **dict.fromkeys(names), **asked}
    found = _defaults(SimpleNamespace(**given), cpu=True, data=None)
    assert {name: found[name] for name in chosen} == chosen


@pytest.mark.extended
@pytest.mark.usefixtures("no_slurm")
def test_the_page_and_the_example_run(
    run: Run, tmp_path: Path, environment: dict[str, str]
) -> None:
    """What docs/classify.md says to type, and then its program; and the example's job config makes
    a job of this training.
    """
    root = EXAMPLE.parents[1]
    shutil.copytree(root / "examples", tmp_path / "examples")
    page = (root / "docs" / "classify.md").read_text()
    typed = [
        line.removeprefix("$ ")
        for line in re.findall(r"```console\n(.*?)```", page, re.DOTALL)[0].splitlines()
    ]
    variables = environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(typed)],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert "[train] finished: " in done.stdout
    program = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    said = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path / "classify",
        env=variables,
        capture_output=True,
        text=True,
    )
    assert said.stdout == "back\n", said.stderr
    checked = subprocess.run(
        ["hpctrain", "check"],
        cwd=tmp_path / "classify",
        env=variables,
        capture_output=True,
        text=True,
    )
    assert "model-folder" not in checked.stdout + checked.stderr, (
        "from scratch, config.json is all that is needed"
    )
    rendered = subprocess.run(
        ["hpctrain", "render"],
        cwd=tmp_path / "classify",
        env=variables,
        capture_output=True,
        text=True,
    )
    assert rendered.returncode == 0, rendered.stderr
    assert (
        "--module hpctrain.training.classify"
        in (tmp_path / "classify" / "classify.sbatch").read_text()
    )
