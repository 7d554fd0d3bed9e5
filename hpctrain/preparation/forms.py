"""The form of the data: seen from its columns and first rows and said aloud, or named by the person.

    text                one column of text
    prompt-completion   prompt and completion, as strings or as lists of messages
    messages            a conversation: role and content, or ShareGPT's from and value; `tools` and `system` may stand beside it
    alpaca              instruction, input (may be empty), output; `system` may stand beside them

Nothing is guessed between two forms: what is ambiguous is an error that says what was found and what to type. How a row becomes an
example is in forms_rows.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from hpctrain.errors import UsageError
from hpctrain.preparation import forms_rows

Form = Literal["text", "prompt-completion", "messages", "alpaca"]

FORMS: Final[tuple[str, ...]] = get_args(Form)
ROLES: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "text": (("text",), ()),
    "prompt-completion": (("prompt", "completion"), ("tools", "system")),
    "messages": (("messages",), ("tools", "system")),
    "alpaca": (("instruction", "output"), ("input", "system")),
}
"""By form: the roles that a column must have, and those that one may have."""

#: What columns are called for a role, the usual name first; names that several roles share are tried in the order of `_candidates`.
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
    """What the columns of the data are.

    Attributes:
        form: how a row becomes an example.
        names: the role to its column: `text`; `prompt`, `completion`; `messages`, `tools`; `instruction`, `input`, `output`, `system`.
        sentence: the same, to be said aloud.
        conversational: there are lists of messages in the columns, and not only strings.
    """

    form: Form
    names: Mapping[str, str]
    sentence: str
    conversational: bool = False


def detect(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, form: Form | None = None, named: Mapping[str, str] | None = None
) -> Columns:
    """Return what the columns are.

    Args:
        columns: all names.
        rows: the first ones, some hundreds at most.
        form: asked for, or None.
        named: role to column, as asked for.

    Raises:
        UsageError: they fit no form, or several, or what was asked for does not fit them.
    """
    if not columns:
        raise UsageError("no row of the data could be read", fix="look at its first lines: head -c 1000 FILE")
    named = dict(named or {})
    kinds = {name: _kind([row.get(name) for row in rows]) for name in columns}
    _check_asked(form, named, kinds)
    forms = _asked_forms(form, named)
    found = _candidates(kinds, named)
    fitting = {name: names for name, names in found.items() if name in forms}
    if len(fitting) > 1 and "text" in fitting:  # `text` beside a structured form is that form, rendered for somebody's model
        del fitting["text"]
    if not fitting:
        raise _nothing(kinds, forms, named)
    if len(fitting) > 1:
        raise _several(fitting)
    ((chosen, names),) = fitting.items()
    _check_one_column(chosen, names, kinds, named)
    left_out = [name for name in columns if name not in names.values()]
    conversational = any(kinds[names[role]] == "messages" for role in ROLES[chosen][0])
    return Columns(form=_form(chosen), names=names, sentence=_sentence(chosen, names, kinds, rows, left_out), conversational=conversational)


def _form(name: str) -> Form:
    return next(form for form in get_args(Form) if form == name)


# -- what was asked for ------------------------------------------------------------------------------------------------


def _check_asked(form: str | None, named: Mapping[str, str], kinds: Mapping[str, str]) -> None:
    problems = []
    if form is not None and form not in FORMS:
        problems.append(f"there is no form {form!r}; there are {', '.join(FORMS)}")
    for role, column in named.items():
        if role not in _CALLED:
            problems.append(f"there is no role {role!r}; there are {', '.join(_CALLED)}")
        if column not in kinds:
            problems.append(f"there is no column {column!r} in the data; it has {_listed(kinds)}")
    if not problems and form is not None:
        must, may = ROLES[form]
        problems += [f"the form {form} has no {role}: it takes {', '.join(must + may)}" for role in named if role not in must + may]
    if not problems and form is None and named and not _asked_forms(None, named):
        problems.append(f"no form has all of {', '.join(named)}")
    if problems:
        raise UsageError(
            f"{len(problems)} problems with the columns that were named" if len(problems) > 1 else problems[0],
            details=tuple(problems) if len(problems) > 1 else (),
            fix="name columns of the data, for instance: --column messages=conversations",
        )


def _asked_forms(form: str | None, named: Mapping[str, str]) -> tuple[str, ...]:
    """Return the forms that have all the roles that were named."""
    if form is not None:
        return (form,)
    return tuple(name for name, (must, may) in ROLES.items() if set(named) <= {*must, *may})


# -- what the data looks like ------------------------------------------------------------------------------------------


def _kind(values: Sequence[Any]) -> str:
    """Return `text`, `messages`, `empty` or `other`: what most of the values are."""
    kinds = [_kind_of(value) for value in values if value is not None]
    return max(sorted(set(kinds)), key=kinds.count) if kinds else "empty"


def _kind_of(value: Any) -> str:
    if isinstance(value, str):
        if not value.lstrip()[:2].startswith(("[", "{")):
            return "text"
        try:
            return "messages" if _are_messages(json.loads(value)) else "text"
        except (ValueError, RecursionError):
            return "text"
    return "messages" if _are_messages(value) else "other"


def _are_messages(value: Any) -> bool:
    """Say whether the value is a list of messages, or one message."""
    value = [value] if isinstance(value, dict) else value
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        return False
    return all(bool({"role", "from"} & message.keys()) for message in value)


def _candidates(kinds: Mapping[str, str], named: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the forms that the columns fit, each with its roles; what was named counts whatever it looks like."""
    usable: dict[str, tuple[str, ...]] = {
        "text": ("text",),
        "messages": ("messages",),
        "prompt": ("text", "messages"),
        "completion": ("text", "messages"),
        "tools": ("text", "messages", "other"),
    }

    def column(role: str) -> str | None:
        if role in named:
            return named[role]
        called = [name for name in _CALLED[role] if kinds.get(name) in usable.get(role, ("text",))]
        if role == "messages" and not called:
            called = [name for name, kind in kinds.items() if kind == "messages" and name not in ("chosen", "rejected")]
        return called[0] if called else None

    found: dict[str, dict[str, str]] = {}
    for form, (must, may) in ROLES.items():
        names = {role: name for role in must + may if (name := column(role)) is not None}
        if form == "alpaca" and "input" not in named and kinds.get(names.get("input", "")) == "empty":
            del names["input"]
        if all(role in names for role in must) and len(set(names.values())) == len(names):
            found[form] = names
    return _without_shadows(found, kinds, named)


