"""Rows to tokens: BOS and EOS, prompt and completion, lengths, and what is wrong with a row, a
tokenizer or a template.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from hpctrain.data.encode import Encoded
from hpctrain.data.readers import Dropped, SourceRow
from hpctrain.errors import UsageError
from tests.preparation import encode_made as made
from tests.preparation.encode_used import (
    ALPACA,
    BYTE_LEVEL,
    CONTENT,
    PAIR,
    TALK,
    TEXT,
    TOOLS,
    dropped,
    encoder,
    one,
    said,
    talk,
    text,
)

pytestmark = pytest.mark.torch  # transformers; torch itself is never asked for

# -- BOS and EOS -----------------------------------------------------------------------------------


def test_bos_of_template_and_tokenizer_is_there_once(folder: Any) -> None:
    for maker, options in (("byte_level", {"bos": True}), ("sentencepiece_like", {})):
        ours = encoder(folder(maker, made.TEMPLATES["llama 3"][0], **options))
        bos = ours.tokenizer.bos_token_id
        assert list(one(ours.encode([talk("q", "a")])).input_ids).count(bos) == 1
        plain = encoder(folder(maker, **options), TEXT)
        for content in ("some words", "<s>some words"):
            ids = list(one(plain.encode([{"text": content}])).input_ids)
            assert ids.count(bos) == 1
            assert ids[0] == bos


def test_eos_ends_a_text_once(folder: Any) -> None:
    ours = encoder(folder("byte_level"), TEXT)
    eos = ours.tokenizer.eos_token_id
    for content in ("some words", "some words<|endoftext|>"):
        ids = list(one(ours.encode([{"text": content}])).input_ids)
        assert (ids.count(eos), ids[-1]) == (1, eos)


def test_eos_ends_a_conversation_only_where_the_template_does_not(folder: Any) -> None:
    closed = encoder(folder("byte_level", made.TEMPLATES["chatml"][0]))
    assert closed.tokenizer.eos_token_id not in one(closed.encode([talk("q", "a")])).input_ids
    open_ = encoder(folder("byte_level", made.TEMPLATES["no end of turn"][0]))
    example = one(open_.encode([talk("q", "a", "q", "b")]))
    assert said(open_, example) == [" a\n", " b\n<|endoftext|>"]
    assert any("<|endoftext|> is added" in note for note in open_.notes)


def test_a_tokenizer_without_eos_is_refused_unless_the_template_ends_turns(folder: Any) -> None:
    tokenizer = folder("byte_level", eos_token=None)
    with pytest.raises(UsageError, match="has no EOS token"):
        encoder(tokenizer, TEXT)
    closed = folder("byte_level", made.TEMPLATES["chatml"][0], eos_token=None)
    assert one(encoder(closed).encode([talk("q", "a")])).trained


# -- prompt and completion, alpaca -----------------------------------------------------------------


@pytest.mark.parametrize("maker", ["byte_level", "sentencepiece_like"])
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(prompt=CONTENT, completion=CONTENT)
def test_a_completion_is_trained_from_the_token_that_holds_its_first_character(
    maker: str, folder: Any, prompt: str, completion: str
) -> None:
    ours = encoder(folder(maker), PAIR)
    example = one(ours.encode([{"prompt": prompt, "completion": completion}]))
    whole = ours._tokens._backend.encode(prompt + completion, add_special_tokens=False)
    before = (
        len(example.input_ids)
        - len(whole.ids)
        - (not completion.endswith(ours.tokenizer.eos_token))
    )
    ((start, stop),) = example.trained
    assert stop == len(example.input_ids)
    assert example.input_ids[-1] == ours.tokenizer.eos_token_id
    wanted = [index for index, (_, end) in enumerate(whole.offsets) if end > len(prompt)]
    assert start == before + wanted[0]


def test_a_conversational_completion_is_all_that_follows_the_prompt(folder: Any) -> None:
    ours = encoder(folder("byte_level", made.TEMPLATES["chatml"][0]), TALK)
    row = {
        "prompt": [{"role": "user", "content": "q"}],
        "completion": [{"role": "assistant", "content": "a"}],
    }
    assert said(ours, one(ours.encode([row]))) == ["a<|im_end|>\n"]


def test_a_conversation_with_tools_gets_the_tokenizers_template_for_tools(tmp_path: Path) -> None:
    plain = made.TEMPLATES["chatml"][0]
    both: Any = {"default": plain, "tool_use": f"TOOLS {{{{ tools }}}}\n{plain}"}
    ours = encoder(made.save(made.byte_level(**BYTE_LEVEL), tmp_path / "two", both), TOOLS)
    tool = {"type": "function", "function": {"name": "look_up"}}
    with_tools, without = ours.encode(
        [{**talk("q", "a"), "tools": [tool]}, {**talk("q", "a"), "tools": None}]
    )
    assert "look_up" in text(ours, one([with_tools]).input_ids)
    assert "TOOLS" not in text(ours, one([without]).input_ids)


def test_alpaca_is_a_conversation(folder: Any) -> None:
    row = {"instruction": "Add.", "input": "2 and 2", "output": "4"}
    chat = encoder(folder("byte_level", made.TEMPLATES["chatml"][0]), ALPACA)
    example = one(chat.encode([row]))
    assert text(chat, example.input_ids).startswith("<|im_start|>user\nAdd.\n\n2 and 2<|im_end|>")
    assert said(chat, example) == ["4<|im_end|>\n"]
    without = one(chat.encode([{**row, "input": ""}]))
    assert "user\nAdd.<|im_end|>" in text(chat, without.input_ids)


def test_strings_become_turns_when_asked_for(folder: Any) -> None:
    tokenizer = folder("byte_level", made.TEMPLATES["chatml"][0])
    row = {"prompt": "q", "completion": "a"}
    ours = encoder(tokenizer, PAIR, as_chat=True, system="Be brief.")
    example = one(ours.encode([row]))
    assert (
        text(ours, example.input_ids) == "<|im_start|>system\nBe"
        " brief.<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
    )
    assert said(ours, example) == ["a<|im_end|>\n"]
    as_is = encoder(tokenizer, PAIR)
    assert text(as_is, one(as_is.encode([row])).input_ids) == "qa<|endoftext|>"
    assert any("without the chat template" in note for note in as_is.notes)
    assert (ours.template is None, as_is.template is None) == (False, True)


# -- lengths ---------------------------------------------------------------------------------------


def test_truncation_keeps_the_start_or_drops(folder: Any) -> None:
    tokenizer = folder("byte_level", made.TEMPLATES["chatml"][0])
    row = talk("question", "word " * 100)
    whole = one(encoder(tokenizer).encode([row]))
    kept = one(encoder(tokenizer, max_length=20).encode([row]))
    assert kept.truncated
    assert kept.input_ids == whole.input_ids[:20]
    assert kept.trained == ((whole.trained[0][0], 20),)
    assert not whole.truncated
    gone = dropped(
        encoder(tokenizer, max_length=20, truncation="drop").encode([SourceRow(row, "f:1")])
    )
    assert (gone.reason, gone.where) == ("longer than 20 tokens", "f:1")


# -- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "no messages"),
        ({"messages": None}, "no messages"),
        ({"messages": "just words"}, "messages is not a list of messages"),
        ({"messages": 5}, "messages is not a list of messages"),
        ({"messages": []}, "messages is empty"),
        ({"messages": ["x"]}, "a message is not an object"),
        ({"messages": [{"content": "x"}]}, "a message has no role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "unknown role"),
        ({"messages": [{"role": "user", "content": 3}]}, "the content of a message is not text"),
        ({"messages": [{"role": "user", "content": None}]}, "a turn of the user has no content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "a message has parts that are not text",
        ),
        ({"messages": [{"role": "user", "content": "x"}]}, "no assistant turn"),
        (talk("q", "a", "q"), "the last turn is not the assistant's"),
        (talk("q", " \n"), "an assistant turn is empty"),
        (talk("q", "half \ud83d"), "the text is not valid Unicode"),
    ],
)
def test_a_wrong_row_is_dropped_with_a_reason_that_can_be_counted(
    folder: Any, row: dict[str, Any], reason: str
) -> None:
    ours = encoder(folder("byte_level", made.TEMPLATES["chatml"][0]))
    good, gone, again = ours.encode([talk("q", "a"), SourceRow(row, "d.jsonl:2"), talk("q", "b")])
    assert isinstance(gone, Dropped)
    assert (gone.reason, gone.where) == (reason, "d.jsonl:2")
    assert isinstance(good, Encoded)
    assert isinstance(again, Encoded)


def test_sharegpt_parts_and_json_strings_are_the_same_conversation(folder: Any) -> None:
    ours = encoder(folder("byte_level", made.TEMPLATES["chatml"][0]))
    plain = talk("q", "a")["messages"]
    forms: list[Any] = [
        plain,
        json.dumps(plain),
        [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
        [
            {"role": "User", "content": [{"type": "text", "text": "q"}]},
            {"role": "assistant", "content": "a", "tool_calls": None, "name": None},
        ],
    ]
    assert (
        len({tuple(one(ours.encode([{"messages": messages}])).input_ids) for messages in forms})
        == 1
    )


def test_what_the_tokenizer_cannot_do_is_refused(folder: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no chat template"):
        encoder(folder("byte_level"))
    with pytest.raises(UsageError, match="cannot load the tokenizer"):
        encoder(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="cannot load the tokenizer"):
        encoder(str(tmp_path))
    with pytest.raises(UsageError, match="all of it is"):
        encoder(folder("byte_level"), TEXT, loss_on="assistant")
    with pytest.raises(UsageError, match="have no assistant turns"):
        encoder(folder("byte_level"), PAIR, loss_on="assistant")
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for %}")
    with pytest.raises(UsageError, match="not Jinja"):
        encoder(folder("byte_level"), template=str(broken))
    with pytest.raises(UsageError, match="cannot read the chat template"):
        encoder(folder("byte_level"), template=str(tmp_path / "none.jinja"))
