"""Every silent trap is said where it is one, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain.preparation.manifest import Manifest, Split
from hpctrain.training import traps_asked
from hpctrain.training.kernels import Machine
from hpctrain.training.task import Unasked
from hpctrain.training.traps_asked import Asked

HERE = Machine(gpu=True, capability=(9, 0), installed=frozenset({"peft"}))
BNB = Machine(gpu=True, capability=(9, 0), installed=frozenset({"peft", "bitsandbytes"}))
PLAIN: dict[str, Any] = {
    "packing": False, "packing_strategy": "bfd", "padding_free": None, "max_length": Unasked(1024), "dataset_kwargs": None,
    "completion_only_loss": None, "assistant_only_loss": False, "use_peft": False, "dtype": "float32", "bf16": True, "load_in_4bit": False,
    "load_in_8bit": False, "bnb_4bit_quant_storage": None, "learning_rate": 1e-4, "model_init_kwargs": None, "auto_find_batch_size": False,
    "average_tokens_across_devices": True, "logging_nan_inf_filter": False, "eval_steps": None, "eval_strategy": "no",
    "dataset_train_split": "train", "fp16": False,
}  # fmt: skip
MANIFEST = Manifest(
    sources=(), form="text", columns={}, loss_on="all", tokenizer="t", tokenizer_name="n", template=None, vocabulary=64, max_length=256,
    packed=False, splits={"train": Split(rows=10, examples=10, tokens=1000, trained=1000, longest=200)},
)  # fmt: skip
PACKED = replace(MANIFEST, packed=True)
LLAMA = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 128, "dtype": "bfloat16"}


def asked(*, facts: dict[str, Any] | None = None, **options: Any) -> Asked:
    return Asked(options=SimpleNamespace(**{**PLAIN, **options}), **{"config": LLAMA, "here": HERE, **(facts or {})})


SKIP = {"skip_prepare_dataset": True}
#: Rule, what makes it speak, a word of what it says, and what is as near as can be and silent.
TABLE: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("packing_skipped", {"packing": True, "dataset_kwargs": SKIP}, "packs nothing", {"packing": False, "dataset_kwargs": SKIP}),
    ("packing_skipped", {"packing": True, "dataset_kwargs": '{"skip_prepare_dataset": true}'}, "packs nothing", {"packing": True}),
    ("packing_twice", {"packing": True, "facts": {"columns": ("input_ids", "seq_lengths")}}, "packed already", {"packing": True}),
    ("length_skipped", {"max_length": 512, "dataset_kwargs": SKIP}, "cuts nothing", {"dataset_kwargs": SKIP}),
    ("length_padding_free", {"padding_free": True, "max_length": 512}, "cuts nothing", {"padding_free": True}),
    ("length_padding_free", {"padding_free": True, "max_length": 512}, "512", {"padding_free": True, "max_length": 512, "packing": True}),
    ("packed_apart", {"padding_free": False, "facts": {"columns": ("input_ids", "seq_lengths")}}, "each other", {"padding_free": False}),
    ("half_twice", {"fp16": True, "bf16": True}, "exclude each other", {"fp16": True, "bf16": False}),
    ("beyond_positions", {"max_length": 129}, "positions for 128", {"max_length": 128}),
    ("beyond_positions", {"facts": {"manifest": MANIFEST}}, "up to 200", {"max_length": 128, "facts": {"manifest": MANIFEST}}),
    ("beyond_positions", {"max_length": 512}, "positions", {"max_length": 512, "packing": True}),
    ("wrapped_packing", {"packing": True, "packing_strategy": "wrapped"}, "each other", {"packing_strategy": "wrapped"}),
    (
        "mask_off",
        {"completion_only_loss": False, "facts": {"columns": ("input_ids", "completion_mask")}},
        "prompts too",
        {"completion_only_loss": True, "facts": {"columns": ("input_ids", "completion_mask")}},
    ),
    (
        "mask_missing",
        {"completion_only_loss": True},
        "all of it",
        {"completion_only_loss": True, "facts": {"columns": ("input_ids", "labels")}},
    ),
    (
        "mask_under_labels",
        {"facts": {"columns": ("input_ids", "labels", "completion_mask")}},
        "not looked at",
        {"facts": {"columns": ("input_ids", "completion_mask", "attention_mask")}},
    ),
    (
        "mask_unknown",
        {"facts": {"columns": ("input_ids", "assistant_mask")}},
        "assistant_masks",
        {"facts": {"columns": ("input_ids", "assistant_masks")}},
    ),
    ("assistant_tokenised", {"assistant_only_loss": True}, "is tokenised", {"assistant_only_loss": False}),
    ("float32_base", {"use_peft": True}, "twice the memory", {"use_peft": True, "dtype": "bfloat16"}),
    ("half_weights", {"dtype": "bfloat16"}, "is lost", {"dtype": "bfloat16", "use_peft": True}),
    ("half_weights", {"dtype": "auto"}, "bfloat16", {"dtype": "auto", "facts": {"config": {"dtype": "float32"}}}),
    (
        "quantized",
        {"load_in_4bit": True, "use_peft": True},
        "bitsandbytes",
        {"load_in_4bit": True, "use_peft": True, "facts": {"here": BNB}},
    ),
    ("quantized", {"load_in_8bit": True, "facts": {"here": BNB}}, "freezes", {}),
    ("quantized", {"load_in_4bit": True, "load_in_8bit": True}, "exclude", {}),
    (
        "quantized",
        {"load_in_4bit": True, "use_peft": True, "bnb_4bit_quant_storage": "uint8", "facts": {"here": BNB, "sharding": "fsdp"}},
        "cannot divide",
        {"load_in_4bit": True, "use_peft": True, "facts": {"here": BNB, "sharding": "fsdp"}},
    ),
    ("without_peft", {"use_peft": True, "facts": {"here": Machine(gpu=False)}}, "not installed", {"use_peft": True}),
    ("learning_rate_of_full", {"use_peft": True, "learning_rate": 2e-5}, "full weights", {"learning_rate": 2e-5}),
    ("hub_kernels", {"model_init_kwargs": '{"use_kernels": true}'}, "hub", {"model_init_kwargs": '{"use_cache": false}'}),
    ("batch_size_alone", {"auto_find_batch_size": True, "facts": {"world": 2}}, "by itself", {"auto_find_batch_size": True}),
    (
        "tokens_per_rank",
        {"average_tokens_across_devices": False, "facts": {"world": 2}},
        "count more",
        {"average_tokens_across_devices": False},
    ),
    ("nan_hidden", {"logging_nan_inf_filter": True}, "0.0", {}),
    ("never_evaluated", {"eval_steps": 50}, "nothing", {"eval_steps": 50, "eval_strategy": "steps"}),
]


@pytest.mark.parametrize(("rule", "speaks", "word", "silent"), TABLE)
def test_options(rule: str, speaks: dict[str, Any], word: str, silent: dict[str, Any]) -> None:
    found = getattr(traps_asked, rule)(asked(**speaks))
    assert found is not None
    assert word in found.what
    assert found.fix
    assert getattr(traps_asked, rule)(asked(**silent)) is None


def test_every_rule_of_options_is_in_the_table() -> None:
    assert {rule.__name__ for rule in (*traps_asked.ERRORS, *traps_asked.WARNINGS)} == {row[0] for row in TABLE}
    assert not set(traps_asked.ERRORS) & set(traps_asked.WARNINGS)


def test_an_ordinary_training_is_silent() -> None:
    ordinary = asked(facts={"columns": ("input_ids", "labels", "attention_mask")}, max_length=128)
    assert traps_asked.apply((*traps_asked.ERRORS, *traps_asked.WARNINGS), ordinary) == []
    packed = asked(facts={"columns": ("input_ids", "labels", "seq_lengths"), "manifest": PACKED}, padding_free=True)
    assert traps_asked.apply((*traps_asked.ERRORS, *traps_asked.WARNINGS), packed) == []
