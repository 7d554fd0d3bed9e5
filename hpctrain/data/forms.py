"""The form of the data, detected from its columns and first rows or named by the user, and the
conversion of a row to an example of that form.

    text                one column of text
    prompt-completion   prompt and completion, as strings or as lists of messages
    messages            a conversation: role and content, or ShareGPT's from and value; optional
        columns: `tools` and `system`
    alpaca              instruction, input (may be empty), output; optional column: `system`

Ambiguous data is an error that reports the columns found and the options to add; nothing is
guessed. An example is a text, a prompt and completion as strings, or a conversation. A row without
an example gives a reason that can be counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from hpctrain.data.readers import Dropped
from hpctrain.errors import UsageError

Form = Literal["text", "prompt-completion", "messages", "alpaca"]
Message = dict[str, Any]

FORMS: Final[tuple[Form, ...]] = get_args(Form)
#: By form: the required roles and the optional ones.
ROLES: Final[Mapping[Form, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "text": (("text",), ()),
    "prompt-completion": (("prompt", "completion"), ("tools", "system")),
    "messages": (("messages",), ("tools", "system")),
    "alpaca": (("instruction", "output"), ("input", "system")),
}

#: Column names for each role, the usual one first; names that several roles share are tried in the
#: order of `_candidates`.
_CALLED: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text",),
    "messages": ("messages", "conversations", "conversation", "chat", "dialogue", "dialog"),
    "prompt": ("prompt", "question", "query", "problem", "input"),
    "completion": ("completion", "response", "answer", "output", "solution"),
    "instruction": ("instruction",),
    "input": ("input", "context"),
    "output": ("output", "response", "answer", "completion"),
    "tools": ("tools",),
    "system": ("system", "system_prompt"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The roles of the data's columns.

    Attributes:
        form: how a row becomes an example.
        names: role to column: `text`; `prompt`, `completion`; `messages`, `tools`; `instruction`,
            `input`, `output`, `system`.
        sentence: the same as text, to be printed.
        conversational: the columns contain lists of messages, not only strings.
    """

    form: Form
    names: Mapping[str, str]
    sentence: str
    conversational: bool = False


def detect(
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    *,
    form: Form | None = None,
    named: Mapping[str, str] | None = None,
) -> Columns:
    """Return the roles of the columns.

    Args:
        columns: all column names.
        rows: the first rows, some hundreds at most.
        form: requested, or None.
        named: role to column, as requested.

    Raises:
        UsageError: they match no form, or several, or not the requested one.
    """
    named = dict(named or {})
    kinds = {name: _kind([row.get(name) for row in rows]) for name in columns}
    listed = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
    allowed = [
        name
        for name, (must, may) in ROLES.items()
        if form in (None, name) and set(named) <= {*must, *may}
    ]
    problem = "" if columns else "no row of the data could be read"
    if unknown := [role for role in named if role not in _CALLED]:
        problem = f"there is no role {unknown[0]!r}; there are {', '.join(_CALLED)}"
    elif missing := [column for column in named.values() if column not in kinds]:
        problem = problem or f"there is no column {missing[0]!r} in the data; it has {listed}"
    elif not allowed:
        problem = f"{'the form ' + form if form else 'every form'} lacks one of {', '.join(named)}"
    if problem:
        raise UsageError(
            problem, hint="name columns of the data, for example --column messages=conversations"
        )
    found = _candidates(kinds, named)
    fitting = {name: found[name] for name in allowed if name in found}
    if len(fitting) > 1:
        # A `text` column next to a structured form is usually that form, rendered for another
        # model.
        fitting.pop("text", None)
    if len(fitting) > 1:
        raise UsageError(
            f"the columns fit {len(fitting)} forms of data: {', '.join(fitting)}",
            details=tuple(f"{name}: {_roles(names)}" for name, names in fitting.items()),
            hint=f"use --form {'messages' if 'messages' in fitting else next(iter(fitting))}",
        )
    if not fitting:
        roles = ROLES[form or "prompt-completion"][0]
        fits = f"do not fit the form {form}" if form else "fit no form of data"
        needed = (f"needed for {name}: {', '.join(ROLES[name][0])}" for name in FORMS)
        raise UsageError(
            f"the columns {fits}",
            details=(f"columns: {listed}", *needed),
            hint=f"use {' '.join(f'--column {role}=NAME' for role in roles)}",
        )
    ((chosen, names),) = fitting.items()
    talks = [name for name, kind in kinds.items() if kind == "messages"]
    if chosen == "messages" and "messages" not in named and len(talks) > 1:
        raise UsageError(
            f"{len(talks)} columns hold conversations: {', '.join(talks)}",
            hint=f"use --column messages={names['messages']}",
        )
    left_out = [name for name in columns if name not in names.values()]
    unused = f"; not used: {', '.join(left_out)}" if left_out else ""
    return Columns(
        form=chosen,
        names=names,
        sentence=f"{chosen}: column{'s' * (len(names) > 1)} {_roles(names)}{unused}",
        conversational=any(kinds[names[role]] == "messages" for role in ROLES[chosen][0]),
    )


