"""docs/findings.md: a section for each finding, and a finding for each section."""

import importlib
import re

import pytest

from hpctrain.checks.script import IDS as LINT_IDS
from hpctrain.checks.script import RULES, fix, lint
from hpctrain.cli.actions.explain import first_line
from hpctrain.util import installed

PAGES = installed.findings()
#: Where findings come from; each has the ids of its own in IDS.
ROOMS = ("hpctrain.checks.script", "hpctrain.checks.job", "hpctrain.doctor")
_SCRIPT = re.compile(r"```bash\n(.*?)```", re.DOTALL)


def ids() -> list[str]:
    return [id_ for room in ROOMS for id_ in importlib.import_module(room).IDS]


def test_each_finding_has_a_section_and_each_section_a_finding() -> None:
    assert sorted(PAGES) == sorted(ids()), "docs/findings.md: a section `### ID` for each"


@pytest.mark.parametrize("id_", PAGES)
def test_a_section_says_what_it_is_about_why_and_what_to_do(id_: str) -> None:
    assert len(first_line(PAGES[id_])) > 20
    assert all(part in PAGES[id_] for part in ("**Why it matters.**", "**What to do.**"))


@pytest.mark.parametrize("id_", LINT_IDS)
def test_the_examples_of_a_lint_rule(id_: str) -> None:
    """The wrong script gets its finding, the right one none."""
    rule, page = RULES[id_], PAGES[id_]
    versions = [one for one in (rule.since, rule.until) if len(one) == 2]
    assert all(f"{year}.{month:02}" in page for year, month in versions)
    slurm = ".".join(map(str, rule.since))
    examples = _SCRIPT.findall(page)
    wrong, right = examples
    if id_ == "dos-line-ends":
        wrong = wrong.replace("\n", "\r\n")
    assert ("`--fix`" in page) == (id_ in fix(wrong, "x.sbatch").ids)
    assert id_ in {one.id for one in lint(wrong, "/x/x.sbatch", slurm)}
    assert [one.id for one in lint(right, "/x/x.sbatch", slurm)] == []
