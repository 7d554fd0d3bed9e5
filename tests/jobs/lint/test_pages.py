"""The pages of the findings: each wrong example gets its finding, each right one none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpctrain.jobs.lint import IDS, RULES, lint

PAGES = Path(__file__).parents[3] / "docs" / "findings"
_EXAMPLE = re.compile(r"```bash\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("id_", IDS)
def test_the_examples_of_a_page(id_: str) -> None:
    page = (PAGES / f"{id_}.md").read_text()
    assert page.startswith(f"# {id_}\n")
    assert "**Why it matters.**" in page
    assert "**What to do.**" in page
    assert ("`--fix`" in page) == RULES[id_].fixes
    examples = _EXAMPLE.findall(page)
    if id_ == "script-too-large":
        assert examples == []
        return
    wrong, right = examples
    if id_ == "dos-line-ends":
        wrong = wrong.replace("\n", "\r\n")
    assert id_ in {one.id for one in lint(wrong, "x.sbatch")}
    assert [one.id for one in lint(right, "x.sbatch")] == []


@pytest.mark.parametrize("id_", IDS)
def test_a_page_says_for_which_versions_of_slurm(id_: str) -> None:
    rule, page = RULES[id_], (PAGES / f"{id_}.md").read_text()
    for version in (rule.since, rule.until):
        assert version is None or version in page
