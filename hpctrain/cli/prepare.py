"""`hpctrain prepare`: raw data to a tokenised dataset; or, with --demo, everything that a first training needs."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hpctrain import installed
from hpctrain.cli import script_file
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell

_FORMS = ("text", "prompt-completion", "messages", "alpaca")


@click.command()
@click.argument("data", nargs=-1, metavar="[DATA]...")
@click.option("--model", metavar="FOLDER", help="Model whose tokenizer is used, or its name on the hub. Default: the config's.")
@click.option("--to", metavar="DIR", help="Folder to make. Default: the config's dataset_name.")
@click.option("--form", type=click.Choice(_FORMS), help="What the rows are. Default: found from the columns, and said.")
@click.option("--column", "columns", multiple=True, metavar="ROLE=NAME", help="Column of a role (text, prompt, completion, messages ...).")
@click.option("--text-unit", type=click.Choice(("line", "block", "file")), help="What one example of a text file is.")
@click.option("--loss-on", type=click.Choice(("all", "completion", "assistant")), help="Tokens to train on. Default: the form's.")
@click.option("--max-length", type=click.IntRange(2), metavar="N", help="Tokens of an example, and of a packed row. Default: the config's.")
@click.option("--truncation", type=click.Choice(("keep_start", "drop", "split")), default="keep_start", show_default=True,
              help="What is done with longer examples.")  # fmt: skip
@click.option("--pack/--no-pack", default=None, help="Fill rows with several examples, or keep each in its own. Default: --pack.")
@click.option("--validation", metavar="X", help="Examples held out: 500, a share 0.05, or 0. Default: 0.05, at most 2000.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of what is held out, of the order of packed rows, of --show.")
@click.option("--dedupe", is_flag=True, help="Of equal examples keep the first.")
@click.option("--template", metavar="FILE", help="Chat template in place of the tokenizer's.")
@click.option("--template-option", "template_options", multiple=True, metavar="NAME=VALUE", help="Variable of the template.")
@click.option("--system", metavar="TEXT", help="System prompt of conversations that have none.")
@click.option("--as-chat", is_flag=True, help="Strings of prompt and completion become turns of a conversation.")
@click.option("--no-eos", is_flag=True, help="End no example with the EOS token.")
@click.option("--trust-remote-code", is_flag=True, help="Run the tokenizer's own Python code.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes. Default: all cores, as far as memory reaches.")
@click.option("--show", type=click.IntRange(1), metavar="N", help="Print N examples, trained tokens marked; write nothing.")
@click.option("--force", is_flag=True, help="Replace what an earlier prepare made at --to.")
@click.option("--config", metavar="FILE", help="Job config to take defaults from. Default: ./config.yaml, if there is one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--demo", metavar="DIR", help="Make DIR with a small model, data from the standard library's docstrings, and a job config.")
def command(demo: str | None, data: tuple[str, ...], show: int | None, as_json: bool, **options: Any) -> None:
    """Make data ready for training: text in, tokens and masks out.

    Done once, on the login node; a training only loads the result. DATA are files (JSONL, JSON, CSV, Parquet, text), folders of them,
    folders of `save_to_disk`, or a name on the hub. All cores work; a command that was stopped goes on where it was when it is typed
    again. With --show, DATA may also be a folder that was prepared. --demo makes model, data and job config of what Python installs.
    stdout is the folder.

    \b
    hpctrain prepare chats.jsonl --model models/my_model --show 3
    hpctrain prepare chats.jsonl --model models/my_model --to data/chats
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    if demo is not None:
        if data:
            raise UsageError("--demo makes its own data, and DATA was given", fix=f"hpctrain prepare --demo {shell.quote(demo)}")
        _demo(demo)
        return
    _need_libraries()
    if not options["trust_remote_code"]:
        _leave_torch_out()
    if show is not None:
        from hpctrain.cli import prepare_show

        prepare_show.show(data, options, count=show, as_json=as_json)
        return
    from hpctrain.cli import prepare_asked, prepare_progress, prepare_summary
    from hpctrain.preparation import pipeline

    request = prepare_asked.request(data, options, say=prepare_progress.Lines().say)
    with prepare_progress.shown() as progress:
        summary = pipeline.prepare(request, progress=progress, say=progress.say)
    prepare_summary.show(summary, as_json=as_json, step=prepare_asked.rows_per_step(options["config"], summary.manifest))


def _leave_torch_out() -> None:
    """Import the tokenizers without torch, as the workers do: it would take a second or two, and nothing here uses it."""
    own = Path(sys.argv[0]).name == "hpctrain"  # whoever calls this from another program may want torch later
    if own and "torch" not in sys.modules:
        importlib.import_module("hpctrain.preparation.without_torch")


def _need_libraries() -> None:
    missing = [name for name in ("transformers", "tokenizers", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise HpctrainError(f"{', '.join(missing)} cannot be imported, which prepare needs", fix=installed.command("prepare"))


def _demo(demo: str) -> None:
    # The one place where the command line needs the training's libraries: it makes what the training reads.
    from hpctrain.training.demo import DEMO_TRAINING, make_demo

    click.echo("reading docstrings, training a tokenizer (about 15 s)", err=True)
    summary = make_demo(Path(demo))
    config = summary.directory / "config.yaml"
    try:
        script_file.write_whole({config: _job_config(DEMO_TRAINING)})
    except OSError as error:
        raise HpctrainError(f"cannot write {config}: {error.strerror}", fix=f"df -h {shell.quote(summary.directory)}") from error
    click.echo(
        f"{summary.train_pairs:,} pairs of {summary.modules} modules, {summary.tokens:,} tokens, vocabulary {summary.vocabulary:,}, "
        f"model of {summary.parameters / 1e6:.1f} million parameters",
        err=True,
    )
    click.echo(str(config))
    click.echo(f"next: cd {shell.quote(demo)} && hpctrain render --nodes 2 --gpus 1", err=True)


def _job_config(training: Mapping[str, Any]) -> str:
    """Return the demo's job config, with the virtual environment that hpctrain itself runs in."""
    import yaml

    config: dict[str, Any] = {
        "job_name": "sft",
        "resources": {"nodes": 1, "gpus_per_node": 1, "time": "00:30:00", "cpus_per_task": 2},
    }
    if sys.prefix != sys.base_prefix and Path(sys.prefix, "bin", "activate").exists():
        config["environment"] = {"venv": sys.prefix}
    elif os.environ.get("CONDA_DEFAULT_ENV"):
        config["environment"] = {"conda": os.environ["CONDA_DEFAULT_ENV"]}
    config["training"] = {"model_name_or_path": "model", "dataset_name": "dataset", **training}
    return "# The demo's job config, made by `hpctrain prepare --demo`. Options of `hpctrain render` win over it.\n" + yaml.safe_dump(
        config, sort_keys=False
    )