def _kind(values: Sequence[Any]) -> str:
    """Return the kind of most values: `text`, `messages`, `other values` or `always empty`; a list
    of messages may be JSON text.
    """
    kinds = []
    for value in values:
        parsed = _parsed(value) if isinstance(value, str) else value
        listed = [parsed] if isinstance(parsed, dict) else parsed
        is_talk = isinstance(listed, list) and all(
            isinstance(each, dict) and {"role", "from"} & each.keys() for each in listed
        )
        if listed and is_talk:
            kinds.append("messages")
        elif value is not None:
            kinds.append("text" if isinstance(value, str) else "other values")
    return max(sorted(set(kinds)), key=kinds.count) if kinds else "always empty"


def _candidates(kinds: Mapping[str, str], named: Mapping[str, str]) -> dict[Form, dict[str, str]]:
    """Return the forms that the columns match, each with its roles; requested columns match
    regardless of their values.
    """
    usable: dict[str, tuple[str, ...]] = {
        "messages": ("messages",),
        "prompt": ("text", "messages"),
        "completion": ("text", "messages"),
        "tools": ("text", "messages", "other values"),
    }

    def column(role: str) -> str | None:
        if role in named:
            return named[role]
        names = [name for name in _CALLED[role] if kinds.get(name) in usable.get(role, ("text",))]
        if role == "messages":
            names += [name for name, kind in kinds.items() if kind == role]
        return names[0] if names else None

    found: dict[Form, dict[str, str]] = {}
    for form, (must, may) in ROLES.items():
        names = {role: name for role in must + may if (name := column(role)) is not None}
        if set(must) <= names.keys() and len(set(names.values())) == len(names):
            found[form] = names
    # A more specific form takes precedence: `instruction`, `input`, `output` is not a
    # prompt-completion pair, and `prompt` and `completion` may be conversations.
    if "alpaca" in found and "prompt" not in kinds and not {"prompt", "completion"} & named.keys():
        found.pop("prompt-completion", None)
    pair, talk = found.get("prompt-completion", {}), found.get("messages", {})
    if "messages" not in named and talk.get("messages") in pair.values():
        found.pop("messages", None)
    texts = [name for name, kind in kinds.items() if kind == "text"]
    if not found and len(texts) == 1:
        found["text"] = {"text": texts[0]}
    return found


def _roles(names: Mapping[str, str]) -> str:
    return ", ".join(
        f"`{name}`" if role == name else f"`{name}` as {role}" for role, name in names.items()
    )


# -- rows ------------------------------------------------------------------------------------------

