"""`hpctrain fit`: estimate the memory and time of a job, and which layouts fit."""

from __future__ import annotations

from typing import Any

import click

from hpctrain.cli.job_options import JobCommand, job_options, request_with_config
from hpctrain.cli.options import json_option


@click.command(cls=JobCommand)
@click.argument("config_file", required=False, metavar="[CONFIG]")
@job_options
@click.option(
    "--gpu",
    metavar="NAME",
    help="The GPU, such as h100, a100-80gb, mi250x. Default: that of the cluster's profile.",
)
@click.option(
    "--gpu-memory",
    metavar="SIZE",
    help="Memory of each GPU, such as 80G, where the name does not say it.",
)
@click.option(
    "--model", metavar="FOLDER", help="Directory with config.json. Default: model_name_or_path."
)
@click.option("--all", "every", is_flag=True, help="Show every layout that fits, not only ten.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, config_file: str | None, **parameters: Any) -> int:
    """Estimate GPU memory and training time.

    The job of CONFIG (./config.yaml) and of these options is worked out from the model's
    config.json alone: the peak of each GPU by part, the host memory of each node, and the layouts
    that fit on the cluster's GPUs with the same global batch, fastest first. Nothing is downloaded,
    queued or imported. Exit code 1 where the asked layout does not fit.

    \b
    hpctrain fit
    hpctrain fit --gpu h100 --gpus 4 --model models/llama
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import fit

    asked = request_with_config(ctx, config_file, parameters, for_others="hpctrain fit --model")
    return fit.run(asked, parameters)
