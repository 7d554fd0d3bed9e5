"""`hpctrain submit`: hand the script to Slurm, or run it on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hpctrain.cli import follow, launching, submitted_before
from hpctrain.cli.chosen_script import Choice, Chosen, Trial, chosen
from hpctrain.cli.job_options import JobCommand, Request, job_options, parse_request, request, words_of
from hpctrain.cli.launching import Launched, Orders
from hpctrain.errors import UsageError
from hpctrain.jobs import render, shell
from hpctrain.runs import layout
from hpctrain.scheduler import batch_script
from hpctrain.scheduler.local.scheduler import LocalScheduler
from hpctrain.scheduler.slurm import SlurmScheduler

#: Exit codes of a training that has saved and stopped, to go on (hpctrain.training): no failure to explain.
_SAVED = (85, 86)


@click.command(cls=JobCommand)
@click.argument("batch_script", required=False, metavar="[SCRIPT]")
@job_options
@click.option("--force", is_flag=True, help="Replace the script even if hpctrain did not write it, or somebody edited it.")
@click.option("--no-check", is_flag=True, help="Submit also what `hpctrain check` finds errors in.")
@click.option("--run-id", metavar="NAME", help="Name of the run; a run that is known goes on from its newest checkpoint.")
@click.option("--no-snapshot", is_flag=True, help="Run the code as it is when the job starts, not as it is now.")
@click.option("--local", is_flag=True, help="Run on this machine, Slurm or no Slurm.")
@click.option("--parallel", type=click.IntRange(1), metavar="N", help="With --local: tasks of an array that run at the same time.")
@click.option("--device", metavar="LIST", help="With --local: the GPUs to use, such as 1 or 0,1.")
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
    if parameters["run_id"] is not None:  # what is refused names a command that still goes on with that run
        asked = replace(asked, verb=shell.join((*asked.verb.split(), "--run-id", parameters["run_id"])))
    return run(asked, batch_script, parameters)


def run(asked: Request, batch_script: str | None, parameters: dict[str, Any]) -> int:
    """Submit the script that was named, or those of a request, and return the exit code; `parameters` are the command's own options."""
    scheduler = scheduler_for(parameters)
    trial: Trial = "dry-run" if parameters["dry_run"] else "test-only" if parameters["test_only"] else "no"
    checked: list[Request] = []

    def check(fresh: Request) -> None:
        checked.append(fresh)
        if not parameters["no_check"]:
            _check_request(fresh, local=scheduler.name == "local", force=parameters["force"])

    with chosen(asked, batch_script, force=parameters["force"], trial=trial, check=check) as choice:
        if trial == "dry-run":
            return max(_dry_run(scheduler, one) for one in choice.scripts)
        if trial == "test-only":
            return max(_test_only(scheduler, one.path) for one in choice.scripts)
        if not parameters["no_check"] and not checked:
            for one in choice.scripts if choice.whole is None else choice.scripts[:1]:
                _check(one, asked.verb, local=scheduler.name == "local", named=batch_script is not None)
        return _submit(scheduler, choice, parameters)


def _check_request(asked: Request, *, local: bool, force: bool) -> None:
    """Hold a job that has no script yet against the checks.

    Raises:
        HpctrainError: the checks found errors.
    """
    from hpctrain.cli import examine

    words = words_of(asked)
    as_it_is = shell.join(("hpctrain", *asked.verb.split(), "--no-check", *(["--force"] if force else []), *words))
    examine.before_submit(replace(parse_request(words), verb=asked.verb), local=local, as_it_is=as_it_is)


def _check(one: Chosen, verb: str, *, local: bool, named: bool) -> None:
    """Hold a script against the checks: its job, where hpctrain rendered it here and nobody edited it since, else its text.

    Raises:
        HpctrainError: the checks found errors.
    """
    from hpctrain.cli import examine

    path, text = one.path, one.text
    made = render.read_header(text)
    if made is not None and made.untouched and made.directory == str(Path.cwd()):
        again = f"hpctrain {verb} {shell.quote(path)}" if named else f"hpctrain {verb}"
        examine.before_submit(replace(parse_request(made.arguments), verb=verb), local=local, as_it_is=f"{again} --no-check")
    elif made is None or not made.untouched:
        batch_script.parse(text, path)  # what is no batch script at all is no finding, but a wrong word
        examine.text_before_submit(text, str(path), as_it_is=f"hpctrain {verb} {shell.quote(path)} --no-check", local=local)


def _submit(scheduler: SlurmScheduler | LocalScheduler, choice: Choice, parameters: dict[str, Any]) -> int:
    orders = Orders(run_id=parameters["run_id"], snapshot=not parameters["no_snapshot"], resend=parameters["resend"])
    runs = Path(choice.scripts[0].values.get("chdir") or Path.cwd()) / layout.RUNS
    same = submitted_before.note(choice, runs) if orders.run_id is None else None
    launched = launching.start(choice, scheduler, orders)
    if same is not None:
        click.echo(same, err=True)
    return report(scheduler, launched, parameters, runs)


