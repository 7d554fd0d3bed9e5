"""How this hpctrain was installed, so that suggested commands install the same version elsewhere; a
leaf module.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hpctrain.errors import HpctrainError


def requirement(extra: str) -> str:
    """Return the requirement for pip: `hpctrain[train]` from an index, `/home/ada/hpctrain[train]`
    from a clone, `… @ git+https://…` from a URL.

    Source: direct_url.json of PEP 610, which pip writes for installs that are not from an index.
    """
    try:
        text = metadata.distribution("hpctrain").read_text("direct_url.json")
        origin = json.loads(text) if text is not None else {}
        url = str(origin.get("url", ""))
        where, vcs = urlsplit(url), origin.get("vcs_info")
    except (metadata.PackageNotFoundError, OSError, ValueError, AttributeError):
        return f"hpctrain[{extra}]"
    if isinstance(vcs, dict) and url:
        return f"hpctrain[{extra}] @ {vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', '')}".removesuffix(
            "@"
        )
    if where.scheme in ("http", "https"):
        return f"hpctrain[{extra}] @ {url}"
    path = Path(unquote(where.path))
    return f"{path}[{extra}]" if where.scheme == "file" and path.exists() else f"hpctrain[{extra}]"


def command(extra: str) -> str:
    """Return the command that installs it, with the libraries of the extra, into the current
    environment.
    """
    python = shlex.quote(sys.executable)
    return (
        f"{f'uv pip install --python {python}' if _made_by_uv() else f'{python} -m pip install'}"
        f" {shlex.quote(requirement(extra))}"
    )


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


def _made_by_uv() -> bool:
    """Whether uv created this environment, which then has no pip; recorded in pyvenv.cfg (PEP
    405).
    """
    try:
        return (
            re.search(
                r"^uv\s*=", Path(sys.prefix, "pyvenv.cfg").read_text(errors="replace"), re.MULTILINE
            )
            is not None
        )
    except OSError:
        return False
