"""`hpctrain init`: propose a config.yaml for this cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from hpctrain.config.fields import BY_PATH

#: Options that answer the questions.
OPTIONS: tuple[tuple[str, ...], ...] = (
    ("cluster",),
    ("resources", "account"),
    ("resources", "partition"),
    ("resources", "qos"),
    ("resources", "gpu_type"),
    ("resources", "gpus_per_node"),
    ("resources", "nodes"),
    ("resources", "time"),
    ("environment", "venv"),
    ("environment", "conda"),
)
FURTHER = {"model": ("training", "model_name_or_path"), "dataset": ("training", "dataset_name")}


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for path in reversed(OPTIONS):
        entry = BY_PATH[path]
        function = click.option(
            entry.option, *entry.aliases, entry.name, metavar=entry.metavar, help=entry.help
        )(function)
    return function


@click.command()
@_options
@click.option("--model", metavar="DIR", help="Directory of the model to train.")
@click.option("--dataset", metavar="DIR", help="Directory of the tokenized dataset.")
@click.option(
    "-y",
    "--yes",
    "--defaults",
    "yes",
    is_flag=True,
    help="Ask nothing; use the best answer and print it.",
)
@click.option(
    "--no-slurm",
    is_flag=True,
    help="Do not query Slurm; use the profile of --cluster, or this machine.",
)
@click.option("--force", is_flag=True, help="Overwrite config.yaml.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print what was found as JSON; ask and write nothing.",
)
def command(yes: bool, no_slurm: bool, force: bool, as_json: bool, **parameters: Any) -> None:
    """Create config.yaml for this cluster.

    Values come from the cluster's profile, sinfo, scontrol and sacctmgr; if several answers are
    possible, you are asked. Each question has an option, and each value a comment with its source.
    Without a terminal nothing is asked. stdout is the path of the file.

    \b
    hpctrain init
    hpctrain init --yes --account my_project
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import init

    init.run(parameters, yes=yes, slurm=not no_slurm, force=force, as_json=as_json)
