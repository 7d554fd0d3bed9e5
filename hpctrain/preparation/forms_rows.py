"""One row becomes an example, by the form of the data; what is wrong with a row is a reason that can be counted.

An example is one of three: a text, a prompt with its completion as strings, or a conversation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hpctrain.preparation.rows import Dropped

Message = dict[str, Any]

ROLES: Final[Mapping[str, str]] = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool")},
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "ipython": "tool",
}
"""What a turn's role is called in data, and what chat templates call it."""

ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)
ALPACA_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a response that "
    "appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)
"""The prompts of Stanford Alpaca (train.py), for a tokenizer without a chat template."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text, all of it of one kind."""

    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt, and what is to follow it, as strings."""

    prompt: str
    completion: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation for a chat template.

    Attributes:
        messages: `role`, `content` and whatever else a template reads; nothing in them is None.
        tools: as transformers takes them, or None.
        prompt: messages that belong to the prompt; None where the data does not say.
        untrained: indices of assistant turns that the data marks `"weight": 0`.
    """

    messages: list[Message]
    tools: list[Any] | None = None
    prompt: int | None = None
    untrained: frozenset[int] = frozenset()


Example = Text | Pair | Chat


class _Wrong(Exception):  # noqa: N818 - carries a reason; never leaves this module
    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def example(row: Mapping[str, Any], form: str, names: Mapping[str, str], *, system: str | None, as_chat: bool) -> Example | Dropped:
    """Return the example of a row, or why it has none.

    Args:
        row: values by column.
        form: of `forms.Form`.
        names: role to column.
        system: system prompt of conversations that have none.
        as_chat: strings of prompt and completion, or of instruction and output, become turns of user and assistant.
    """
    where = getattr(row, "where", "")
    try:
        if form == "text":
            return Text(_string(row, names["text"]))
        if form == "messages":
            return _conversation(row, names, system)
        if form == "alpaca":
            return _alpaca(row, names, system, as_chat)
        return _pair(row, names, system, as_chat)
    except _Wrong as wrong:
        return Dropped(wrong.reason, where, wrong.detail)


def _value(row: Mapping[str, Any], column: str) -> Any:
    if row.get(column) is None:
        raise _Wrong(f"no {column}")
    return row[column]


def _string(row: Mapping[str, Any], column: str) -> str:
    value = _value(row, column)
    if not isinstance(value, str):
        raise _Wrong(f"{column} is not a string", type(value).__name__)
    if not value.strip():
        raise _Wrong(f"{column} is empty")
    return value


def _optional(row: Mapping[str, Any], names: Mapping[str, str], role: str) -> str | None:
    value = row.get(names[role]) if role in names else None
    if value is None:
        return None
    if not isinstance(value, str):
        raise _Wrong(f"{names[role]} is not a string", type(value).__name__)
    return value if value.strip() else None


def _alpaca(row: Mapping[str, Any], names: Mapping[str, str], system: str | None, as_chat: bool) -> Example:
    instruction, output = _string(row, names["instruction"]), _string(row, names["output"])
    further = _optional(row, names, "input")
    system = _optional(row, names, "system") or system
    if as_chat:
        question = instruction if further is None else f"{instruction}\n\n{further}"
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": output}]
        return Chat(_with_system(turns, system), prompt=len(turns) - 1 + bool(system))
    prompt = ALPACA.format(instruction=instruction) if further is None else ALPACA_INPUT.format(instruction=instruction, input=further)
    return Pair(f"{system}\n\n{prompt}" if system else prompt, output)


def _pair(row: Mapping[str, Any], names: Mapping[str, str], system: str | None, as_chat: bool) -> Example:
    prompt, completion = _value(row, names["prompt"]), _value(row, names["completion"])
    if isinstance(prompt, str) and isinstance(completion, str) and not (_is_json(prompt) and _is_json(completion)):
        if not completion.strip():
            raise _Wrong(f"{names['completion']} is empty")
        if not as_chat:
            return Pair(prompt, completion)
    asked = _messages(prompt, names["prompt"], "user")
    answered = _messages(completion, names["completion"], "assistant")
    asked = _with_system(asked, _optional(row, names, "system") or system)
    if not asked:
        raise _Wrong(f"{names['prompt']} is empty")
    if answered[0]["role"] != "assistant":
        raise _Wrong("the completion does not begin with an assistant turn", str(answered[0]["role"]))
    return _checked(asked + answered, _tools(row, names), prompt=len(asked))


def _conversation(row: Mapping[str, Any], names: Mapping[str, str], system: str | None) -> Chat:
    messages = _messages(_value(row, names["messages"]), names["messages"], None)
    return _checked(_with_system(messages, _optional(row, names, "system") or system), _tools(row, names), prompt=None)


