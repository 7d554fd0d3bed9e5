"""The installation of hpctrain: its data files, inside a wheel or at the root of the repository, and
the commands that install the same version elsewhere; a leaf module.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hpctrain.errors import HpctrainError


def requirement(extra: str) -> str:
    """Return the requirement for pip: `hpctrain[train]` from an index, `/home/ada/hpctrain[train]`
    from a clone, `… @ git+https://…` from a URL.

    Source: direct_url.json of PEP 610, which pip writes for installs that are not from an index.
    """
    from importlib import metadata  # 8 ms

    try:
        text = metadata.distribution("hpctrain").read_text("direct_url.json") or "{}"
        origin = json.loads(text)
        where, vcs = urlsplit(origin.get("url") or ""), origin.get("vcs_info")
    except (metadata.PackageNotFoundError, OSError, ValueError, AttributeError):
        return f"hpctrain[{extra}]"
    path = Path(unquote(where.path))
    if where.scheme == "file":
        return f"{path}[{extra}]" if path.exists() else f"hpctrain[{extra}]"
    url = where.geturl()
    if isinstance(vcs, dict):
        url = f"{vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', '')}".removesuffix("@")
    return f"hpctrain[{extra}] @ {url}" if url else f"hpctrain[{extra}]"


def command(extra: str) -> str:
    """Return the command that installs it, with the libraries of the extra, into the current
    environment.
    """
    python, pip = shlex.quote(sys.executable), "{} -m pip install"
    # uv creates environments without pip, and says so (PEP 405).
    with suppress(OSError):
        marks = Path(sys.prefix, "pyvenv.cfg").read_text(errors="replace")
        pip = "uv pip install --python {}" if re.search(r"^uv\s*=", marks, re.MULTILINE) else pip
    return f"{pip.format(python)} {shlex.quote(requirement(extra))}"


def require(extra: str, *modules: str) -> None:
    """Import the modules of an extra.

    Raises:
        HpctrainError: one of the modules cannot be imported.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise HpctrainError(f"cannot import {error.name}", fix=command(extra)) from error


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


def findings() -> dict[str, str]:
    """Return id → page of all findings: the sections of docs/findings.md."""
    text = path("findings.md").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for section in re.split(r"^## .*\n", text, flags=re.MULTILINE)[1:]:
        _, *parts = re.split(r"^### (.*)\n", section, flags=re.MULTILINE)
        for id_, body in zip(parts[::2], parts[1::2], strict=True):
            found[id_] = f"# {id_}\n\n{body.strip()}\n"
    return found


def failure_rules() -> dict[str, str]:
    """Return file name → text of the failure rules, one file per area, from the package."""
    return {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted((_PACKAGE / "explain" / "rules").glob("*.yaml"))
    }
