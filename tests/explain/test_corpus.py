"""Every log of the corpus gets the diagnoses that it is to get, and no other; and so it does
however it is written and read.
"""

import re

import pytest

from hpctrain.explain import facts, fixes
from hpctrain.util import installed
from tests.explain import corpus, rule_form

CASES = corpus.cases()
#: No fewer causes than that are told apart.
LEAST_CAUSES = 60


def wrong_with(kept: corpus.Kept) -> list[str]:
    """Return what is wrong with a case, or with what is said of it."""
    wrong = [] if kept.said.get("origin") else ["the case does not say where its log is from"]
    expected = [each["id"] for each in kept.said.get("expect") or ()]
    if (kept.rule in expected) != (kept.kind == "fires") or (kept.kind == "healthy" and expected):
        wrong.append(f"a case of {kept.kind} that expects {expected}")
    said = corpus.explain(kept)
    if kept.kind == "healthy" and (said.failed or said.unexplained is not None):
        wrong.append("a healthy log that failed")
    return [*wrong, *corpus.differences(kept, said)]


@pytest.mark.parametrize("file", sorted({kept.rule or "healthy" for kept in CASES}))
@pytest.mark.slow
def test_the_cases_of_a_file_are_explained_as_they_are_expected(file: str) -> None:
    wrong = {
        kept.name: found
        for kept in CASES
        if (kept.rule or "healthy") == file and (found := wrong_with(kept))
    }
    assert wrong == {}


@pytest.mark.slow
def test_the_rules_are_right_in_themselves() -> None:
    assert rule_form.form(installed.failure_rules()) == []
    assert rule_form.problems(corpus.rules(), facts=facts.FACTS, fixes=fixes.FIXES) == []


def test_every_rule_has_logs_that_fire_it_and_logs_that_must_not() -> None:
    told = [each.id for each in corpus.rules() if each.kind != "consequence"]
    for kind in ("fires", "misses"):
        have = {kept.rule for kept in CASES if kept.kind == kind}
        assert sorted(set(told) - have) == [], f"no case in {kind}"
        assert (
            sorted(name for name in have if name not in {each.id for each in corpus.rules()}) == []
        ), f"{kind} of no rule"


def test_there_are_as_many_causes_as_promised() -> None:
    assert sum(each.kind == "cause" for each in corpus.rules()) >= LEAST_CAUSES


def test_the_healthy_logs_are_as_large_as_the_others() -> None:
    """In bytes and in lines that differ; in files they are fewer, since a healthy log holds many
    kinds of noise at once.
    """
    size: dict[str, int] = {}
    lines: dict[str, int] = {}
    for kind in ("fires", "healthy"):
        texts = [file.read_bytes() for kept in CASES if kept.kind == kind for file in kept.logs]
        size[kind], lines[kind] = (
            sum(map(len, texts)),
            len({line for text in texts for line in text.splitlines()}),
        )
    assert size["healthy"] >= size["fires"]
    assert lines["healthy"] >= lines["fires"], lines


@pytest.mark.slow
def test_every_sentence_of_a_cause_is_filled() -> None:
    for kept in CASES:
        if kept.kind == "fires":
            for diagnosis in corpus.explain(kept).diagnoses:
                assert not re.search(r"(?<!\$)\{[a-z_]+\}", diagnosis.cause), (
                    f"{kept.name}: {diagnosis.cause}"
                )
                assert diagnosis.fix.text.strip(), kept.name
