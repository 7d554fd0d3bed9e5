"""`hpctrain tune`: a study, whose trials are the tasks of an array job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hpctrain.cli import submit
from hpctrain.cli.job_options import ARGUMENTS, JobCommand, Request, job_of, job_options, request
from hpctrain.cli.runs_filter import runs_dir_option
from hpctrain.errors import UsageError
from hpctrain.runs import layout

#: What belongs to `submit` alone.
_NOT_OURS = ("batch_script", "help")


class TuneCommand(JobCommand, click.Group):
    """A group that does something itself where no subcommand is named, with the options of a job."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Say both of its forms."""
        del ctx
        return ["[OPTIONS]", "[-- TRAINING_ARGUMENTS]", "|", "status [NAME]", "|", "best NAME"]


@click.group(cls=TuneCommand, invoke_without_command=True)
@job_options
@click.pass_context
def command(ctx: click.Context, /, **parameters: Any) -> int | None:
    """Search for good training arguments: an optuna study as an array job.

    The study is `tune:` of config.yaml: what is searched, how many trials, and what is looked at. Each trial is a task of an array, and
    a run of its own. The same command again runs what is missing of the study; `hpctrain resubmit` goes on with runs that have failed.

    \b
    hpctrain tune --local --wait
    hpctrain tune status NAME
    hpctrain tune best NAME --to best.yaml
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    if ctx.invoked_subcommand is not None:
        _refuse_options(ctx)
        return None
    return _run(request(ctx, parameters), parameters)


# Whatever `submit` can be told, this can be told.
command.params += [each for each in submit.command.params if each.name not in {known.name for known in command.params} | set(_NOT_OURS)]


def _refuse_options(ctx: click.Context) -> None:
    typed = [each for each in ctx.params if ctx.get_parameter_source(each) is click.core.ParameterSource.COMMANDLINE]
    if typed or ctx.meta[ARGUMENTS]:
        raise UsageError(
            f"options of a job do not go with `tune {ctx.invoked_subcommand}`",
            fix=f"hpctrain tune {ctx.invoked_subcommand} --help",
        )


def _run(asked: Request, parameters: dict[str, Any]) -> int:
    job = job_of(asked)
    if job.config.tune is None:
        raise UsageError(
            "there is no study in the config",
            details=("it says what is searched: tune: {space: {learning_rate: {low: 1e-5, high: 1e-3, log: true}}, trials: 20}",),
            fix="add tune: to config.yaml; examples/tune/config.yaml shows all of it",
        )
    from hpctrain.cli import tune_state
    from hpctrain.config.tune import definition

    study = definition(job.config)
    state = tune_state.look(Path(job.spec.chdir) / layout.RUNS, study, write=not (parameters["dry_run"] or parameters["test_only"]))
    for line in state.said:
        click.echo(line, err=True)
    if state.missing <= 0:
        click.echo(f"nothing to submit; next: hpctrain tune {'status' if state.open else 'best'} {study.study}", err=True)
        return 0
    code = submit.run(_with_tasks(asked, state.missing), None, parameters)
    if not parameters["parsable"]:
        click.echo(f"next: hpctrain tune status {study.study}", err=True)
    return code


def _with_tasks(asked: Request, missing: int) -> Request:
    """Return the request with as many tasks as trials are missing; an --array that was typed wins."""
    return replace(asked, tasks=f"0-{missing - 1}")


@command.command("status", short_help="Show the trials of a study, and the best so far.")
@click.argument("name", required=False)
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, raw units.")
def status(name: str | None, runs_dir: Path, as_json: bool) -> None:
    """Show the trials of a study: what each tries, how far it is, and what it found; the best so far.

    NAME may be left out where there is one study. Ends of trials that the study has not heard of yet are told.
    """
    from hpctrain.cli import tune_page

    tune_page.status(runs_dir.absolute(), name, as_json=as_json)


@command.command("best", short_help="Show the best trial, or write its config.")
@click.argument("name", required=False)
@click.option("--to", metavar="FILE", help="Write the config with the best values, and without the study; - is stdout.")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, raw units.")
def best(name: str | None, to: str | None, force: bool, runs_dir: Path, as_json: bool) -> None:
    """Show the best trial of a study, or write its config: yours, with the best values under training, and without tune.

    Comments stay. What was typed besides, such as --nodes 2, is said, because it stands in no config.
    """
    from hpctrain.cli import tune_page

    tune_page.best(runs_dir.absolute(), name, to=to, force=force, as_json=as_json)
