"""`hpctrain report`."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from hpctrain.cli import run_table
from hpctrain.cli.options import complete_runs, json_option, runs_dir_option
from hpctrain.cli.output import print_json, say
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.jobs import explanation, schedulers, script_files, targets
from hpctrain.report import compare, document, html, model
from hpctrain.runs import drop, launch, layout, store
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.terminal import for_files
from hpctrain.util import stored

NAME = "report.html"
_LARGEST = 1 << 28


@click.command("report")
@click.argument("words", nargs=-1, metavar="[RUN|SWEEP]...", shell_complete=complete_runs)
@click.option(
    "--to",
    metavar="FILE",
    help="HTML file to write; - for stdout. Default: in the run's directory.",
)
@json_option
@click.option("--force", is_flag=True, help="Overwrite FILE even if it is not a report.")
@click.option("--metric", metavar="NAME", help="Order several runs by this metric, e.g. eval_loss.")
@runs_dir_option
def command(
    words: tuple[str, ...],
    runs_dir: Path,
    *,
    to: str | None,
    as_json: bool,
    force: bool,
    metric: str | None,
) -> None:
    """Create an HTML report of a run or sweep.

    The page is one HTML file that needs no network: curves, memory of every rank, restarts,
    efficiency with what to request next time, config, environment and diagnosis. Copy it with scp
    and open it.

    RUN is an id or a prefix of it; default: the newest run. The tag of a sweep, a study, a glob, or
    several runs are compared.
    """
    if to is not None and as_json:
        raise UsageError("--to and --json are mutually exclusive", fix="hpctrain report --json")
    chosen, title, study, default = _select(words, runs_dir)
    first = chosen[0].id
    several = len(chosen) > 1
    if metric is not None and not several:
        raise UsageError(
            "--metric orders several runs, and this is one", fix=f"hpctrain report {first}"
        )
    survey = schedulers.survey(runs_dir, chosen)
    if several:
        if survey.silent is not None:
            say(f"note: {run_table.summary(survey.silent)}; some states are unknown")
        found = compare.gather(
            chosen,
            runs_dir,
            survey.states,
            title=title,
            study=study,
            metric=metric,
            now=time.time(),
        )
        values, shown, is_running = compare.to_json(found), document.of_comparison(found), False
    else:
        one = model.gather(chosen[0], runs_dir, _external_facts(runs_dir, chosen[0], survey))
        values, shown, is_running = model.to_json(one), document.of_run(one), one.is_running
    if as_json:
        print_json(**values)
    else:
        write(html.page(shown), to, default, force=force)
        for line in (*shown.lead, *(f"next: {each}" for each in shown.next)) if several else ():
            say(line)
        if is_running:
            say("note: the run continues; the report shows its current state")


# -- which runs ------------------------------------------------------------------------------------


def _select(words: Sequence[str], runs_dir: Path) -> tuple[list[store.Run], str, str | None, Path]:
    """Return the runs of a report in the order of their points, the title for several, their study,
    and the default output file. Words are ids, tags, globs, studies; without words, the newest run.

    Raises:
        UsageError: unknown words, or there is no run.
    """
    listing = targets.existing_runs(runs_dir)
    known = {name for run in listing.runs for name in (run.id, run.tag)}
    studies = {
        word
        for word in words
        if word not in known
        and layout.NAME.match(word)
        and (listing.path / ".studies" / word).is_dir()
    }
    named = [word for word in words if word not in studies]
    meant = targets.select_runs(named, listing, started=False) if named else []
    meant += [targets.newest_run(listing)] if not words else []
    for run in listing.runs if studies else ():
        trial = run_table.trial_of(listing.path, run.id)
        if trial is not None and trial["study"] in studies and run not in meant:
            meant.append(run)
    study = next(iter(studies)) if len(studies) == len(words) == 1 else None
    found = sorted(meant, key=lambda run: (run.tag, run.index is None, run.index or 0, run.id))
    if not found:
        raise UsageError(f"no run is called like {' '.join(words)}", fix="hpctrain runs list --all")
    tags = {run.tag for run in found}
    name = tags.pop() if len(tags) == 1 else study
    default = runs_dir / (f"{name}.{NAME}" if name else NAME)
    if len(found) == 1:
        directory = runs_dir / found[0].id
        default = directory / NAME if directory.is_dir() else runs_dir / f"{found[0].id}.{NAME}"
    title = words[0] if len(words) == 1 else f"{len(found)} runs"
    return found, title, study, default


# -- facts from outside the run directory ----------------------------------------------------------


def _external_facts(
    runs_dir: Path, run: store.Run, survey: schedulers.Survey
) -> model.ExternalFacts:
    # Of a run that never started, the jobs submitted for it.
    jobs = run.job_ids or launch.every_job(runs_dir, run)
    accounts: Sequence[JobRecord] = ()
    silent: SchedulerError | None = None
    try:
        accounts = schedulers.accounts(list(jobs)) if jobs else ()
    except SchedulerError as error:
        silent = error
    unanswered = survey.silent or silent
    why_silent = run_table.summary(unanswered) if unanswered is not None else None
    if why_silent is not None:
        say(f"note: {why_silent}; what a scheduler would report is left out")
    explained, unexplained = None, None
    try:
        explained = explanation.explained([run.id], runs_dir=runs_dir).explanation
    except HpctrainError as error:
        unexplained = f"No diagnosis: {error.what}."
    of_jobs = {name: each for each in accounts for name in (each.slurm_job_id, each.job_id)}
    directory = runs_dir / run.id
    return model.ExternalFacts(
        state=survey.states[run.id],
        owner=drop.owner(directory.stat().st_uid) if directory.is_dir() else "-",
        accounts=tuple(of_jobs[job] for job in jobs if job in of_jobs),  # the newest is the last
        explanation=explained,
        unexplained=unexplained,
        silent=why_silent,
        now=time.time(),
    )


# -- the file --------------------------------------------------------------------------------------


def write(page: str, to: str | None, default: Path, *, force: bool) -> None:
    """Write the page and print its path.

    Raises:
        UsageError: the path is a directory, or a file that is not a report.
        HpctrainError: the file cannot be written.
    """
    if to == "-":
        click.echo(page, nl=False, file=for_files(sys.stdout))
        return
    path = Path(to) if to is not None else default
    if path.is_dir():
        raise UsageError(
            f"{path} is a directory",
            fix=f"hpctrain report --to {shlex.quote(str(path / NAME))}",
        )
    if os.path.lexists(path) and not force and not _is_report(path):
        raise UsageError(
            f"{path} exists, and is not a report of hpctrain",
            hint="name another file with --to, or replace it with --force",
        )
    script_files.write_file(path, page)
    click.echo(str(path))
    host = shlex.quote(os.environ.get("HOSTNAME") or socket.gethostname())
    full = os.path.abspath(path)  # noqa: PTH100 - removes `..`, and keeps links
    say(f"next, on your own machine: scp {host}:{shlex.quote(full)} .")


def _is_report(path: Path) -> bool:
    try:
        return html.MARK.encode() in stored.read_regular(path, _LARGEST)[:2048]
    except OSError:
        return False
