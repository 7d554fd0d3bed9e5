"""`hpctrain resubmit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hpctrain.checks.job.refusal import explained
from hpctrain.cli.actions import submit
from hpctrain.cli.options import (
    complete_runs,
    device_option,
    json_option,
    local_option,
    parallel_option,
    runs_dir_option,
)
from hpctrain.cli.output import print_json, say
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.explain.values import shown
from hpctrain.jobs import request, suggest, targets
from hpctrain.jobs import resubmit as service
from hpctrain.jobs.submit import StoredScript, SubmitOptions, SubmittedJobs, Submitter
from hpctrain.runs import launch, layout, store
from hpctrain.slurm.base import RefusedError, Scheduler
from hpctrain.util import shell


@click.command("resubmit")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_runs)
@click.option(
    "--array", metavar="LIST", help="Resubmit only these combinations of a sweep, e.g. 0,3,7-9."
)
@click.option(
    "--apply-fix",
    is_flag=True,
    help="First change the config as `hpctrain explain` suggests.",
)
@click.option(
    "--yes", is_flag=True, help="With --apply-fix: do not ask if the diagnosis is only likely."
)
@click.option(
    "--new-code",
    is_flag=True,
    help="Run the current code, not the snapshot of the first submission.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be submitted; submit nothing.")
@runs_dir_option
@local_option
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until the jobs end, and exit with the worst exit code.",
)
@parallel_option
@device_option
@click.option("--parsable", is_flag=True, help="Print only the job ids, as sbatch does.")
@json_option
def command(name: str | None, **parameters: Any) -> int:
    """Resubmit the failed or missing jobs of a run or sweep.

    NAME is a run, a job id, or the tag that `hpctrain submit` printed. Default: the newest.
    Completed, pending and running runs are left alone. The others resume from their newest complete
    checkpoint, in the same directory, with the code of the first submission.

    With --apply-fix, their config is changed as the first diagnosis of `hpctrain explain` suggests;
    the global batch size stays the same.

    \b
    hpctrain resubmit sft-261121-035908-9ae7
    hpctrain resubmit sft-261121-035908-9ae7 --array 3,7-9 --dry-run
    hpctrain resubmit sft-261121-035908-9ae7 --apply-fix
    """  # noqa: D301 - \b keeps click from wrapping
    runs = parameters["runs_dir"].absolute()
    if not runs.is_dir():
        raise UsageError(
            f"no such directory: {parameters['runs_dir']}",
            hint="go to the directory where you submitted, or use --runs-dir DIR",
        )
    if name is None:
        newest = targets.newest_run(store.list_runs(runs))
        name = newest.tag or newest.id
        say(f"run {name}")
    try:
        return _resubmit(runs, name, parameters)
    except HpctrainError as error:
        run = store.read_run(runs, name)
        whole = launch.load(runs, run.tag if run is not None else name)
        if whole is not None:
            asked = request.of_launch(whole)
            error.fix = error.fix and suggest.kept(error.fix, asked)
            error.hint = error.hint and suggest.kept(error.hint, asked)
        raise


def _resubmit(runs: Path, name: str, parameters: dict[str, Any]) -> int:
    plan = service.find(runs, name, parameters["array"])
    is_json, dry_run = parameters["as_json"], parameters["dry_run"]
    for line in plan.messages:
        say(line)
    fix = service.plan_fix(runs, plan) if parameters["apply_fix"] and plan.parts else None
    jobs: SubmittedJobs | None = None
    if not plan.parts:
        listed = layout.in_runs_dir(f"hpctrain runs list {plan.tag}", runs)
        say(f"nothing is left to submit of {name}; next: {listed}")
    else:
        for line in _change_lines(fix):
            click.echo(line, err=parameters["parsable"] or is_json or parameters["wait"])
        scheduler = submit.scheduler_for(parameters)
        if dry_run:
            if not is_json:
                _would_submit(plan, fix)
        elif fix is not None and not _is_agreed(fix, yes=parameters["yes"]):
            return 1
        else:
            plan = service.keep_fix(runs, plan, fix) if fix is not None else plan
            jobs = _submit(runs, plan, scheduler, parameters)
    if is_json:
        print_json(
            run=plan.tag,
            fixes=[
                {
                    "runs": list(each.runs),
                    "diagnosis": each.diagnosis.id,
                    "certainty": each.diagnosis.certainty,
                    "changes": [
                        {"key": change.key, "old": change.old, "new": change.new}
                        for change in each.changes
                    ],
                }
                for each in _rendered(fix or ())
            ],
            dry_run=dry_run,
            jobs=jobs.ids if jobs is not None else [],
        )
    if jobs is None or (is_json and not parameters["wait"]):
        return 0
    return submit.report(scheduler, jobs, parameters, runs)


def _would_submit(plan: service.ResubmitPlan, fix: service.FixPlan | None) -> None:
    for each in plan.parts if fix is None else fix:
        # A changed script has no number until it is written.
        part = each.part
        script = str(each.path) if isinstance(each, StoredScript) else each.name
        option = f" --array={part.array}" if part.array else ""
        path = shell.quote(script.removeprefix(f"{Path.cwd()}/"))
        click.echo(f"would submit{option} {path} {plan.tag}")


def _submit(
    runs: Path, plan: service.ResubmitPlan, scheduler: Scheduler, parameters: dict[str, Any]
) -> SubmittedJobs:
    new_code, local = parameters["new_code"], parameters["local"]
    if changed := service.what_runs(runs, plan.tag, new_code=new_code, local=local):
        say(changed)
    submitter = Submitter(
        scheduler, runs, plan.tag, SubmitOptions(argv=("hpctrain", *sys.argv[1:]), say=say)
    )
    try:
        return service.submit(plan, submitter, new_code=new_code, say=say)
    except RefusedError as error:
        if len(plan.parts) > 1 or plan.parts[0].part.array is not None:
            raise  # several runs, which no single command submits
        raise explained(
            error, f"change config.yaml, then run: hpctrain submit --run-id {plan.tag}"
        ) from error


def _rendered(fix: service.FixPlan) -> list[service.FixedScript]:
    return [each for each in fix if isinstance(each, service.FixedScript)]


def _is_agreed(fix: service.FixPlan, *, yes: bool) -> bool:
    unsure = [each for each in _rendered(fix) if each.diagnosis.certainty == "likely"]
    if not unsure or yes:
        return True
    first = unsure[0]
    question = f"{first.diagnosis.id} is only likely"
    if sys.stdin.isatty():
        return click.confirm(f"{question}. Change the config and submit?", err=True)
    raise UsageError(
        f"{question}, so --yes is needed",
        details=(f"{first.runs[0]}: {first.diagnosis.cause}", *_change_lines(fix)),
        fix=f"hpctrain resubmit {first.runs[0]} --apply-fix --yes",
    )


def _change_lines(fix: service.FixPlan | None) -> list[str]:
    found = []
    for each in _rendered(fix or ()):
        more = f" and {len(each.runs) - 1} more" if len(each.runs) > 1 else ""
        found.append(f"{each.runs[0]}{more}: {each.diagnosis.id}, {each.diagnosis.certainty}")
        found += [
            f"  {change.key}: {shown(change.key, change.old)} -> {shown(change.key, change.new)}"
            for change in each.changes
        ] or ["  its config has these values already"]
    return found
