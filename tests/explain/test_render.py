"""How an explanation looks on a terminal."""

from __future__ import annotations

import pytest

from hpctrain.explain import render
from hpctrain.explain.model import Diagnosis, Evidence, Explanation, Fix

WRAPPED = (
    "Workers that are spawned get copies of the dataset and its collator: use functions of a module instead of lambdas and local ones, "
    "and open\n"
    "files and connections in the worker.\n"
)


def fix(text: str, width: int = 80) -> list[str]:
    diagnosis = Diagnosis(
        id="x", stage="run", certainty="certain", cause="c", fix=Fix(text=text), evidence=(Evidence(file="a.log", line=1, text="t"),)
    )
    found = render.lines(Explanation(diagnoses=(diagnosis,)), width=width)
    return found[next(n for n, line in enumerate(found) if line.startswith("fix: ")) :]


def test_a_sentence_of_several_lines_is_filled_as_one() -> None:
    assert fix(WRAPPED + "hpctrain submit -- --dataloader_num_workers 0") == [
        "fix: Workers that are spawned get copies of the dataset and its collator: use",
        "  functions of a module instead of lambdas and local ones, and open files and",
        "  connections in the worker.",
        "  hpctrain submit -- --dataloader_num_workers 0",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Look for it:\nhpctrain logs --err", "halve it\nask for less\ntype this", "One.\nTwo.\ngrep -n A B",
        "hpctrain render\nhpctrain submit\nhpctrain watch", "x " * 45 + "and\nmy-own-command --its-flag",
        "x " * 45 + "and\nhpctrain render\nsqueue --me", "export " + "A=1 " * 25 + "\nthen look at it\nsqueue --me",
    ],
)  # fmt: skip
def test_what_is_to_be_typed_stands_on_a_line_of_its_own(text: str) -> None:
    assert [line.removeprefix("fix: ").strip() for line in fix(text, 200)] == [line.strip() for line in text.splitlines()]
