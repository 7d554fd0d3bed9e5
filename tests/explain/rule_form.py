"""The form that failure rules are held to (hpctrain/explain/rules/README.md)."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any, get_args

import yaml

from hpctrain.explain import text
from hpctrain.explain.model import STAGES, Certainty
from hpctrain.explain.rules import AREAS, KNOWN_NAMES, WORD_END, FailureRule, Kind, RecordPattern

_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")
#: Flags in front of what is to be the beginning of a line.
_FLAGS = re.compile(r"\(\?[a-zA-Z]+\)\^")
_PROJECT = re.compile(r"(?m)^hpctrain (?!doctor|lint)")
_NAME = re.compile(r"\{([^{}]*)\}")
#: Shorter literals are in every second line.
MIN_LENGTH = 3
_NEEDED = ("id", "stage", "area", "kind", "certainty", "cause", "remedy", "source")
_ONE_OF: dict[str, tuple[str, ...]] = {
    "stage": STAGES,
    "area": AREAS,
    "kind": get_args(Kind),
    "certainty": get_args(Certainty),
    "all": ("true", "false"),
    "passing": ("true", "false"),
}


class _Strict(yaml.BaseLoader):
    """Loads each scalar as the text that was written, and no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.YAMLError(f"{sorted(twice)} given twice")
        return super().construct_mapping(node, deep)


def form(texts: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the form of the files, each with file and id."""
    wrong: list[str] = []
    for file, written in sorted(texts.items()):
        try:
            given = yaml.load(written, _Strict) or []  # noqa: S506 - it creates only strings
        except yaml.YAMLError as error:
            wrong.append(f"{file}: not YAML: {' '.join(str(error).split())}")
            continue
        rules = given if isinstance(given, list) else [given]
        wrong += [f"{file}: {rule.get('id')}: {what}" for rule in rules for what in _of_keys(rule)]
    return wrong


def _of_keys(rule: dict[str, Any], kind: type = FailureRule) -> Iterator[str]:
    types = {field.name: str(field.type) for field in fields(kind)}
    yield from (f"unknown key {key!r}" for key in rule if key not in types)
    needed = _NEEDED if kind is FailureRule else ()
    yield from (f"{key} is missing" for key in needed if not rule.get(key))
    for key, value in rule.items():
        if key == "record":
            yield from _of_keys(value, RecordPattern)
        elif types.get(key, "").startswith("tuple") != isinstance(value, list):
            yield f"{key} must be a list, or a text"
        elif key in _ONE_OF and value not in _ONE_OF[key] and kind is FailureRule:
            yield f"{key} must be one of {', '.join(_ONE_OF[key])}, not {value!r}"


def problems(
    rules: Collection[FailureRule], *, facts: Collection[str], fixes: Collection[str]
) -> list[str]:
    """Return what is wrong with the rules as a whole, one sentence each: ids, masks, regexes,
    literals, and names of facts and fixes.
    """
    ids = [rule.id for rule in rules]
    return [f"{rule.id}: {what}" for rule in rules for what in _of_rule(rule, ids, facts, fixes)]


def _of_rule(
    rule: FailureRule, ids: list[str], facts: Collection[str], fixes: Collection[str]
) -> Iterator[str]:
    own = rule.script or text.script_remedy(rule.remedy)
    lost = rule.remedy.count("\n") > own.count("\n") and rule.script is None
    is_said = rule.kind != "consequence"
    names = set(KNOWN_NAMES)
    for key in ("lines", "but_not", "near", "unless"):
        for pattern in getattr(rule, key):
            yield from _of_regex(key, pattern, names)
    # A fact's groups are known when it is asked.
    unknown = [] if rule.fact else [n for n in _NAME.findall(rule.cause) if n not in names]
    named = [name for name in (*rule.masks, *rule.beside) if name not in ids or name == rule.id]
    short = [
        word
        for word in (*rule.literals, *rule.unless_literals)
        if len(word.removesuffix(WORD_END)) < MIN_LENGTH or word != word.lower()
    ]
    wrong = {
        "there are several rules of this id": ids.count(rule.id) > 1,
        "an id is lower case with dashes": not _ID.match(rule.id),
        "a symptom is likely": rule.kind == "symptom" and rule.certainty != "likely",
        "nothing fires it: give lines, record or fact": not (
            rule.lines or rule.record or rule.fact
        ),
        f"{named} in masks or beside are no other rules": named,
        f"fact {rule.fact!r} is not in facts.FACTS": rule.fact and rule.fact not in facts,
        f"fix {rule.fix!r} is not in fixes.FIXES": rule.fix and rule.fix not in fixes,
        f"{unknown} in the cause are no groups": unknown,
        "lines are given without the literals that they are searched by": bool(rule.lines)
        > bool(rule.literals),
        "unless is given without literals": bool(rule.unless) > bool(rule.unless_literals),
        f"literals {short} are shorter than {MIN_LENGTH}, or not in lower case": short,
        "script: on a stranger's log, no command needs a project": is_said and _PROJECT.search(own),
        "script: nothing says what the remedy's command stands for in a script": is_said
        and lost
        and not rule.id.startswith("hpctrain-"),
    }
    yield from (what for what, is_wrong in wrong.items() if is_wrong)


def _of_regex(key: str, pattern: str, names: set[str]) -> Iterator[str]:
    try:
        names.update(re.compile(pattern).groupindex)
    except re.error as error:
        yield f"{key}: {pattern!r} is no regex: {error}"
        return
    if re.search(pattern, ""):
        yield f"{key}: {pattern!r} matches an empty line"
    if key in ("lines", "unless") and _FLAGS.match(pattern):
        yield f"{key}: {pattern!r} is not tried behind a rank's label; write '^(?i:…)'"
