"""The form of the data: seen from columns and rows, or named; what is unclear is refused with what
to type.
"""

from typing import Any

import pytest

from hpctrain.data.forms import FORMS, Chat, PromptCompletion, detect, example
from hpctrain.data.readers import Dropped, SourceRow
from hpctrain.errors import UsageError

TALK = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
SHAREGPT = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]


@pytest.mark.parametrize(
    ("row", "form", "roles", "sentence"),
    [
        ({"text": "words"}, "text", {"text": "text"}, "text: column `text`"),
        (
            {"body": "words", "n": 3},
            "text",
            {"text": "body"},
            "text: column `body` as text; not used: n",
        ),
        (
            {"prompt": "q", "completion": "a"},
            "prompt-completion",
            {"prompt": "prompt", "completion": "completion"},
            None,
        ),
        (
            {"question": "q", "answer": "a", "id": 1},
            "prompt-completion",
            {"prompt": "question", "completion": "answer"},
            None,
        ),
        (
            {"input": "q", "output": "a"},
            "prompt-completion",
            {"prompt": "input", "completion": "output"},
            None,
        ),
        (
            {"prompt": TALK[:1], "completion": TALK[1:]},
            "prompt-completion",
            {"prompt": "prompt", "completion": "completion"},
            "prompt-completion: columns `prompt`, `completion`",
        ),
        (
            {"messages": TALK},
            "messages",
            {"messages": "messages"},
            "messages: column `messages`",
        ),
        (
            {"conversations": SHAREGPT, "id": "x"},
            "messages",
            {"messages": "conversations"},
            "messages: column `conversations` as messages; not used: id",
        ),
        ({"dialog_7": TALK}, "messages", {"messages": "dialog_7"}, None),
        (
            {"messages": '[{"role": "user", "content": "q"}]'},
            "messages",
            {"messages": "messages"},
            None,
        ),
        (
            {"messages": TALK, "tools": "[]", "system": "s"},
            "messages",
            {"messages": "messages", "tools": "tools", "system": "system"},
            None,
        ),
        (
            {"prompt": "q", "prompt_id": "7", "messages": TALK},
            "messages",
            {"messages": "messages"},
            None,
        ),
        (
            {"instruction": "i", "input": "", "output": "o", "text": "rendered"},
            "alpaca",
            {"instruction": "instruction", "input": "input", "output": "output"},
            "alpaca: columns `instruction`, `output`, `input`; not used: text",
        ),
        (
            {"instruction": "i", "context": "c", "response": "r", "category": "x"},
            "alpaca",
            {"instruction": "instruction", "input": "context", "output": "response"},
            None,
        ),
        (
            {"instruction": "i", "output": "o"},
            "alpaca",
            {"instruction": "instruction", "output": "output"},
            None,
        ),
    ],
)
def test_forms_are_seen(
    row: dict[str, Any], form: str, roles: dict[str, str], sentence: str | None
) -> None:
    found = detect(list(row), [row])
    assert (found.form, dict(found.names)) == (form, roles)
    assert sentence is None or found.sentence == sentence


def test_most_rows_decide_what_a_column_holds() -> None:
    rows = [{"messages": None}, {"messages": "broken"}, {"messages": TALK}, {"messages": TALK}]
    assert detect(["messages"], rows).form == "messages"


@pytest.mark.parametrize(
    ("row", "said", "fix"),
    [
        (
            {"a": "x", "b": "y"},
            "the columns fit no form",
            "--column prompt=NAME --column completion=NAME",
        ),
        ({"n": 3}, "the columns fit no form", "--column prompt=NAME --column completion=NAME"),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "the columns fit no form", None),
        ({"chosen": TALK, "rejected": TALK}, "2 columns hold", "--column messages=chosen"),
        ({"prompt": "q", "completion": "a", "messages": TALK}, "fit 2 forms", "--form messages"),
        (
            {"left": TALK, "right": TALK},
            "2 columns hold conversations: left, right",
            "--column messages=left",
        ),
        ({}, "no row of the data could be read", None),
    ],
)
def test_what_is_unclear_is_refused_with_what_to_type(
    row: dict[str, Any], said: str, fix: str | None
) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        detect(list(row), [row])
    assert raised.value.hint
    if fix is not None:
        assert raised.value.hint == f"use {fix}"
        options = fix.replace("--column ", "").replace("--form ", "form=").split()
        if "NAME" not in fix:  # what it says to type does what it should
            asked: dict[str, Any] = dict(option.split("=") for option in options)
            form = asked.pop("form", None)
            assert detect(list(row), [row], form=form, named=asked).form in FORMS


