"""`hpctrain clusters`: what is known of which cluster, how well, and from where."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import click

from hpctrain.clusters import evidence, load
from hpctrain.errors import HpctrainError, UsageError

#: Where Slurm's configuration lies on a login node, with a controller that serves it and without.
_SLURM_CONF = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/var/spool/slurmd/conf-cache/slurm.conf")


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> int:
    """List the known clusters; `clusters show NAME` says what is known, and from where.

    Profiles come with hpctrain; those in the directories of $HPCTRAIN_CLUSTERS and in ~/.config/hpctrain/clusters are added, and
    replace or extend the ones of the same name.
    """
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError(f"--json stands behind the subcommand: hpctrain clusters {ctx.invoked_subcommand} NAME --json")
        return 0
    rows, broken = _rows()
    detected = load.detect(os.environ, cluster_name=_cluster_name(), hosts=_hosts())
    if as_json:
        click.echo(
            json.dumps({"schema": 1, "detected": detected, "clusters": [row | {"detected": row["name"] in detected} for row in rows]})
        )
    else:
        _table(rows, detected)
    for error in broken:
        click.echo(error.render(), err=True)
    return max((error.exit_code for error in broken), default=0)


@command.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, raw units.")
@click.option("--yaml", "as_yaml", is_flag=True, help="YAML with the evidence, to start a profile of your own from.")
def show(name: str, as_json: bool, as_yaml: bool) -> None:
    """Show everything that is known of a cluster, each value with its evidence.

    Limits are those that somebody wrote down; what Slurm says on the site overrides them.
    """
    if as_json and as_yaml:
        raise click.UsageError("--json and --yaml exclude each other")
    from hpctrain.clusters.problems import check

    found = load.read(name, os.environ)
    profile = check(found, load.canonical(name))
    if as_yaml:
        click.echo(evidence.annotated(found.data, found.origins), nl=False)
        return
    from hpctrain.cli.cluster_page import Page, unknown

    if as_json:
        click.echo(json.dumps(_as_json(profile, found, unknown(profile))))
        return
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    width = min(max(os.get_terminal_size().columns, 60), 100) if sys.stdout.isatty() else 80
    click.echo("\n".join(Page(found, profile, width=width, colour=colour).lines()), color=colour)


def _as_json(profile: Any, found: load.Read, unknown: list[str]) -> dict[str, Any]:
    """Return the profile in raw units (bytes, seconds); the evidence of a value is found by its JSON pointer."""
    leaves = {path for path, _ in evidence.leaves(found.data) if path[0] not in evidence.IDENTITY} & found.origins.keys()
    pointers = {"".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in path): found.origins[path] for path in sorted(leaves)}
    return {
        "schema": 1,
        "name": profile.name,
        "files": [str(path) for path in found.files],
        "profile": profile.model_dump(mode="json", exclude_none=True),
        "evidence": {pointer: {"level": each.level, "source": each.source} for pointer, each in pointers.items()},
        "unknown": unknown,
    }


def _rows() -> tuple[list[dict[str, Any]], list[HpctrainError]]:
    """Return what the list shows of each profile, and what is wrong with those that cannot be read."""
    rows: list[dict[str, Any]] = []
    broken: list[HpctrainError] = []
    for name, path in sorted(load.available(os.environ).items()):
        try:
            found = load.read(name, os.environ)
            if path.parent != load.SHIPPED:  # the shipped ones are known to be right, and checking takes time
                load.load(name, os.environ)
        except UsageError as error:
            broken.append(error)
            continue
        rows.append(_row(name, path, found))
    return rows, broken


def _row(name: str, path: Path, found: load.Read) -> dict[str, Any]:
    data = found.data
    shapes, partitions, defaults = (data.get(key) or {} for key in ("nodes", "partitions", "defaults"))
    return {
        "name": name,
        "title": data.get("title"),
        "shipped": path.parent == load.SHIPPED,
        "file": str(path),
        "nodes": {kind: {"gpus": int(shape["gpus"]), "gpu": shape.get("gpu")} for kind, shape in shapes.items()},
        "partitions": list(partitions),
        "default_nodes": defaults.get("nodes"),
        "default_partition": defaults.get("partition"),
        "evidence": evidence.tally(data, found.origins),
    }


def _table(rows: list[dict[str, Any]], detected: list[str]) -> None:
    table = [("NAME", "TITLE", "GPUS", "PARTITIONS", "SURE")]
    for row in rows:
        count = sum(row["evidence"].values())
        sure = row["evidence"].get("documented", 0) + row["evidence"].get("reported", 0)
        own = row["evidence"].get("own", 0)
        table.append((
            row["name"], row["title"] or "-", _gpus(row), _first(row["default_partition"], row["partitions"]),
            "own" if own * 2 > count else f"{100 * sure // count}%" if count else "-",
        ))  # fmt: skip
    widths = [max(len(cells[column]) for cells in table) for column in range(5)]
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for number, cells in enumerate(table):
        mark = "* " if cells[0] in detected else "  "
        text = mark + "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        click.echo(click.style(text, bold=True) if colour and (number == 0 or mark == "* ") else text, color=colour)
    here = ", ".join(detected)
    note = f"this machine looks like {here} (*)" if detected else "this machine is none of these, as far as can be seen"
    click.echo(f"{note}\nGPUS: of a node; SURE: share of values from the centre's documentation, or from who cites it", err=True)
    click.echo(f"next: hpctrain clusters show {detected[0] if detected else 'NAME'}", err=True)


def _gpus(row: dict[str, Any]) -> str:
    """Return `4 A100`, or `3 A100 +1` where there is another kind of node."""
    kinds = list(row["nodes"])
    if not kinds:
        return "-"
    kind = row["default_nodes"] if row["default_nodes"] in kinds else kinds[0]
    shape = row["nodes"][kind]
    model = re.sub(r"^(NVIDIA|AMD) ", "", shape["gpu"] or "").partition(" ")[0]
    more = len({(each["gpus"], each["gpu"]) for each in row["nodes"].values() if each["gpus"]}) - 1
    return f"{shape['gpus']} {model}".rstrip() + (f" +{more}" if more else "")


def _first(default: str | None, names: list[str]) -> str:
    if not names:
        return "-"
    return (default if default in names else names[0]) + (f" +{len(names) - 1}" if len(names) > 1 else "")


def _hosts() -> tuple[str, ...]:
    # Without asking a name server, which may take its time to say nothing.
    return (socket.gethostname(),)


def _cluster_name() -> str | None:
    """Return Slurm's ClusterName as a job's environment or slurm.conf has it; no program is run."""
    if os.environ.get("SLURM_CLUSTER_NAME"):
        return os.environ["SLURM_CLUSTER_NAME"]
    for path in (os.environ.get("SLURM_CONF"), *_SLURM_CONF):
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace") if path else ""
        except OSError:
            continue
        named = re.search(r"^\s*ClusterName\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
        if named:
            return named[1]
    return None
