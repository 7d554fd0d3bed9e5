"""`hpctrain check`: find problems before the job is submitted."""

from __future__ import annotations

from typing import Any

import click

from hpctrain.cli.job_options import JobCommand, job_options, request_with_config
from hpctrain.cli.options import json_option
from hpctrain.finding import LEVELS


@click.command(cls=JobCommand)
@click.argument("config_file", required=False, metavar="[CONFIG]")
@job_options
@click.option("--no-slurm", is_flag=True, help="Do not query Slurm.")
@click.option(
    "--show-origin",
    is_flag=True,
    help="Show each value, its origin, and what it overrides.",
)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="note",
    show_default=True,
    help="Show findings of this level and above.",
)
@json_option
@click.pass_context
def command(ctx: click.Context, /, config_file: str | None, **parameters: Any) -> int:
    """Validate a job before submitting it.

    The job of CONFIG (./config.yaml) and of these options is compared with the cluster's profile,
    with Slurm's configuration, and with the files and the environment that it will use; last, with
    sbatch --test-only. Nothing is submitted or written. Exit code 1 with findings of level error.

    \b
    hpctrain check
    hpctrain check --nodes 2 --gpus 4 --time 24:00:00
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import check

    others = "hpctrain check --script" if str(config_file).endswith(".py") else "hpctrain lint"
    asked = request_with_config(ctx, config_file, parameters, for_others=others)
    return check.run(asked, parameters)
