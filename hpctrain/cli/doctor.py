"""`hpctrain doctor`: check the local machine and environment and, with --job, the compute nodes."""

from __future__ import annotations

from typing import Any

import click

from hpctrain.cli.job_options import JobCommand, job_options, request
from hpctrain.cli.options import json_option


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--quick",
    is_flag=True,
    help="Skip the start of the training without a network (30 s).",
)
@click.option(
    "--job",
    "as_job",
    is_flag=True,
    help="Run a preflight job of a few minutes on compute nodes.",
)
@click.option(
    "--local", is_flag=True, help="With --job: run it locally, even if Slurm is available."
)
@click.option(
    "--wait/--no-wait",
    default=True,
    help="With --job: wait for the job and report. Default: wait.",
)
@click.option(
    "--of",
    "job_id",
    metavar="JOB",
    help="Report on a preflight job that was submitted with --no-wait.",
)
@json_option
@click.pass_context
def command(ctx: click.Context, /, **parameters: Any) -> int:
    """Check this machine and environment and, with --job, the nodes.

    Without --job: the job's environment, versions that must agree, modules, model and dataset,
    caches, quotas, Slurm, and whether the training starts without a network. With --job, the job is
    submitted with a short test instead of the training, and each node reports what it has.

    \b
    hpctrain doctor
    hpctrain doctor --job --nodes 2 --gpus 4
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import doctor

    return doctor.run(request(ctx, parameters), parameters)
