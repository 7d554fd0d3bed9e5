"""A failure rule: one cause, how it shows, and what to do. Data, read by `load`; rules/README.md has the form. PURE."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, get_args

import yaml

from hpctrain import data
from hpctrain.explain import scan_literals
from hpctrain.explain.model import STAGES, Certainty, Stage

Kind = Literal["cause", "symptom", "consequence"]
AREAS = ("submission", "queue", "environment", "launch", "communication", "memory", "data", "numbers", "hardware", "storage", "time", "end")
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")
#: Flags in front of what is to be the beginning of a line.
_FLAGS = re.compile(r"\(\?[a-zA-Z]+\)\^")
_NAME = re.compile(r"\{([^{}]*)\}")
_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Names that a cause may use though no regex has them: what the engine and the record know.
KNOWN_NAMES = frozenset(
    "rank node job state exit_code signal reason time_limit elapsed step max_steps count memory nodes".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the scheduler's record has to say. Empty fields say nothing."""

    state: tuple[str, ...] = ()
    exit_code: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """See rules/README.md."""

    id: str
    stage: Stage
    area: str
    kind: Kind
    certainty: Certainty
    cause: str
    remedy: str
    source: str
    lines: tuple[str, ...] = ()
    literals: tuple[str, ...] = ()
    but_not: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    record: Record | None = None
    all: bool = False
    fact: str | None = None
    masks: tuple[str, ...] = ()
    fix: str | None = None
    versions: str | None = None


_LISTS = ("lines", "literals", "but_not", "near", "unless", "masks")
_TEXTS = ("id", "stage", "area", "kind", "certainty", "cause", "remedy", "source", "fact", "fix", "versions")
_NEEDED = ("id", "stage", "area", "kind", "certainty", "cause", "remedy", "source")
_KEYS = tuple(field.name for field in fields(Rule))
_ONE_OF: dict[str, tuple[str, ...]] = {"stage": STAGES, "area": AREAS, "kind": get_args(Kind), "certainty": get_args(Certainty)}


def load(texts: Mapping[str, str]) -> tuple[Rule, ...]:
    """Return the rules in `texts` (file name → YAML), in the order of the files' names.

    What is checked here is what every reading needs; `problems` finds the rest.

    Raises:
        ValueError: a file is not as rules/README.md says: all problems, each with its file, line and id.
    """
    wrong: list[str] = []
    rules: list[Rule] = []
    for file in sorted(texts):
        for place, value in _items(file, texts[file], wrong):
            rule = _rule(place, value, wrong)
            rules += [rule] if rule else []
    if wrong:
        raise ValueError("\n".join(wrong))
    return tuple(rules)


@cache
def shipped() -> tuple[Rule, ...]:
    """Return the rules that come with hpctrain."""
    return load(data.failure_rules())


def problems(rules: Collection[Rule], *, facts: Collection[str], fixes: Collection[str]) -> list[str]:
    """Return what is wrong with the rules as a whole, one sentence each: ids, masks, regexes, literals, and names of facts and fixes."""
    ids = [rule.id for rule in rules]
    found = [f"{rule_id}: there are {ids.count(rule_id)} rules of this id" for rule_id in sorted(set(ids)) if ids.count(rule_id) > 1]
    for rule in rules:
        found += [f"{rule.id}: {what}" for what in _of_rule(rule, set(ids), facts, fixes)]
    return found


