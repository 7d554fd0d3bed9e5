"""The form of a profile as JSON Schema, for editors: made from the types of `clusters.profile`, and kept in profile.schema.json.

Each value may also be written `{value: …, evidence: …, source: …}`, each section may carry `evidence` and `source`, and null takes a
value of the extended profile away. What is only checked by hpctrain itself (regular expressions, names that have to exist) is
left out.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator

from hpctrain import fieldtypes
from hpctrain.clusters.evidence import EVIDENCE
from hpctrain.clusters.load import LEVELS
from hpctrain.clusters.profile import Profile
from hpctrain.fieldtypes import Section

FILE = Path(__file__).with_name("profile.schema.json")
_ANNOTATION = {"evidence": {"$ref": "#/$defs/evidence"}, "source": {"$ref": "#/$defs/source"}}
_DURATION = {
    "type": ["string", "integer"],
    "description": "a duration in Slurm's forms: minutes, MM:SS, HH:MM:SS, D-HH:MM:SS",
    "examples": ["24:00:00", "2-00:00:00"],
}
_SIZE = {"type": ["string", "integer"], "description": "a size with K, M, G or T", "examples": ["64G", "494000M"]}
_TEXT: dict[str, Any] = {"type": ["string", "number", "boolean"]}


def generate() -> dict[str, Any]:
    """Return the schema."""
    definitions: dict[str, Any] = {
        "evidence": {
            "description": "how well the values here and below are attested; "
            + "; ".join(f"{level}: {EVIDENCE[level]}" for level in LEVELS),
            "enum": list(LEVELS),
        },
        "source": {"description": "where they come from: a URL, a key of `sources`, or `docs`", "type": "string"},
    }
    top = _section(Profile, definitions)
    top["properties"] |= {
        "sources": {
            "description": "names for URLs, for use in `source`",
            "type": "object",
            "additionalProperties": {"type": "string", "format": "uri"},
        },
        "extends": {"description": "the profile that this one is laid over; its own name means the one it would hide", "type": "string"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hpctrain cluster profile",
        **top,
        "anyOf": [{"required": ["title"]}, {"required": ["extends"]}],
        "$defs": dict(sorted(definitions.items())),
    }


def as_text() -> str:
    """Return the schema as its file holds it."""
    return json.dumps(generate(), indent=2, ensure_ascii=False) + "\n"


def _section(model: type[Section], definitions: dict[str, Any]) -> dict[str, Any]:
    words = _descriptions(model)
    properties: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        made = _any(field.annotation, list(field.metadata), definitions)
        properties[name] = made | ({"description": words[name]} if name in words else {})
    description = (inspect.getdoc(model) or "").partition("\n\n")[0]
    return {"description": description, "type": ["object", "null"], "properties": properties | _ANNOTATION, "additionalProperties": False}


def _any(kind: Any, metadata: list[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type with what Annotated carries."""
    while hasattr(kind, "__metadata__") or get_origin(kind) in (Union, types.UnionType):
        if get_origin(kind) in (Union, types.UnionType):
            kind = next(each for each in get_args(kind) if each is not type(None))
        else:
            kind, metadata = kind.__origin__, [*kind.__metadata__, *metadata]
    if isinstance(kind, type) and issubclass(kind, Section):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}
            definitions[kind.__name__] = _section(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if get_origin(kind) is dict:
        item = _any(get_args(kind)[1], [], definitions)
        return {"type": ["object", "null"], "properties": _ANNOTATION, "additionalProperties": item}
    if get_origin(kind) is tuple:
        item = _any(get_args(kind)[0], [], definitions)
        return _value(f"list of {item['$ref'].rpartition('/')[2]}", {"type": "array", "items": item}, definitions)
    return _value(*_leaf(kind, metadata), definitions)


def _leaf(kind: Any, metadata: list[Any]) -> tuple[str, dict[str, Any]]:
    """Return name and schema of a value; limits and choices are asked of the validators that check them."""
    functions = [each.func for each in metadata if isinstance(each, BeforeValidator | AfterValidator)]
    for name, known, schema in (("duration", fieldtypes.Seconds, _DURATION), ("size", fieldtypes.Size, _SIZE)):
        if get_args(known)[1].func in functions:
            return name, schema
    limits: dict[str, Any] = {}
    for function in functions:
        limits |= inspect.getclosurevars(function).nonlocals
    if kind is bool:
        return "boolean", {"type": "boolean"}
    if kind is int:
        least, most = limits["minimum"], limits["maximum"]
        return f"{least} to {most}", {"type": "integer", "minimum": least, "maximum": most}
    if isinstance(limits.get("allowed"), tuple):
        return " or ".join(limits["allowed"]), {"enum": list(limits["allowed"])}
    return "text", _TEXT


def _value(name: str, leaf: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the reference to a value that may carry its evidence."""
    annotated = {"type": "object", "properties": {"value": leaf, **_ANNOTATION}, "required": ["value"], "additionalProperties": False}
    key = name.replace(" ", "-")
    definitions[key] = {"anyOf": [leaf, annotated, {"type": "null"}]}
    return {"$ref": f"#/$defs/{key}"}


@cache
def _descriptions(model: type[Section]) -> dict[str, str]:
    """Return what the type's docstring and comments say of its fields."""
    source = inspect.getsource(model)
    found = {match[1]: match[2].strip() for match in re.finditer(r"^    (\w+): .*?  # (.*)$", source, re.MULTILINE)}
    attributes = (inspect.getdoc(model) or "").partition("Attributes:")[2]
    for match in re.finditer(r"^ {4}([\w, ]+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE):
        found |= dict.fromkeys(match[1].split(", "), " ".join(match[2].split()))
    return found
