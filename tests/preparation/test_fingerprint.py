"""The fingerprint of a tokenizer: what changes it, and what does not."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.data.manifest import tokenizer_fingerprint

PLAIN: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {"id": 3, "content": "<eos>", "special": True, "normalized": False, "single_word": False},
        {"id": 4, "content": "<pad>", "special": True, "normalized": False, "single_word": False},
    ],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    },
    "post_processor": {"type": "ByteLevel"},
    "decoder": {"type": "ByteLevel"},
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "byte_fallback": False,
        "vocab": {"a": 0, "b": 1, "ab": 2},
        "merges": [["a", "b"]],
    },
}


def fingerprint(folder: Path, content: Any) -> str | None:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(
        content if isinstance(content, str) else json.dumps(content)
    )
    return tokenizer_fingerprint(folder)


def changed(**parts: Any) -> dict[str, Any]:
    return {**PLAIN, **parts}


SAME: dict[str, Any] = {
    "other order and format": json.dumps(dict(reversed(PLAIN.items())), indent=3),
    "truncation and padding": changed(
        truncation={"max_length": 5}, padding={"strategy": "BatchLongest"}
    ),
    "merges in one string": changed(model={**PLAIN["model"], "merges": ["a b"]}),
    "added tokens in other order": changed(added_tokens=PLAIN["added_tokens"][::-1]),
    "what is put around a text": changed(post_processor=None, decoder=None),
    "the cut": changed(normalizer=None, pre_tokenizer=None),
}
OTHER: dict[str, Callable[[], dict[str, Any]]] = {
    "another id": lambda: changed(model={**PLAIN["model"], "vocab": {"a": 1, "b": 0, "ab": 2}}),
    "another merge": lambda: changed(model={**PLAIN["model"], "merges": []}),
    "merges in another order": lambda: changed(model={**PLAIN["model"], "merges": [["b", "a"]]}),
    "one more token": lambda: changed(
        added_tokens=[*PLAIN["added_tokens"], {"id": 5, "content": "<x>"}]
    ),
}


@pytest.mark.parametrize("content", SAME.values(), ids=SAME)
def test_what_does_not_change_it(content: Any, tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "a", PLAIN) == fingerprint(tmp_path / "b", content) is not None


@pytest.mark.parametrize("content", OTHER.values(), ids=OTHER)
def test_what_changes_it(content: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    found = fingerprint(tmp_path / "b", content())
    assert found is not None
    assert found != fingerprint(tmp_path / "a", PLAIN)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"model": 3}',
        '{"model": {"vocab": {}}, "added_tokens": [{}]}',
        "[" * 100_000,
    ],
)
def test_files_that_are_no_tokenizer(content: str, tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "a", content) is None


def test_folders_without_one(tmp_path: Path) -> None:
    assert tokenizer_fingerprint(tmp_path) is None
    assert tokenizer_fingerprint(tmp_path / "missing") is None
    os.mkfifo(tmp_path / "tokenizer.json")
    assert tokenizer_fingerprint(tmp_path) is None
