"""`hpctrain submit`: hand the script to Slurm, or run it on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hpctrain.cli import follow
from hpctrain.cli.chosen_script import Trial, chosen
from hpctrain.cli.job_options import JobCommand, job_options, parse_request, request
from hpctrain.errors import UsageError
from hpctrain.jobs import render, shell
from hpctrain.scheduler import batch_script
from hpctrain.scheduler.local.scheduler import LocalScheduler
from hpctrain.scheduler.parse import directives
from hpctrain.scheduler.slurm import SlurmScheduler


@click.command(cls=JobCommand)
@click.argument("batch_script", required=False, metavar="[SCRIPT]")
@job_options
@click.option("--force", is_flag=True, help="Replace the script even if hpctrain did not write it, or somebody edited it.")
@click.option("--no-check", is_flag=True, help="Submit also what `hpctrain check` finds errors in.")
@click.option("--local", is_flag=True, help="Run on this machine, Slurm or no Slurm.")
@click.option("--wait", is_flag=True, help="Show the log until the job has ended, and exit with its exit code.")
@click.option("--resend", is_flag=True, help="Submit although sbatch never answered an earlier submission of the same script.")
@click.option("--parsable", is_flag=True, help="Print the job id alone, as sbatch does.")
@click.option("--dry-run", is_flag=True, help="Say what would be run; write and submit nothing.")
@click.option("--test-only", is_flag=True, help="Ask Slurm whether, and when, the job would start; submit nothing.")
@click.pass_context
def command(ctx: click.Context, /, batch_script: str | None, **parameters: Any) -> int:
    """Submit the script to Slurm, or run it on this machine.

    Without SCRIPT and without options, the script that `hpctrain render` wrote is submitted as it is. With options, it is rendered
    first; options that the script was rendered with have to be said again. Slurm is used where sbatch is on PATH; else, or with
    --local, the same script runs here.

    \b
    hpctrain submit --nodes 2 --gpus 4
    hpctrain submit --local --wait
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    asked = request(ctx, parameters)
    scheduler = _scheduler(parameters["local"])
    trial: Trial = "dry-run" if parameters["dry_run"] else "test-only" if parameters["test_only"] else "no"
    with chosen(asked, batch_script, force=parameters["force"], trial=trial) as path:
        if trial == "dry-run":
            return _dry_run(scheduler, path)
        if trial == "test-only":
            return _test_only(scheduler, path)
        if not parameters["no_check"]:
            _check(path, asked.verb, local=scheduler.name == "local", named=batch_script is not None)
        return _submit(scheduler, path, parameters)


def _check(path: Path, verb: str, *, local: bool, named: bool) -> None:
    """Hold a script against the checks: its job, where hpctrain rendered it here and nobody edited it since, else its text.

    Raises:
        HpctrainError: the checks found errors.
    """
    from hpctrain.cli import examine

    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    made = render.read_header(text)
    if made is not None and made.untouched and made.directory == str(Path.cwd()):
        again = f"hpctrain {verb} {shell.quote(path)}" if named else f"hpctrain {verb}"
        examine.before_submit(replace(parse_request(made.arguments), verb=verb), local=local, again=again)
    elif made is None or not made.untouched:
        batch_script.read(path)  # what is no batch script at all is no finding, but a wrong word
        examine.text_before_submit(text, str(path), f"hpctrain {verb} {shell.quote(path)}", local=local)


def _submit(scheduler: SlurmScheduler | LocalScheduler, path: Path, parameters: dict[str, Any]) -> int:
    if parameters["wait"] and "array" in _options_in(path):
        raise UsageError(f"{path} is a job array, and --wait follows one job", fix=f"hpctrain submit {shell.quote(path)}")
    submission = scheduler.submit(path, resend=parameters["resend"])
    for note in submission.notes:
        click.echo(f"note: {note}", err=True)
    if parameters["parsable"]:
        click.echo(submission.job_id + (f";{submission.cluster}" if submission.cluster else ""))
    else:
        where = "on this machine" if scheduler.name == "local" else "to Slurm"
        click.echo(f"submitted job {submission.job_id} {where}", err=parameters["wait"])
    if parameters["wait"]:
        return _wait(scheduler, submission.job_id, show=not parameters["parsable"])
    if not parameters["parsable"]:
        click.echo(f"next: hpctrain logs -f {submission.job_id}, or to stop it: hpctrain cancel {submission.job_id}", err=True)
    return 0


def _options_in(path: Path) -> dict[str, str | None]:
    """Return the sbatch options in a script; none in one that a trial has not written."""
    return directives.last_values(batch_script.read(path)[1]) if path.is_file() else {}


def _scheduler(local: bool) -> SlurmScheduler | LocalScheduler:
    if local:
        return LocalScheduler()
    if SlurmScheduler.is_available():
        return SlurmScheduler()
    click.echo("note: sbatch is not on PATH, so the job runs on this machine", err=True)
    return LocalScheduler()


def _dry_run(scheduler: SlurmScheduler | LocalScheduler, path: Path) -> int:
    options = _options_in(path)
    if isinstance(scheduler, SlurmScheduler):
        click.echo(f"would run: {shell.join(scheduler.sbatch_argv(path, values=options))}")
    else:
        click.echo(f"would run: bash {shell.quote(path)} on this machine, with stand-ins for srun and scontrol")
    return 0


def _test_only(scheduler: SlurmScheduler | LocalScheduler, path: Path) -> int:
    if isinstance(scheduler, SlurmScheduler):
        click.echo(scheduler.test_only(path))
        return 0
    plan = scheduler.plan(path)
    for note in plan.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"job {plan.name} would start here at once, on {plan.nodes} played node{'s' if plan.nodes > 1 else ''}")
    return 0


def _wait(scheduler: SlurmScheduler | LocalScheduler, job_id: str, *, show: bool) -> int:
    try:
        tails = follow.tails_of(scheduler.logs(job_id)) if show else []
        record = follow.until_the_end(scheduler, job_id, tails, lambda line: click.echo(line, err=True))
    except KeyboardInterrupt:
        click.echo(f"\njob {job_id} keeps running; to stop it: hpctrain cancel {job_id}", err=True)
        return 130
    if record is None:
        click.echo(f"job {job_id} is no longer known to the scheduler; its log is in logs/", err=True)
        return 3
    click.echo(follow.describe(record), err=True)
    return follow.exit_status(record)
