"""`hpctrain submit`: hand the script to Slurm, or run it on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpctrain.cli import follow, script_file
from hpctrain.cli.job_options import JobCommand, Request, job_options, parse_request, request, script_of, spec_of
from hpctrain.errors import UsageError
from hpctrain.jobs import render, shell
from hpctrain.scheduler.local.scheduler import LocalScheduler
from hpctrain.scheduler.slurm import SlurmScheduler


@click.command(cls=JobCommand)
@click.argument("batch_script", required=False, metavar="[SCRIPT]")
@job_options
@click.option("--force", is_flag=True, help="Replace the script even if hpctrain did not write it, or somebody edited it.")
@click.option("--local", is_flag=True, help="Run on this machine, Slurm or no Slurm.")
@click.option("--wait", is_flag=True, help="Show the log until the job has ended, and exit with its exit code.")
@click.option("--parsable", is_flag=True, help="Print the job id alone, as sbatch does.")
@click.option("--dry-run", is_flag=True, help="Say what would be run; write and submit nothing.")
@click.option("--test-only", is_flag=True, help="Ask Slurm whether, and when, the job would start; submit nothing.")
@click.pass_context
def command(ctx: click.Context, /, batch_script: str | None, **parameters: Any) -> int:
    """Submit the script to Slurm, or run it on this machine.

    Without SCRIPT and without options, the script that `hpctrain render` wrote is submitted as it is. With options, it is rendered
    first. Slurm is used where sbatch is on PATH; else, or with --local, the same script runs here.

    \b
    hpctrain submit --nodes 2 --gpus 4
    hpctrain submit --local --wait
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    asked = request(ctx, parameters)
    scheduler = _scheduler(parameters["local"])
    path = _script(asked, batch_script, force=parameters["force"], dry_run=parameters["dry_run"])
    if parameters["dry_run"]:
        return _dry_run(scheduler, path)
    if parameters["test_only"]:
        return _test_only(scheduler, path)
    submission = scheduler.submit(path)
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


def _scheduler(local: bool) -> SlurmScheduler | LocalScheduler:
    if local:
        return LocalScheduler()
    if SlurmScheduler.is_available():
        return SlurmScheduler()
    click.echo("note: sbatch is not on PATH, so the job runs on this machine", err=True)
    return LocalScheduler()


def _script(asked: Request, script: str | None, *, force: bool, dry_run: bool) -> Path:
    """Return the script to submit, rendered first where something was asked for."""
    if script is not None:
        if not asked.is_bare:
            raise UsageError(
                f"{script} is submitted as it is, so options for rendering do not go with it", fix=f"hpctrain submit {shell.quote(script)}"
            )
        if not Path(script).is_file():
            raise UsageError(f"there is no script {script!r}", fix="hpctrain render")
        return Path(script)
    if asked.to == "-":
        raise UsageError("--to - writes to stdout, so there is nothing to submit", fix="hpctrain submit without --to")
    written = Path(f"{spec_of(asked).job_name}.sbatch")
    if asked.is_bare and written.exists():
        _refuse_stale(written)
        return written
    made = script_of(asked)
    if made.path is None:
        raise ValueError("a script for stdout was refused above")
    click.echo(made.spec.layout, err=True)
    if dry_run:
        click.echo(f"would write {made.path}")
        return made.path
    for note in script_file.write(made, force=force):
        click.echo(note, err=True)
    return made.path


def _refuse_stale(written: Path) -> None:
    """Refuse a script that no longer says what config.yaml says: the user means one of the two, and only they know which.

    Raises:
        UsageError: what the script's own command would render now is something else.
    """
    text = written.read_text(encoding="utf-8", errors="surrogateescape")
    made = render.read_header(text)
    if made is None or not made.untouched or made.directory != str(Path.cwd()):
        return  # somebody's own script, or edited: the user's text is what counts
    if script_of(parse_request(made.arguments)).text != text:
        again = shell.join(("hpctrain", "submit", *made.arguments)) if made.arguments else "hpctrain render && hpctrain submit"
        raise UsageError(
            f"{written} is older than what it was made from: config.yaml, a template, HPCTRAIN_* or hpctrain itself has changed since",
            fix=f"{again}, or the script as it is: hpctrain submit {shell.quote(written)}",
        )


def _dry_run(scheduler: SlurmScheduler | LocalScheduler, path: Path) -> int:
    if isinstance(scheduler, SlurmScheduler):
        click.echo(f"would run: {shell.join(scheduler.sbatch_argv(path))}")
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