def _checked(messages: list[Message], tools: list[Any] | None, *, prompt: int | None) -> Chat:
    """Return the conversation.

    Raises:
        _Wrong: there is nothing in it to be learned, or it does not end with that.
    """
    if not any(message["role"] == "assistant" for message in messages):
        raise _Wrong("no assistant turn")
    if messages[-1]["role"] != "assistant":
        raise _Wrong("the last turn is not the assistant's", str(messages[-1]["role"]))
    for message in messages:
        if message["role"] == "assistant" and not message.get("tool_calls") and not message.get("content", "").strip():
            raise _Wrong("an assistant turn is empty")
    weights = [message.pop("weight", None) for message in messages]
    untrained = frozenset(index for index, weight in enumerate(weights) if weight == 0)
    return Chat(messages, tools, prompt, untrained)


def _with_system(messages: list[Message], system: str | None) -> list[Message]:
    if not system or (messages and messages[0]["role"] in ("system", "developer")):
        return messages
    return [{"role": "system", "content": system}, *messages]


# -- messages ----------------------------------------------------------------------------------------------------------


def _is_json(text: str) -> bool:
    return text[:1] in "[{" and isinstance(_parsed(text), (list, dict))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _messages(value: Any, column: str, role: str | None) -> list[Message]:
    """Return the messages of a column; a string is one of `role`, or the JSON of a list."""
    if isinstance(value, str):
        parsed = _parsed(value) if value.lstrip()[:1] in ("[", "{") else None
        if not isinstance(parsed, (list, dict)):
            if role is None:
                raise _Wrong(f"{column} is not a list of messages", "str")
            return [{"role": role, "content": value}] if value else []
        value = parsed
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        words = "not a list of messages" if role is None else "neither a string nor a list of messages"
        raise _Wrong(f"{column} is {words}", type(value).__name__)
    if not value:
        raise _Wrong(f"{column} is empty")
    return [_message(message) for message in value]


def _message(message: Any) -> Message:
    if not isinstance(message, Mapping):
        raise _Wrong("a message is not an object", type(message).__name__)
    kept = {key: value for key, value in message.items() if value is not None}  # Arrow fills in what other messages have
    role = kept.pop("from", None) if "role" not in kept else kept["role"]
    if "content" not in kept and "value" in kept:
        kept["content"] = kept.pop("value")
    if not isinstance(role, str):
        raise _Wrong("a message has no role")
    if role.lower() not in ROLES:
        raise _Wrong("unknown role", role)
    kept["role"] = ROLES[role.lower()]
    if "tool_calls" in kept:
        kept["tool_calls"] = _without_nulls(kept["tool_calls"])
        if not kept["tool_calls"]:
            del kept["tool_calls"]
    if "content" in kept or kept["role"] != "assistant" or "tool_calls" not in kept:
        kept["content"] = _content(kept.get("content"), kept["role"])
    return kept


def _content(content: Any, role: str) -> str:
    """Return the text of a message, of which the parts may be listed one by one."""
    if isinstance(content, str):
        return content
    if content is None:
        raise _Wrong(f"a turn of the {role} has no content")
    if not isinstance(content, list):
        raise _Wrong("the content of a message is not text", type(content).__name__)
    texts = []
    for part in content:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            kind = str(part.get("type")) if isinstance(part, Mapping) else type(part).__name__
            raise _Wrong("a message has parts that are not text", kind)
        texts.append(text)
    return "".join(texts)


def _without_nulls(value: Any) -> Any:
    """Return tool calls or tools without the empty fields that Arrow adds so that all have the same."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _tools(row: Mapping[str, Any], names: Mapping[str, str]) -> list[Any] | None:
    tools = row.get(names["tools"]) if "tools" in names else None
    if isinstance(tools, str):
        if not tools.strip():
            return None
        tools = _parsed(tools)
        if tools is None:
            raise _Wrong(f"{names['tools']} is not JSON")
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise _Wrong(f"{names['tools']} is not a list of tools", type(tools).__name__)
    found: list[Any] = _without_nulls(tools)
    return found


# -- what the first rows look like -------------------------------------------------------------------------------------


def is_from_value(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    """Say whether the first conversation has ShareGPT's `from` and `value`."""
    for row in rows:
        value = row.get(column)
        value = _parsed(value) if isinstance(value, str) else value
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            return "from" in value[0] and "role" not in value[0]
    return False


def turns(rows: Sequence[Mapping[str, Any]], column: str) -> tuple[float, float] | None:
    """Return how many turns of the assistant, and of all, a conversation of these rows has on average; None without any."""
    counted = []
    for row in rows:
        try:
            messages = _messages(_value(row, column), column, None)
        except _Wrong:
            continue
        counted.append((sum(message["role"] == "assistant" for message in messages), len(messages)))
    if not counted:
        return None
    return sum(own for own, _ in counted) / len(counted), sum(every for _, every in counted) / len(counted)
