"""The data files of hpctrain: inside an installed wheel, else at the root of the repository."""

from __future__ import annotations

import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def path(name: str) -> Path:
    """Return the path of `templates`, `examples`, `findings.md`, `config.yaml` or `multi_gpu.yaml`.

    Raises:
        FileNotFoundError: the installation is incomplete.
    """
    for root in (_PACKAGE / "_data", _PACKAGE.parent, _PACKAGE.parent / "docs"):
        if (root / name).exists():
            return root / name
    raise FileNotFoundError(f"{name} is missing from this installation of hpctrain")


def templates() -> dict[str, str]:
    """Return name → text of the built-in templates, their macros and the function library that
    scripts source.
    """
    return {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted(path("templates").iterdir())
        if file.suffix in (".j2", ".sh")
    }


def findings_by_command() -> dict[str, dict[str, str]]:
    """Return command → id → page of all findings: the sections of docs/findings.md."""
    text = path("findings.md").read_text(encoding="utf-8")
    _, *sections = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    found: dict[str, dict[str, str]] = {}
    for command, section in zip(sections[::2], sections[1::2], strict=True):
        _, *parts = re.split(r"^### (.*)\n", section, flags=re.MULTILINE)
        found[command] = {
            id_: f"# {id_}\n\n{body.strip()}\n"
            for id_, body in zip(parts[::2], parts[1::2], strict=True)
        }
    return found


def findings() -> dict[str, str]:
    """Return id → page of all findings."""
    return {id_: page for pages in findings_by_command().values() for id_, page in pages.items()}


def failure_rules() -> dict[str, str]:
    """Return file name → text of the failure rules, one file per area, from the package."""
    return {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted((_PACKAGE / "explain" / "rules").glob("*.yaml"))
    }
