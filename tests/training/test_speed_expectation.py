"""What is expected of a Trainer is worked out from the Trainer itself, on a GPU that this machine
lacks, by its name and size.
"""

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain.fit import memory, speed

pytestmark = [pytest.mark.torch, pytest.mark.slow]

H100 = ("NVIDIA H100 80GB HBM3", 85_045_542_912)


@pytest.fixture(scope="module")
def table() -> Any:
    """Return the module, imported when a test runs: it brings torch."""
    return importlib.import_module("hpctrain.training.start_table")


def expect(table: Any, *given: Any) -> Any:
    lengths = table.Lengths(examples=9, tokens=180, longest=29, context=20.0)
    return table.expect(*given, lengths)


def trainer_of(model: str, *, cuda: bool = True, **options: Any) -> tuple[Any, Any]:
    """Return a Trainer as far as it is looked at, with a real model and real options, and the
    options.
    """
    from transformers import AutoModelForCausalLM
    from trl import ModelConfig, SFTConfig

    args = SFTConfig(
        output_dir="out",
        use_cpu=True,
        bf16=False,
        report_to="none",
        activation_checkpointing=False,
        **options,
    )
    if cuda:
        args.bf16 = True  # transformers refuses it here
    accelerator = SimpleNamespace(
        distributed_type=SimpleNamespace(name="NO"), state=SimpleNamespace()
    )
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    script = SimpleNamespace(dataset_name="data/set", dataset_train_split="train")
    trainer = SimpleNamespace(
        args=args, model=loaded, accelerator=accelerator, padding_free=False, compute_loss_func=None
    )
    return trainer, SimpleNamespace(
        weights=SimpleNamespace(model=model), model=ModelConfig(), script=script
    )


@pytest.fixture
def h100(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "device_of", lambda _: H100)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


@pytest.mark.usefixtures("h100")
def test_the_layout_is_the_trainer_s_own(table: Any, tiny: tuple[str, str], tmp_path: Path) -> None:
    trainer, options = trainer_of(
        tiny[0], per_device_train_batch_size=3, gradient_accumulation_steps=4, max_length=32
    )
    found = expect(table, trainer, options)
    assert found.why == ""
    assert found.layout is not None
    layout = found.layout
    assert (layout.micro_batch, layout.accumulation, layout.length, layout.checkpointing) == (
        3,
        4,
        29,
        "off",
    )
    assert (layout.weights, layout.compute, layout.attention, layout.sharding) == (
        "float32",
        "bfloat16",
        "sdpa",
        "ddp",
    )
    assert found.shape.parameters == sum(each.numel() for each in trainer.model.parameters())
    assert found.memory == memory.gpu_memory(found.shape, layout)
    assert "H100" in found.gpu.name
    assert found.speed is not None
    part = found.memory.total / 85_045_542_912
    assert table.peak_words(found).endswith(
        f" of the 79.2 GiB of NVIDIA H100 80GB HBM3 ({part:.0%})"
    )
    record = found.as_record()
    assert (record["gpu"], record["gpu_bytes"]) == H100
    assert record["predicted"]["allocated"] == found.memory.allocated
    assert record["predicted"]["tokens_per_s"] == found.speed.tokens_per_s
    assert sum(record["predicted"]["parts"].values()) == record["predicted"]["total"]


@pytest.mark.usefixtures("h100")
def test_a_classifier_is_expected_to_take_what_its_labels_need(
    table: Any, tiny: tuple[str, str]
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    trainer, options = trainer_of(tiny[0], max_length=32)
    trainer.model = AutoModelForSequenceClassification.from_pretrained(tiny[0], num_labels=3)
    found = expect(table, trainer, options)
    assert found.shape.parameters == trainer.model.num_parameters()
    assert (found.shape.labels, found.layout.loss, found.layout.length) == (3, "classes", 29)
    assert found.memory is not None
    trainer.model = AutoModelForTokenClassification.from_pretrained(tiny[0], num_labels=3)
    found = expect(table, trainer, options)
    assert (
        table.peak_words(found)
        == "unknown (the estimate is of language models and classifiers only)"
    )
    assert found.mfu(100.0, 1) is None


@pytest.mark.usefixtures("h100")
def test_a_model_that_the_formula_does_not_know(
    table: Any, tiny: tuple[str, str], tmp_path: Path
) -> None:
    trainer, options = trainer_of(tiny[0], max_length=32)
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    options.weights.model = str(tmp_path)
    found = expect(table, trainer, options)
    assert found.memory is None
    assert "unheard-of" in table.peak_words(found)
    assert found.as_record()["predicted"] is None


def test_on_the_cpu_there_is_no_peak(table: Any, tiny: tuple[str, str]) -> None:
    trainer, options = trainer_of(tiny[0], cuda=False, max_length=32)
    found = expect(table, trainer, options)
    assert table.peak_words(found) == "unknown (it trains on the CPU)"
    assert found.layout.compute is None


@pytest.mark.usefixtures("h100")
def test_utilisation_is_of_the_bfloat16_peak(table: Any, tiny: tuple[str, str]) -> None:
    trainer, options = trainer_of(tiny[0], max_length=32)
    found = expect(table, trainer, options)
    flops = speed.model_flops_per_token(found.shape, found.layout, context=20.0)
    assert found.mfu(1000.0, 4) == pytest.approx(1000 * flops / (4 * found.gpu.bf16))
    assert table.Expectation(why="x").mfu(1.0, 1) is None


def test_it_fits_into_80_columns(table: Any) -> None:
    lines = table.lines({"model": "m" * 200, "data": "some words " * 30, "steps": ""})
    assert all(len(line) <= 80 and line.startswith("[train] ") for line in lines)
    assert lines[0].startswith("[train] model            m")
    assert lines[1].startswith("[train]                  m")
    assert lines[-1] == "[train] steps            -"


def test_epochs_as_the_trainer_counts_them(table: Any) -> None:
    args = SimpleNamespace(
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        world_size=2,
        dataloader_drop_last=False,
    )
    begin = SimpleNamespace(max_steps=6, global_step=0)
    assert table.steps_words(args, begin, 3) == "6, 6 epochs"  # fewer rows than a step takes
    resumed = SimpleNamespace(max_steps=6, global_step=2)
    assert table.steps_words(args, resumed, 17) == "6, 2 epochs; 2 of them done"
    args.dataloader_drop_last = True
    assert table.steps_words(args, begin, 17) == "6, 3 epochs"


def test_parameters_are_counted_whole(table: Any) -> None:
    import torch

    class Params4bit(torch.nn.Parameter):
        """As bitsandbytes has it: two weights to a byte."""

    model = torch.nn.Linear(8, 8)
    assert table.count_parameters(model) == (72, 72)
    model.bias.requires_grad = False
    assert table.count_parameters(model) == (72, 64)
    model.weight = Params4bit(torch.zeros(32, 1, dtype=torch.uint8), requires_grad=False)
    assert table.count_parameters(model)[0] == 64 + 8
    model.bias.ds_numel = 80  # what DeepSpeed writes on a tensor that lies elsewhere
    assert table.count_parameters(model)[0] == 64 + 80
