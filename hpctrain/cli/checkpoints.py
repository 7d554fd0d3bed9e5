"""`hpctrain checkpoints`: a group that imports its subcommands when they are called."""

from __future__ import annotations

import click

from hpctrain.cli import LazyGroup


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
def command() -> None:
    """Manage checkpoints.

    RUN is a run's id, a prefix of it, or a glob such as 'sft-*'; RUN/checkpoint-40 is one
    checkpoint, RUN/model the final weights. `delete` takes no prefix.
    """
