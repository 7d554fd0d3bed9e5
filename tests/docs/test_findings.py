"""The pages of the findings: each id has one, each page an id, and the index lists them all."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from hpctrain import data
from hpctrain.cli.docs import first_line

PAGES = data.findings()
FOLDER = Path(__file__).parents[2] / "docs" / "findings"
#: Where findings come from; each has the ids of its own in IDS.
ROOMS = ("hpctrain.jobs.lint", "hpctrain.jobs.check", "hpctrain.doctor")


def ids() -> dict[str, str]:
    """Return id and room of all findings."""
    return {id_: room for room in ROOMS for id_ in importlib.import_module(room).IDS}


def test_each_id_has_a_page() -> None:
    missing = {id_: room for id_, room in ids().items() if id_ not in PAGES}
    assert not missing, "write docs/findings/ID.md, beginning with: # ID"


def test_each_page_has_an_id() -> None:
    assert sorted(set(PAGES) - set(ids())) == []


def test_rooms_share_no_id_by_accident() -> None:
    for room in ROOMS:
        listed = importlib.import_module(room).IDS
        assert len(listed) == len(set(listed)), room


@pytest.mark.parametrize("id_", sorted(PAGES))
def test_a_page_begins_with_its_id_and_says_something(id_: str) -> None:
    page = PAGES[id_]
    assert page.startswith(f"# {id_}\n")
    assert len(first_line(page)) > 20, "the first paragraph says what the finding is about"


def test_the_index_lists_each_page(request: pytest.FixtureRequest) -> None:
    rows = "".join(f"| [{id_}]({id_}.md) | {first_line(page).replace('|', chr(92) + '|')} |\n" for id_, page in PAGES.items())
    index = (
        "# Findings\n\nWhat `hpctrain check`, `lint` and `doctor` find before a job runs, a page for each. "
        f"`hpctrain docs ID` prints it.\n\n| finding | |\n|---|---|\n{rows}"
    )
    file = FOLDER / "README.md"
    if request.config.getoption("--update-docs"):
        file.write_text(index)
    assert file.read_text() == index, "write it with: pytest --update-docs"
