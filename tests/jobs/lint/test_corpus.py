"""Whole scripts: the correct ones are silent, each wrong one gets exactly the findings that it asks
for.
"""

import pytest

from hpctrain.checks.script import IDS, lint
from tests.jobs.lint import lint_corpus as corpus


def test_a_correct_script_is_silent() -> None:
    found = {
        f"{case.name}:{one.line}: {one.level} {one.id}": one.what
        for case in (*corpus.CORRECT, *corpus.GOLDEN)
        for one in case.findings
    }
    assert found == {}


def test_a_wrong_script_gets_its_findings_and_no_others() -> None:
    wrong = {}
    for case in corpus.WRONG:
        found = {(one.line, one.id) for one in case.findings}
        if found != case.expected:
            wrong[case.name] = {"missing": case.expected - found, "too many": found - case.expected}
    assert wrong == {}


def test_a_finding_shows_its_line() -> None:
    for case in corpus.WRONG:
        lines = case.text.split("\n")
        for one in case.findings:
            assert one.line is not None
            assert one.column is not None
            assert 1 <= one.column <= len(lines[one.line - 1]) + 1
            assert "\n" not in one.what + one.evidence + one.reason + one.fix
            if one.id != "secret-in-script":
                assert one.evidence.rstrip("…") in lines[one.line - 1].replace("\t", " ")


def test_each_id_has_a_wrong_script() -> None:
    covered = {id_ for case in corpus.WRONG for _, id_ in case.expected}
    assert set(IDS) == covered


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        # Put together here, so that no scanner of repositories takes them for real.
        ("export HF_TOKEN={}", "hf_" + "aB3dE5gH7jK9" * 3),
        ("OPENAI_API_KEY='{}' python t.py", "sk-" + "proj-" + "Ab1Cd2Ef3Gh4Ij5Kl6Mn7"),
        ("# token: {}", "gh" + "p_" + "A1b2C3d4E5" * 4),
        ("export AWS_ACCESS_KEY_ID={}", "AK" + "IA" + "ABCDEFGH12345678"),
        ('export WANDB_API_KEY="{}"', "0123456789abcdef0123456789abcdef01234567"),
        ("wandb login {}", "0123456789abcdef0123456789abcdef01234567"),
    ],
)
def test_a_secret_is_found_and_not_shown(line: str, secret: str) -> None:
    (found,) = lint(f"#!/bin/bash\n#SBATCH --time=1\n{line.format(secret)}\n", "x")
    assert found.id == "secret-in-script"
    assert secret not in str(found)
    assert found.evidence.startswith(line.partition("{")[0][:10])
