"""`hpctrain checkpoints`: what runs have saved, and whether it is whole."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from typing import Any

import click

from hpctrain.cli import checkpoints_chosen, runs_table
from hpctrain.cli.runs_filter import filter_options, runs_dir_option
from hpctrain.errors import HpctrainError
from hpctrain.runs import manifest
from hpctrain.runs.saved import Saved
from hpctrain.runs.select import Filter

_ELSEWHERE = {
    "drop": ("checkpoints_drop", "drop_command"),
    "export": ("checkpoints_archive", "export_command"),
    "import": ("checkpoints_archive", "import_command"),
}


class _Group(click.Group):
    """The subcommands, some of them in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return ["list", "verify", *_ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, function = _ELSEWHERE[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"hpctrain.cli.{module}"), function)
        return command


@click.group(cls=_Group)
def command() -> None:
    """List, verify, drop, export and import checkpoints.

    RUN is a run's id, or the beginning of it, or a glob such as 'sft-*'; RUN/checkpoint-40 is one checkpoint, RUN/model the final
    weights.
    """


@command.command("list")
@filter_options
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def list_command(chosen: Filter, runs_dir: Path, as_json: bool) -> int:
    """List checkpoints, complete or not.

    Names and sizes are compared; `verify` reads the files.
    """
    found = checkpoints_chosen.choose(chosen, runs_dir).all
    if as_json:
        click.echo(json.dumps({"schema": 1, "checkpoints": [as_json_row(one) for one in found]}))
        return 0
    if not found:
        click.echo(f"no checkpoints{'' if chosen.is_bare else ' like that'} in {runs_dir.absolute()}", err=True)
        return 0
    click.echo("\n".join(table(found)))
    damaged = [one for one in found if one.wrong and not one.unfinished]
    if damaged:
        click.echo(f"next: hpctrain checkpoints drop --damaged {damaged[0].run}", err=True)
    else:
        click.echo(f"next: hpctrain checkpoints verify {found[-1].run}, which reads the files", err=True)
    return 0


def table(found: list[Saved]) -> list[str]:
    """Return the lines of a table of checkpoints."""
    now = time.time()
    rows: list[tuple[str, ...]] = []
    for one in found:
        said = one.manifest
        rows.append((
            one.run, one.path.name, "-" if said is None else str(said.step), runs_table.ago(said.saved_at if said else None, now),
            runs_table.size(one.size()), "-" if said is None else str(said.world_size), "best" if one.best else "-",
            runs_table.printable("; ".join(one.wrong)) or "complete",
        ))  # fmt: skip
    head: tuple[str, ...] = ("RUN", "CHECKPOINT", "STEP", "SAVED", "SIZE", "RANKS", "BEST", "IS")
    if not any(one.best for one in found):  # in 80 columns, what is the same for all has no room
        head, rows = (*head[:6], head[7]), [(*row[:6], row[7]) for row in rows]
    return runs_table.table(head, rows, state_column=None)


def as_json_row(one: Saved) -> dict[str, Any]:
    """Return a checkpoint as JSON values: bytes, seconds, seconds since the epoch; null for what is not known."""
    said = one.manifest
    return {
        "run_id": one.run, "name": one.path.name, "path": str(one.path.absolute()), "complete": not one.wrong,
        "problems": list(one.wrong), "best": one.best, "bytes": one.size(), "step": said and said.step,
        "world_size": said and said.world_size, "saved_at": said and said.saved_at, "seconds": said and said.seconds,
        "attempt": said and said.attempt, "state": said and list(said.state),
    }  # fmt: skip


@command.command("verify")
@filter_options
@runs_dir_option
@click.option("--digests/--no-digests", default=True, show_default=True, help="Read the files and compare their SHA-256.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def verify_command(chosen: Filter, runs_dir: Path, digests: bool, as_json: bool) -> int:
    """Compare checkpoints with what was saved.

    Ends with 1 where one has changed. Saves that are under way, or were not finished, are left out.
    """
    found = [one for one in checkpoints_chosen.choose(chosen, runs_dir).all if not one.unfinished]
    if not found and not chosen.is_bare:
        raise HpctrainError("there is nothing to verify: no checkpoints like that", fix="hpctrain checkpoints list")
    total = sum(one.manifest.bytes for one in found if one.manifest)
    progress = checkpoints_chosen.Progress("read", total)
    wrong: dict[str, tuple[str, ...]] = {}
    for one in found:
        wrong[one.name] = manifest.problems(one.path, digests=digests, progress=progress)
        if not as_json:
            _say(one, wrong[one.name])
    damaged = [name for name, problems in wrong.items() if problems]
    if as_json:
        rows = [{"run_id": one.run, "name": one.path.name, "ok": not wrong[one.name], "problems": list(wrong[one.name])} for one in found]
        click.echo(json.dumps({"schema": 1, "digests": digests, "checkpoints": rows}))
    if damaged:
        several = f"{len(damaged)} of {len(found)} are not as they were saved"
        click.echo(HpctrainError(several, fix=f"hpctrain checkpoints drop --damaged {damaged[0].partition('/')[0]}").render(), err=True)
        return 1
    if not as_json:
        click.echo(f"{len(found)} as saved{'' if digests else ' (names and sizes)'}", err=True)
    return 0


def _say(one: Saved, wrong: tuple[str, ...]) -> None:
    size = runs_table.size(one.manifest.bytes) if one.manifest else "-"
    click.echo(f"{one.name}  {'damaged' if wrong else 'ok'}  {size}")
    for problem in wrong[:10]:
        click.echo(f"  {runs_table.printable(problem)}")
    if len(wrong) > 10:
        click.echo(f"  and {len(wrong) - 10} more")
