"""Whole scripts: the correct ones are silent, each wrong one gets exactly the findings that it asks for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import lint_corpus as corpus
import pytest

from hpctrain.jobs.lint import IDS, RULES, fix, lint
from hpctrain.jobs.lint.reader import commands
from hpctrain.jobs.lint.reader.model import Shell

BASH = [file for file in [*corpus.CORRECT, *corpus.WRONG] if file.stem not in ("python_batch_script", "dos-line-ends")]


def name(file: Path) -> str:
    return file.parent.name if file.name == "script.sbatch" else file.stem


@pytest.mark.parametrize("file", [*corpus.CORRECT, *corpus.GOLDEN], ids=name)
def test_a_correct_script_is_silent(file: Path) -> None:
    assert [f"{one.line}: {one.level} {one.id}: {one.what}" for one in lint(corpus.text_of(file), file.name)] == []


def test_the_corpus_of_correct_scripts_is_large() -> None:
    assert len(corpus.CORRECT) >= 40
    assert len(corpus.GOLDEN) >= 10


@pytest.mark.parametrize("file", corpus.WRONG, ids=name)
def test_a_wrong_script_gets_its_findings_and_no_others(file: Path) -> None:
    text = corpus.text_of(file)
    assert {(one.line, one.id) for one in lint(text, file.name)} == corpus.expected(text)


def test_each_finding_says_what_where_why_and_what_to_write() -> None:
    for file in corpus.WRONG:
        text = corpus.text_of(file)
        lines = text.split("\n")
        for one in lint(text, file.name):
            assert one.what, one
            assert not one.what[0].isupper() or one.what.split()[0].strip(":").isupper() or one.what.startswith(("MASTER", "Python")), (
                one.what
            )
            assert not one.what.endswith("."), one.what
            assert "\n" not in one.what + one.evidence + one.reason + one.fix
            assert one.reason.endswith("."), one.reason
            assert one.fix
            assert one.line is not None
            assert one.column is not None
            assert 1 <= one.column <= len(lines[one.line - 1]) + 1
            if one.id != "secret-in-script":
                assert one.evidence.rstrip("…") in lines[one.line - 1].replace("\t", " ")


def test_each_id_has_a_wrong_script() -> None:
    covered = {id_ for file in corpus.WRONG for _, id_ in corpus.expected(corpus.text_of(file))}
    assert set(IDS) - covered == {"script-too-large"}  # its file would have 4 MiB; the next test makes it


@pytest.mark.slow
def test_a_script_that_slurm_refuses_for_its_size() -> None:
    text = "#!/bin/bash\n#SBATCH --time=1\n" + "# a line of data\n" * 250_000
    assert [one.id for one in lint(text, "x.sbatch")] == ["script-too-large"]
    assert [one.id for one in lint(text[: 4 * 1024**2], "x.sbatch")] == []


def test_the_table_says_which_rules_can_fix() -> None:
    fixing = {id_ for file in corpus.WRONG for id_ in fix(corpus.text_of(file), file.name).ids}
    assert fixing == {rule.id for rule in RULES.values() if rule.fixes}


@pytest.mark.parametrize("file", BASH, ids=name)
def test_bash_and_the_reader_agree_on_what_is_closed(file: Path) -> None:
    bash = subprocess.run(["bash", "-n", file], capture_output=True, text=True)
    said = bash.returncode != 0 or "delimited by end-of-file" in bash.stderr  # an open heredoc is only a warning to bash
    read = commands.read(corpus.text_of(file), Shell("batch"))
    assert bool(read.problems) == said, (bash.stderr, read.problems)


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
