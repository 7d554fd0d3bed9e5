"""The commands of the group `Manage results`, whose subcommands are imported when they are called."""

from __future__ import annotations

import click

from hpctrain.cli import LazyGroup

# -- runs ------------------------------------------------------------------------------------------


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
def runs() -> None:
    """Manage runs.

    A run is a directory in runs/: one training from start to end, over restarts. RUN is its id, a
    prefix of it, or a glob such as 'sft-*'; the tag of a sweep means all of its runs. `delete`
    takes no prefix.
    """


# -- checkpoints -----------------------------------------------------------------------------------


@click.group(
    cls=LazyGroup,
    groups={
        "Commands": {
            "list": "List checkpoints, complete or not.",
            "verify": "Compare checkpoints with what was saved.",
            "delete": "Delete checkpoints to free space.",
            "merge": "Merge a LoRA adapter into its base model.",
        }
    },
    lazy={
        "list": ("listing", "list_checkpoints"),
        "verify": ("listing", "verify_checkpoints"),
        "delete": ("deletion", "delete_checkpoints"),
        "merge": ("merge", "command"),
    },
)
def checkpoints() -> None:
    """Manage checkpoints.

    RUN is a run's id, a prefix of it, or a glob such as 'sft-*'; RUN/checkpoint-40 is one
    checkpoint, RUN/model the final weights. `delete` takes no prefix.
    """
