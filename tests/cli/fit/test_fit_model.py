"""`hpctrain fit`: the model, the data, and what is typed wrong."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest
from fit_project import CONFIG, MODELS, dataset, document, model

if TYPE_CHECKING:
    from conftest import Desk


def test_a_model_that_is_not_there(project: Desk) -> None:
    shutil.rmtree(project.directory / "model")
    said = project.refused("fit")
    assert "there is no config.json in model" in said.err
    assert said.lines[-1].startswith("fix: where there is a network: hf download ")
    assert said.lines[-1].endswith(" config.json --local-dir model")
    project.write("model/config.json", "[1]")
    assert "is no JSON object" in project.refused("fit").err
    project.write("model/config.json", '{"model_type": "llama"}')
    assert "hidden_size" in project.refused("fit", code=1).err
    project.write("config.yaml", "cluster: leonardo\n")
    assert "no model is named" in project.refused("fit").err
    assert document(project, "--model", str(MODELS / "qwen3-8b"))["model"]["type"] == "qwen3"
    assert document(project, "--model", str(MODELS / "qwen3-8b" / "config.json"))["model"]["type"] == "qwen3"


def test_a_prepared_dataset_gives_lengths_and_tokens(project: Desk) -> None:
    model(project, "qwen3-0.6b")
    project.write("config.yaml", CONFIG.replace("  max_steps: 1000\n", "  dataset_name: data\n"))
    assert "hpctrain prepare" in " ".join(project.run("fit").out.split())
    dataset(project)
    found = document(project)
    assert found["asked"]["layout"]["length"] == 900
    assert found["tokens"] == 3 * 1000 * 400  # epochs x rows x tokens
    assert "3 epochs x 1,000 rows x 400 tokens (grouped by length, 400,000 in all)" in " ".join(project.run("fit").out.split())
    mixed = document(project, "--", "--train_sampling_strategy", "random")
    assert mixed["tokens"] == 3 * 1000 * 600  # x 1.5 with padding
    dataset(project, packed=True)
    found = document(project, "--", "--num_train_epochs", "2")
    assert (found["asked"]["layout"]["length"], found["tokens"]) == (2048, 2 * 400_000)
    assert document(project, "--", "--max_steps", "10")["tokens"] == 10 * 16 * 400  # 4 rows of 2048 for each GPU


def test_a_config_file_of_the_training_is_read(project: Desk) -> None:
    project.write("sft.yaml", "per_device_train_batch_size: 2\nmax_length: 512\n")
    found = document(project, "--", "--config", "sft.yaml", "--max_length", "256")
    assert (found["asked"]["layout"]["micro_batch"], found["asked"]["layout"]["length"]) == (2, 256)
    assert "cannot read --config none.yaml" in project.refused("fit", "--", "--config", "none.yaml").err


def test_options_of_the_training_count(project: Desk) -> None:
    found = document(project, "--", "--use_peft", "true", "--lora_target_modules", "q_proj", "v_proj", "--lora_r", "8")
    assert found["asked"]["layout"]["lora"] == {"rank": 8, "targets": ["q_proj", "v_proj"], "dropout": True}
    assert found["model"]["trained"] == 32 * 8 * (4096 * 2 + 4096 + 1024)
    said = project.refused("fit", "--", "--max_length", "long", "--bf16", "perhaps")
    assert "2 problems" in said.err


def test_what_is_not_counted_is_a_note(project: Desk) -> None:
    found = document(project, "--", "--use_liger_kernel", "true", "--torch_compile", "true")["notes"]
    assert [note.split(" is ")[0].split(" are ")[0] for note in found] == ["Liger's layers", "torch.compile"]


def test_a_training_of_ones_own_is_refused(project: Desk) -> None:
    said = project.refused("fit", "--script", "train.py")
    assert "train.py is a training of your own" in said.err
    assert "--model FOLDER" in said.lines[-1]
    assert document(project, "--script", "train.py", "--model", "model")["model"]["type"] == "llama"


# -- a classifier ------------------------------------------------------------------------------------------------------


def test_a_classifier_has_its_labels_and_no_output_layer_of_words(project: Desk) -> None:
    model(project, "qwen3-0.6b")
    project.write("config.yaml", CONFIG + "task: classify\n")
    words = document(project, "--task", "sft")
    found = document(project)
    assert found["model"]["labels"] == 2
    assert words["model"]["labels"] is None
    assert found["model"]["parameters"] == words["model"]["parameters"] + 2 * 1024  # its table of embeddings is tied to no output layer
    assert found["asked"]["layout"]["loss"] == "classes"
    assert found["asked"]["layout"]["evaluation"] == 8
    assert found["asked"]["parts"]["loss"] < words["asked"]["parts"]["loss"] / 50
    said = " ".join(project.run("fit").out.split())
    assert "parameters, 2 labels, all trained" in said
    assert "1024 events are assumed" in said
    assert "1024 events are assumed" not in " ".join(project.run("fit", "--", "--max_events", "300").out.split())


def test_the_rows_and_the_classes_of_a_classifier_are_those_of_its_data(project: Desk) -> None:
    model(project, "qwen3-0.6b")
    project.write("config.yaml", CONFIG.replace("  max_steps: 1000\n", "  dataset_name: data\n") + "task: classify\n")
    dataset(project, labels=("a", "b", "c"), form="classes", loss_on="label", vocabulary=500)
    found = document(project)
    assert (found["model"]["labels"], found["asked"]["layout"]["length"]) == (3, 900)
    assert found["tokens"] == 3 * 1000 * 600  # rows in random order: x 1.5 with padding
    cut = document(project, "--", "--max_events", "200", "--random_truncation", "0.5")["asked"]
    assert (cut["layout"]["length"], cut["layout"]["padding_free"]) == (200, False)
    new = document(project, "--", "--from_scratch", "true")["model"]["parameters"]
    assert found["model"]["parameters"] - new == (151936 - 500) * 1024
    assert document(project, "--", "--class_names", "a", "b", "c", "d")["model"]["labels"] == 4
    dataset(project, labels=(), form="classes", loss_on="label")
    assert document(project)["model"]["labels"] == 1  # a regression


def test_apply_writes_the_layout_of_a_classifier(project: Desk) -> None:
    project.write("config.yaml", CONFIG + "task: classify\n")
    best = next(row for row in document(project)["rows"] if row["best"])
    assert project.run("fit", "--apply").code == 0
    assert document(project)["asked"]["layout"] == best["layout"]


@pytest.mark.torch
@pytest.mark.slow
def test_exact_counts_a_classifier_too(project: Desk) -> None:
    small = json.loads((MODELS / "qwen3-0.6b" / "config.json").read_text()) | {"num_hidden_layers": 2, "vocab_size": 1000}
    project.write("model/config.json", json.dumps(small))
    words = ("--task", "classify", "--gpus", "1", "--", "--max_events", "128", "--class_names", "a", "b", "c")
    found = document(project, "--exact", *words)["exact"]
    assert found["peak"] == pytest.approx(found["formula"], rel=0.05)
    assert "evaluation" in found["moments"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("model",), "model is a folder"), (("train.py",), "train.py is no job config"), (("none.yaml",), "there is no file none.yaml"),
        (("config.yaml", "--config", "config.yaml"), "two job configs"), (("--apply", "0"), "takes the number of a row"),
        (("--apply", "config.yaml"), "stands behind it"), (("--apply", "99"), "there is no row 99"),
        (("--apply", "--json"), "--apply shows"),
    ],
)  # fmt: skip
def test_what_is_typed_wrong(project: Desk, words: tuple[str, ...], why: str) -> None:
    assert why in project.refused("fit", *words).err


def test_where_nothing_fits_it_is_said_what_would(project: Desk) -> None:
    said = project.run("fit", "--gpu", "v100", "--gpu-memory", "16G", "--gpus", "1", "--", "--per_device_train_batch_size", "1")
    assert said.code == 1
    flat = " ".join(said.out.split())
    assert "No layout fits with this global batch. What would:" in flat
    assert re.search(r"- \d+ nodes x 8 GPUs, fsdp, micro batch 1, checkpointing.*: [\d.]+ GiB of 15\.8 GiB", flat)
    assert "- LoRA of rank 16" in flat
    assert "- QLoRA" in flat
    refused = project.refused("fit", "--gpu", "t4", "--gpus", "1", "--apply", "--", "--per_device_train_batch_size", "1", code=1)
    assert "nothing fits" in refused.err


def test_deepspeed_in_one_process_is_said_to_take_more(project: Desk) -> None:
    said = "DeepSpeed in one process is not followed: its bucket (1 GB) and its copies of the gradients come on top"
    assert said in document(project, "--sharding", "zero2", "--gpus", "1")["notes"]
    assert said not in document(project, "--sharding", "zero2")["notes"]


def test_steps_without_end_are_no_number_of_steps(project: Desk) -> None:
    for word in ("inf", "nan"):
        assert document(project, "--", "--max_steps", word)["tokens"] is None
