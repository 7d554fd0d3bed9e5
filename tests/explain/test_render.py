"""How an explanation looks on a terminal."""

import pytest

from hpctrain.explain.model import Diagnosis, ErrorBlock, Evidence, Explanation, Fix
from hpctrain.explain.text import page

WRAPPED = (
    "Workers that are spawned get copies of the dataset and its collator: use functions of a module"
    " instead of lambdas and local ones, and open\nfiles and connections in the worker.\n"
)


def fix(text: str, width: int = 80) -> list[str]:
    diagnosis = Diagnosis(
        id="x",
        stage="run",
        certainty="certain",
        cause="c",
        fix=Fix(text=text),
        evidence=(Evidence(file="a.log", line=1, text="t"),),
    )
    found = page(Explanation(diagnoses=(diagnosis,)), width=width)
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
        "Look for it:\nhpctrain logs --err",
        "halve it\nask for less\ntype this",
        "One.\nTwo.\ngrep -n A B",
        "hpctrain render\nhpctrain submit\nhpctrain watch",
        "x " * 45 + "and\nmy-own-command --its-flag",
    ],
)
def test_what_is_to_be_typed_stands_on_a_line_of_its_own(text: str) -> None:
    assert [line.removeprefix("fix: ").strip() for line in fix(text, 200)] == [
        line.strip() for line in text.splitlines()
    ]


def test_a_long_command_stays_one_line() -> None:
    command = "grep -n " + "word" * 20 + " it's here and further words"
    assert fix("Look:\n" + command)[1:] == [f"  {command}"]


def test_what_an_unknown_exception_says_is_shown_whole_and_a_frame_in_one_line() -> None:
    said = "RuntimeError: " + "one of the variables has been modified " * 4 + "by an operation"
    frame = '  File "' + "/a/very/long/folder" * 6 + '", line 1, in f'
    block = ErrorBlock(
        file="a.log",
        line=1,
        rank=None,
        node=None,
        since=None,
        lines=("Traceback (most recent call last):", frame, said),
    )
    found = page(Explanation(unexplained=block, failed=True), width=80)
    assert max(map(len, found)) <= 80
    assert " ".join(" ".join(line.strip() for line in found).split()).endswith(said)
    assert sum("very/long" in line for line in found) == 1
