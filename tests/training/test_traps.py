"""Every silent trap is said where it is one, and nowhere else."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain.data.manifest import DatasetManifest, Split
from hpctrain.training.preflight import LibraryDefault, rules
from hpctrain.training.preflight.kernels import Machine
from hpctrain.training.preflight.rules import OptionFacts

HERE = Machine(gpu=True, capability=(9, 0))
PLAIN: dict[str, Any] = {
    "packing": False,
    "padding_free": None,
    "max_length": LibraryDefault(1024),
    "completion_only_loss": None,
    "use_peft": False,
    "dtype": "float32",
    "bf16": True,
    "learning_rate": 1e-4,
    "auto_find_batch_size": False,
    "dataset_train_split": "train",
    "dataset_name": "D",
    "model_name_or_path": None,
}
MANIFEST = DatasetManifest(
    sources=(),
    form="text",
    columns={},
    loss_on="all",
    tokenizer="t",
    tokenizer_name="n",
    template=None,
    vocabulary=64,
    max_length=256,
    packed=False,
    splits={"train": Split(rows=10, examples=10, tokens=1000, trained=1000, longest=200)},
)
PACKED = replace(MANIFEST, packed=True)
LLAMA = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 128, "dtype": "bfloat16"}


def asked(*, facts: dict[str, Any] | None = None, **options: Any) -> OptionFacts:
    return OptionFacts(
        options=SimpleNamespace(**{**PLAIN, **options}),
        **{"config": LLAMA, "here": HERE, **(facts or {})},
    )


PACKED_ROWS = {"columns": ("input_ids", "seq_lengths")}
#: Options, a word of what is said of them, and options that are as near as can be and silent.
TABLE: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({"packing": True, "facts": PACKED_ROWS}, "packed already", {"packing": True}),
    ({"padding_free": False, "facts": PACKED_ROWS}, "attend to", {"padding_free": False}),
    ({"max_length": 129}, "positions for 128", {"max_length": 128}),
    (
        {"facts": {"manifest": MANIFEST}},
        "up to 200",
        {"max_length": 128, "facts": {"manifest": MANIFEST}},
    ),
    ({"max_length": 512}, "positions", {"max_length": 512, "packing": True}),
    (
        {"completion_only_loss": True},
        "all of it",
        {"completion_only_loss": True, "facts": {"columns": ("input_ids", "labels")}},
    ),
    ({"dtype": "bfloat16"}, "is lost", {"dtype": "bfloat16", "use_peft": True}),
    ({"dtype": "auto"}, "bfloat16", {"dtype": "auto", "facts": {"config": {"dtype": "float32"}}}),
    ({"use_peft": True, "learning_rate": 2e-5}, "full weights", {"learning_rate": 2e-5}),
    (
        {"auto_find_batch_size": True, "facts": {"world": 2}},
        "on its own",
        {"auto_find_batch_size": True},
    ),
]


def said(facts: OptionFacts) -> list[str]:
    found = [*rules.option_problems(facts), *rules.option_warnings(facts)]
    assert all(each.fix for each in found)
    return [each.what for each in found]


@pytest.mark.parametrize(("speaks", "word", "silent"), TABLE)
def test_options(speaks: dict[str, Any], word: str, silent: dict[str, Any]) -> None:
    assert any(word in what for what in said(asked(**speaks)))
    assert not any(word in what for what in said(asked(**silent)))


def test_an_ordinary_training_is_silent() -> None:
    assert said(asked(facts={"columns": ("input_ids", "labels", "attention_mask")})) == []
    facts = {"columns": ("input_ids", "labels", "seq_lengths"), "manifest": PACKED}
    assert said(asked(facts=facts, padding_free=True)) == []
