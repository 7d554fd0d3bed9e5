"""Every log of the corpus gets the diagnoses that it is to get, and no other; and so it does however it is written and read."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import corpus

from hpctrain.explain import facts, fixes, rule

CASES = corpus.cases()
#: No fewer causes than that are told apart.
LEAST_CAUSES = 60


@pytest.mark.parametrize("kept", CASES, ids=lambda kept: kept.name)
def test_the_case_is_explained_as_it_is_expected(kept: corpus.Kept) -> None:
    assert kept.said.get("origin"), "case.yaml does not say where the log is from"
    expected = [each["id"] for each in kept.said.get("expect") or ()]
    if kept.kind == "fires":
        assert kept.rule in expected
    else:
        assert kept.rule not in expected
        assert kept.kind == "misses" or not expected
    said = corpus.explain(kept)
    assert corpus.differences(kept, said) == []
    if kept.kind == "healthy":
        assert said.unexplained is None
        assert not said.failed


def test_the_rules_are_right_in_themselves() -> None:
    assert rule.problems(corpus.rules(), facts=facts.FACTS, fixes=fixes.FIXES) == []


def test_every_rule_has_logs_that_fire_it_and_logs_that_must_not() -> None:
    told = [each.id for each in corpus.rules() if each.kind != "consequence"]
    for kind in ("fires", "misses"):
        have = {kept.rule for kept in CASES if kept.kind == kind}
        assert sorted(set(told) - have) == [], f"no case in {kind}"
        assert sorted(name for name in have if name not in {each.id for each in corpus.rules()}) == [], f"{kind} of no rule"


def test_there_are_as_many_causes_as_promised() -> None:
    assert sum(each.kind == "cause" for each in corpus.rules()) >= LEAST_CAUSES


def test_the_healthy_logs_are_as_large_as_the_others() -> None:
    """In bytes and in lines that differ; in files they are fewer, since a healthy log holds many kinds of noise at once."""
    size: dict[str, int] = {}
    lines: dict[str, int] = {}
    for kind in ("fires", "healthy"):
        texts = [file.read_bytes() for kept in CASES if kept.kind == kind for file in kept.logs]
        size[kind], lines[kind] = sum(map(len, texts)), len({line for text in texts for line in text.splitlines()})
    assert size["healthy"] >= size["fires"]
    assert lines["healthy"] >= lines["fires"], lines


def test_every_sentence_of_a_cause_is_filled() -> None:
    for kept in CASES:
        if kept.kind == "fires":
            for diagnosis in corpus.explain(kept).diagnoses:
                assert not re.search(r"(?<!\$)\{[a-z_]+\}", diagnosis.cause), f"{kept.name}: {diagnosis.cause}"
                assert diagnosis.fix.text.strip(), kept.name
