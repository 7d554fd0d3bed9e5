"""Examples as they are shown: what is trained on can be told from what is not, whatever the text."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import encode_made as made
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpctrain.preparation import show

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return made.byte_level()


def shown(tokenizer: Any, *parts: tuple[str, bool], colour: bool = False, width: int = 80) -> list[str]:
    ids: list[int] = []
    labels: list[int] = []
    for text, trained in parts:
        new = tokenizer.encode(text, add_special_tokens=False)
        ids += new
        labels += new if trained else [-100] * len(new)
    return show.lines(tokenizer, ids, labels, colour=colour, width=width)


def test_trained_tokens_stand_between_brackets_without_colour(tokenizer: Any) -> None:
    lines = shown(tokenizer, ("<|im_start|>user\nhi  you\t<|im_end|>\n<|im_start|>assistant\n", False), ("well \n yes<|im_end|>\n", True))
    assert lines[:-1] == ["  <|im_start|>user↵", "  hi··you→<|im_end|>↵", "  <|im_start|>assistant↵", "  ⟦well·↵", "  ·yes<|im_end|>↵⟧"]
    assert re.fullmatch(r"  \d+ tokens, \d+ trained on \(\d+ %\) in 1 stretch", lines[-1])


def test_colour_takes_the_place_of_brackets_and_ends_with_each_line(tokenizer: Any) -> None:
    lines = shown(tokenizer, ("ask<|im_end|>", False), ("one\ntwo", True), colour=True)
    assert lines[0] == "  ask\x1b[4m<|im_end|>\x1b[0m\x1b[32mone↵\x1b[0m"
    assert lines[1] == "  \x1b[32mtwo\x1b[0m"
    assert all("⟦" not in line for line in lines)


def test_brackets_and_orders_to_the_terminal_in_the_text_are_written_out(tokenizer: Any) -> None:
    lines = shown(tokenizer, ("a⟦b⟧c\x1b[31m\u202e\x00\r\u200b", True))
    assert lines[0] == "  ⟦a\\u27e6b\\u27e7c\\x1b[31m\\u202e␀␍\\u200b⟧"


def test_long_examples_are_shortened_in_the_middle_with_counts(tokenizer: Any) -> None:
    lines = shown(tokenizer, ("word " * 5000, False), ("end", True))
    assert len(lines) < 20
    (cut,) = [number for line in lines for number in re.findall(r"⋯ ([\d,]+) tokens ⋯", line)]
    assert int(cut.replace(",", "")) == len(tokenizer.encode("word " * 5000, add_special_tokens=False)) - 120
    many = shown(tokenizer, *((f"{index}\n", index % 2 == 0) for index in range(300)))
    assert len(many) == show._MOST_LINES + 1
    assert any(re.search(r"⋯ \d+ lines ⋯", line) for line in many)
    assert "⟦298↵⟧" in many[-3]


def test_a_character_of_several_tokens_is_whole_where_the_mask_does_not_cut_it(tokenizer: Any) -> None:
    assert shown(tokenizer, ("a ", False), ("😀 日本", True))[0] == "  a·⟦😀 日本⟧"


def test_spaces_between_stretches_are_kept_where_a_decoder_leaves_out_the_first(tokenizer: Any) -> None:
    spaced = made.sentencepiece_like()
    ids = spaced.encode("two words and more", add_special_tokens=False)
    middle = len(spaced.encode("two words", add_special_tokens=False))
    lines = show.lines(spaced, ids, [-100] * middle + ids[middle:], colour=False)
    assert lines[0] == "  two words⟦·and more⟧"


def test_nothing_is_shown_as_nothing(tokenizer: Any) -> None:
    assert shown(tokenizer) == ["  0 tokens, 0 trained on (-) in 0 stretches"]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.text(st.characters(exclude_categories=("Cs",)), max_size=60), st.booleans()), max_size=6), st.integers(40, 100)
)
def test_lines_fit_and_the_brackets_hold_the_trained_text(tokenizer: Any, parts: list[tuple[str, bool]], width: int) -> None:
    lines = shown(tokenizer, *parts, width=width)
    for line in lines[:-1]:
        assert sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line) <= width
        assert not any(unicodedata.category(c) in ("Cc", "Cf") for c in line)
    body = "".join(line[2:] for line in lines[:-1])
    assert body.count("⟦") == body.count("⟧")
    if "⋯" not in body:
        assert bool(re.search("⟦", body)) == any(trained and text for text, trained in parts)
