"""`hpctrain checkpoints export` and `import`: one checkpoint as one file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hpctrain.cli import checkpoints_chosen, runs_archive
from hpctrain.cli.runs_filter import runs_dir_option
from hpctrain.runs import archive, unpack


@click.command("export")
@click.argument("word", metavar="RUN[/checkpoint-N]")
@runs_archive.output_options
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def export_command(word: str, output: Path, force: bool, runs_dir: Path, as_json: bool) -> int:
    """Write one checkpoint into one file.

    Every byte is compared with what was saved. A RUN alone means its newest complete checkpoint, RUN/model the final weights.
    """
    saved = checkpoints_chosen.choose_one(word, runs_dir)
    progress = checkpoints_chosen.Progress("written", saved.manifest.bytes if saved.manifest else None)
    with runs_archive.tidy_end():
        done = archive.export_checkpoint(runs_dir / saved.run, saved.path, output, replace=force, progress=progress)
    runs_archive.say_exported(done, what=saved.name, verb="checkpoints", as_json=as_json)
    return 0


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--as", "as_", metavar="RUN", help="Put it into this run, instead of the one that it comes from.")
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def import_command(file: Path, as_: str | None, runs_dir: Path, as_json: bool) -> int:
    """Take a checkpoint from an exported file.

    It goes into the run that it comes from, which is made if it is not here. Nothing of it is to be seen before all of it is verified.
    """
    progress = runs_archive.import_progress(file)
    done = unpack.import_checkpoint(file, runs_dir, as_=as_, progress=progress)
    path = done.paths[0]
    if as_json:
        click.echo(
            json.dumps({"schema": 1, "path": str(path.absolute()), "files": done.files, "bytes": done.bytes, "present": done.present})
        )
        return 0
    click.echo(str(path))
    run = path.parent.name if path.name == "model" else path.parent.parent.name
    click.echo("it was here already, and is the same" if done.present else f"next: hpctrain checkpoints list {run}", err=True)
    return 0
