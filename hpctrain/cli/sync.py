"""`hpctrain sync`: upload the project to a cluster."""

from __future__ import annotations

from typing import Any

import click

from hpctrain.cli.options import yes_option


@click.command()
@click.argument("target", required=False, metavar="[HOST:PATH]")
@click.option("--dry-run", is_flag=True, help="Show what would be uploaded; upload nothing.")
@yes_option
@click.option(
    "--delete",
    is_flag=True,
    help="Also delete remote files that no longer exist here; only in a directory that sync created.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Take over a directory that another project, or another machine, has synced to.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port of the ssh server. Default: as in ssh's configuration.",
)
@click.option(
    "--ssh-config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="ssh config file. Default: ~/.ssh/config.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON at the end.")
def command(target: str | None, **parameters: Any) -> int:
    """Upload the project to a cluster with rsync.

    The current directory goes into the directory PATH on HOST, without what .hpctrainignore and
    hpctrain leave out. It is first shown what would be sent. Without HOST:PATH, the last
    destination of this directory is used.

    \b
    hpctrain sync leonardo:/leonardo_work/proj_a/sft
    hpctrain sync --delete
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import sync

    return sync.run(target, **parameters)
