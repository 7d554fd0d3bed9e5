"""A job, and the ways in which a test asks about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.doctor.facts import Case
from hpctrain.jobs.check import show
from hpctrain.jobs.finding import Finding
from hpctrain.jobs.spec import JobSpec

PAGES = Path(__file__).parents[2] / "docs" / "findings"
EXAMPLE = re.compile(r"(<!-- example: .*? -->\n```\n)(.*?)(```\n<!-- end of example -->)", re.DOTALL)


@pytest.fixture
def case(tmp_path: Path) -> Callable[..., Case]:
    """Return the maker of a case: `spec=` for keys of the job, the rest for the case."""

    def make(*, spec: dict[str, Any] | None = None, **values: Any) -> Case:
        job = JobSpec(**{"job_name": "sft", "chdir": str(tmp_path), **(spec or {})})
        return Case(spec=job, **{"version": "0.1.0", "machine": "x86_64", **values})

    return make


@pytest.fixture
def page_shows(request: pytest.FixtureRequest) -> Callable[[Finding], None]:
    """Return the check that a finding's page shows its message as it is now."""

    def compare(finding: Finding) -> None:
        page = PAGES.parent.parent / finding.page
        text = page.read_text()
        expected = EXAMPLE.sub(lambda match: f"{match[1]}{show.block(finding)}\n{match[3]}", text)
        if request.config.getoption("--update-docs"):
            page.write_text(expected)
        assert text.startswith(f"# {finding.id}\n")
        assert all(part in text for part in ("**Why it matters.**", "**What to do.**"))
        assert EXAMPLE.search(text), f"{page} has no place for the example"
        assert page.read_text() == expected, "write it with: pytest --update-docs"

    return compare
