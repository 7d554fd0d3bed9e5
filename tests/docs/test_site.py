"""The documentation site: it builds without a warning (a dead link is one), needs no network, and a
browser shows it.
"""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Elements that have no end tag.
_VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site from a copy of what it is made of."""
    copy = tmp_path_factory.mktemp("site")
    for name in ("docs", "hpctrain", "templates", "tests/corpus/explain"):
        subprocess.run(
            ["cp", "-r", "--parents", name, copy], cwd=ROOT, check=True, capture_output=True
        )
    for name in (
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "config.yaml",
        "multi_gpu.yaml",
        "zensical.toml",
    ):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(
        [sys.executable, "docs/build_site.py"],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "site"


class _Page(HTMLParser):
    """What is open while a page is read, and what is wrong with its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[tuple[str, tuple[int, int]]] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        source = given.get("src") or (given.get("href") if tag == "link" else None)
        if source is not None and re.match(r"(https?:)?//", source):
            self.fetched.append(source)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID and (not self.open or self.open.pop() != tag):
            self.wrong.append((tag, self.getpos()))


@pytest.mark.slow
def test_pages_are_whole_and_fetch_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    for path in pages:
        page = _Page()
        page.feed(path.read_text())
        assert not page.wrong, (path.name, page.wrong[:3])
        assert not page.fetched, (path.name, page.fetched)


@pytest.mark.slow
def test_every_rule_has_its_place_in_the_reference(site: Path) -> None:
    from hpctrain.explain.rules import shipped
    from hpctrain.util import installed

    diagnoses = "".join(path.read_text() for path in (site / "reference").glob("diagnoses-*.html"))
    for rule in shipped():
        assert rule.kind == "consequence" or f'id="{rule.id}"' in diagnoses
    findings = (site / "findings.html").read_text()
    for id_ in installed.findings():
        assert f'id="{id_}"' in findings
