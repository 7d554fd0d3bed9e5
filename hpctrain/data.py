"""The files that come with hpctrain, wherever they lie: inside an installed wheel, else at the root of the repository."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def path(name: str) -> Path:
    """Return the path of `templates`, `examples`, `findings`, `diagnoses`, `config.yaml` or `multi_gpu.yaml`.

    Raises:
        FileNotFoundError: the installation is incomplete.
    """
    for root in (_PACKAGE / "_data", _PACKAGE.parent, _PACKAGE.parent / "docs"):
        if (root / name).exists():
            return root / name
    raise FileNotFoundError(f"{name} is missing from this installation of hpctrain")


def templates() -> dict[str, str]:
    """Return name and text of the shipped templates and their macros."""
    return {file.name: file.read_text(encoding="utf-8") for file in sorted(path("templates").glob("*.j2"))}


def findings() -> dict[str, str]:
    """Return id and page of all findings: the files of docs/findings but its index."""
    pages = sorted(path("findings").glob("*.md"))
    return {file.stem: file.read_text(encoding="utf-8") for file in pages if file.name != "README.md"}


def diagnoses() -> dict[str, str]:
    """Return id and page of all diagnoses: the files of docs/diagnoses but its index."""
    pages = sorted(path("diagnoses").glob("*.md"))
    return {file.stem: file.read_text(encoding="utf-8") for file in pages if file.name != "README.md"}


def failure_rules() -> dict[str, str]:
    """Return file name and text of the failure rules, of each area one file; they lie in the package."""
    return {file.name: file.read_text(encoding="utf-8") for file in sorted((_PACKAGE / "explain" / "rules").glob("*.yaml"))}
