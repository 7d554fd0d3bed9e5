"""How this hpctrain was installed, so that what is typed to install it elsewhere installs the same one; a leaf."""

from __future__ import annotations

import json
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit


def requirement(extra: str) -> str:
    """Return what pip takes for it: `hpctrain[train]` of an index, `/home/ada/hpctrain[train]` of a clone, `… @ git+https://…` of a URL.

    Source: direct_url.json of PEP 610, which pip writes for whatever comes from no index.
    """
    try:
        text = metadata.distribution("hpctrain").read_text("direct_url.json")
        origin = json.loads(text) if text is not None else {}
        url = str(origin.get("url", ""))
        where, vcs = urlsplit(url), origin.get("vcs_info")
    except (metadata.PackageNotFoundError, OSError, ValueError, AttributeError):
        return f"hpctrain[{extra}]"
    if isinstance(vcs, dict) and url:
        return f"hpctrain[{extra}] @ {vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', '')}".removesuffix("@")
    if where.scheme in ("http", "https"):
        return f"hpctrain[{extra}] @ {url}"
    path = Path(unquote(where.path))
    return f"{path}[{extra}]" if where.scheme == "file" and path.exists() else f"hpctrain[{extra}]"


def command(extra: str) -> str:
    """Return what is typed to install it, with the libraries of the extra, into the environment that runs this."""
    python = shlex.quote(sys.executable)
    return f"{f'uv pip install --python {python}' if _made_by_uv() else f'{python} -m pip install'} {shlex.quote(requirement(extra))}"


def _made_by_uv() -> bool:
    """Whether this is an environment of uv's, which has no pip; uv says so in the file of PEP 405."""
    try:
        return re.search(r"^uv\s*=", Path(sys.prefix, "pyvenv.cfg").read_text(errors="replace"), re.MULTILINE) is not None
    except OSError:
        return False
