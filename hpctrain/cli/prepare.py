"""`hpctrain prepare --demo DIR`: model, tokenised data and job config for a first training."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hpctrain.cli import script_file
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell


@click.command()
@click.option("--demo", metavar="DIR", help="Make DIR with a small model, data from the standard library's docstrings, and a job config.")
def command(demo: str | None) -> None:
    """Make model and data ready; --demo makes both from what Python installs.

    Nothing is downloaded: the tokenizer is trained on, and the instruction pairs are drawn from, the docstrings of the Python standard
    library on this machine. stdout is the path of the job config.
    """
    if demo is None:
        raise UsageError("nothing to prepare: --demo DIR is the one thing that can be made so far", fix="hpctrain prepare --demo demo")
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
