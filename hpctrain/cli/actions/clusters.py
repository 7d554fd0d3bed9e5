"""`hpctrain clusters` and `clusters show`."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import asdict
from typing import Any

import click

from hpctrain.cli.options import json_option
from hpctrain.cli.output import print_json, say, show_table
from hpctrain.clusters import load
from hpctrain.clusters.profile import checked
from hpctrain.errors import HpctrainError, UsageError


@click.group("clusters", invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> int:
    """List cluster profiles.

    Profiles come with hpctrain; those in the directories of $HPCTRAIN_CLUSTERS and in
    ~/.config/hpctrain/clusters are added, and replace the ones of the same name.
    """
    if ctx.invoked_subcommand is not None:
        if as_json:
            name = f"hpctrain clusters {ctx.invoked_subcommand} NAME"
            raise click.UsageError(f"--json follows the subcommand: {name} --json")
        return 0
    rows, broken = _rows()
    # Does not query a name server, which may be slow.
    detected = load.detect(
        os.environ, cluster_name=os.environ.get("SLURM_CLUSTER_NAME"), hosts=(socket.gethostname(),)
    )
    if as_json:
        print_json(
            detected=detected,
            clusters=[row | {"detected": row["name"] in detected} for row in rows],
        )
    else:
        show_table(
            ("", "NAME", "TITLE", "GPUS", "PARTITIONS"),
            [
                (
                    "*" if row["name"] in detected else "",
                    row["name"],
                    row["title"] or "-",
                    _gpus(row),
                    row["default_partition"] or next(iter(row["partitions"]), "-"),
                )
                for row in rows
            ],
        )
        first = [*detected, *(row["name"] for row in rows)][0]
        what = f"looks like {', '.join(detected)} (*)" if detected else "matches no profile"
        say(f"this machine {what}\nnext: hpctrain clusters show {first}")
    for error in broken:
        say(error.render())
    return max((error.exit_code for error in broken), default=0)


@command.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Print the file of a profile.

    Each section and value has its evidence and source. Limits come from documents; Slurm's own
    override them on the site.
    """
    found = load.read_source(name, os.environ)
    profile = checked(found, load.canonical(name))
    if not as_json:
        click.echo(f"# {found.path}\n{found.path.read_text(encoding='utf-8').rstrip()}")
        return
    paths = {path for path, _ in load.leaves(found.data) if path[0] not in load.IDENTITY}
    # JSON pointers to the values, in raw units (bytes, seconds).
    pointers = {
        "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in path): path
        for path in sorted(paths & found.origins.keys())
    }
    print_json(
        name=profile.name,
        files=[str(found.path)],
        profile=profile.to_data(defaults=False),
        evidence={pointer: asdict(found.origins[path]) for pointer, path in pointers.items()},
    )


def _rows() -> tuple[list[dict[str, Any]], list[HpctrainError]]:
    rows: list[dict[str, Any]] = []
    broken: list[HpctrainError] = []
    for name, path in sorted(load.available(os.environ).items()):
        try:
            found = load.read_source(name, os.environ)
            if path.parent != load.SHIPPED:  # the built-in ones are tested, and checking is slow
                load.load(name, os.environ)
        except UsageError as error:
            broken.append(error)
            continue
        data = found.data
        shapes, partitions, defaults = (
            data.get(key) or {} for key in ("nodes", "partitions", "defaults")
        )
        rows.append(
            {
                "name": name,
                "title": data.get("title"),
                "shipped": path.parent == load.SHIPPED,
                "file": str(path),
                "nodes": {
                    kind: {"gpus": int(shape["gpus"]), "gpu": shape.get("gpu")}
                    for kind, shape in shapes.items()
                },
                "partitions": list(partitions),
                "default_nodes": defaults.get("nodes"),
                "default_partition": defaults.get("partition"),
                "evidence": load.tally(data, found.origins),
            }
        )
    return rows, broken


def _gpus(row: dict[str, Any]) -> str:
    """Return `4 A100`, or `3 A100 +1` if there is another kind of node."""
    for kind in (row["default_nodes"], *row["nodes"]):
        if kind in row["nodes"]:
            shape = row["nodes"][kind]
            model = re.sub(r"^(NVIDIA|AMD) ", "", shape["gpu"] or "").partition(" ")[0]
            more = len([each for each in row["nodes"].values() if each["gpus"]]) - 1
            return f"{shape['gpus']} {model}".rstrip() + (f" +{more}" if more > 0 else "")
    return "-"
