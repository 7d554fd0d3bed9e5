"""The implementation of `hpctrain submit`, also used by `tune` and `resubmit`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpctrain.checks.job.refusal import explained
from hpctrain.checks.service import check_job, without_config
from hpctrain.cli import follow, output
from hpctrain.cli.actions import lint
from hpctrain.cli.output import print_json, say
from hpctrain.config import layers
from hpctrain.config.fields import IGNORE
from hpctrain.config.sweep import SweepPoint, canonical, json_text, shown, spoken
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.finding import Finding
from hpctrain.jobs import header
from hpctrain.jobs import submit as service
from hpctrain.jobs.request import Request, parse_request, suggested, words_of
from hpctrain.jobs.script_files import chosen
from hpctrain.jobs.scripts import Script, Scripts
from hpctrain.jobs.submit import SubmitOptions, SubmittedJobs
from hpctrain.local.scheduler import LocalScheduler
from hpctrain.runs import launch, store
from hpctrain.slurm import batch_script, job_ids
from hpctrain.slurm.base import RefusedError, Scheduler
from hpctrain.slurm.client import SlurmScheduler
from hpctrain.slurm.notations import units
from hpctrain.slurm.notations.array import compress
from hpctrain.util import shell, text
from hpctrain.util.files import first_time

if TYPE_CHECKING:
    from hpctrain.jobs.scripts import SweepPlan


#: Exit codes of a training that saved a checkpoint and stopped: not a failure.
_SAVED = (85, 86)
#: Warnings about an environment, printed only once per project by `submit`.
_STANDING = frozenset({"torch-build", "path-not-shared"})
_FLAGS = ("no_check", "no_snapshot", "force", "wait", "parsable", "dry_run")


def run(asked: Request, batch_script: str | None, parameters: dict[str, Any]) -> int:
    """Submit a named script, or those of a request, and return the exit code; `parameters` are the
    command's own options.
    """
    typed = [f"--{name.replace('_', '-')}" for name in _FLAGS if parameters.get(name)]
    asked = replace(asked, verb=shell.join((*asked.verb.split(), *typed)))
    scheduler = scheduler_for(parameters)
    local = scheduler.name == "local"
    dry_run = parameters["dry_run"]
    # Newly rendered jobs are checked before anything is written.
    accepted: list[tuple[str, ...]] = []

    def check(fresh: Request) -> None:
        if not parameters["no_check"]:
            job = replace(parse_request(words_of(fresh)), verb=fresh.verb)
            accepted.append(
                _check_job(job, partial(suggested, fresh, fresh.verb, "--ignore"), local)
            )

    choice = chosen(
        asked, batch_script, force=parameters["force"], dry_run=dry_run, say=say, check=check
    )
    if dry_run:
        _dry_run(scheduler, choice, as_json=parameters["as_json"])
        verb = asked.verb.removesuffix(" --dry-run")
        named = f"hpctrain {verb} {shell.quote(batch_script or '')}"
        say(f"next: {suggested(asked, verb) if batch_script is None else named}")
        return 0
    if not accepted and not parameters["no_check"]:
        is_named = batch_script is not None
        accepted = [_check(choice.scripts[0], asked, local=local, named=is_named)]
    options = SubmitOptions(
        run_id=parameters["run_id"],
        snapshot=not parameters["no_snapshot"],
        ignored=tuple(dict.fromkeys(id_ for ids in accepted for id_ in ids)),
        argv=("hpctrain", *sys.argv[1:]),
        say=say,
    )
    try:
        submitted = service.submit(choice, scheduler, options)
    except RefusedError as error:
        if error.partial:
            raise
        repeat = f"change config.yaml or the options, then run: {suggested(asked, asked.verb)}"
        if asked.is_bare and len(choice.scripts) == 1:
            path = str(choice.scripts[0].path)
            words = shell.join((*words_of(asked, variables=False), path))
            repeat = f"edit {shell.quote(path)}, then run: {asked.again} {words}"
        raise explained(error, repeat) from error
    return report(scheduler, submitted, parameters, choice.runs_dir)


# -- checks ----------------------------------------------------------------------------------------


def _check(one: Script, asked: Request, *, local: bool, named: bool) -> tuple[str, ...]:
    """Check a script: its job, if hpctrain rendered it here and it is unedited, else its text.
    Return the ids of ignored findings.

    Raises:
        HpctrainError: the checks found errors.
    """
    made = header.read_header(one.text)
    path = f" {shell.quote(one.path)}" if named or made is None or not made.untouched else ""

    def again(ids: str) -> str:
        return f"hpctrain {asked.verb}{path} --ignore {ids}"

    if made is None or not made.untouched:
        batch_script.parse(one.text, one.path)  # raises if it is not a batch script
        return _accept(*_lint(one, asked, local=local), again)
    if made.directory != str(Path.cwd()):
        return ()
    job = parse_request(made.arguments)
    job = replace(job, options={**job.options, **asked.options}, verb=asked.verb)
    return _check_job(job, again, local)


def _check_job(job: Request, again: Callable[[str], str], local: bool) -> tuple[str, ...]:
    examined = check_job(job, local=local, test_only=False)
    for sentence in without_config(job) if examined.errors else ():
        say(f"note: {sentence}")
    return _accept(examined.findings, examined.ignored, again)


def _lint(
    one: Script, asked: Request, *, local: bool
) -> tuple[Sequence[Finding], Sequence[Finding]]:
    """Return lint's findings for a script, with the rules of the config's cluster if there is one,
    and the ignored findings.
    """
    stacked = layers.gather(
        options=asked.options, sbatch=(), config=None, directory=Path.cwd(), environment=os.environ
    )
    cluster = layers.written(stacked, ("cluster",))
    use_cluster = isinstance(cluster, str) and not local
    found = lint.findings_of(one.text, str(one.path), cluster if use_cluster else None)
    ignore: Sequence[str] = ()
    if layers.written(stacked, IGNORE) is not None:
        ignore = layers.resolve(stacked, again=asked.again).config.check.ignore
    kept = [finding for finding in found if finding.id not in ignore]
    return kept, [finding for finding in found if finding not in kept]


def _accept(
    found: Sequence[Finding], ignored: Sequence[Finding], again: Callable[[str], str]
) -> tuple[str, ...]:
    """Print each warning on one line, in full the first time, and raise on errors; `again` returns
    the command that ignores these ids. Return the ids of ignored findings.

    Raises:
        HpctrainError: there are errors.
    """
    known = []
    for finding in found:
        if finding.level == "warning" and first_time(finding.what, Path.cwd()):
            say(output.finding_line(finding))
        elif finding.level == "warning" and finding.id not in _STANDING:
            known.append(finding.id)
    if known:
        say(f"note: printed before: warning {', '.join(known)}; in full: hpctrain check")
    errors = [finding for finding in found if finding.level == "error"]
    ids = tuple(dict.fromkeys(finding.id for finding in (*ignored, *errors)))
    if errors:
        blocks = [line for finding in errors for line in output.block(finding)]
        raise HpctrainError(
            f"not submitted: {output.counts(errors)} in the job",
            details=tuple(blocks),
            hint=f"fix the errors above and submit again; to submit unchanged: {again(','.join(ids))}",
        )
    if ignored:
        say(f"note: ignored: {', '.join(f'{each.level} {each.id}' for each in ignored)}")
    return ids


# -- what was submitted ----------------------------------------------------------------------------


def report(
    scheduler: Scheduler, submitted: SubmittedJobs, parameters: dict[str, Any], runs: Path
) -> int:
    """Print the submitted jobs and useful commands; with --wait, follow them to the end and return
    their exit code.
    """
    where = "on this machine" if scheduler.name == "local" else "to Slurm"
    is_short, waits, ids = parameters["parsable"], parameters["wait"], submitted.ids
    jobs = [job for _, each in submitted.scripts for job in each]
    for note in dict.fromkeys(note for job in jobs for note in job.notes):
        say(f"note: {note}")
    for name, each in submitted.scripts:
        title = f": {name}" if name else ""
        answers = ", ".join(job.answer for job in each)
        line = f"submitted job {answers} {where}{title}"
        if len(each) > 1:
            line = f"submitted {len(each)} jobs {where} as a chain{title}: {answers}"
        if not is_short:
            click.echo(line, err=waits)
        for job in each if is_short else ():
            # Like sbatch: name the cluster if there are several, or it is another one.
            several = os.environ.get("SLURM_CLUSTERS") or job.cluster != job_ids.this_cluster()
            click.echo(f"{job.answer};{job.cluster}" if job.cluster and several else job.answer)
    if submitted.tag is not None and not is_short:
        say(f"run {submitted.tag}")
    is_one = len(ids) == 1 and jobs[0].array is None
    try:
        if waits and is_one:
            return _wait(scheduler, ids[0], show=not is_short)
        if waits:
            done = partial(_superseded, runs, submitted.tag, ids)
            return follow.several_until_the_end(scheduler, ids, say, done)
    except KeyboardInterrupt:
        return follow.left_running(ids)
    if not is_short and len(ids) > 1:
        tag = submitted.tag
        say(f"next: hpctrain runs list {tag}  # to stop it: hpctrain cancel --yes {tag}")
    elif not is_short:
        say(f"next: hpctrain watch {ids[0]}  # to stop it: hpctrain cancel {ids[0]}")
    return 0


def scheduler_for(parameters: dict[str, Any]) -> Scheduler:
    """Return the scheduler: Slurm if it is available, else local; with --local always local.

    Raises:
        UsageError: options of local jobs, but the job goes to Slurm.
    """
    parallel, device = parameters["parallel"], parameters["device"]
    if not parameters["local"] and SlurmScheduler.is_available():
        if parallel is not None or device is not None:
            what = "--parallel and --device need a local job, and this one goes to Slurm"
            raise UsageError(what, hint="add --local")
        return SlurmScheduler()
    note = "note: sbatch is not on PATH; the job runs locally"
    if not parameters["local"] and first_time(note, Path.cwd()):
        say(note)
    return LocalScheduler(parallel=parallel, device=device)


def _dry_run(scheduler: Scheduler, choice: Scripts, *, as_json: bool) -> None:
    plan = choice.plan
    commands = []
    for one in choice.scripts:
        entry = one.entry  # raises if it is not a batch script
        commands += scheduler.dry_run(
            one.path,
            one.values,
            arguments=("RUN",) if one.takes_name else (),
            dependencies=entry.dependencies,
            links=entry.links,
        )
    if as_json and plan is not None:
        click.echo(_plan_document(plan))
        return
    if as_json:
        print_json(scripts=[str(one.path) for one in choice.scripts], commands=commands)
        return
    if plan is not None:
        _show_plan(plan)
    for one in choice.scripts:
        if one.job is not None and not one.is_written():
            click.echo(f"would write {one.path}")
    for line in commands:
        click.echo(f"would run: {line}")


def _wait(scheduler: Scheduler, job_id: str, *, show: bool) -> int:
    tails = follow.tails_of(scheduler.logs(job_id)) if show else []
    record = follow.until_the_end(scheduler, job_id, tails, say)
    if record is None:
        say(f"job {job_id} is no longer known to the scheduler; its log is in logs/")
        return 3
    say(follow.describe(record))
    if record.exit_status not in (0, *_SAVED):
        say(f"next: hpctrain explain {job_id}")
    return record.exit_status


def _superseded(runs: Path, tag: str | None, job_ids: Sequence[str]) -> set[str]:
    """Return the jobs whose exit codes do not count, because a later job of their run determined
    its result.

    In a chain, the last job that trained determines the result: the ones before it exit with 85,
    the ones after it have nothing to do.
    """
    numbers = {job.partition("_")[0] for job in job_ids}
    found: set[str] = set()
    for name in store.names(runs)[0] if runs.is_dir() and tag is not None else ():
        run = store.read_run(runs, name) if name == tag or name.startswith(f"{tag}_") else None
        last = run.last.job if run is not None and run.tag == tag and run.last is not None else None
        if run is not None and last is not None and last.partition("_")[0] in numbers:
            found |= set(launch.every_job(runs, run)) - {last}
    return found


# -- the plan of a sweep ----------------------------------------------------------------------------

#: The most points to list on a terminal.
_SHOWN = 50


def _show_plan(plan: SweepPlan) -> None:
    points = plan.chosen[:_SHOWN] if sys.stdout.isatty() else plan.chosen
    varying = _varying(plan.chosen)
    shared = tuple(item for item in plan.chosen[0].values if item[0] not in varying)
    for line in _summary(plan):
        click.echo(line)
    click.echo(f"the same in all: {spoken(shared)}\n" if shared else "")
    rows = []
    for point in points:
        words = {key: shown(value) for key, value in point.values}
        words |= {
            key: json.dumps(word)
            for key, word in words.items()
            if not word.isprintable() or word in ("", "-")
        }
        rows.append([str(point.index), *(words.get(key, "-") for key in varying)])
    output.show_table(["POINT", *varying], rows)
    if len(points) < len(plan.chosen):
        say(f"and {len(plan.chosen) - len(points)} more: hpctrain submit --dry-run | less")


def _plan_document(plan: SweepPlan) -> str:
    """Return the plan as one JSON object; numbers are kept as written, durations are in seconds."""
    head = json.dumps(
        {
            "schema": 1,
            "count": len(plan.points),
            "varying": _varying(plan.chosen),
            "throttle": plan.throttle,
            "max_array_size": plan.max_array_size,
            "max_array_size_from": plan.max_array_size_from,
            "gpu_seconds": plan.gpu_seconds,
            "scripts": [
                {
                    "overrides": {key: shown(value) for key, value in script.group.overrides},
                    "points": compress(script.group.indices),
                    "nodes": script.job.spec.nodes,
                    "gpus_per_node": script.job.spec.gpus_per_node,
                    "time_s": script.job.spec.time_s,
                    "gpu_seconds": script.gpu_seconds,
                    "arrays": [
                        {"offset": part.offset, "array": part.spec, "count": part.count}
                        for part in script.parts
                    ],
                }
                for script in plan.scripts
            ],
            "pass": plan.sweep.pass_,
            "table": plan.table.name,
        }
    )
    of_script = {
        point.index: number
        for number, script in enumerate(plan.scripts)
        for point in script.group.points
    }
    points = ", ".join(
        f'{{"index": {point.index}, "script": {of_script[point.index]}, "values":'
        f" {json_text(dict(point.values))}}}"
        for point in plan.chosen
    )
    return f'{head[:-1]}, "points": [{points}]}}'


def _varying(points: Sequence[SweepPoint]) -> list[str]:
    rows = [dict(point.values) for point in points]
    different: dict[str, set[Any]] = {}
    for row in rows:
        for key, value in row.items():
            different.setdefault(key, set()).add(canonical(value))
    return [
        key
        for key, values in different.items()
        if len(values) > 1 or len(rows) == 1 or not all(key in row for row in rows)
    ]


def _summary(plan: SweepPlan) -> Iterator[str]:
    count, parts = len(plan.chosen), sum(len(script.parts) for script in plan.scripts)
    of = f" of {len(plan.points)}" if count < len(plan.points) else ""
    throttle = ""
    if plan.throttle is not None:
        all_ = f" in each array, {plan.throttle * parts} in all" if parts > 1 else ""
        throttle = f"; {plan.throttle} at a time{all_}"
    yield (
        f"{text.count(count, 'combination')}{of}, {text.count(len(plan.scripts), 'script')},"
        f" {text.count(parts, 'array job')}{throttle}"
    )
    for number, script in enumerate(plan.scripts, 1):
        spec, what = script.job.spec, "each combination"
        limit = f", {units.format_time(spec.time_s)}" if spec.time_s is not None else ""
        if len(plan.scripts) > 1:
            points = compress(script.group.indices)
            what = f"script {number}: {spoken(script.group.overrides)}: combinations {points}"
        yield f"{what}: {spec.layout}{limit}"
        for part in script.parts if len(script.parts) > 1 else ():
            yield f"    --array={part.spec}, combination = index + {part.offset}"
    if plan.gpu_seconds is not None:
        yield f"at most {plan.gpu_seconds / 3600:,.3g} GPU hours: GPUs x time limit of all jobs"
