"""`hpctrain runs`: a group that imports its subcommands when they are called."""

from __future__ import annotations

import click

from hpctrain.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    groups={
        "Commands": {
            "list": "List runs, the newest at the end.",
            "show": "Show a run and suggested commands.",
            "delete": "Delete runs with everything they wrote.",
        }
    },
    lazy={
        "list": ("listing", "list_runs"),
        "show": ("listing", "show_run"),
        "delete": ("deletion", "delete_runs"),
    },
)
def command() -> None:
    """Manage runs.

    A run is a directory in runs/: one training from start to end, over restarts. RUN is its id, a
    prefix of it, or a glob such as 'sft-*'; the tag of a sweep means all of its runs. `delete`
    takes no prefix.
    """
