"""What the SFT training can do, done at toy size: packing, LoRA, NEFTune, accumulation,
checkpointing, determinism, evaluation.
"""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")
import in_process

from hpctrain.errors import UsageError
from hpctrain.training import options, sft
from hpctrain.training.preflight import rules
from hpctrain.training.preflight.rules import Machine

pytestmark = [pytest.mark.torch, pytest.mark.slow]

Build = Any


@pytest.fixture
def build(tiny: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    numbers = itertools.count()
    model = tmp_path / "steady"

    def start(**values: Any) -> Any:
        if not model.exists():
            import shutil

            shutil.copytree(tiny[0], model)
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.0}))
        given = {"model": str(model), "dataset": tiny[1], **values}
        found = in_process.options(
            monkeypatch,
            tmp_path / str(next(numbers)),
            given.pop("model"),
            given.pop("dataset"),
            **{"max_length": 32, **given},
        )
        return in_process.trainer(found)

    return start


def saved(folder: Path, rows: list[list[int]], **columns: Any) -> str:
    import datasets

    datasets.DatasetDict(
        {"train": datasets.Dataset.from_dict({"input_ids": rows, **columns})}
    ).save_to_disk(str(folder))
    return str(folder)


ROWS = [[number] * 3 + list(range(number, number + 4 + number)) for number in range(8)]


def test_packed_and_padded_and_padding_free_losses_are_equal(build: Build, tmp_path: Path) -> None:
    """The same eight examples in one step: eight padded rows; laid end to end; packed to rows of 32
    by TRL, and before.
    """
    plain = saved(tmp_path / "plain", ROWS)
    lengths = [[len(row) for row in ROWS[:4]], [len(row) for row in ROWS[4:]]]
    packed = saved(
        tmp_path / "packed",
        [[*itertools.chain(*ROWS[:4])], [*itertools.chain(*ROWS[4:])]],
        seq_lengths=lengths,
    )
    common = {"max_steps": 1, "shuffle_dataset": "false"}
    padded = build(dataset=plain, per_device_train_batch_size=8, **common)
    free = build(
        dataset=plain, per_device_train_batch_size=8, padding_free="true", max_length=None, **common
    )
    trl = build(dataset=plain, packing="true", max_length=32, **common)
    trl_rows = len(trl.train_dataset)
    trl = build(
        dataset=plain, packing="true", max_length=32, per_device_train_batch_size=trl_rows, **common
    )
    before = build(dataset=packed, per_device_train_batch_size=2, max_length=None, **common)
    assert trl_rows < 8
    assert before.padding_free
    assert before.args.max_length is None
    first = in_process.losses(padded)
    for other in (free, trl, before):
        assert in_process.losses(other) == pytest.approx(first, abs=1e-5)
        assert in_process.norms(other) == pytest.approx(in_process.norms(padded), abs=1e-4)


def test_accumulation_weighs_every_token_alike(build: Build, tmp_path: Path) -> None:
    plain = saved(tmp_path / "plain", ROWS)
    whole = build(dataset=plain, per_device_train_batch_size=8, max_steps=1)
    parts = build(
        dataset=plain, per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=1
    )
    assert in_process.losses(parts) == pytest.approx(in_process.losses(whole), abs=1e-5)
    assert in_process.norms(parts) == pytest.approx(in_process.norms(whole), abs=1e-4)


def test_only_the_completion_is_trained_on_with_a_mask(build: Build, tmp_path: Path) -> None:
    mask = [[0] * 5 + [1] * (len(row) - 5) for row in ROWS]
    labels = [[-100] * 5 + row[5:] for row in ROWS]
    by_mask = build(
        dataset=saved(tmp_path / "mask", ROWS, completion_mask=mask),
        per_device_train_batch_size=8,
        max_steps=1,
    )
    by_label = build(
        dataset=saved(tmp_path / "labels", ROWS, labels=labels),
        per_device_train_batch_size=8,
        max_steps=1,
    )
    everything = build(
        dataset=saved(tmp_path / "all", ROWS), per_device_train_batch_size=8, max_steps=1
    )
    found = in_process.losses(by_mask)
    assert found == in_process.losses(by_label)
    assert found != pytest.approx(in_process.losses(everything), abs=1e-3)


def test_packing_leaves_a_read_only_dataset_alone(build: Build, tmp_path: Path) -> None:
    folder = Path(saved(tmp_path / "plain", ROWS))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for path in (folder, folder / "train"):
        path.chmod(0o555)
    try:
        assert in_process.losses(build(dataset=str(folder), packing="true", max_steps=1))
    finally:
        for path in (folder, folder / "train"):
            path.chmod(0o755)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_checkpointing_is_off_unless_asked_for_and_changes_no_number(build: Build) -> None:
    off, on, old = (
        build(),
        build(activation_checkpointing="true"),
        build(gradient_checkpointing="true"),
    )
    assert not off.args.activation_checkpointing
    assert on.args.activation_checkpointing
    assert old.args.activation_checkpointing
    assert in_process.losses(on) == in_process.losses(off)
    assert on.model.is_activation_checkpointing


