"""How this hpctrain was installed, so that what is typed to install it elsewhere installs the same one; a leaf."""

from __future__ import annotations

import json
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
    path = Path(unquote(where.path))
    return f"{path}[{extra}]" if where.scheme == "file" and path.exists() else f"hpctrain[{extra}]"


def command(extra: str) -> str:
    """Return what is typed to install it, with the libraries of the extra, into the environment that runs this."""
    return f"{shlex.quote(sys.executable)} -m pip install {shlex.quote(requirement(extra))}"
