"""`hpctrain resubmit`: go on with what is missing or failed of a run, a sweep or stages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpctrain.cli import code_changed, launching, remaining, schedulers, submit
from hpctrain.cli.launching import Launched, Launcher, Submitted
from hpctrain.cli.remaining import Again, Left
from hpctrain.errors import UsageError
from hpctrain.jobs import shell
from hpctrain.runs import layout

if TYPE_CHECKING:
    from hpctrain.cli import apply_fix


@click.command()
@click.argument("name", metavar="NAME")
@click.option("--array", metavar="LIST", help="Of a sweep, look at these points alone: 0,3,7-9.")
@click.option("--apply-fix", is_flag=True, help="First change the config as `hpctrain explain` says, where it can be done by itself.")
@click.option("--yes", is_flag=True, help="With --apply-fix: do not ask where the diagnosis is only likely.")
@click.option("--new-code", is_flag=True, help="Run the code as it is now, not as it was when this was submitted first.")
@click.option("--dry-run", is_flag=True, help="Say what would be submitted, and submit nothing.")
@click.option("--runs-dir", metavar="DIR", default=layout.RUNS, show_default=True, help="Where the runs are.")
@click.option("--local", is_flag=True, help="Run on this machine, Slurm or no Slurm.")
@click.option("--wait", is_flag=True, help="Wait until the jobs have ended, and exit with the worst exit code.")
@click.option("--parallel", type=click.IntRange(1), metavar="N", help="With --local: tasks of an array that run at the same time.")
@click.option("--device", metavar="LIST", help="With --local: the GPUs to use, such as 1 or 0,1.")
@click.option("--resend", is_flag=True, help="Submit although sbatch never answered an earlier submission of the same script.")
@click.option("--parsable", is_flag=True, help="Print the job ids alone, as sbatch does.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(name: str, **parameters: Any) -> int:
    """Submit again what is missing or failed of NAME: a run, a sweep or stages.

    NAME is what `hpctrain submit` called `run …`, or one run of it. What has completed stays as it is, and what waits or runs is left
    alone. Each run goes on from its newest complete checkpoint, in the same directory, with the code that it was submitted with.

    With --apply-fix, the config of what has failed is changed as the first diagnosis of `hpctrain explain` says; the global batch stays.

    \b
    hpctrain resubmit sft-261121-035908-9ae7
    hpctrain resubmit sft-261121-035908-9ae7 --array 3,7-9 --dry-run
    hpctrain resubmit sft-261121-035908-9ae7 --apply-fix
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    runs = Path(parameters["runs_dir"]).absolute()
    if not runs.is_dir():
        raise UsageError(f"there is no directory {parameters['runs_dir']}", fix="cd PROJECT, or: hpctrain resubmit NAME --runs-dir DIR")
    left = remaining.find(runs, name, parameters["array"])
    for line in left.said:
        click.echo(line, err=True)
    fix = _planned(runs, name, left) if parameters["apply_fix"] else None
    if not left.parts:
        click.echo(f"nothing is left to submit of {name}; next: hpctrain runs list {left.tag}", err=True)
        _say_json(left, fix, (), parameters)
        return 0
    if fix is not None:
        _say_changes(fix, parameters)
    scheduler = submit.scheduler_for(parameters)
    if parameters["dry_run"]:
        _would_submit(left, fix, parameters)
        return 0
    if fix is not None:
        from hpctrain.cli import apply_fix

        if not apply_fix.agree(fix, yes=parameters["yes"]):
            return 1
        left = apply_fix.keep(runs, left, fix)
    _make_way(runs, left, new_code=parameters["new_code"], local=parameters["local"], fixed=fix is not None)
    jobs = _submit(left, launching.Launcher(scheduler, runs, left.tag, resend=parameters["resend"]))
    _say_json(left, fix, [job.submission.job_id for job in jobs], parameters)
    if parameters["as_json"] and not parameters["wait"]:
        return 0
    return submit.report(scheduler, Launched(left.tag, tuple(jobs)), parameters, runs)


def _planned(runs: Path, name: str, left: Left) -> apply_fix.Fixed | None:
    from hpctrain.cli import apply_fix

    apply_fix.refuse_busy(runs, name, left)
    return apply_fix.plan(runs, left) if left.parts else None


def _say_changes(fix: apply_fix.Fixed, parameters: dict[str, Any]) -> None:
    from hpctrain.cli import apply_fix

    for line in apply_fix.lines(fix):
        click.echo(line, err=parameters["parsable"] or parameters["as_json"] or parameters["wait"])


def _say_json(left: Left, fix: apply_fix.Fixed | None, jobs: Sequence[str], parameters: dict[str, Any]) -> None:
    if parameters["as_json"]:
        from hpctrain.cli import apply_fix

        click.echo(apply_fix.to_json(left.tag, fix, jobs, dry_run=parameters["dry_run"]))


def _would_submit(left: Left, fix: apply_fix.Fixed | None, parameters: dict[str, Any]) -> None:
    parts = [(part, _short(part.script)) for part in left.parts] if fix is None else _would_be(fix)
    for part, script in parts if not parameters["as_json"] else ():
        array = f" --array={part.array}" if part.array else ""
        click.echo(f"would submit{array} {shell.quote(script)} {left.tag}")
    _say_json(left, fix, (), parameters)


def _would_be(fix: apply_fix.Fixed) -> list[tuple[Again, str]]:
    """Return the scripts of a fix; one that is not written yet has no number yet."""
    return [(part, _short(part.script)) if isinstance(part, Again) else (part.changed.again, part.changed.name) for part in fix.parts]


def _make_way(runs: Path, left: Left, *, new_code: bool, local: bool, fixed: bool) -> None:
    """Cancel what waits in vain, take away what tells the runs that they are over, and see to the code."""
    for job in left.in_vain:
        schedulers.owner(job).cancel([job])
        click.echo(f"cancelled {job}, which waited for a job that has failed", err=True)
    for run in left.runs:
        launching.go_on(runs, run)
    code_changed.say(runs, left.tag, new_code=new_code, local=local, fixed=fixed)
    if new_code:
        launching.snapshot(runs, left.tag)


def _submit(left: Left, launcher: Launcher) -> list[Submitted]:
    """Submit what is left.

    Raises:
        HpctrainError: a scheduler refused a script; the launcher says what was submitted before it.
    """
    jobs: list[Submitted] = []
    ids: dict[str, Sequence[str]] = dict(left.jobs)
    for part in left.parts:
        said: dict[str, Any] = {"script": part.name, "config": part.config, "stage": part.stage, "array": part.array, "offset": part.offset}
        first = launcher.submit(part.script, dependency=launching.dependency_on(part.dependencies, ids), **said)
        links = launcher.chain(first, part.script, part.links, **said)
        title = part.name if len(left.parts) > 1 else ""
        jobs += [Submitted(title, link, part.array is not None) for link in links]
        if part.stage is not None:
            ids[part.stage] = [link.job_id for link in links]
    return jobs


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
