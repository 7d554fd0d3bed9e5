"""The demo is real text, the same each time, and replaces nothing that it did not make."""

from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import UsageError

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_what_is_made_is_what_is_said(demo: Any) -> None:
    import datasets
    from transformers import AutoModelForCausalLM, AutoTokenizer

    data = datasets.load_from_disk(str(demo.dataset))
    assert (len(data["train"]), len(data["test"])) == (demo.train_pairs, demo.test_pairs)
    assert demo.train_pairs > 1000
    assert sum(len(ids) for part in data.values() for ids in part["input_ids"]) == demo.tokens
    tokenizer = AutoTokenizer.from_pretrained(demo.model)
    assert len(tokenizer) == demo.vocabulary
    model = AutoModelForCausalLM.from_pretrained(demo.model)
    assert 1_000_000 < model.num_parameters() == demo.parameters < 5_000_000


def test_a_pair_is_a_docstring_and_only_the_answer_is_learned(demo: Any) -> None:
    import datasets
    from transformers import AutoTokenizer

    data = datasets.load_from_disk(str(demo.dataset))
    tokenizer = AutoTokenizer.from_pretrained(demo.model)
    answers = {}
    for part in data.values():
        for row in part:
            learned = [label for label in row["labels"] if label != -100]
            text = tokenizer.decode(row["input_ids"])
            question, _, answer = text.partition("<|im_end|>\n<|im_start|>assistant\n")
            assert tokenizer.decode(learned) == answer
            answers[question.removeprefix("<|im_start|>user\n")] = answer.removesuffix(
                "<|im_end|>\n"
            )
    question = "What does `bisect.insort_right(a, x, lo=0, hi=None, *, key=None)` do?"
    assert answers[question] == "Insert item x in list a, and keep it sorted assuming a is sorted."
    message = [{"role": "user", "content": question}]
    rendered = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    assert rendered == f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def test_it_is_the_same_each_time_and_replaces_only_its_own(demo: Any, tmp_path: Path) -> None:
    from hpctrain.training.demo import MARKER, make_demo

    directory = tmp_path / "again"
    directory.mkdir()
    (directory / MARKER).write_text("{}")
    (directory / "old").write_text("from an earlier call")
    again = make_demo(directory)
    assert [path.name for path in tmp_path.iterdir()] == ["again"]  # no drafts are left
    assert not (directory / "old").exists()
    for name in ("model/tokenizer.json", "model/model.safetensors", "model/config.json"):
        assert (directory / name).read_bytes() == (demo.directory / name).read_bytes(), name
    assert (again.train_pairs, again.tokens) == (demo.train_pairs, demo.tokens)
    (directory / MARKER).unlink()
    with pytest.raises(UsageError, match="was not made by this command"):
        make_demo(directory)
    assert again.model.is_dir()
