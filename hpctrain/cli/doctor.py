"""`hpctrain doctor`: look whether this machine, the environment and (--job) the nodes are fit for training."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from typing import TYPE_CHECKING, Any

import click

from hpctrain import __version__, installed
from hpctrain.cli.job_options import JobCommand, Request, job_options, request
from hpctrain.errors import UsageError

if TYPE_CHECKING:
    from hpctrain.doctor.facts import Case
    from hpctrain.doctor.verdict import Verdict
    from hpctrain.jobs.finding import Finding

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red", "unknown": "cyan", "note": "cyan"}
_WIDTH = 80


@click.command(cls=JobCommand)
@job_options
@click.option("--quick", is_flag=True, help="Leave out the start of the training without a network, which takes half a minute.")
@click.option("--job", "as_job", is_flag=True, help="Run a preflight job of a few minutes on the nodes that the job would get.")
@click.option("--local", is_flag=True, help="With --job: run it on this machine, Slurm or no Slurm.")
@click.option("--wait/--no-wait", default=True, help="With --job: wait for the job and report, or leave it to run. Default: wait.")
@click.option("--of", "job_id", metavar="JOB", help="Report on a preflight job that was submitted with --no-wait.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def command(ctx: click.Context, /, **parameters: Any) -> int:
    """Look whether this machine, the environment and (--job) the nodes are fit for training.

    Without --job everything is looked at from here: the environment that the job would use, versions that have to agree, modules,
    model and dataset, caches, quotas, Slurm, and whether the training starts with the network switched off. With --job the same job
    is submitted with a short test in place of the training; each node reports what it has.

    \b
    hpctrain doctor
    hpctrain doctor --job --nodes 2 --gpus 4
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    asked, as_json = request(ctx, parameters), parameters["as_json"]
    if parameters["as_job"] or parameters["job_id"]:
        if parameters["quick"]:
            raise UsageError("--quick is of the look at this machine; the preflight job has no such thing", fix="hpctrain doctor --job")
        from hpctrain.cli import doctor_job

        return doctor_job.run(asked, job_id=parameters["job_id"], local=parameters["local"], wait=parameters["wait"], as_json=as_json)
    if parameters["local"] or not parameters["wait"]:
        raise UsageError("--local and --no-wait are of the preflight job", fix="hpctrain doctor --job --local")
    return _login(asked, quick=parameters["quick"], as_json=as_json)


def _login(asked: Request, *, quick: bool, as_json: bool) -> int:
    case = case_of(asked, quick=quick)
    from hpctrain.doctor import login

    verdicts: list[Verdict] = []
    for verdict in login.look(case):
        verdicts.append(verdict)
        if not as_json:
            click.echo("\n".join(lines(verdict)))
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    if as_json:
        found = {"schema": 1, "probes": [verdict.to_json() for verdict in verdicts], "ok": not errors(findings)}
        click.echo(json.dumps(found))
    else:
        click.echo(summary(findings, well="nothing is wrong that can be seen from here", following="hpctrain doctor --job"), err=True)
    return 1 if errors(findings) else 0


def case_of(asked: Request, *, quick: bool = False) -> Case:
    """Return what the doctor looks at: the job of this request, and this machine.

    Raises:
        UsageError: all config errors at once.
    """
    from hpctrain.cli.job_options import job_of
    from hpctrain.doctor.facts import Case

    job = job_of(asked)
    return Case(
        spec=job.spec,
        cluster=job.cluster,
        version=__version__,
        machine=os.uname().machine,
        on_cpu=os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"),
        slurm=shutil.which("sbatch") is not None,
        quick=quick,
        requirement=installed.requirement("train"),
    )


def lines(verdict: Verdict) -> list[str]:
    """Return a verdict as lines of at most 80 columns: one line, wrapped, and each finding below it."""
    from hpctrain.jobs.check import show

    head = click.style(f"{verdict.word:<8}", fg=_COLOURS[verdict.word])
    # A finding that holds the sentence says it for both.
    said_below = any(verdict.sentence in finding.what for finding in verdict.findings)
    wrapped = _wrap(f"{verdict.probe}: {show.counts(verdict.findings) if said_below else verdict.sentence}", 8)
    found = [head + wrapped[0].lstrip(), *wrapped[1:]]
    for finding in verdict.findings:
        found += finding_lines(finding, 8)
    return found


def finding_lines(finding: Finding, indent: int) -> list[str]:
    """Return a finding as `check` shows it, indented, at most 80 columns wide."""
    from hpctrain.jobs.check import show

    first, *rest = show.block(finding, _WIDTH - indent).splitlines()
    coloured = first.replace(finding.level, click.style(finding.level, fg=_COLOURS[finding.level]), 1)
    return [" " * indent + line for line in (coloured, *rest)]


def _wrap(text: str, indent: int) -> list[str]:
    """Return lines of at most 80 columns; a path that is longer stays whole, to be copied."""
    space = " " * indent
    return textwrap.wrap(
        " ".join(text.split()), _WIDTH, initial_indent=space, subsequent_indent=space, break_long_words=False, break_on_hyphens=False
    )


def errors(findings: list[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(finding.level == "error" for finding in findings)


def summary(findings: list[Finding], *, well: str, following: str) -> str:
    """Return the last line: how much is wrong, and what to type next."""
    counts = {level: sum(finding.level == level for finding in findings) for level in ("error", "warning")}
    said = [f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items() if count]
    if counts["error"]:
        first = next(finding for finding in findings if finding.level == "error")
        return f"{' and '.join(said)}\nfix: {first.fix}"
    return f"{' and '.join(said) or well}; next: {following}"