def _of_rule(rule: Rule, ids: set[str], facts: Collection[str], fixes: Collection[str]) -> Iterator[str]:
    if not _ID.match(rule.id):
        yield "an id is lower case with dashes"
    if rule.kind == "symptom" and rule.certainty != "likely":
        yield "a symptom is likely"
    if not (rule.lines or rule.record or rule.fact):
        yield "nothing fires it: give lines, record or fact"
    yield from (f"masks {name!r}, which is no rule" for name in rule.masks if name not in ids)
    if rule.id in rule.masks:
        yield "masks itself"
    if rule.fact is not None and rule.fact not in facts:
        yield f"fact {rule.fact!r} is not in facts.FACTS"
    if rule.fix is not None and rule.fix not in fixes:
        yield f"fix {rule.fix!r} is not in fixes.FIXES"
    names = set(KNOWN_NAMES)
    for key in ("lines", "but_not", "near", "unless"):
        for pattern in getattr(rule, key):
            yield from _of_regex(rule, key, pattern, names)
    if rule.record and rule.record.reason:
        yield from _of_regex(rule, "reason", rule.record.reason, names)
    if rule.fact is None:  # a fact's groups are known when it is asked
        yield from (f"{name!r} in the cause is no group" for name in _NAME.findall(rule.cause) if name not in names)
    yield from (
        f"literal {word!r} is shorter than {scan_literals.MIN_LENGTH}" for word in rule.literals if len(word) < scan_literals.MIN_LENGTH
    )


def _of_regex(rule: Rule, key: str, pattern: str, names: set[str]) -> Iterator[str]:
    try:
        names.update(re.compile(pattern).groupindex)
    except re.error as error:
        yield f"{key}: {pattern!r} is no regex: {error}"
        return
    if re.search(pattern, ""):
        yield f"{key}: {pattern!r} matches an empty line"
    if key in ("lines", "unless") and _FLAGS.match(pattern):
        yield f"{key}: {pattern!r} is not tried behind a rank's label, because it does not begin with '^'; write '^(?i:…)'"
    if key != "unless" and (key != "lines" or rule.literals):
        return
    clauses = scan_literals.clauses(pattern)
    if not clauses:
        least = scan_literals.MIN_LENGTH
        yield f"{key}: no word of {least} letters is in every line that {pattern!r} matches; give literals, or another regex"
    elif key == "lines" and scan_literals.worth(clauses[0]) < 0 and "error: " not in clauses[0]:
        words = sorted(clauses[0])[:6]
        yield f"{key}: healthy logs are full of the words that {pattern!r} is searched by, {words}; give literals, or another regex"


def _items(file: str, text: str, wrong: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield place and value of each rule of a file; every scalar is the text that was written."""
    try:
        node = yaml.compose(text, Loader=_Loader)
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


def _rule(place: str, value: dict[str, Any], wrong: list[str]) -> Rule | None:
    place = f"{place}: {value.get('id', '?')}"
    before = len(wrong)
    wrong += [f"{place}: unknown key {key!r}" for key in value if key not in _KEYS]
    wrong += [f"{place}: {key} is missing" for key in _NEEDED if not value.get(key)]
    for key in _TEXTS:
        if key in value and not isinstance(value[key], str):
            wrong.append(f"{place}: {key} must be a text")
        elif key in _ONE_OF and key in value and value[key] not in _ONE_OF[key]:
            wrong.append(f"{place}: {key} must be one of {', '.join(_ONE_OF[key])}, not {value[key]!r}")
    for key in _LISTS:
        if key in value and not _is_list(value[key]):
            wrong.append(f"{place}: {key} must be a list of texts")
    if value.get("all", "false") not in ("true", "false"):
        wrong.append(f"{place}: all must be true or false")
    record = _record(place, value["record"], wrong) if "record" in value else None
    if len(wrong) > before:
        return None
    texts: dict[str, Any] = {key: value[key].strip() for key in _TEXTS if key in value}
    lists: dict[str, Any] = {key: tuple(value[key]) for key in _LISTS if key in value}
    return Rule(**texts, **lists, record=record, all=value.get("all") == "true")


def _record(place: str, value: Any, wrong: list[str]) -> Record | None:
    if not isinstance(value, dict):
        wrong.append(f"{place}: record must be a mapping")
        return None
    wrong += [f"{place}: unknown key {key!r} in record" for key in value if key not in ("state", "exit_code", "reason")]
    for key in ("state", "exit_code"):
        if not _is_list(value.get(key, [])):
            wrong.append(f"{place}: record's {key} must be a list of texts")
            return None
    if not value:
        wrong.append(f"{place}: record is empty")
    return Record(state=tuple(value.get("state", ())), exit_code=tuple(value.get("exit_code", ())), reason=value.get("reason"))


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
