"""The commands of the group `Set up`: their options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from hpctrain.cli.options import (
    JobCommand,
    job_options,
    json_option,
    request,
    yes_option,
)
from hpctrain.config.fields import BY_PATH

# -- init ------------------------------------------------------------------------------------------

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
def init(yes: bool, no_slurm: bool, force: bool, as_json: bool, **parameters: Any) -> None:
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


# -- doctor ----------------------------------------------------------------------------------------


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
@click.option(
    "--notify", "try_notify", is_flag=True, help="Only send a test message, as in `notify:`."
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, /, **parameters: Any) -> int:
    """Check this machine and environment and, with --job, the nodes.

    Without --job: Slurm, the job's modules and environment, versions that must agree, quotas, and
    whether the training starts without a network. With --job, the job is submitted with a short
    test instead of the training, and each node reports what it has.

    \b
    hpctrain doctor
    hpctrain doctor --job --nodes 2 --gpus 4
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import doctor

    return doctor.run(request(ctx, parameters), parameters)


# -- sync ------------------------------------------------------------------------------------------


@click.command()
@click.argument("target", required=False, metavar="[HOST:PATH]")
@click.option("--dry-run", is_flag=True, help="Show what would be uploaded; upload nothing.")
@yes_option
def sync(target: str | None, *, dry_run: bool, yes: bool) -> int:
    """Upload the project to a cluster with rsync.

    The current directory goes into the directory PATH on HOST, without what .hpctrainignore and
    hpctrain leave out. Shows what would be sent, asks, and sends it. Nothing is deleted there.
    Without HOST:PATH, the last destination of this directory is used.

    \b
    hpctrain sync leonardo:/leonardo_work/proj_a/sft
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import sync

    return sync.run(target, dry_run=dry_run, yes=yes)


# -- clusters --------------------------------------------------------------------------------------


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def clusters(ctx: click.Context, as_json: bool) -> int:
    """List cluster profiles.

    Profiles come with hpctrain; those in the directories of $HPCTRAIN_CLUSTERS and in
    ~/.config/hpctrain/clusters are added, and replace the ones of the same name.
    """
    if ctx.invoked_subcommand is not None:
        if as_json:
            name = f"hpctrain clusters {ctx.invoked_subcommand} NAME"
            raise click.UsageError(f"--json follows the subcommand: {name} --json")
        return 0
    from hpctrain.cli.actions import clusters

    return clusters.show_all(as_json=as_json)


@clusters.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Print the file of a profile.

    Each section and value has its evidence and source. Limits come from documents; Slurm's own
    override them on the site.
    """
    from hpctrain.cli.actions import clusters

    clusters.show(name, as_json=as_json)
