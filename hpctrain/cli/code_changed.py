"""What has changed since a launch was submitted: what its code is now, and its config, which a resubmission does not read again."""

from __future__ import annotations

from pathlib import Path

import click

from hpctrain.jobs import render, shell
from hpctrain.runs import files, launch
from hpctrain.runs.launch import Launch

_SCRIPTS = "scripts"


def say(runs: Path, tag: str, *, new_code: bool, local: bool, fixed: bool) -> None:
    """Say on stderr where the project differs from what the launch runs, and what to type to run it as it is now.

    Args:
        runs: the directory of all runs.
        tag: of the launch.
        new_code: the code is taken anew; the script, and with it the config, is not.
        local: the launch goes on on this machine.
        fixed: the script is a new one, with what `explain` says changed in it.
    """
    whole = launch.load(runs, tag)
    if whole is None or whole.code is None:
        return
    from hpctrain.cli import code as look
    from hpctrain.runs import code

    old, now = code.stored(runs, whole.code), look.look(runs.parent, runs)
    if old is None or not isinstance(now, code.Snapshot):
        return
    changes = code.differences(old, code.by_path(now.entries))
    names = [*changes.changed, *changes.added, *changes.removed]
    configs = [name for name in names if name in _configs(whole)]
    for name in configs if not fixed else ():
        click.echo(
            f"note: {name} has changed since, and {tag} goes on with the script that was made of it before; "
            f"with {name} as it is now: {_anew(whole, local=local)}",
            err=True,
        )
    others = [name for name in names if name not in configs]
    if others and not new_code:
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        click.echo(
            f"note: the code of {tag} runs, and the project has changed since: {shown}; to run it as it is now: --new-code", err=True
        )


def _configs(whole: Launch) -> set[str]:
    """Return the files that the configs of a launch took values from, as its project calls them."""
    found: set[str] = set()
    for path in whole.path.glob("config*.json"):
        origins = (files.read_json(path) or {}).get("origins")
        found |= {str(where).partition(":")[0] for where in origins.values()} if isinstance(origins, dict) else set()
    return found


def _anew(whole: Launch, *, local: bool) -> str:
    """Return the command that renders the launch again, with the options that it was rendered with, and goes on with it."""
    submit = shell.join(("hpctrain", "submit", *(["--local"] if local else []), "--run-id", whole.tag))
    newest = max(whole.parts, key=lambda part: part.at, default=None)
    header = render.read_header(_read(whole.path / _SCRIPTS / newest.script)) if newest is not None else None
    if header is None or not header.arguments:
        return f"hpctrain render && {submit}"
    return f"{submit} {shell.join(header.arguments)}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
