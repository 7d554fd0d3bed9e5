"""SARIF: what version 2.1.0 requires of a log, checked by hand; nothing here is fetched."""

from __future__ import annotations

import json
import re
from typing import Any

import lint_corpus as corpus

from hpctrain import data
from hpctrain.jobs.lint import RULES, lint, sarif


def document() -> dict[str, Any]:
    findings = [one for file in corpus.WRONG for one in lint(corpus.text_of(file), f"scripts/{file.name} #1%.sbatch")]
    made: dict[str, Any] = json.loads(json.dumps(sarif.document(findings, RULES, data.findings(), "1.2.3")))
    return made


def test_the_log_has_what_the_standard_requires() -> None:
    log = document()
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    assert set(run) <= {"tool", "columnKind", "results"}
    assert run["columnKind"] == "unicodeCodePoints"
    assert run["tool"]["driver"]["name"] == "hpctrain"
    assert run["tool"]["driver"]["version"] == "1.2.3"


def test_each_rule_explains_itself() -> None:
    rules = document()["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(RULES)
    for rule in rules:
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]+", rule["name"])
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
        for key in ("shortDescription", "fullDescription", "help"):
            assert rule[key]["text"].strip()
        assert rule["help"]["markdown"].startswith(f"# {rule['id']}\n")
        assert "```" not in rule["help"]["text"]


def test_each_result_points_to_its_rule_and_its_place() -> None:
    run = document()["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert len(run["results"]) > len(RULES)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert "Fix: " in result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]
        assert re.fullmatch(r"scripts/[\w.-]+%20%231%25\.sbatch", place["artifactLocation"]["uri"]), "a URI, so blanks are escaped"
        assert place["region"]["startLine"] >= 1
        assert place["region"]["startColumn"] >= 1
