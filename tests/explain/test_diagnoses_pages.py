"""docs/diagnoses: a page for each rule that is a diagnosis, written from the rules and the corpus by `pytest --update-docs`."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import corpus

from hpctrain.explain.rule import AREAS, Rule

PAGES = Path(__file__).parents[2] / "docs" / "diagnoses"
RULES = [each for each in corpus.rules() if each.kind != "consequence"]
_NAME = re.compile(r"(?<!\$)\{([a-z_]+)\}")


@cache
def shown() -> dict[str, str]:
    """Return rule → the line that shows it in the first of its cases; of one that no line shows, what its evidence says."""
    found: dict[str, str] = {}
    for kept in corpus.cases():
        if kept.kind == "fires" and kept.rule not in found:
            for diagnosis in corpus.explain(kept).diagnoses:
                if diagnosis.id == kept.rule and diagnosis.evidence:
                    first = diagnosis.evidence[0]
                    found[kept.rule] = (f"{first.file}: " if first.line is None else "") + first.text
    return found


def page(rule: Rule) -> str:
    parts = [f"# {rule.id}", bare(rule.cause)]
    line = shown().get(rule.id)
    if line is not None:
        parts.append(f"It shows as\n\n```\n{line}\n```")
    parts.append("## What to do\n\n" + remedy(rule.remedy))
    certainty = (
        "A symptom: it is named only where no cause is found."
        if rule.kind == "symptom"
        else f"`hpctrain explain` calls it {rule.certainty}."
    )
    stage = {"rdzv": "rendezvous", "comm": "communication", "env": "environment", "run": "training"}.get(rule.stage, rule.stage)
    parts.append(f"{certainty} Stage: {stage}." + (f" Versions: {rule.versions}." if rule.versions else ""))
    parts.append(f"Source: {' '.join(rule.source.split())}")
    return "\n\n".join(parts) + "\n"


def bare(text: str) -> str:
    return _NAME.sub(lambda match: match[1].replace("_", " ").upper(), " ".join(text.split()))


def remedy(text: str) -> str:
    """Return the sentences, and what is to be typed as code: the last line."""
    *before, last = _NAME.sub(lambda match: match[1].upper(), text.strip()).splitlines()
    code = f"```\n{last.strip()}\n```"
    return "\n".join([*before, "", code]) if before else code


def index() -> str:
    lines = ["# Diagnoses", "", "What `hpctrain explain` says of a job that failed, a page for each. `hpctrain docs ID` prints it.", ""]
    for area in AREAS:
        of_area = sorted((each for each in RULES if each.area == area), key=lambda each: each.id)
        if of_area:
            lines += [f"## {area.capitalize()}", "", "| diagnosis | |", "|---|---|"]
            lines += [f"| [{each.id}]({each.id}.md) | {bare(each.cause).replace('|', chr(92) + '|')} |" for each in of_area]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def written() -> dict[str, str]:
    return {"README.md": index(), **{f"{each.id}.md": page(each) for each in RULES}}


def test_the_pages_are_those_of_the_rules(request: pytest.FixtureRequest) -> None:
    expected = written()
    if request.config.getoption("--update-docs"):
        PAGES.mkdir(exist_ok=True)
        for name, text in expected.items():
            (PAGES / name).write_text(text)
        for path in PAGES.glob("*.md"):
            if path.name not in expected:
                path.unlink()
    have = {path.name: path.read_text() for path in PAGES.glob("*.md")}
    assert sorted(have) == sorted(expected), "write them with: pytest --update-docs"
    assert [name for name, text in expected.items() if have[name] != text] == [], "write them with: pytest --update-docs"