def test_the_settings_of_an_adapter_to_evaluate(tmp_path: Path) -> None:
    from peft import LoraConfig

    LoraConfig(base_model_name_or_path="/elsewhere", r=2).save_pretrained(str(tmp_path))
    asked: Any = SimpleNamespace(
        common=SimpleNamespace(evaluate_only=True), weights=SimpleNamespace(adapter=tmp_path)
    )
    found = options.Options.peft_config(asked)
    assert (found.r, found.base_model_name_or_path) == (2, None), "another place is no warning"
    (tmp_path / "adapter_config.json").write_text('{"r": 2,')
    with pytest.raises(UsageError, match=r"config of the adapter .* cannot be read"):
        options.Options.peft_config(asked)


def test_bf16_weights_and_autocast(build: Build) -> None:
    import torch

    built = build(bf16="true")
    assert {value.dtype for value in built.model.parameters()} == {torch.float32}
    assert build(dtype="bfloat16").model.dtype == torch.bfloat16
    assert in_process.losses(built)


def test_evaluation_best_checkpoint_and_early_stopping_together(
    tiny: tuple[str, str], build: Build, tmp_path: Path
) -> None:
    """With this learning rate the evaluation gets worse: it stops early, and ends with the weights
    of the best checkpoint.
    """
    from safetensors.torch import load_file
    from transformers import EarlyStoppingCallback

    built = build(
        max_steps=40,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="best",
        metric_for_best_model="eval_loss",
        load_best_model_at_end="true",
        early_stopping_patience=2,
        learning_rate=0.5,
        save_total_limit=2,
    )
    built.add_callback(EarlyStoppingCallback(2))
    in_process.losses(built)
    assert built.state.global_step < 40
    evaluated = {
        entry["step"]: entry["eval_loss"]
        for entry in built.state.log_history
        if "eval_loss" in entry
    }
    best = min(evaluated, key=lambda step: evaluated[step])
    assert built.state.best_global_step == best
    kept = load_file(Path(built.state.best_model_checkpoint) / "model.safetensors")
    now = built.model.state_dict()
    assert all(value.equal(now[name]) for name, value in kept.items())
    assert built.evaluate()["eval_loss"] == pytest.approx(evaluated[best], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"lora_r": "16"}, "--lora_r is given without --use_peft true: there would be no adapter"),
        (
            {"lora_target_modules": "all-linear"},
            "--lora_target_modules is given without --use_peft true",
        ),
        ({"warmup_ratio": "0.1"}, "the option --warmup_ratio was removed"),
        ({"max_length": "65"}, "positions for 64"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    build: Build, options: dict[str, str], what: str
) -> None:
    with pytest.raises(UsageError) as caught:
        build(**options)
    assert what in caught.value.render()
    assert caught.value.fix or caught.value.hint


def test_options_of_an_adapter_that_is_knowingly_off_train_all_weights(build: Build) -> None:
    built = build(use_peft="false", lora_r=16, max_steps=1)
    assert all(each.requires_grad for each in built.model.parameters())


def test_checkpointing_follows_the_gpus_memory(
    tiny: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision alone: there is no GPU here, so its memory is a number."""
    asked, _ = options._parser(sft.TASK).parse_known_args(
        ["--model_name_or_path", tiny[0], "--dataset_name", tiny[1]]
    )
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 8192,
        "tie_word_embeddings": True,
    }
    facts = rules.OptionFacts(
        options=asked, config=config, here=Machine(gpu=True, capability=(9, 0))
    )
    assert not sft._needs_checkpointing(asked, {}, facts, 80 * 2**30)
    assert sft._needs_checkpointing(asked, {}, facts, 24 * 2**30)
    unknown = rules.OptionFacts(options=asked, config={"model_type": "nobodys"}, here=facts.here)
    assert sft._needs_checkpointing(asked, {}, unknown, 80 * 2**30)
    monkeypatch.setattr(sft.rules, "option_facts", lambda _asked: facts)
    data = SimpleNamespace(column_names=["input_ids"])
    for size, needed in ((80, False), (24, True)):
        monkeypatch.setattr(sft, "_gpu_bytes", lambda size=size: size * 2**30)
        assert sft._defaults(asked, cpu=False, data=data)["activation_checkpointing"] is needed
        assert sft._defaults(asked, cpu=True, data=data)["activation_checkpointing"] is False


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
def test_the_order_of_the_rows_does_not_depend_on_the_random_state(
    build: Build, strategy: str
) -> None:
    """That of the ranks differs after dropout on the CPU: they would train on some rows twice, and
    never on others.
    """
    import torch

    loader = build(train_sampling_strategy=strategy).get_train_dataloader()

    def rows(epoch: int, state: int) -> list[list[int]]:
        torch.manual_seed(state)
        loader.set_epoch(epoch)
        return [row for batch in loader for row in batch["input_ids"].tolist()]

    first = rows(0, 1)
    assert len({tuple(row) for row in first}) == 23
    assert rows(0, 2) == first
    assert rows(1, 1) != first
    assert rows(0, 1) == first


def test_qlora_trains_on_the_cpu(build: Build) -> None:
    built = build(
        use_peft="true",
        lora_r=4,
        lora_target_modules="all-linear",
        load_in_4bit="true",
        max_steps=4,
    )
    quantized = [
        name
        for name, value in built.model.named_parameters()
        if type(value).__name__ == "Params4bit"
    ]
    assert quantized
    first, *_, last = in_process.losses(built)
    assert last < first