#: Role names in data, mapped to those of chat templates.
SPEAKERS: Final[Mapping[str, str]] = {
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


@dataclass(frozen=True, slots=True)
class PromptCompletion:
    """A prompt and its completion, as strings; for plain text the prompt is empty."""

    prompt: str
    completion: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation for a chat template.

    Attributes:
        messages: `role`, `content` and the other keys that a template uses; no value is None.
        tools: as transformers accepts them, or None.
        prompt: number of messages in the prompt; None if the data does not distinguish it.
        untrained: indices of assistant turns that the data marks `"weight": 0`.
    """

    messages: list[Message]
    tools: list[Any] | None = None
    prompt: int | None = None
    untrained: frozenset[int] = frozenset()


Example = PromptCompletion | Chat


class _Wrong(Exception):  # noqa: N818 - never leaves this module
    """Why a row has no example: a reason, and a detail."""


def example(
    row: Mapping[str, Any],
    form: str,
    names: Mapping[str, str],
    *,
    system: str | None,
    as_chat: bool,
) -> Example | Dropped:
    """Return the example of a row, or why it has none.

    Args:
        row: values by column.
        form: one of `forms.Form`.
        names: role to column.
        system: system prompt for conversations that have none.
        as_chat: turn prompt and completion into a user and an assistant turn.
    """
    try:
        return _example(row, form, names, system, as_chat)
    except _Wrong as wrong:
        reason, *detail = wrong.args
        return Dropped(reason, getattr(row, "where", ""), "".join(detail))


def _example(
    row: Mapping[str, Any],
    form: str,
    names: Mapping[str, str],
    system: str | None,
    as_chat: bool,
) -> Example:
    prompt = None
    if form == "text":
        return PromptCompletion("", _text(row, names["text"]))
    if form == "messages":
        messages = _messages(row, names["messages"], None)
    elif form == "alpaca":
        question, output = _text(row, names["instruction"]), _text(row, names["output"])
        further = _text(row, names.get("input"), optional=True)
        question += f"\n\n{further}" if further else ""
        messages = [{"role": "user", "content": question}]
        messages.append({"role": "assistant", "content": output})
        prompt = 1
    else:
        asked, answered = (row.get(names[role]) for role in ("prompt", "completion"))
        are_strings = isinstance(asked, str) and isinstance(answered, str)
        if are_strings and None in map(_parsed, (str(asked), str(answered))):
            answered = _text(row, names["completion"])
            if not as_chat:
                return PromptCompletion(str(asked), answered)
        messages = _messages(row, names["prompt"], "user")
        prompt = len(messages)
        messages += _messages(row, names["completion"], "assistant")
        first = messages[prompt]["role"] if len(messages) > prompt else "nothing"
        if first != "assistant":
            raise _Wrong("the completion does not begin with an assistant turn", first)
    system = _text(row, names.get("system"), optional=True) or system
    if system and (not messages or messages[0]["role"] not in ("system", "developer")):
        messages.insert(0, {"role": "system", "content": system})
        prompt = None if prompt is None else prompt + 1
    if prompt == 0:
        raise _Wrong(f"{names['prompt']} is empty")
    own = [message for message in messages if message["role"] == "assistant"]
    if not own:
        raise _Wrong("no assistant turn")
    if messages[-1]["role"] != "assistant":
        raise _Wrong("the last turn is not the assistant's", str(messages[-1]["role"]))
    if not all(turn.get("tool_calls") or turn.get("content", "").strip() for turn in own):
        raise _Wrong("an assistant turn is empty")
    weights = [message.pop("weight", None) for message in messages]
    untrained = frozenset(index for index, weight in enumerate(weights) if weight == 0)
    return Chat(messages, _tools(row, names), prompt, untrained)


def _text(row: Mapping[str, Any], column: str | None, *, optional: bool = False) -> str:
    """Return the string in a column; empty if it may be missing, and is."""
    value = row.get(column) if column is not None else None
    if value is None and not optional:
        raise _Wrong(f"no {column}")
    if not isinstance(value, str | None):
        raise _Wrong(f"{column} is not a string", type(value).__name__)
    if not optional and not (value or "").strip():
        raise _Wrong(f"{column} is empty")
    return value if value and value.strip() else ""


# -- messages --------------------------------------------------------------------------------------


def _parsed(text: str) -> list[Any] | dict[str, Any] | None:
    """Return the JSON list or object in a text; None if it is another text."""
    if text.lstrip()[:1] not in ("[", "{"):
        return None
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        return None


def _messages(row: Mapping[str, Any], column: str, role: str | None) -> list[Message]:
    """Return the messages of a column; a string is one message of `role`, or a JSON list."""
    value = row.get(column)
    if value is None:
        raise _Wrong(f"no {column}")
    parsed = _parsed(value) if isinstance(value, str) else value
    if parsed is None and role is not None:
        return [{"role": role, "content": value}] if value else []
    listed = [parsed] if isinstance(parsed, dict) else parsed
    if not isinstance(listed, list):
        words = "not a list" if role is None else "neither a string nor a list"
        raise _Wrong(f"{column} is {words} of messages", type(value).__name__)
    if not listed:
        raise _Wrong(f"{column} is empty")
    return [_message(message) for message in listed]


def _message(message: Any) -> Message:
    if not isinstance(message, Mapping):
        raise _Wrong("a message is not an object", type(message).__name__)
    kept: Message = _without_nulls(message)  # Arrow adds the fields of other messages
    role = kept.pop("from", None) if "role" not in kept else kept["role"]
    if "content" not in kept and "value" in kept:
        kept["content"] = kept.pop("value")
    if not isinstance(role, str):
        raise _Wrong("a message has no role")
    if role.lower() not in SPEAKERS:
        raise _Wrong("unknown role", role)
    kept["role"] = SPEAKERS[role.lower()]
    if not kept.get("tool_calls"):
        kept.pop("tool_calls", None)
    if "content" in kept or kept["role"] != "assistant" or "tool_calls" not in kept:
        kept["content"] = _content(kept.get("content"), kept["role"])
    return kept


def _content(content: Any, role: str) -> str:
    if content is None:
        raise _Wrong(f"a turn of the {role} has no content")
    texts = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            if part is content:
                raise _Wrong("the content of a message is not text", type(content).__name__)
            kind = str(part.get("type")) if isinstance(part, Mapping) else type(part).__name__
            raise _Wrong("a message has parts that are not text", kind)
        texts.append(text)
    return "".join(texts)


def _without_nulls(value: Any) -> Any:
    """Return a message or tools without the empty fields that Arrow adds to make all records
    alike.
    """
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _tools(row: Mapping[str, Any], names: Mapping[str, str]) -> list[Any] | None:
    tools = row.get(names["tools"]) if "tools" in names else None
    found: Any = _parsed(tools) if isinstance(tools, str) else tools
    if isinstance(tools, str) and tools.strip() and found is None:
        raise _Wrong(f"{names['tools']} is not JSON")
    if found is None or found == []:
        return None
    if not isinstance(found, list) or not all(isinstance(tool, Mapping) for tool in found):
        raise _Wrong(f"{names['tools']} is not a list of tools", type(found).__name__)
    return list(_without_nulls(found))
