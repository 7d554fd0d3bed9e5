"""`hpctrain clusters`: facts about known clusters, with their evidence and sources."""

from __future__ import annotations

import click

from hpctrain.cli.options import json_option


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> int:
    """List cluster profiles.

    Profiles come with hpctrain; those in the directories of $HPCTRAIN_CLUSTERS and in
    ~/.config/hpctrain/clusters are added, and replace or extend the ones of the same name.
    """
    if ctx.invoked_subcommand is not None:
        if as_json:
            name = f"hpctrain clusters {ctx.invoked_subcommand} NAME"
            raise click.UsageError(f"--json follows the subcommand: {name} --json")
        return 0
    from hpctrain.cli.actions import clusters

    return clusters.show_all(as_json=as_json)


@command.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Print a profile: its file, after those that it extends.

    Each section and value has its evidence and source. Limits come from documents; Slurm's own
    override them on the site.
    """
    from hpctrain.cli.actions import clusters

    clusters.show(name, as_json=as_json)
