"""`hpctrain checkpoints merge`: merge a LoRA adapter into its base model."""

from __future__ import annotations

from pathlib import Path

import click

from hpctrain.cli.options import complete_runs, json_option, runs_dir_option
from hpctrain.cli.output import print_json, say
from hpctrain.runs import checkpoints
from hpctrain.util import files, installed, shell, text


@click.command("merge")
@click.argument("word", metavar="RUN|DIR", shell_complete=complete_runs)
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Output directory. Default: merged, in the run's directory.",
)
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Base model. Default: the one that the adapter names.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="dtype of the merged weights. Default: the base model's.",
)
@runs_dir_option
@json_option
def command(  # noqa: PLR0917 - click names them
    word: str,
    to: Path | None,
    base: Path | None,
    dtype: str | None,
    runs_dir: Path,
    as_json: bool,
) -> None:
    """Merge a LoRA adapter into its base model.

    RUN is a run's id: its final model, else its newest checkpoint; RUN/checkpoint-40 is one
    checkpoint; DIR any directory with an adapter. stdout is the path of the result.
    """
    adapter = checkpoints.weights_of(word, runs=runs_dir, tag=None)
    import hpctrain.training  # noqa: F401 - before peft: it keeps bitsandbytes quiet

    installed.require("train", "peft", "torch", "transformers")
    from hpctrain.training import merge

    made = merge.merge(adapter, to or _target(adapter), base=base, dtype=dtype, say=say)
    if as_json:
        print_json(
            folder=str(made.folder),
            adapter=str(adapter),
            base=str(made.base),
            dtype=made.dtype,
            parameters=made.parameters,
            bytes=made.bytes,
            notes=list(made.notes),
        )
        return
    for note in made.notes:
        say(f"notice: {note}")
    say(f"{text.size(made.bytes)} in {made.dtype}")
    click.echo(str(made.folder))
    say(f"next: --model_name_or_path {shell.quote(made.folder)}, or serve it")


def _target(adapter: Path) -> Path:
    inside = adapter.absolute().parent
    name = adapter.name if adapter.name != checkpoints.MODEL else ""
    if inside.name == checkpoints.CHECKPOINTS and (inside.parent / "run.json").is_file():
        run = inside.parent if adapter.is_absolute() else adapter.parent.parent
        return run / f"merged-{name.removeprefix('checkpoint-')}"
    if not name and files.read_json(inside / "run.json") is not None:
        return adapter.with_name("merged")
    return adapter.with_name(f"{adapter.absolute().name}-merged")
