"""Examples as they are shown: what is trained on can be told from what is not, whatever the text."""

import re
from pathlib import Path
from typing import Any

import pytest

from hpctrain.data import show
from hpctrain.errors import HpctrainError
from tests.preparation import encode_made as made

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return made.byte_level()


def shown(tokenizer: Any, *parts: tuple[str, bool]) -> list[str]:
    ids: list[int] = []
    labels: list[int] = []
    for text, trained in parts:
        new = tokenizer.encode(text, add_special_tokens=False)
        ids += new
        labels += new if trained else [-100] * len(new)
    return show.lines(tokenizer, ids, labels)


def test_trained_tokens_stand_between_brackets_without_colour(tokenizer: Any) -> None:
    lines = shown(
        tokenizer,
        ("<|im_start|>user\nhi  you\t<|im_end|>\n<|im_start|>assistant\n", False),
        ("well \n yes<|im_end|>\n", True),
    )
    assert lines[:-1] == [
        "  <|im_start|>user↵",
        "  hi  you→<|im_end|>↵",
        "  <|im_start|>assistant↵",
        "  ⟦well ↵",
        "   yes<|im_end|>↵",
        "  ⟧",
    ]
    assert re.fullmatch(r"  \d+ tokens, \d+ unmasked \(\d+ %\) in 1 stretch", lines[-1])


def test_brackets_and_orders_to_the_terminal_in_the_text_are_written_out(tokenizer: Any) -> None:
    lines = shown(tokenizer, ("a⟦b⟧c\x1b[31m\u202e\x00\r\u200b", True))
    assert lines[0] == "  ⟦a\\u27e6b\\u27e7c\\x1b[31m\\u202e\\x00\\r\\u200b⟧"


def test_long_examples_are_shortened_in_the_middle_with_counts(tokenizer: Any) -> None:
    lines = shown(tokenizer, ("word " * 5000, False), ("end", True))
    assert len(lines) < 20
    (cut,) = [number for line in lines for number in re.findall(r"⋯ ([\d,]+) tokens ⋯", line)]
    assert (
        int(cut.replace(",", ""))
        == len(tokenizer.encode("word " * 5000, add_special_tokens=False)) - 120
    )


def test_a_character_of_several_tokens_is_whole_where_the_mask_does_not_cut_it(
    tokenizer: Any,
) -> None:
    assert shown(tokenizer, ("a ", False), ("😀 日本", True))[0] == "  a ⟦😀 日本⟧"


def test_spaces_between_stretches_are_kept_where_a_decoder_leaves_out_the_first(
    tokenizer: Any,
) -> None:
    spaced = made.sentencepiece_like()
    ids = spaced.encode("two words and more", add_special_tokens=False)
    middle = len(spaced.encode("two words", add_special_tokens=False))
    lines = show.lines(spaced, ids, [-100] * middle + ids[middle:])
    assert lines[0] == "  two words⟦ and more⟧"


# -- what is drawn ---------------------------------------------------------------------------------


def dataset(folder: Path, rows: int, *, per_row: int = 1) -> Path:
    """Save a packed dataset of two shards, whose tokens say which example they are of."""
    from datasets import Dataset, DatasetDict

    ids = [[row * 100 + place for place in range(per_row)] for row in range(rows)]
    columns = {"input_ids": ids, "labels": ids, "seq_lengths": [[1] * per_row] * rows}
    DatasetDict(train=Dataset.from_dict(columns)).save_to_disk(folder, num_shards={"train": 2})
    return folder


def test_the_first_stored_examples(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "d", 100, per_row=3)
    (folder / "train/cache-0123.arrow").write_bytes(b"of datasets.map")
    found = show.of_dataset(folder, 5)
    assert [list(example.ids) for example in found] == [[0], [1], [2], [100], [101]]
    assert found[4].where == "train[1], example 2 of 3"
    assert list(found[4].labels) == [101]


def test_a_damaged_shard(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "d", 4)
    next((folder / "train").glob("*.arrow")).write_bytes(b"\0" * 40)
    with pytest.raises(HpctrainError, match="cannot be read"):
        show.of_dataset(folder, 3)
