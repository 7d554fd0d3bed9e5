"""`hpctrain merge`: a LoRA adapter and its base model become one folder that can be served."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hpctrain.cli.runs_filter import runs_dir_option
from hpctrain.cli.runs_table import size
from hpctrain.errors import UsageError
from hpctrain.jobs import shell
from hpctrain.runs import checkpoints, files


@click.command()
@click.argument("word", metavar="RUN|FOLDER")
@click.option("--to", type=click.Path(path_type=Path), metavar="DIR", help="The folder to make. Default: merged, in the run's directory.")
@click.option(
    "--base", type=click.Path(path_type=Path), metavar="FOLDER", help="The base model, where the adapter's own word is out of date."
)
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Of the merged weights. Default: the base model's own."
)
@click.option("--max-shard-size", default="5GB", show_default=True, metavar="SIZE", help="Of one file of weights.")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Where to merge: cpu, cuda, cuda:1.")
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(  # noqa: PLR0917 - click names them
    word: str, to: Path | None, base: Path | None, dtype: str | None, max_shard_size: str, device: str, runs_dir: Path, as_json: bool
) -> None:
    """Merge a LoRA adapter into its base model, and verify it by loading.

    RUN is a run's id: its final model, else its newest checkpoint; RUN/checkpoint-40 is one checkpoint; FOLDER any folder with an
    adapter. The new folder gives the logits of base and adapter, or it is not made. stdout is its path.
    """
    _check_words(max_shard_size, device)
    folder = checkpoints.weights_of(word, runs=runs_dir, tag=None)
    target = to if to is not None else _target(folder)
    # Light imports: torch is loaded by what they call.
    from hpctrain.training import merge, merge_adapter

    merge_adapter.require_libraries()
    _check_device(device)
    request = merge.Request(
        adapter=folder, to=target, base=base, dtype=dtype, max_shard_size=max_shard_size, device=device,
        say=lambda line: click.echo(line, err=True),
    )  # fmt: skip
    made = merge.merge(request)
    if as_json:
        click.echo(json.dumps({
            "schema": 1, "folder": str(made.folder), "adapter": str(folder), "base": str(made.base), "dtype": made.dtype,
            "parameters": made.parameters, "bytes": made.bytes, "off": made.off, "effect": made.effect, "bound": made.bound,
            "memory_bytes": made.needs.memory, "notes": list(made.notes),
        }))  # fmt: skip
        return
    for note in made.notes:
        click.echo(f"notice: {note}", err=True)
    click.echo(f"{size(made.bytes)} in {made.dtype}; loaded anew, logits are off by {made.off:.2g}", err=True)
    click.echo(f"(the adapter changes them by {made.effect:.2g}; allowed was {made.bound:.2g})", err=True)
    click.echo(str(made.folder))
    click.echo(f"next: --model_name_or_path {shell.quote(made.folder)}, or serve it", err=True)


def _check_words(max_shard_size: str, device: str) -> None:
    import re

    if not re.fullmatch(r"[1-9][0-9]*(KB|MB|GB|KiB|MiB|GiB)", max_shard_size):
        raise UsageError(f"--max-shard-size must be a size such as 5GB or 500MB, not {max_shard_size!r}", fix="--max-shard-size 5GB")
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
        raise UsageError(f"--device must be cpu, cuda or cuda:N, not {device!r}", fix="--device cpu")


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    from hpctrain.training import merge_adapter

    if (found := merge_adapter.devices()) <= int(device.partition(":")[2] or 0):
        raise UsageError(f"there is no {device} here; {found or 'no'} GPU{'s are' * (found != 1) or ' is'} visible", fix="--device cpu")


def _target(folder: Path) -> Path:
    """Return where the merged model goes by default: into its run's directory, or beside the folder."""
    inside = folder.absolute().parent
    name = folder.name if folder.name != checkpoints.MODEL else ""
    if inside.name == checkpoints.CHECKPOINTS and (inside.parent / "run.json").is_file():
        return _short(inside.parent / f"merged-{name.removeprefix('checkpoint-')}", folder)
    if not name and files.read_json(inside / "run.json") is not None:
        return folder.with_name("merged")
    return folder.with_name(f"{folder.absolute().name}-merged")


def _short(target: Path, folder: Path) -> Path:
    """Return `target` as `folder` was named: relative where that was."""
    return target if folder.is_absolute() else folder.parent.parent / target.name
