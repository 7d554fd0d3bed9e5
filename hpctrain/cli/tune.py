"""`hpctrain tune`: a study whose trials are the tasks of an array job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpctrain.cli import submit
from hpctrain.cli.job_options import ARGUMENTS, JobCommand, job_options, request
from hpctrain.cli.options import json_option, runs_dir_option
from hpctrain.errors import UsageError

#: Parameters of `submit` only.
_NOT_OURS = ("batch_script", "help")


class TuneCommand(JobCommand, click.Group):
    """A group with the options of a job, which is also a command without a subcommand."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show both forms."""
        del ctx
        return ["[OPTIONS]", "[-- TRAINING_ARGUMENTS]", "|", "status [NAME]", "|", "best NAME"]


@click.group(cls=TuneCommand, invoke_without_command=True)
@job_options
@click.pass_context
def command(ctx: click.Context, /, **parameters: Any) -> int | None:
    """Run a hyperparameter search with Optuna.

    The study is `tune:` of config.yaml: the search space, the number of trials and the metric. Each
    trial is a task of an array with its own run. The same command again submits missing trials;
    `hpctrain resubmit` continues runs that have failed.

    \b
    hpctrain tune --local --wait
    hpctrain tune status NAME
    hpctrain tune best NAME --to best.yaml
    """  # noqa: D301 - \b keeps click from wrapping
    if ctx.invoked_subcommand is not None:
        _refuse_options(ctx)
        return None
    from hpctrain.cli.actions import study

    return study.run(request(ctx, parameters), parameters)


# All options of `submit`.
command.params += [
    each
    for each in submit.command.params
    if each.name not in {known.name for known in command.params} | set(_NOT_OURS)
]


def _refuse_options(ctx: click.Context) -> None:
    typed = [
        each
        for each in ctx.params
        if ctx.get_parameter_source(each) is click.core.ParameterSource.COMMANDLINE
    ]
    if typed or ctx.meta[ARGUMENTS]:
        raise UsageError(
            f"options of a job do not go with `tune {ctx.invoked_subcommand}`",
            fix=f"hpctrain tune {ctx.invoked_subcommand} --help",
        )


@command.command("status", short_help="Show the trials of a study, and the best so far.")
@click.argument("name", required=False)
@runs_dir_option
@json_option
def status(name: str | None, runs_dir: Path, as_json: bool) -> None:
    """Show the trials of a study: parameters, progress and values; and the best so far.

    Default: the only study. Trials that ended without reporting it are recorded.
    """
    from hpctrain.cli.actions import study

    study.status(runs_dir.absolute(), name, as_json=as_json)


@command.command("best", short_help="Show the best trial, or write its config.")
@click.argument("name", required=False)
@click.option(
    "--to",
    metavar="FILE",
    help="Write the config with the best values, and without the study; - is stdout.",
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@runs_dir_option
@json_option
def best(name: str | None, to: str | None, force: bool, runs_dir: Path, as_json: bool) -> None:
    """Show the best trial of a study, or write its config: yours, with the best values under
    training, and without tune.

    Options that were typed, such as --nodes 2, are printed, because they are in no config.
    """
    from hpctrain.cli.actions import study

    study.best(runs_dir.absolute(), name, to=to, force=force, as_json=as_json)
