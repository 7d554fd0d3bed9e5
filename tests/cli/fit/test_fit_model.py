"""`hpctrain fit`: the model, the data, and what is typed wrong."""

import re
import shutil

import pytest

from tests.cli.conftest import Desk
from tests.cli.fit.fit_project import CONFIG, MODELS, dataset, document, model


@pytest.mark.slow
def test_a_model_that_is_not_there(project: Desk) -> None:
    shutil.rmtree(project.directory / "model")
    said = project.refused("fit")
    assert "model/config.json does not exist" in said.err
    assert said.lines[-1].startswith("hint: with internet access, run: hf download ")
    project.write("model/config.json", "[1]")
    assert "is not a JSON object" in project.refused("fit").err
    project.write("model/config.json", '{"model_type": "llama"}')
    assert "hidden_size" in project.refused("fit", code=1).err
    project.write("config.yaml", "cluster: leonardo\n")
    assert "no model is named" in project.refused("fit").err
    assert document(project, "--model", str(MODELS / "qwen3-8b"))["model"]["type"] == "qwen3"
    assert (
        document(project, "--model", str(MODELS / "qwen3-8b" / "config.json"))["model"]["type"]
        == "qwen3"
    )


@pytest.mark.slow
def test_a_prepared_dataset_gives_lengths_and_tokens(project: Desk) -> None:
    model(project, "qwen3-0.6b")
    project.write("config.yaml", CONFIG.replace("  max_steps: 1000\n", "  dataset_name: data\n"))
    assert "hpctrain prepare" in " ".join(project.run("fit").out.split())
    dataset(project)
    found = document(project)
    assert found["asked"]["layout"]["length"] == 900
    assert found["tokens"] == 3 * 1000 * 400  # epochs x rows x tokens
    assert "3 epochs x 1,000 sequences x 400 tokens (without padding, 400,000 in all)" in " ".join(
        project.run("fit").out.split()
    )
    mixed = document(project, "--", "--train_sampling_strategy", "random")
    assert mixed["tokens"] == 3 * 1000 * 600  # x 1.5 with padding
    dataset(project, packed=True)
    found = document(project, "--", "--num_train_epochs", "2")
    assert (found["asked"]["layout"]["length"], found["tokens"]) == (2048, 2 * 400_000)
    assert (
        document(project, "--", "--max_steps", "10")["tokens"] == 10 * 16 * 400
    )  # 4 rows of 2048 for each GPU


def test_options_of_the_training_count(project: Desk) -> None:
    found = document(
        project,
        "--",
        "--use_peft",
        "true",
        "--lora_target_modules",
        "q_proj",
        "v_proj",
        "--lora_r",
        "8",
    )
    assert found["asked"]["layout"]["lora"] == {
        "rank": 8,
        "targets": ["q_proj", "v_proj"],
        "dropout": True,
    }
    assert found["model"]["trained"] == 32 * 8 * (4096 * 2 + 4096 + 1024)
    said = project.refused("fit", "--", "--max_length", "long", "--bf16", "perhaps")
    assert "max_length must be a whole number, got 'long'" in said.err
    assert "bf16 must be true or false, got 'perhaps'" in said.err


@pytest.mark.slow
def test_what_is_not_counted_is_a_note(project: Desk) -> None:
    found = document(project, "--", "--use_liger_kernel", "true", "--torch_compile", "true")[
        "notes"
    ]
    assert [note.split(" is ")[0].split(" are ")[0] for note in found] == [
        "use_liger_kernel",
        "torch_compile",
    ]


def test_a_training_of_ones_own_is_refused(project: Desk) -> None:
    said = project.refused("fit", "--script", "train.py")
    assert "train.py is your own training script" in said.err
    assert "--model DIR" in said.lines[-1]
    assert document(project, "--script", "train.py", "--model", "model")["model"]["type"] == "llama"


# -- a classifier ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_classifier_has_its_labels_and_no_output_layer_of_words(project: Desk) -> None:
    model(project, "qwen3-0.6b")
    project.write("config.yaml", CONFIG + "task: classify\n")
    words = document(project, "--task", "sft")
    found = document(project)
    assert found["model"]["labels"] == 2
    assert words["model"]["labels"] is None
    assert (
        found["model"]["parameters"] == words["model"]["parameters"] + 2 * 1024
    )  # its table of embeddings is tied to no output layer
    assert found["asked"]["layout"]["loss"] == "classes"
    assert found["asked"]["layout"]["evaluation"] == 8
    assert found["asked"]["parts"]["loss"] < words["asked"]["parts"]["loss"] / 50
    said = " ".join(project.run("fit").out.split())
    assert "parameters, 2 labels, all trained" in said
    assert "1024 events are assumed" in said
    assert "1024 events are assumed" not in " ".join(
        project.run("fit", "--", "--max_events", "300").out.split()
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("model",), "model is not a job config"),
        (("train.py",), "train.py is not a job config"),
        (("none.yaml",), "there is no file none.yaml"),
        (("config.yaml", "--config", "config.yaml"), "two job configs"),
    ],
)
def test_what_is_typed_wrong(project: Desk, words: tuple[str, ...], why: str) -> None:
    assert why in project.refused("fit", *words).err


def test_where_nothing_fits_it_is_said_what_would(project: Desk) -> None:
    said = project.run(
        "fit",
        "--gpu",
        "v100",
        "--gpu-memory",
        "16G",
        "--gpus",
        "1",
        "--",
        "--per_device_train_batch_size",
        "1",
    )
    assert said.code == 1
    flat = " ".join(said.out.split())
    assert "No layout fits with this global batch. What would:" in flat
    assert re.search(
        r"- \d+ nodes x 8 GPUs, fsdp, micro batch 1, checkpointing.*: [\d.]+ GiB of 15\.8 GiB", flat
    )
    assert "- QLoRA" in flat
