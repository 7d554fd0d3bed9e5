"""The repairs: safe for bash, done once, and only where the finding stands."""

import subprocess

import pytest

from hpctrain.checks.script import fix, lint
from tests.jobs.lint import lint_corpus as corpus


def bash_reads(text: str) -> bool:
    return subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True).returncode == 0


@pytest.mark.parametrize("case", corpus.WRONG, ids=lambda case: case.name)
def test_a_repair_is_safe(case: corpus.Case) -> None:
    fixed = fix(case.text, "x.sbatch")
    if not fixed.ids:
        assert fixed.text == case.text
        return
    assert bash_reads(fixed.text)
    assert fix(fixed.text, "x.sbatch").ids == (), "a second time changes nothing"
    found, after = case.findings, lint(fixed.text, "/x/x.sbatch")
    assert len(after) < len(found)
    assert {one.id for one in after} <= {one.id for one in found}, "it brings no new finding"


@pytest.mark.slow
def test_a_correct_script_stays_as_it_is() -> None:
    cases = [*corpus.CORRECT, *corpus.GOLDEN]
    assert [case.name for case in cases if fix(case.text, "x.sbatch").text != case.text] == []


@pytest.mark.parametrize(
    "text",
    [
        "export PYTHONBUFFERED=1; python t.py --unbuffered=${PYTHONBUFFERED:-0}",
        "cat > f <<EOF\na\r\nEOF",  # mixed line ends: those in the heredoc may be meant
        "printf 'GET /\r\n\r\n' | cat",
        "#SBTACH --mem=0",
    ],
)
def test_what_is_not_certainly_safe_is_left_alone(text: str) -> None:
    script = f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --time=10\n{text}\n"
    assert fix(script, "x").text == script


def test_only_the_chosen_repairs_are_made() -> None:
    text = "#!/bin/bash\n#SBATCH -J=a\nexport PYTHONBUFFERED=1 # hpctrain: ignore=pythonbuffered\n"
    named = text.replace("-J=a", "-J a")
    assert fix(text, "x", frozenset({"short-option-equals"})).text == named
    assert fix(text, "x", frozenset({"pythonbuffered"})).text == text
    assert fix(text, "x").text == named