def _without_shadows(found: dict[str, dict[str, str]], kinds: Mapping[str, str], named: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Drop the readings of columns that another form reads better: `instruction`, `input`, `output` is not `input` and its answer."""
    if "alpaca" in found and "prompt" not in kinds and not {"prompt", "completion"} & named.keys():
        found.pop("prompt-completion", None)
    pair = found.get("prompt-completion")
    if pair is not None and "messages" in found and found["messages"]["messages"] in pair.values() and "messages" not in named:
        del found["messages"]
    if "text" not in found and not found:
        texts = [name for name, kind in kinds.items() if kind == "text"]
        if len(texts) == 1 and not {"chosen", "rejected"} & kinds.keys():
            found["text"] = {"text": texts[0]}
    return found


def _check_one_column(form: str, names: Mapping[str, str], kinds: Mapping[str, str], named: Mapping[str, str]) -> None:
    """Refuse to choose between two columns of conversations."""
    if form != "messages" or "messages" in named:
        return
    several = [name for name, kind in kinds.items() if kind == "messages" and name not in ("tools", "chosen", "rejected")]
    if len(several) > 1:
        raise UsageError(
            f"{len(several)} columns hold conversations: {', '.join(several)}",
            details=("which one is trained on has to be said",),
            fix=f"--column messages={names['messages']}",
        )


# -- errors and the sentence -------------------------------------------------------------------------------------------


def _listed(kinds: Mapping[str, str]) -> str:
    words = {"text": "text", "messages": "messages", "other": "other values", "empty": "always empty"}
    shown = [f"{name} ({words[kind]})" for name, kind in list(kinds.items())[:20]]
    return ", ".join(shown) + (f" and {len(kinds) - 20} more" if len(kinds) > 20 else "") if shown else "no columns"


def _nothing(kinds: Mapping[str, str], forms: Sequence[str], named: Mapping[str, str]) -> UsageError:
    if "input_ids" in kinds:
        return UsageError("the data is tokenised already: it has a column input_ids", fix="give the text that it was made from")
    if {"chosen", "rejected"} <= kinds.keys():
        return UsageError(
            "the data has pairs of preferred answers (chosen, rejected), and fine-tuning learns one answer",
            details=(f"columns: {_listed(kinds)}",),
            fix="--column prompt=prompt --column completion=chosen"
            if "prompt" in kinds and kinds["chosen"] == "text"
            else "--column messages=chosen",
        )
    wanted = [f"{form}: {', '.join(role for role in ROLES[form][0] if role not in named)}" for form in forms]
    missing = f"the form {forms[0]} needs more than was found" if len(forms) == 1 else "the columns fit no form of data"
    texts = [name for name, kind in kinds.items() if kind == "text"]
    example = {
        "text": f"--column text={texts[0] if texts else 'NAME'}",
        "messages": "--column messages=NAME",
        "alpaca": "--column instruction=NAME --column output=NAME",
        "prompt-completion": "--column prompt=NAME --column completion=NAME",
    }
    fix = example[forms[0]] if len(forms) == 1 else example["prompt-completion"] if len(texts) != 1 else example["text"]
    return UsageError(missing, details=(f"columns: {_listed(kinds)}", *(f"wanted for {line}" for line in wanted)), fix=fix)


def _several(fitting: Mapping[str, Mapping[str, str]]) -> UsageError:
    details = tuple(f"{form}: {_roles(names)}" for form, names in fitting.items())
    first = "messages" if "messages" in fitting else next(iter(fitting))
    return UsageError(f"the columns fit {len(fitting)} forms of data: {', '.join(fitting)}", details=details, fix=f"--form {first}")


def _roles(names: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}`" if role == name else f"`{name}` as {role}" for role, name in names.items())


def _sentence(
    form: str, names: Mapping[str, str], kinds: Mapping[str, str], rows: Sequence[Mapping[str, Any]], left_out: Sequence[str]
) -> str:
    """Return the form, its columns, what the rows look like, and the columns that are not used."""
    parts = [f"{form}: {'column' if len(names) == 1 else 'columns'} {_roles(names)}"]
    if form == "messages":
        parts[0] += ", ShareGPT's from/value" if forms_rows.is_from_value(rows, names["messages"]) else ""
        turns = forms_rows.turns(rows, names["messages"])
        if turns is not None:
            parts.append(f"assistant turns: {turns[0]:.3g} of {turns[1]:.3g} on average")
    elif form == "prompt-completion":
        shapes = {kinds[names["prompt"]], kinds[names["completion"]]}
        parts.append("lists of messages" if shapes == {"messages"} else "strings" if "messages" not in shapes else "strings and messages")
    elif form == "alpaca" and "input" in names:
        filled = sum(bool(row.get(names["input"])) for row in rows)
        parts.append(f"input in {filled} of {len(rows)} rows looked at")
    if left_out:
        parts.append(f"not used: {', '.join(left_out[:8])}" + (f" and {len(left_out) - 8} more" if len(left_out) > 8 else ""))
    return "; ".join(parts)
