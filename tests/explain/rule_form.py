"""The form that failure rules are held to (hpctrain/explain/rules/README.md)."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any, get_args

import yaml

from hpctrain.explain import text
from hpctrain.explain.model import STAGES, Certainty
from hpctrain.explain.rules import AREAS, KNOWN_NAMES, WORD_END, FailureRule, Kind

_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")
#: Flags in front of what is to be the beginning of a line.
_FLAGS = re.compile(r"\(\?[a-zA-Z]+\)\^")
_PROJECT = re.compile(r"(?m)^hpctrain (?!doctor|lint)")
_NAME = re.compile(r"\{([^{}]*)\}")
#: Shorter literals are in every second line.
MIN_LENGTH = 3
_LISTS = (
    "lines",
    "literals",
    "but_not",
    "near",
    "unless",
    "unless_literals",
    "beside",
    "masks",
)
_TEXTS = (
    "id",
    "stage",
    "area",
    "kind",
    "certainty",
    "cause",
    "remedy",
    "source",
    "fact",
    "fix",
    "script",
    "versions",
)
_NEEDED = ("id", "stage", "area", "kind", "certainty", "cause", "remedy", "source")
_KEYS = tuple(field.name for field in fields(FailureRule))
_ONE_OF: dict[str, tuple[str, ...]] = {
    "stage": STAGES,
    "area": AREAS,
    "kind": get_args(Kind),
    "certainty": get_args(Certainty),
}


def form(texts: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the form of the files, each with file, line and id."""
    wrong: list[str] = []
    for file in sorted(texts):
        for place, value in _items(file, texts[file], wrong):
            _rule(place, value, wrong)
    return wrong


def problems(
    rules: Collection[FailureRule], *, facts: Collection[str], fixes: Collection[str]
) -> list[str]:
    """Return what is wrong with the rules as a whole, one sentence each: ids, masks, regexes,
    literals, and names of facts and fixes.
    """
    ids = [rule.id for rule in rules]
    found = [
        f"{rule_id}: there are {ids.count(rule_id)} rules of this id"
        for rule_id in sorted(set(ids))
        if ids.count(rule_id) > 1
    ]
    for rule in rules:
        found += [f"{rule.id}: {what}" for what in _of_rule(rule, set(ids), facts, fixes)]
    return found


def _of_rule(
    rule: FailureRule, ids: set[str], facts: Collection[str], fixes: Collection[str]
) -> Iterator[str]:
    if not _ID.match(rule.id):
        yield "an id is lower case with dashes"
    if rule.kind == "symptom" and rule.certainty != "likely":
        yield "a symptom is likely"
    if not (rule.lines or rule.record or rule.fact):
        yield "nothing fires it: give lines, record or fact"
    yield from (
        f"{name!r} in masks or beside is not a rule"
        for name in (*rule.masks, *rule.beside)
        if name not in ids
    )
    if rule.id in rule.masks:
        yield "masks itself"
    yield from _of_script(rule)
    if rule.fact is not None and rule.fact not in facts:
        yield f"fact {rule.fact!r} is not in facts.FACTS"
    if rule.fix is not None and rule.fix not in fixes:
        yield f"fix {rule.fix!r} is not in fixes.FIXES"
    names = set(KNOWN_NAMES)
    for key in ("lines", "but_not", "near", "unless"):
        for pattern in getattr(rule, key):
            yield from _of_regex(key, pattern, names)
    if rule.record and rule.record.reason:
        yield from _of_regex("reason", rule.record.reason, names)
    if rule.fact is None:  # a fact's groups are known when it is asked
        yield from (
            f"{name!r} in the cause is no group"
            for name in _NAME.findall(rule.cause)
            if name not in names
        )
    yield from _of_literals(rule)


def _of_script(rule: FailureRule) -> Iterator[str]:
    own = rule.script or text.script_remedy(rule.remedy)
    if rule.kind == "consequence":
        return
    if _PROJECT.search(own):
        yield "script: on a stranger's log, no command needs a project"
    lost = rule.remedy.count("\n") > own.count("\n") and rule.script is None
    if lost and not rule.id.startswith("hpctrain-"):
        yield "script: nothing says what the remedy's command stands for in a script"


def _of_literals(rule: FailureRule) -> Iterator[str]:
    for key, literals in (("lines", rule.literals), ("unless", rule.unless_literals)):
        if getattr(rule, key) and not literals:
            yield f"{key} are given without the literals that they are searched by"
        yield from (
            f"literal {word!r} is shorter than {MIN_LENGTH}, or not in lower case"
            for word in literals
            if len(word.removesuffix(WORD_END)) < MIN_LENGTH or word != word.lower()
        )


def _of_regex(key: str, pattern: str, names: set[str]) -> Iterator[str]:
    try:
        names.update(re.compile(pattern).groupindex)
    except re.error as error:
        yield f"{key}: {pattern!r} is no regex: {error}"
        return
    if re.search(pattern, ""):
        yield f"{key}: {pattern!r} matches an empty line"
    if key in ("lines", "unless") and _FLAGS.match(pattern):
        yield (
            f"{key}: {pattern!r} is not tried behind a rank's label, because it does not begin with"
            " '^'; write '^(?i:…)'"
        )


def _items(file: str, text: str, wrong: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield place and value of each rule of a file; every scalar is the text that was written."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        wrong.append(f"{file}: not YAML: {' '.join(str(error).split())}")
        return
    if node is None:
        return
    if not isinstance(node, yaml.SequenceNode):
        wrong.append(f"{file}: must be a list of rules")
        return
    for item in node.value:
        place = f"{file}:{item.start_mark.line + 1}"
        value = _plain(item, place, wrong)
        if isinstance(value, dict):
            yield place, value
        else:
            wrong.append(f"{place}: a rule is a mapping")


def _plain(node: yaml.Node, place: str, wrong: list[str]) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, place, wrong) for item in node.value]
    built: dict[str, Any] = {}
    for key, value in node.value:
        if key.value in built:
            wrong.append(f"{place}: {key.value!r} is given twice")
        built[key.value] = _plain(value, place, wrong)
    return built


def _rule(place: str, value: dict[str, Any], wrong: list[str]) -> None:
    place = f"{place}: {value.get('id', '?')}"
    wrong += [f"{place}: unknown key {key!r}" for key in value if key not in _KEYS]
    wrong += [f"{place}: {key} is missing" for key in _NEEDED if not value.get(key)]
    for key in _TEXTS:
        if key in value and not isinstance(value[key], str):
            wrong.append(f"{place}: {key} must be a text")
        elif key in _ONE_OF and key in value and value[key] not in _ONE_OF[key]:
            wrong.append(
                f"{place}: {key} must be one of {', '.join(_ONE_OF[key])}, not {value[key]!r}"
            )
    for key in _LISTS:
        if key in value and not _is_list(value[key]):
            wrong.append(f"{place}: {key} must be a list of texts")
    for key in ("all", "passing"):
        if value.get(key, "false") not in ("true", "false"):
            wrong.append(f"{place}: {key} must be true or false")
    if "record" in value:
        _record(place, value["record"], wrong)


def _record(place: str, value: Any, wrong: list[str]) -> None:
    if not isinstance(value, dict):
        wrong.append(f"{place}: record must be a mapping")
        return
    wrong += [
        f"{place}: unknown key {key!r} in record"
        for key in value
        if key not in ("state", "exit_code", "reason")
    ]
    for key in ("state", "exit_code"):
        if not _is_list(value.get(key, [])):
            wrong.append(f"{place}: record's {key} must be a list of texts")
    if not value:
        wrong.append(f"{place}: record is empty")


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
