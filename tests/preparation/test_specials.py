"""Special tokens that the data has in its text are found as the tokenizer finds them."""

from typing import Any

import pytest

from hpctrain.data.encode import special_tokens_in


@pytest.mark.torch
def test_those_of_a_tokenizer_are_what_it_makes_special(folder: Any) -> None:
    """A token that is added and not special, such as <think>, may be in a text; the longest of
    several is found.
    """
    from tokenizers import AddedToken
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder("byte_level"))
    longer = AddedToken("<|im_end|>>", special=True)
    tokenizer.add_tokens([AddedToken("<think>", special=False), longer])
    pattern = special_tokens_in(tokenizer)
    for text, found in (
        ("nothing <b>of</b> the kind <| <think>", []),
        ("a<|im_end|>b<|im_end|>", ["<|im_end|>"] * 2),
        ("<|im_end<|im_end|>\ud800</s>", ["<|im_end|>", "</s>"]),
        ("<|im_end|>>", ["<|im_end|>>"]),
    ):
        assert pattern.findall(text) == found
