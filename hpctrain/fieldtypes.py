"""Types of what people write, for the schemas of config.yaml and of cluster profiles.

Every message completes "KEY …": "must be a whole number, not 'two'".
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

# pydantic looks through every installed distribution for plugins, a tenth of the time that `render` takes. We use none.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from hpctrain.scheduler.parse import duration, memory_size

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_SLURM_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:+@-]{0,127}\Z")
_FEATURES = re.compile(r"[A-Za-z0-9_\[(][A-Za-z0-9_.,:=+&|*()\[\]-]{0,255}\Z")
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:+@=/-]{0,255}\Z")


def problem(message: str) -> PydanticCustomError:
    """Return a validation error whose text is `message`, braces and all."""
    return PydanticCustomError("hpctrain", "{message}", {"message": message})


def problems(messages: dict[str, str]) -> PydanticCustomError:
    """Return a validation error for several keys of a section at once: key → message, which completes "KEY …"."""
    text = "; ".join(f"{key} {message}" for key, message in messages.items())
    return PydanticCustomError("hpctrain", "{message}", {"message": text, "keys": messages})


def as_text(value: Any) -> str:
    """Return `value` as one line of text."""
    if isinstance(value, bool | dict | list) or value is None:
        raise problem(f"must be text, not {kind(value)}")
    text = str(value)
    if _CONTROL.search(text):
        raise problem(f"must be one line without control characters, not {short(text)!r}")
    if not text.strip():
        raise problem("must not be empty")
    return text


def matching(pattern: re.Pattern[str], allowed: str) -> Any:
    """Return the validator of text that `pattern` matches from its start; `allowed` says what that is."""

    def check(text: str) -> str:
        if not pattern.match(text):
            raise problem(f"must be {allowed}, not {short(text)!r}")
        return text

    return AfterValidator(check)


def whole(minimum: int, maximum: int) -> Any:
    """Return the validator of whole numbers, both bounds included."""

    def check(value: Any) -> int:
        # Quoted or not, "4" is four; True, 4.0 and 4e0 are not whole numbers as people write them.
        text = str(value).strip()
        if isinstance(value, bool | dict | list) or not re.fullmatch(r"[+-]?[0-9]+", text):
            raise problem(f"must be a whole number, not {kind(value) if isinstance(value, dict | list) else repr(short(text))}")
        if len(text) > 18 or not minimum <= int(text) <= maximum:
            raise problem(f"must be between {minimum} and {maximum}, not {short(text)}")
        return int(text)

    return BeforeValidator(check)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    raise problem(f"must be true or false, not {value!r}" if isinstance(value, str) else f"must be true or false, not {kind(value)}")


def choice(*allowed: str) -> Any:
    """Return the validator of one word of several."""

    def check(text: str) -> str:
        if text not in allowed:
            words = ", ".join(f"'{word}'" for word in allowed[:-1])
            raise problem(f"must be {words} or '{allowed[-1]}', not {text!r}")
        return text

    return AfterValidator(check)


def _seconds(value: Any) -> int:
    try:
        seconds = duration.parse(as_text(value))
    except ValueError as error:
        raise problem(
            f"must be a time limit of Slurm's forms, such as 30 (minutes), 01:30:00 or 2-00:00:00, not {short(str(value))!r}"
        ) from error
    if seconds is None:
        raise problem("must be a limit; leave the key out for the site's default")
    if not 0 < seconds <= duration.MAX_SECONDS:
        raise problem(f"must be more than 0 and at most 366 days, not {short(str(value))!r}")
    return seconds


def _size(value: Any) -> int:
    try:
        size = memory_size.parse(as_text(value))
    except ValueError as error:
        raise problem(f"must be a whole number with K, M, G or T, such as 64G, not {short(str(value))!r}") from error
    if size > memory_size.MAX_BYTES:
        raise problem(f"must be at most 1024T, not {short(str(value))!r}")
    return size


def _positive_size(value: Any) -> int:
    size = _size(value)
    if size == 0:
        raise problem("must be more than 0; all memory of a node is `mem: 0`")
    return size


def _not_an_option(text: str) -> str:
    if text.startswith("-"):
        raise problem(f"must not begin with a dash, because programs would take it for an option, not {short(text)!r}")
    return text


def short(text: str) -> str:
    """Return `text`, cut where a message would grow too long."""
    return text if len(text) <= 60 else f"{text[:60]}…"


def kind(value: Any) -> str:
    """Return how messages call a value of the wrong type."""
    return {"dict": "keys and values", "list": "a list", "bool": "true or false", "NoneType": "nothing"}.get(
        type(value).__name__, repr(value)
    )


Text = Annotated[str, BeforeValidator(as_text)]
Name = Annotated[Text, matching(_NAME, "letters, digits and . _ -")]
JobName = Annotated[Text, matching(_NAME, "1 to 64 of the characters A-Z a-z 0-9 . _ - and start with a letter or digit")]
SlurmName = Annotated[Text, matching(_SLURM_NAME, "letters, digits and . _ - , : + @")]
Features = Annotated[Text, matching(_FEATURES, "feature names joined by & | , with optional brackets and counts")]
Module = Annotated[Text, matching(_MODULE, "a module name such as cuda/12.2")]
Word = Annotated[Text, AfterValidator(_not_an_option)]
Path = Word
#: No options but -l: with -x or -v bash would write secrets into the log, with -n it would run nothing.
Shebang = Annotated[Text, matching(re.compile(r"#!/[A-Za-z0-9._/-]*bash( -l| --login)?\Z"), "a first line such as #!/bin/bash -l")]
HostSuffix = Annotated[Text, matching(re.compile(r"[A-Za-z0-9.-]{1,64}\Z"), "letters, digits, . or -")]
#: Indices of a job array; how high they may be is the site's word (MaxArraySize).
Indices = Annotated[
    Text,
    matching(
        re.compile(r"\d{1,9}(-\d{1,9}(:\d{1,9})?)?(,\d{1,9}(-\d{1,9}(:\d{1,9})?)?)*(%\d{1,9})?\Z", re.ASCII),
        "indices such as 0-9, 1,5,7-9 or 0-99%4",
    ),
]
CpuBind = Annotated[Text, matching(re.compile(r"[A-Za-z0-9_,:.-]{1,2048}\Z"), "a value of srun's --cpu-bind, such as none or cores")]
Boolean = Annotated[bool, BeforeValidator(_boolean)]
Seconds = Annotated[int, BeforeValidator(_seconds)]
Size = Annotated[int, BeforeValidator(_size)]
PositiveSize = Annotated[int, BeforeValidator(_positive_size)]


class Section(BaseModel):
    """Keys and values, all of them known."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _is_section(cls, value: Any) -> Any:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise problem(f"must hold keys and values, not {kind(value) if isinstance(value, list) else repr(str(value))}")
        # `partition:` with nothing behind it means what leaving it out means.
        return {key: item for key, item in value.items() if item is not None}


def as_list(value: Any) -> list[Any]:
    """Return `value`, which must be a list."""
    if isinstance(value, list):
        return value
    raise problem("must be a list, such as [cuda/12.2, python/3.11]")
