"""What is expected of a Trainer is worked out from the Trainer itself, on a GPU that this machine lacks, by its name and size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain.fit import memory
from hpctrain.training import expectation, start_table
from hpctrain.training.expectation import Device
from hpctrain.training.fit_file import FitFile

pytestmark = [pytest.mark.torch, pytest.mark.slow]

H100 = Device(name="NVIDIA H100 80GB HBM3", memory=85_045_542_912)


def trainer_of(model: str, *, cuda: bool = True, **options: Any) -> tuple[Any, Any]:
    """Return a Trainer as far as it is looked at, with a real model and real options, and the options."""
    from transformers import AutoModelForCausalLM
    from trl import ModelConfig, SFTConfig

    args = SFTConfig(output_dir="out", use_cpu=True, bf16=False, report_to="none", activation_checkpointing=False, **options)
    if cuda:
        args.bf16 = True  # transformers refuses it here
    accelerator = SimpleNamespace(distributed_type=SimpleNamespace(name="NO"), state=SimpleNamespace())
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    script = SimpleNamespace(dataset_name="data/set", dataset_train_split="train")
    trainer = SimpleNamespace(args=args, model=loaded, accelerator=accelerator, padding_free=False, compute_loss_func=None)
    return trainer, SimpleNamespace(weights=SimpleNamespace(model=model), model=ModelConfig(), script=script)


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expectation, "device_of", lambda _: H100)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


@pytest.mark.usefixtures("h100")
def test_the_layout_is_the_trainer_s_own(tiny: tuple[str, str], tmp_path: Path) -> None:
    trainer, options = trainer_of(tiny[0], per_device_train_batch_size=3, gradient_accumulation_steps=4, max_length=32)
    found = expectation.expect(trainer, options, longest=29, context=20.0)
    assert found.why == ""
    assert found.layout is not None
    layout = found.layout
    assert (layout.micro_batch, layout.accumulation, layout.length, layout.checkpointing) == (3, 4, 29, "off")
    assert (layout.weights, layout.compute, layout.attention, layout.sharding) == ("float32", "bfloat16", "sdpa", "ddp")
    assert found.shape is not None
    assert found.shape.parameters == sum(each.numel() for each in trainer.model.parameters())
    assert found.memory == memory.gpu_memory(found.shape, layout)
    assert found.gpu is not None
    assert "H100" in found.gpu.name
    assert found.speed is not None
    part = found.memory.total / 85_045_542_912
    assert start_table.peak_words(found).endswith(f" GiB of the 79.2 GiB of NVIDIA H100 80GB HBM3 ({part:.0%})")
    fit_file = FitFile(tmp_path, "vega")
    fit_file.begin(found.as_record())
    record = json.loads((tmp_path / "fit.json").read_text())
    assert (record["gpu"], record["gpu_bytes"], record["cluster"]) == (H100.name, H100.memory, "vega")
    assert record["predicted"]["allocated"] == found.memory.allocated
    assert record["predicted"]["tokens_per_s"] == found.speed.tokens_per_s
    assert record["measured"] is None


@pytest.mark.usefixtures("h100")
def test_a_measurement_of_the_same_layout_stays_and_of_another_goes(tiny: tuple[str, str], tmp_path: Path) -> None:
    trainer, options = trainer_of(tiny[0], per_device_train_batch_size=3, max_length=32)
    found = expectation.expect(trainer, options, longest=29, context=20.0)
    first = FitFile(tmp_path, None)
    first.begin(found.as_record())
    first.measured({"allocated": 5})
    FitFile(tmp_path, None).begin(found.as_record())
    assert json.loads((tmp_path / "fit.json").read_text())["measured"] == {"allocated": 5}
    assert found.layout is not None
    other = replace(found, layout=replace(found.layout, micro_batch=4))
    FitFile(tmp_path, None).begin(other.as_record())
    assert json.loads((tmp_path / "fit.json").read_text())["measured"] is None


@pytest.mark.usefixtures("h100")
def test_checkpointing_is_seen_in_the_model(tiny: tuple[str, str]) -> None:
    trainer, options = trainer_of(tiny[0], max_length=32)
    before = expectation.expect(trainer, options, longest=29, context=None)
    trainer.model.activation_checkpointing_enable()
    after = expectation.expect(trainer, options, longest=29, context=None)
    assert after.layout is not None
    assert before.layout is not None
    assert (before.layout.checkpointing, after.layout.checkpointing) == ("off", "full")


@pytest.mark.usefixtures("h100")
def test_a_classifier_is_expected_to_take_what_its_labels_need(tiny: tuple[str, str]) -> None:
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    trainer, options = trainer_of(tiny[0], max_length=32)
    trainer.model = AutoModelForSequenceClassification.from_pretrained(tiny[0], num_labels=3)
    found = expectation.expect(trainer, options, longest=29, context=None)
    assert found.shape is not None
    assert found.shape.parameters == trainer.model.num_parameters()
    assert found.layout is not None
    assert (found.shape.labels, found.layout.loss, found.layout.length) == (3, "classes", 29)
    assert found.memory is not None
    trainer.model = AutoModelForTokenClassification.from_pretrained(tiny[0], num_labels=3)
    found = expectation.expect(trainer, options, longest=29, context=None)
    assert start_table.peak_words(found) == "unknown (the estimate is of language models and classifiers only)"
    assert found.mfu(100.0, None, 1) is None


@pytest.mark.usefixtures("h100")
def test_a_model_that_the_formula_does_not_know(tiny: tuple[str, str], tmp_path: Path) -> None:
    trainer, options = trainer_of(tiny[0], max_length=32)
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    options.weights.model = str(tmp_path)
    found = expectation.expect(trainer, options, longest=29, context=None)
    assert found.memory is None
    assert "unheard-of" in start_table.peak_words(found)
    assert found.as_record()["predicted"] is None


def test_on_the_cpu_there_is_no_peak(tiny: tuple[str, str]) -> None:
    trainer, options = trainer_of(tiny[0], cuda=False, max_length=32)
    found = expectation.expect(trainer, options, longest=29, context=None)
    assert start_table.peak_words(found) == "unknown (it trains on the CPU)"
    assert found.layout is not None
    assert found.layout.compute is None


def test_parameters_are_counted_whole() -> None:
    import torch

    class Params4bit(torch.nn.Parameter):
        """As bitsandbytes has it: two weights to a byte."""

    model = torch.nn.Linear(8, 8)
    assert start_table.count_parameters(model) == start_table.Parameters(total=72, trained=72)
    model.bias.requires_grad = False
    assert start_table.count_parameters(model) == start_table.Parameters(total=72, trained=64)
    model.weight = Params4bit(torch.zeros(32, 1, dtype=torch.uint8), requires_grad=False)
    assert start_table.count_parameters(model).total == 64 + 8
    model.bias.ds_numel = 80  # what DeepSpeed writes on a tensor that lies elsewhere
    assert start_table.count_parameters(model).total == 64 + 80
