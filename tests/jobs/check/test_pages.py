"""docs/findings: a page for every finding, with the message as it is now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from check_cases import CASES
from check_scene import AROUND, LIVE, SPEC

from hpctrain.jobs.check import IDS, refusal, show
from hpctrain.jobs.check.case import Case
from hpctrain.jobs.finding import Finding

PAGES = Path(__file__).parents[3] / "docs" / "findings"
EXAMPLE = re.compile(r"(<!-- example: .*? -->\n```\n)(.*?)(```\n<!-- end of example -->)", re.DOTALL)


def example(id_: str) -> Finding:
    if id_ == "slurm-refuses":
        words = ("  ran: sbatch --test-only sft.sbatch", "  sbatch said: allocation failure: Invalid qos specification")
        return refusal.refused(Case(SPEC, None, LIVE, AROUND), words, "hpctrain render --qos NAME")
    return next(finding for finding in CASES[id_][1].findings() if finding.id == id_)


@pytest.mark.parametrize("id_", IDS)
def test_a_finding_has_a_page_with_its_message(id_: str, request: pytest.FixtureRequest) -> None:
    finding = example(id_)
    page = PAGES.parent.parent / finding.page
    text = page.read_text()
    expected = EXAMPLE.sub(lambda match: f"{match[1]}{show.block(finding)}\n{match[3]}", text)
    if request.config.getoption("--update-docs"):
        page.write_text(expected)
    assert text.startswith(f"# {id_}\n")
    assert all(part in text for part in ("**Why it matters.**", "**What to do.**"))
    assert EXAMPLE.search(text), f"{page} has no place for the example"
    assert page.read_text() == expected, "write it with: pytest --update-docs"
