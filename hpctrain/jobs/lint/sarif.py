"""Findings as SARIF 2.1.0, which code hosts show beside the lines.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from hpctrain.jobs.finding import Finding
from hpctrain.jobs.lint.rule import Rule

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_MARKUP = re.compile(r"[*`]|^#+ |^```\w*$", re.MULTILINE)


def document(findings: Iterable[Finding], rules: Mapping[str, Rule], pages: Mapping[str, str], version: str) -> dict[str, Any]:
    """Return one run with all `rules` and a result for each finding.

    Args:
        findings: with file, line and column.
        rules: the table.
        pages: id to the page of the documentation, in Markdown.
        version: of hpctrain.
    """
    indexes = {id_: index for index, id_ in enumerate(rules)}
    driver = {
        "name": "hpctrain",
        "version": version,
        "rules": [_rule(rule, pages.get(rule.id, "")) for rule in rules.values()],
    }
    results = [_result(finding, indexes[finding.id]) for finding in findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule, page: str) -> dict[str, Any]:
    text = f"{rule.reason} ({rule.versions}; {rule.source})"
    return {
        "id": rule.id,
        "name": "".join(word.capitalize() for word in rule.id.split("-")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.reason},
        "help": {"text": _MARKUP.sub("", page).strip() or text, "markdown": page or text},
        "defaultConfiguration": {"level": rule.level},
        "properties": {"tags": ["slurm"], "precision": "very-high"},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    region = {"startLine": finding.line or 1, "startColumn": finding.column or 1, "snippet": {"text": finding.evidence}}
    place = {"artifactLocation": {"uri": quote(finding.file or "", errors="surrogateescape")}, "region": region}
    return {
        "ruleId": finding.id,
        "ruleIndex": index,
        "level": finding.level,
        "message": {"text": f"{finding.what}: {finding.reason} Fix: {finding.fix}"},
        "locations": [{"physicalLocation": place}],
    }
