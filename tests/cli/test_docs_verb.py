"""`hpctrain docs`: the list, a page, and what somebody gets who mistypes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpctrain import data
from hpctrain.cli.docs import first_line

if TYPE_CHECKING:
    from conftest import Desk

FINDINGS, DIAGNOSES = data.findings(), data.diagnoses()
#: What is both has its two pages, one behind the other.
PAGES = {
    name: "\n\n".join(page.rstrip() for pages in (FINDINGS, DIAGNOSES) if (page := pages.get(name))) + "\n"
    for name in sorted({*FINDINGS, *DIAGNOSES})
}
#: One that is known to be there.
ID = "partition-unknown"


def test_the_list_has_each_finding_on_a_line_of_its_own_below_its_verb(desk: Desk) -> None:
    said = desk.run("docs")
    assert said.code == 0
    lines = said.out.splitlines()
    assert [line for line in lines if not line.startswith("  ")] == ["check:", "lint:", "doctor:", "explain:"], (
        "every page belongs to a verb"
    )
    listed = [line.split(":")[0].strip() for line in lines if line.startswith("  ")]
    assert sorted(listed) == sorted(PAGES)
    assert max(map(len, lines)) == 80, "cut at the width, and not before"
    full = {f"  {id_}: {first_line(page)}" for id_, page in PAGES.items()}
    assert all(line in full or any(each.startswith(line.removesuffix("…")) for each in full) for line in lines if line.startswith("  "))
    assert lines.index("lint:") < next(at for at, line in enumerate(lines) if line.startswith("  nodelist-unquoted:"))
    assert lines.index("doctor:") < next(at for at, line in enumerate(lines) if line.startswith("  node-silent:"))
    assert f"{len(PAGES)} pages" in said.err
    assert "README" not in said.out


@pytest.mark.slow
def test_a_page_in_a_pipe_is_filled_to_80_columns_without_comments(desk: Desk) -> None:
    assert sum("<!--" in page for page in PAGES.values()) > 10, "the pages have comments to hide"
    for id_, page in PAGES.items():
        out = desk.run("docs", id_).out
        assert "<!--" not in out
        assert "-->" not in out
        kept = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
        assert out.split() == kept.split(), "no word is lost, and none is moved"
        code = re.findall(r"```.*?```", kept, re.DOTALL)
        assert all(block in out for block in code)
        prose = re.sub(r"```.*?```", "", out, flags=re.DOTALL)
        assert [line for line in prose.splitlines() if len(line) > 80 and not line.startswith("|") and len(line.split()) > 2] == []
    assert (Path(__file__).parents[2] / "docs" / "findings" / f"{ID}.md").read_text() == PAGES[ID]


def test_the_help_is_true_of_what_the_verbs_write(desk: Desk) -> None:
    assert "`error ID: …`" in " ".join(desk.run("docs", "--help").out.split())
    desk.write("job.sbatch", "#SBATCH --nodes=1\n")
    assert "error no-shebang: " in desk.run("lint", "job.sbatch").out


@pytest.mark.parametrize("word", [f"[{ID}]", f"{ID}.md"])
def test_what_is_copied_from_a_screen_or_a_link_is_understood(word: str, desk: Desk) -> None:
    assert desk.run("docs", word).out == desk.run("docs", ID).out


def test_a_mistyped_id_gets_the_nearest(desk: Desk) -> None:
    said = desk.refused("docs", "partition-unknwon")
    assert said.lines[0] == "error: there is no finding or diagnosis 'partition-unknwon'"
    assert said.lines[1].startswith(f"did you mean {ID}")
    assert said.lines[-1] == f"fix: hpctrain docs {ID}"


def test_a_word_that_is_like_none_gets_the_list(desk: Desk) -> None:
    assert desk.refused("docs", "zzzzzzzz").lines[-1] == "fix: hpctrain docs"
    assert desk.refused("docs", "../verbs/ps").lines[0] == "error: there is no finding or diagnosis '../verbs/ps'"


def test_json(desk: Desk) -> None:
    assert json.loads(desk.run("docs", "--json").out) == {
        "schema": 1, "pages": [{"id": id_, "first_line": first_line(page)} for id_, page in PAGES.items()],
    }  # fmt: skip
    assert json.loads(desk.run("docs", "--json", ID).out) == {"schema": 1, "id": ID, "text": PAGES[ID]}


def on_a_terminal(command: str, cwd: Path, **variables: str) -> str:
    """Return what a command writes to a terminal of 80 columns; `script` of util-linux gives it one."""
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm-256color", **variables}
    done = subprocess.run(["script", "-qec", command, "/dev/null"], cwd=cwd, env=environment, capture_output=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0
    return done.stdout.decode().replace("\r\n", "\n")


def test_a_terminal_gets_the_page_laid_out(hpctrain: str, tmp_path: Path) -> None:
    laid_out = on_a_terminal(f"{hpctrain} docs {ID}", tmp_path)
    assert "\x1b[" in laid_out
    assert f"# {ID}" not in laid_out
    assert ID in laid_out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", laid_out)
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 80
    assert "\x1b" not in on_a_terminal(f"{hpctrain} docs {ID}", tmp_path, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(f"{hpctrain} docs {ID}", tmp_path, TERM="dumb")
    listed = on_a_terminal(f"{hpctrain} docs", tmp_path)
    assert max(map(len, listed.splitlines())) <= 80
    assert all(id_ in listed for id_ in PAGES)


def test_a_pipe_that_closes_is_no_error(hpctrain: str, tmp_path: Path) -> None:
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {hpctrain} docs | head -n 1"], capture_output=True, text=True, cwd=tmp_path)
    assert len(done.stdout.splitlines()) == 1
    assert "rror" not in done.stderr