def test_what_is_named_counts() -> None:
    row = {"a": "x", "b": "y", "text": "z"}
    assert detect(list(row), [row], named={"text": "b"}).names == {"text": "b"}
    pair = detect(list(row), [row], named={"prompt": "a", "completion": "b"})
    assert (pair.form, pair.names) == ("prompt-completion", {"prompt": "a", "completion": "b"})
    both = {"instruction": "i", "output": "o", "text": "t"}
    assert detect(list(both), [both], form="text").names == {"text": "text"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"named": {"wizard": "a"}}, "there is no role 'wizard'"),
        ({"named": {"text": "c"}}, "there is no column 'c' in the data; it has a .text., b .text."),
        ({"form": "text", "named": {"prompt": "a"}}, "the form text lacks one of prompt"),
        ({"named": {"text": "a", "prompt": "b"}}, "every form lacks one of text, prompt"),
        ({"form": "messages"}, "do not fit the form messages"),
    ],
)
def test_what_is_named_wrongly_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        detect(["a", "b"], [{"a": "x", "b": "y"}], **asked)


# -- rows ------------------------------------------------------------------------------------------

PAIR = {"prompt": "prompt", "completion": "completion"}


def made(row: dict[str, Any], form: str, roles: dict[str, str], **options: Any) -> Any:
    return example(
        SourceRow(row, "f:3"),
        form,
        roles,
        system=options.get("system"),
        as_chat=options.get("as_chat", False),
    )


@pytest.mark.parametrize(
    ("form", "roles", "row", "reason"),
    [
        ("text", {"text": "text"}, {}, "no text"),
        ("text", {"text": "text"}, {"text": 3}, "text is not a string"),
        ("text", {"text": "text"}, {"text": "  "}, "text is empty"),
        ("prompt-completion", PAIR, {"prompt": "q"}, "no completion"),
        ("prompt-completion", PAIR, {"prompt": "q", "completion": " "}, "completion is empty"),
        (
            "prompt-completion",
            PAIR,
            {"prompt": TALK[:1], "completion": TALK[:1]},
            "the completion does not begin with an assistant turn",
        ),
        ("alpaca", {"instruction": "i", "output": "o"}, {"i": "x", "o": ""}, "o is empty"),
        (
            "alpaca",
            {"instruction": "i", "input": "p", "output": "o"},
            {"i": "x", "p": 3, "o": "y"},
            "p is not a string",
        ),
        ("messages", {"messages": "m", "tools": "t"}, {"m": TALK, "t": "{"}, "t is not JSON"),
        (
            "messages",
            {"messages": "m", "tools": "t"},
            {"m": TALK, "t": 3},
            "t is not a list of tools",
        ),
    ],
)
def test_wrong_rows_have_a_reason_and_their_place(
    form: str, roles: dict[str, str], row: dict[str, Any], reason: str
) -> None:
    found = made(row, form, roles)
    assert isinstance(found, Dropped)
    assert (found.reason, found.where) == (reason, "f:3")


def test_rows_become_examples() -> None:
    assert made({"text": "t"}, "text", {"text": "text"}) == PromptCompletion("", "t")
    assert made({"prompt": "", "completion": "a"}, "prompt-completion", PAIR) == PromptCompletion(
        "", "a"
    )
    assert made({"prompt": "q", "completion": TALK[1:]}, "prompt-completion", PAIR) == Chat(
        TALK, None, 1
    )
    assert made({"m": SHAREGPT}, "messages", {"messages": "m"}) == Chat(TALK)


def test_a_system_prompt_is_put_before_conversations_that_have_none() -> None:
    system = {"role": "system", "content": "s"}
    roles = {"messages": "m", "system": "s"}
    assert made({"m": TALK}, "messages", roles, system="s").messages == [system, *TALK]
    assert (
        made({"m": TALK, "s": "own"}, "messages", roles, system="s").messages[0]["content"] == "own"
    )
    assert made({"m": [system, *TALK]}, "messages", roles, system="other").messages == [
        system,
        *TALK,
    ]


def test_empty_fields_that_arrow_adds_are_taken_out() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1, "b": None}}, "id": None}
    row = {
        "m": [
            TALK[0],
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "r"},
            TALK[1],
        ]
    }
    row["t"] = [{"type": "function", "function": {"name": "f", "parameters": {"b": None}}}]
    found = made(row, "messages", {"messages": "m", "tools": "t"})
    assert found.messages[1] == {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
    }
    assert found.tools == [{"type": "function", "function": {"name": "f", "parameters": {}}}]
