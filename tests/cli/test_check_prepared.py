"""`hpctrain check` on a prepared dataset: its tokenizer has to be the model's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hpctrain.preparation.fingerprint import tokenizer_fingerprint
from hpctrain.preparation.manifest import Manifest, Split

if TYPE_CHECKING:
    from conftest import Desk

WORDS = ("check", "--json", "--no-slurm", "--", "--model_name_or_path", "model", "--dataset_name", "data")


def tokenizer(*words: str, **more: Any) -> str:
    vocabulary = {word: number for number, word in enumerate(words)}
    return json.dumps({"added_tokens": [], "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": words[0]}, **more})


@pytest.fixture
def project(desk: Desk) -> Desk:
    desk.write("config.yaml", "launcher: srun\n")
    desk.write("model/config.json", '{"model_type": "qwen3"}')
    desk.write("model/tokenizer.json", tokenizer("?", "a", "b"))
    made_with = tokenizer_fingerprint(desk.directory / "model")
    assert made_with is not None
    made = Manifest(
        sources=(), form="text", columns={}, loss_on="all", tokenizer=made_with, tokenizer_name="models/ours", template=None, vocabulary=3,
        max_length=None, packed=False, splits={"train": Split(rows=1, examples=1, tokens=1, trained=1, longest=1)},
    )  # fmt: skip
    desk.write("data/hpctrain.json", made.to_json())
    return desk


def found(desk: Desk) -> list[dict[str, Any]]:
    return [finding for finding in json.loads(desk.run(*WORDS).out)["findings"] if finding["id"] == "dataset-tokenizer"]


def test_another_tokenizer_than_the_models_is_an_error(project: Desk) -> None:
    assert found(project) == []
    project.write("model/tokenizer.json", tokenizer("?", "b", "a"))
    (finding,) = found(project)
    assert finding["level"] == "error"
    assert "models/ours" in finding["evidence"]


def test_the_same_tokenizer_written_otherwise_is_the_same(project: Desk) -> None:
    other = json.loads(tokenizer("?", "a", "b", padding={"length": 512}, truncation={"max_length": 9}))
    project.write("model/tokenizer.json", json.dumps(dict(reversed(other.items())), indent=4))
    assert found(project) == []


def test_a_damaged_manifest_says_nothing(project: Desk) -> None:
    project.write("model/tokenizer.json", tokenizer("?", "b", "a"))
    project.write("data/hpctrain.json", "{")
    assert found(project) == []
