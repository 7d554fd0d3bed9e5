"""The form of a rule is held to strictly, all problems at once; and the words that a regex is searched by lose no line."""

from __future__ import annotations

import random
import re

import pytest

from hpctrain.explain import rule, scan_literals

GOOD = """
- id: disk-full
  stage: run
  area: storage
  kind: cause
  certainty: certain
  lines: ['No space left on device: (?P<path>\\S+)']
  cause: "The disk is full. {path} was being written."
  remedy: df -h
  source: errno.h
  record: {state: [FAILED], exit_code: ['1:0']}
  masks: [killed]
- {id: killed, stage: end, area: end, kind: consequence, certainty: likely, lines: [': Killed'], cause: c, remedy: r, source: s}
"""


def problems(text: str) -> list[str]:
    return rule.problems(rule.load({"a.yaml": text}), facts={"hang"}, fixes={"port"})


def test_a_good_file_is_read() -> None:
    first, second = rule.load({"a.yaml": GOOD})
    assert (first.id, first.masks, first.certainty) == ("disk-full", ("killed",), "certain")
    assert first.record == rule.Record(state=("FAILED",), exit_code=("1:0",))
    assert second.kind == "consequence"
    assert problems(GOOD) == []


def test_everything_that_is_wrong_with_the_form_is_said_at_once() -> None:
    bad = (
        GOOD.replace("stage: run", "stage: running").replace("remedy: df -h", "remedey: df -h").replace("masks: [killed]", "masks: killed")
    )
    with pytest.raises(ValueError, match="stage must be one of") as found:
        rule.load({"a.yaml": bad, "b.yaml": "x: [", "c.yaml": "a: 1"})
    said = str(found.value)
    for part in (
        "a.yaml:2: disk-full: unknown key 'remedey'",
        "remedy is missing",
        "masks must be a list of texts",
        "b.yaml: not YAML",
        "c.yaml: must be a list",
    ):
        assert part in said


def test_a_key_that_is_given_twice_is_found() -> None:
    with pytest.raises(ValueError, match="'stage' is given twice"):
        rule.load({"a.yaml": GOOD.replace("  stage: run\n", "  stage: run\n  stage: end\n")})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("masks: [killed]", "masks: [nothing]", "masks 'nothing', which is no rule"),
        ("lines: [': Killed']", "lines: ['(']", "is no regex"),
        ("lines: [': Killed']", "lines: ['.*']", "matches an empty line"),
        ("lines: [': Killed']", "lines: ['(?i)^killed by']", "is not tried behind a rank's label"),
        ("lines: [': Killed']", "lines: ['\\d+ \\d+']", "no word of 3 letters"),
        ("lines: [': Killed']", "lines: ['loss']", "healthy logs are full of"),
        ("{path} was", "{file} was", "'file' in the cause is no group"),
        ("id: killed", "id: disk-full", "there are 2 rules of this id"),
        ("id: killed", "id: Killed", "an id is lower case with dashes"),
        ("kind: consequence", "kind: symptom, fact: nix", "fact 'nix' is not in facts.FACTS"),
        ("kind: consequence", "fix: nix, kind: consequence", "fix 'nix' is not in fixes.FIXES"),
        ("kind: consequence, certainty: likely", "kind: symptom, certainty: certain", "a symptom is likely"),
        ("kind: consequence, certainty: likely, lines: [': Killed']", "kind: consequence, certainty: likely", "nothing fires it"),
    ],
)
def test_what_is_wrong_with_a_rule_among_others_is_found(old: str, new: str, said: str) -> None:
    assert any(said in problem for problem in problems(GOOD.replace(old, new))), problems(GOOD.replace(old, new))


def test_a_regex_without_words_may_be_given_some() -> None:
    assert problems(GOOD.replace("lines: [': Killed']", "lines: ['\\d+ \\d+'], literals: [abc]")) == []


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"(CUDA|HIP) out of memory", {"cuda out of memory", "hip out of memory"}),
        (r"oom[-_]kill", {"oom-kill", "oom_kill"}),
        (r"(?i)No Space", {"no space"}),
        (r"ab*cde", {"cde"}),
        (r"is (?:nan|inf)\b", {"is nan\0", "is inf\0"}),
        (r"(?:x|abc)", None),
        (r"'loss': 0(?:\.0+)?, ", {"'loss': 0, ", "'loss': 0.0"}),
        (r"foo(?=bar)baz", {"foobaz"}),
    ],
)
def test_the_words_of_a_regex(pattern: str, words: set[str] | None) -> None:
    found = scan_literals.clauses(pattern)
    assert (set(found[0]) if found else None) == words


@pytest.mark.slow
def test_each_line_that_a_shipped_regex_matches_holds_its_words() -> None:
    """Lines are made from each regex by taking its parsed form at random."""
    draw = random.Random(1)
    checked = 0
    for each in rule.shipped():
        for pattern in (*each.lines, *each.unless):
            for line in {made(pattern, draw) for _ in range(12)}:
                if not line.isascii() or re.search(pattern, line) is None:
                    continue
                checked += 1
                for clause in scan_literals.clauses(pattern):
                    assert any(holds(line.lower(), word) for word in clause), (pattern, line, sorted(clause))
    assert checked > 1000


def holds(line: str, word: str) -> bool:
    return re.search(re.escape(word[:-1]) + r"(?!\w)", line) is not None if word.endswith("\0") else word in line


def made(pattern: str, draw: random.Random) -> str:
    return _of(re._parser.parse(pattern), draw)  # type: ignore[attr-defined]


def _of(nodes: object, draw: random.Random) -> str:
    out = ""
    for kind, value in nodes:  # type: ignore[attr-defined]
        match str(kind):
            case "LITERAL":
                out += draw.choice((chr(value), chr(value)))
            case "NOT_LITERAL" | "ANY":
                out += draw.choice("ax7 ")
            case "IN":
                out += _one_of(value, draw)
            case "SUBPATTERN":
                out += _of(value[3], draw)
            case "BRANCH":
                out += _of(draw.choice(value[1]), draw)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, most, item = value
                for _ in range(draw.randint(least, min(int(most), least + 2))):
                    out += _of(item, draw)
    return out


def _one_of(items: list[tuple[object, object]], draw: random.Random) -> str:
    kind, value = draw.choice(items)
    match str(kind):
        case "LITERAL":
            return chr(value)  # type: ignore[arg-type]
        case "RANGE":
            return chr(draw.randint(*value))  # type: ignore[misc]
        case "CATEGORY":
            return {"CATEGORY_DIGIT": "4", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "w"}.get(str(value), "-")
    return "z"
