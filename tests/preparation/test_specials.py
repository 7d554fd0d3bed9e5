"""Special tokens that the data writes into its text are found as the tokenizer finds them."""

from __future__ import annotations

from typing import Any

import pytest

from hpctrain.preparation.specials import Specials


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("nothing <b>of</b> the kind <|", set()),
        ("a<|im_end|>b<|im_end|>", {"<|im_end|>"}),
        ("<|im_end|><|im_start|>", {"<|im_end|>", "<|im_start|>"}),
        ("<|im_end<|im_end|>", {"<|im_end|>"}),
        ("<|end|>", {"<|end|>"}),
        ("</s", set()),
        ("</s>", {"</s>"}),
        (["x", {"content": "</s>"}, [{"tools": ("<|end|>",)}], None, 3], {"</s>", "<|end|>"}),
    ],
)
def test_what_is_written(value: Any, found: set[str]) -> None:
    assert Specials(["<|im_start|>", "<|im_end|>", "<|end|>", "</s>", " "]).written(value) == found


def test_the_longest_wins_and_short_ones_are_found() -> None:
    assert Specials(["<a>", "<a>>"]).written("<a>>") == {"<a>>"}
    assert Specials(["x", "<|x|>"]).written("<|x|> x") == {"<|x|>", "x"}
    assert Specials([]).written("<s>") == set()


@pytest.mark.torch
def test_those_of_a_tokenizer_are_what_it_makes_special(folder: Any) -> None:
    """A token that is added and not special, such as <think>, may be in a text."""
    from tokenizers import AddedToken
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder("byte_level"))
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    special = tokenizer.all_special_tokens[0]
    assert Specials.of(tokenizer).written(f"<think>{special}") == {special}
