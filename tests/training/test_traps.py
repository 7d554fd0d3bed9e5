"""Every silent trap is said where it is one, and nowhere else."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain.data.manifest import DatasetManifest, Split
from hpctrain.training.preflight import LibraryDefault, rules
from hpctrain.training.preflight.rules import Machine, OptionFacts, RowFacts, choose, row_facts

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


A100 = Machine(gpu=True, capability=(8, 0), flash=True)
BARE = Machine(gpu=True, capability=(9, 0))
LLAMA_3 = {"architectures": ["LlamaForCausalLM"], "head_dim": 128}
GEMMA2 = {
    "architectures": ["Gemma2ForCausalLM"],
    "attn_logit_softcapping": 50.0,
    "head_dim": 256,
}
GPT2 = {"architectures": ["GPT2LMHeadModel"]}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("here", "config", "how", "attention"),
    [
        (A100, LLAMA_3, (True, True), "flash_attention_2"),
        (Machine(gpu=True, flash=True), LLAMA_3, (True, True), "flash_attention_2"),
        (replace(A100, capability=(7, 0)), LLAMA_3, (False, True), None),
        (A100, LLAMA_3, (False, False), None),
        (A100, {**LLAMA_3, "head_dim": 512}, (False, True), None),
        (BARE, LLAMA_3, (False, True), None),
        (BARE, LLAMA_3, (True, True), "flex_attention"),
        (BARE, GPT2, (True, True), None),
        (A100, GEMMA2, (False, True), "flash_attention_2"),
        (BARE, GEMMA2, (False, True), "flex_attention"),
        (BARE, {"architectures": ["NobodysModel"]}, (True, True), None),
        (Machine(gpu=False), LLAMA_3, (True, False), None),
    ],
)
def test_choice(
    here: Machine, config: dict[str, object], how: tuple[bool, bool], attention: str | None
) -> None:
    """How: whether examples must be kept apart, and whether in 16 bits."""
    pytest.importorskip("transformers")
    assert choose(here, config, apart=how[0], half=how[1]) == attention


np = pytest.importorskip("numpy")  # the login node needs none
PACKING: dict[str, Any] = {"packing": False, "packing_strategy": "bfd", "max_length": 64}


def rows(**more: Any) -> Any:
    facts = {
        "lengths": np.array([10, 20, 30]),
        "sampled": 3,
        "tokens": 60,
        "trained": 30,
        "highest": 50,
        "used": frozenset({1, 2, 50}),
        "trained_ids": frozenset({2}),
    }
    return RowFacts(**{**facts, **more})


ROWS: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({"trained": 0}, "all labels are -100", {"trained": 1}),
    ({"vocabulary": 50}, "ends at 49", {"vocabulary": 51}),
    ({"padded": 15}, "25% of the tokens", {"padded": 0}),
    ({"options": {"max_length": 15}}, "2 of 3 rows", {"options": {"max_length": 30}}),
    ({"options": {"max_length": 15}}, "33.3%", {"options": {"max_length": None}}),
    (
        {"options": {"max_length": 15, "packing": True}},
        "33.3%",
        {"options": {"max_length": 15, "packing": True, "packing_strategy": "bfd_split"}},
    ),
    ({"tokens": 6000, "trained": 59}, "0.98%", {"tokens": 6000, "trained": 60}),
    ({"eos": frozenset({1})}, "never trained on", {"eos": frozenset({1, 2})}),
    ({"eos": frozenset({9})}, "none of 3 rows", {"eos": frozenset({9, 1})}),
    (
        {"eos": frozenset({9})},
        "none of 3 rows",
        {"eos": frozenset({9}), "prepared": True},
    ),
]


@pytest.mark.parametrize(("speaks", "word", "silent"), ROWS)
def test_rows(speaks: dict[str, Any], word: str, silent: dict[str, Any]) -> None:
    def said(given: dict[str, Any]) -> list[str]:
        options = SimpleNamespace(**{**PACKING, **given.pop("options", {})})
        found = rows(**given)
        return [
            each.what for each in (*rules.row_problems(found), *rules.row_warnings(options, found))
        ]

    assert [word in what for what in said(dict(speaks))].count(True) == 1
    assert not any(word in what for what in said(dict(silent)))


def saved_in(model: Path, **more: Any) -> Any:
    return SimpleNamespace(
        model_name_or_path=str(model), completion_only_loss=None, dataset_name=None, **more
    )


def test_rows_are_looked_at_as_they_were_saved(tmp_path: Path) -> None:
    import datasets

    data = datasets.Dataset.from_dict(
        {
            "input_ids": [[1, 2, 3], [4, 5], [], [60, 6]],
            "labels": [[-100, 2, 3], [-100, -100], [], [-100, 6]],
            "attention_mask": [[1, 1, 0], [1, 1], [], [1, 1]],
        }
    )
    found = row_facts(saved_in(tmp_path), data)
    assert found.lengths.tolist() == [3, 2, 0, 2]
    assert (found.tokens, found.trained, found.highest) == (7, 3, 60)
    assert (found.trained_ids, found.padded) == ({2, 3, 6}, 1)
    turned = row_facts(saved_in(tmp_path), data.select([3, 0]))
    assert turned.lengths.tolist() == [2, 3]
    masked = datasets.Dataset.from_dict(
        {"input_ids": [[1, 2, 3]], "completion_mask": [[0, 1, 1]], "assistant_masks": [[1, 1, 0]]}
    )
    assert row_facts(saved_in(tmp_path), masked).trained == 1
    given = saved_in(tmp_path)
    given.completion_only_loss = False
    assert row_facts(given, masked).trained == 2
    # Facts that are unknown are no traps.
    assert (found.eos, found.vocabulary) == (frozenset(), None)
    (tmp_path / "config.json").write_text('{"vocab_size": 64, "eos_token_id": [61, 62]}')
    found = row_facts(given, masked)
    assert (found.eos, found.vocabulary) == ({61, 62}, 64)
