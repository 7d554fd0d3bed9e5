"""The form of a rule is held to strictly, all problems at once; and the literals that its regexes
are searched by lose no line.
"""

import re
from collections.abc import Iterator
from functools import cache

import pytest

from hpctrain.explain import rules
from hpctrain.logs import text
from tests.explain import corpus, rule_form

GOOD = """
- id: disk-full
  stage: run
  area: storage
  kind: cause
  certainty: certain
  lines: ['No space left on device: (?P<path>\\S+)']
  literals: [no space left]
  cause: "The disk is full. {path} was being written."
  remedy: df -h
  source: errno.h
  record: {state: [FAILED], exit_code: ['1:0']}
  masks: [killed]
- {id: killed, stage: end, area: end, kind: consequence, certainty: likely, lines: [': Killed'], literals: [': killed'],
   cause: c, remedy: r, source: s}
"""


def problems(text: str) -> list[str]:
    return rule_form.problems(rules.load({"a.yaml": text}), facts={"hang"}, fixes={"port"})


def test_a_good_file_is_read() -> None:
    first, second = rules.load({"a.yaml": GOOD})
    assert (first.id, first.masks, first.certainty) == ("disk-full", ("killed",), "certain")
    assert first.record == rules.RecordPattern(state=("FAILED",), exit_code=("1:0",))
    assert second.kind == "consequence"
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("stage: run", "stage: running", "stage must be one of"),
        ("remedy: df -h", "remedey: df -h", "unknown key 'remedey'"),
        ("remedy: df -h", "fix: port", "remedy is missing"),
        ("masks: [killed]", "masks: killed", "masks must be a list"),
        ("stage: run", "stage: run\n  stage: run", "given twice"),
        ("stage: run", "stage: [", "not YAML"),
    ],
)
def test_what_is_wrong_with_the_form_is_found(old: str, new: str, said: str) -> None:
    assert said in "\n".join(rule_form.form({"a.yaml": GOOD.replace(old, new)}))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "masks: [killed]",
            "masks: [nothing]",
            "['nothing'] in masks or beside are no other rules",
        ),
        ("lines: [': Killed']", "lines: ['(']", "is no regex"),
        ("lines: [': Killed']", "lines: ['.*']", "matches an empty line"),
        ("lines: [': Killed']", "lines: ['(?i)^killed by']", "is not tried behind a rank's label"),
        ("literals: [': killed']", "versions: v", "without the literals"),
        ("literals: [': killed']", "literals: [Killed]", "not in lower case"),
        ("literals: [': killed']", "literals: [ki]", "are shorter than 3"),
        ("{path} was", "{file} was", "['file'] in the cause are no groups"),
        ("id: killed", "id: disk-full", "there are several rules of this id"),
        ("id: killed", "id: Killed", "an id is lower case with dashes"),
        ("kind: consequence", "kind: symptom, fact: nix", "fact 'nix' is not in facts.FACTS"),
        ("kind: consequence", "fix: nix, kind: consequence", "fix 'nix' is not in fixes.FIXES"),
        (
            "kind: consequence, certainty: likely",
            "kind: symptom, certainty: certain",
            "a symptom is likely",
        ),
        (
            "kind: consequence, certainty: likely, lines: [': Killed']",
            "kind: consequence, certainty: likely",
            "nothing fires it",
        ),
    ],
)
def test_what_is_wrong_with_a_rule_among_others_is_found(old: str, new: str, said: str) -> None:
    assert said in "\n".join(problems(GOOD.replace(old, new)))


@cache
def corpus_lines() -> dict[str, str]:
    """Return each line of the corpus that a regex may see, and the same in lower case."""
    raw = {line for kept in corpus.cases() for _, log in kept.contents for line in log.split(b"\n")}
    cleaned = {text.clean(line) for line in raw}
    return {line: line.lower() for line in cleaned | {text.label(line).rest for line in cleaned}}


def signatures() -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return literals, and the regexes that are searched by them."""
    for each in rules.shipped():
        if each.kind != "hint":  # logs are not searched for the literals of hints
            yield each.literals, each.lines
        yield each.unless_literals, each.unless
    for _, literals, pattern in rules.OWN:
        yield literals, (pattern,)


def one_of(literals: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(
        "|".join(
            re.escape(bare := word.removesuffix(rules.WORD_END)) + r"(?!\w)" * (bare != word)
            for word in literals
        )
    )


@pytest.mark.slow
@pytest.mark.extended
def test_each_line_of_the_corpus_that_a_regex_matches_holds_one_of_its_literals() -> None:
    for literals, patterns in signatures():
        if not patterns:
            continue
        held = one_of(literals)
        without = [line for line, low in corpus_lines().items() if held.search(low) is None]
        for pattern in patterns:
            assert [line for line in without if re.search(pattern, line)] == [], pattern


@pytest.mark.slow
@pytest.mark.extended
def test_healthy_logs_are_not_full_of_literals() -> None:
    """A line with one is cleaned, and looked at with regexes: that takes time."""
    healthy = {
        line.lower()
        for kept in corpus.cases()
        if kept.kind == "healthy"
        for _, log in kept.contents
        for line in log.decode(errors="replace").splitlines()
    }
    for each in rules.shipped():
        for word in each.literals if each.kind != "hint" else ():
            held = one_of((word,))
            share = sum(held.search(line) is not None for line in healthy) / len(healthy)
            assert share < 0.04, (each.id, word, share)