def report(scheduler: SlurmScheduler | LocalScheduler, launched: Launched, parameters: dict[str, Any], runs: Path) -> int:
    """Say what was submitted and what to type next; with --wait, follow it to its end and return its exit code."""
    where = "on this machine" if scheduler.name == "local" else "to Slurm"
    for note in dict.fromkeys(note for job in launched.jobs for note in job.submission.notes):
        click.echo(f"note: {note}", err=True)
    for job in launched.jobs:
        job_id, cluster = job.submission.job_id, job.submission.cluster
        if parameters["parsable"]:
            click.echo(job_id + (f";{cluster}" if cluster else ""))
        else:
            click.echo(f"submitted job {job_id} {where}{f': {job.title}' if job.title else ''}", err=parameters["wait"])
    if launched.tag is not None and not parameters["parsable"]:
        click.echo(f"run {launched.tag}", err=True)
    ids = [job.submission.job_id for job in launched.jobs]
    if parameters["wait"]:
        several = len(ids) > 1 or any(job.is_array for job in launched.jobs)
        if several:
            return _wait_for_all(scheduler, ids, runs, launched.tag)
        return _wait(scheduler, ids[0], show=not parameters["parsable"])
    if not parameters["parsable"]:
        look = f"hpctrain ps, hpctrain runs list {launched.tag}" if len(ids) > 1 else f"hpctrain watch {ids[0]}, hpctrain logs -f {ids[0]}"
        click.echo(f"next: {look}, or to stop it: hpctrain cancel {' '.join(ids[:5])}{' …' if len(ids) > 5 else ''}", err=True)
    return 0


def scheduler_for(parameters: dict[str, Any]) -> SlurmScheduler | LocalScheduler:
    """Return where to submit: Slurm where it is, else this machine, and with --local always.

    Raises:
        UsageError: options of the local scheduler, and it is not used.
    """
    if not parameters["local"] and SlurmScheduler.is_available():
        for name in ("parallel", "device"):
            if parameters[name] is not None:
                raise UsageError(
                    f"--{name} is about jobs on this machine, and this goes to Slurm", fix=f"add --local, or leave --{name} out"
                )
        return SlurmScheduler()
    if not parameters["local"]:
        click.echo("note: sbatch is not on PATH, so the job runs on this machine", err=True)
    return LocalScheduler(parallel=parameters["parallel"], device=parameters["device"])


def _dry_run(scheduler: SlurmScheduler | LocalScheduler, one: Chosen) -> int:
    values, arguments = one.values, ("RUN",) if one.takes_name else ()  # what is no batch script is refused here too
    if isinstance(scheduler, SlurmScheduler):
        stage, spec = (one.made.stage, one.made.spec) if one.made is not None else (None, None)
        after = ",".join(f"{kind}:JOB_OF_{parent}" for parent, kind in stage.dependencies) if stage is not None else ""
        argv = scheduler.sbatch_argv(one.path, values=values, arguments=arguments, dependency=after or None)
        click.echo(f"would run: {shell.join(argv)}")
        if spec is not None and spec.restart == "chain" and spec.max_restarts:
            argv = scheduler.sbatch_argv(one.path, values=values, arguments=arguments, dependency="afterany:JOB_BEFORE")
            click.echo(f"and for the chain, {spec.max_restarts} x: {shell.join(argv)}")
    else:
        click.echo(f"would run: {shell.join(('bash', str(one.path), *arguments))} on this machine, with stand-ins for srun and scontrol")
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
        return _interrupted(job_id)
    if record is None:
        click.echo(f"job {job_id} is no longer known to the scheduler; its log is in logs/", err=True)
        return 3
    click.echo(follow.describe(record), err=True)
    code = follow.exit_status(record)
    if code not in (0, *_SAVED):
        click.echo(f"next: hpctrain explain {job_id}", err=True)
    return code


def _wait_for_all(scheduler: SlurmScheduler | LocalScheduler, job_ids: Sequence[str], runs: Path, tag: str | None) -> int:
    def gone_on() -> set[str]:
        return _beside_the_last(runs, tag, job_ids) if tag is not None else set()

    try:
        return follow.several_until_the_end(scheduler, job_ids, lambda line: click.echo(line, err=True), gone_on)
    except KeyboardInterrupt:
        return _interrupted(" ".join(job_ids))


def _interrupted(ids: str) -> int:
    click.echo(f"\njob {ids} keeps running; to stop it: hpctrain cancel {ids}", err=True)
    return 130


def _beside_the_last(runs: Path, tag: str, job_ids: Sequence[str]) -> set[str]:
    """Return, for each run that these jobs have brought to its end, its jobs other than the one that did.

    Of a chain, the job that trained last says how the run ended: those before it exit with 85, those after it have nothing to do.
    """
    from hpctrain.runs import launches, store

    numbers = {job.partition("_")[0] for job in job_ids}
    submitted = launches.read(runs, tag)
    found: set[str] = set()
    for name in store.names(runs)[0] if runs.is_dir() else ():
        run = store.read_run(runs, name) if name == tag or name.startswith(f"{tag}_") else None
        last = run.last.job_id if run is not None and run.tag == tag and run.last is not None else None
        if run is not None and last is not None and last.partition("_")[0] in numbers:
            found |= {job for job in (*run.job_ids, *launches.jobs_of(run, submitted)) if job is not None and job != last}
    return found
