"""`hpctrain doctor`."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

import hpctrain
from hpctrain.checks.job.context import Surroundings
from hpctrain.cli import follow
from hpctrain.cli.options import JobCommand, job_options, json_option, request
from hpctrain.cli.output import WIDTH, coloured_block, counts, print_json, say, show_table
from hpctrain.config.arguments import Arguments
from hpctrain.doctor import environment, login
from hpctrain.doctor.facts import DoctorContext, ProbeResult
from hpctrain.doctor.node_evaluation import evaluate, used
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.finding import Finding
from hpctrain.jobs import notify, schedulers, script_files
from hpctrain.jobs.request import Request, job_of, keeping
from hpctrain.jobs.scripts import scripts_of
from hpctrain.local.scheduler import LocalScheduler
from hpctrain.logs.preflight import NodeFacts, Report, read_report
from hpctrain.slurm.base import JobControl
from hpctrain.slurm.client import SlurmScheduler
from hpctrain.terminal import style
from hpctrain.util import installed, stored, text

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red", "unknown": "cyan", "note": "cyan"}
SCRIPT = "doctor.sbatch"
#: Minutes: the test takes one or two, mostly for imports.
_MINUTES = "5"
#: Lines of a job's error log to print.
_ERROR_LINES = 3


@click.command("doctor", cls=JobCommand)
@job_options
@click.option(
    "--quick",
    is_flag=True,
    help="Skip the start of the training without a network (30 s).",
)
@click.option(
    "--job",
    "as_job",
    is_flag=True,
    help="Run a preflight job of a few minutes on compute nodes.",
)
@click.option(
    "--local", is_flag=True, help="With --job: run it locally, even if Slurm is available."
)
@click.option(
    "--wait/--no-wait",
    default=True,
    help="With --job: wait for the job and report. Default: wait.",
)
@click.option(
    "--of",
    "job_id",
    metavar="JOB",
    help="Report on a preflight job that was submitted with --no-wait.",
)
@click.option(
    "--notify", "try_notify", is_flag=True, help="Only send a test message, as in `notify:`."
)
@json_option
@click.pass_context
def command(ctx: click.Context, /, **parameters: Any) -> int:
    """Check this machine and environment and, with --job, the nodes.

    Without --job: Slurm, the job's modules and environment, versions that must agree, quotas, and
    whether the training starts without a network. With --job, the job is submitted with a short
    test instead of the training, and each node reports what it has.

    \b
    hpctrain doctor
    hpctrain doctor --job --nodes 2 --gpus 4
    """  # noqa: D301 - \b keeps click from wrapping
    asked = request(ctx, parameters)
    as_json, job_id = parameters["as_json"], parameters["job_id"]
    local, quick = parameters["local"], parameters["quick"]
    if parameters["try_notify"]:
        notify.test(asked, click.echo)
        return 0
    is_job = parameters["as_job"] or job_id
    if (quick and is_job) or ((local or not parameters["wait"]) and not is_job):
        raise UsageError(
            "--quick is without --job; --local and --no-wait need --job",
            fix="hpctrain doctor --job --local",
        )
    job = job_of(asked)
    around = Surroundings(
        variables={"ACCELERATE_USE_CPU": os.environ.get("ACCELERATE_USE_CPU", "")},
        requirement=installed.requirement("train"),
    )
    context = DoctorContext(
        job.spec,
        job.cluster,
        None,
        around,
        job.origins,
        version=hpctrain.__version__,
        demands=environment.demands(),
        quick=quick,
    )
    if not is_job:
        return _login(asked, context, as_json=as_json)
    if job_id is not None:
        return _report(
            schedulers.owner(job_id), job_id, context, asked, as_json=as_json, by_job=True
        )
    scheduler, job_id = _submit(asked, context, local=local)
    if not parameters["wait"]:
        click.echo(job_id)
        say(f"next: hpctrain doctor --of {job_id}")
        return 0
    return _report(scheduler, job_id, context, asked, as_json=as_json, by_job=False)


def _login(asked: Request, context: DoctorContext, *, as_json: bool) -> int:
    results: list[ProbeResult] = []
    for result in login.run_probes(context):
        results.append(result)
        # Omit the result if a finding contains the same sentence.
        is_below = any(result.sentence in finding.what for finding in result.findings)
        told = counts(result.findings) if is_below else result.sentence
        indent = " " * 8
        first, *lines = text.wrap(" ".join(f"{result.probe}: {told}".split()), WIDTH, indent=indent)
        head = style(f"{result.word:<8}", fg=_COLOURS[result.word])
        for finding in result.findings:
            lines += [f"{indent}{line}" for line in coloured_block(finding, WIDTH - 8)]
        if not as_json:
            click.echo(keeping(asked, "\n".join([head + first.lstrip(), *lines])))
    findings = [finding for result in results for finding in result.findings]
    if as_json:
        is_ok = all(finding.level != "error" for finding in findings)
        print_json(probes=[result.to_json() for result in results], ok=is_ok)
    return _end(
        asked,
        findings,
        "nothing is wrong that can be seen from here\nnext: hpctrain doctor --job",
        as_json=as_json,
    )


def _end(asked: Request, findings: list[Finding], well: str, *, as_json: bool) -> int:
    serious = [each for each in findings if each.level != "note"]
    if not as_json:
        say(keeping(asked, counts(serious) if serious else well))
    return int(any(finding.level == "error" for finding in findings))


# -- the preflight job -----------------------------------------------------------------------------


def _submit(asked: Request, context: DoctorContext, *, local: bool) -> tuple[JobControl, str]:
    if context.spec.array is not None and context.spec.study is None:
        raise UsageError(
            "the preflight job is one job, and the config requests a job array",
            hint="remove array from config.yaml",
        )
    if asked.to == "-":
        raise UsageError(
            "--to - writes no script that could be submitted", fix="hpctrain doctor --job"
        )
    made = scripts_of(_request_of(asked, context), alone=True)
    for note in script_files.write(made, force=False):
        say(note)
    scheduler = LocalScheduler() if local or not SlurmScheduler.is_available() else SlurmScheduler()
    submission = scheduler.submit(made.scripts[0].path)
    for note in submission.notes:
        say(f"note: {note}")
    say(f"submitted job {submission.answer}: {context.spec.layout}")
    return scheduler, submission.answer


def _request_of(asked: Request, context: DoctorContext) -> Request:
    """Return the request of the preflight job: the same job with its own time limit, and a test
    instead of the training.
    """
    spec = context.spec
    # Located without importing it, because it imports torch.
    program = Path(hpctrain.__file__).parent / "training" / "preflight" / "node_check.py"
    arguments = Arguments(spec)
    words = ["--doctor-gpus", str(spec.gpus_per_node)]
    words += ["--doctor-dataset", arguments.get("dataset_name") or ""]
    words += ["--doctor-checkpoint", arguments.get("output_dir") or ""]
    options = asked.options | {
        ("script",): str(program.resolve()),
        ("task",): "sft",
        ("job_name",): "doctor",
        ("sharding",): "ddp",
        ("resources", "time"): _MINUTES,
    }
    return replace(asked, options=options, arguments=tuple(words), to=asked.to or SCRIPT)


def _report(
    scheduler: JobControl,
    job_id: str,
    context: DoctorContext,
    asked: Request,
    *,
    as_json: bool,
    by_job: bool,
) -> int:
    """Wait for the preflight job and print its report. With `by_job`, nodes and GPUs are taken from
    the job itself, because it may have been submitted with other options.
    """
    logs = scheduler.logs(job_id)
    if logs is None:
        raise HpctrainError(f"where job {job_id} writes is unknown", fix="hpctrain ps")
    try:
        record = follow.until_the_end(scheduler, job_id, (), say)
    except KeyboardInterrupt:
        say(
            f"\njob {job_id} keeps running; its report: hpctrain doctor --of {job_id}; to stop it:"
            f" hpctrain cancel {job_id}"
        )
        return 130
    output, errors = (
        stored.read_text(path, errors="replace", limit=64_000_000) if path.is_file() else ""
        for path in (logs.output, logs.error)
    )
    report = read_report(output)
    if by_job and report.ranks:
        first, spec = report.ranks[0], context.spec
        nodes, gpus = first.job_nodes or spec.nodes, first.gpus_asked or spec.gpus_per_node
        context = replace(context, spec=spec.replace(nodes=nodes, gpus_per_node=gpus))
    problems = [line.strip()[:200] for line in errors.splitlines() if "error" in line.lower()]
    findings = evaluate(report, context, tuple(problems[:_ERROR_LINES]))
    is_completed = record is None or record.state == "COMPLETED"
    if as_json:
        facts = asdict(report)
        print_json(
            job_id=job_id,
            state=None if record is None else record.state,
            ok=all(finding.level != "error" for finding in findings),
            all_reduce=facts.pop("speeds"),
            **facts,
            findings=[finding.to_json() for finding in findings],
        )
    else:
        _print(report, context, findings)
    if record is not None and not is_completed and not as_json:
        say(f"{follow.describe(record)}; its log: hpctrain logs --err {job_id}")
    return _end(
        asked, findings, "the nodes are fit for training\nnext: hpctrain submit", as_json=as_json
    ) or int(not is_completed)


def _print(report: Report, context: DoctorContext, findings: list[Finding]) -> None:
    if report.nodes:
        show_table(
            ("NODE", "GPUS", "CORES"), [_row(node, report, context) for node in report.nodes]
        )
    for group in dict.fromkeys(speed.group for speed in report.speeds):
        if best := report.speed_of(group):
            is_all = group == "all"
            who = text.count(len(report.nodes), "node") if is_all else group
            over = f" over {', '.join(used(report))}" if is_all and used(report) else ""
            click.echo(
                f"all-reduce: {text.count(best.ranks, 'rank')} of {who}:"
                f" {text.rate(best.bandwidth)} ({best.backend}, {best.bytes >> 20} MiB){over}"
            )
    for finding in findings:
        click.echo("\n".join(coloured_block(finding)))


def _row(node: NodeFacts, report: Report, context: DoctorContext) -> tuple[str, ...]:
    ranks = report.ranks_of(node.host)
    seen = [rank.visible for rank in ranks if rank.visible is not None]
    gpus = f"{min(seen)} of {context.spec.gpus_per_node}" if seen else "?"
    cores = sorted({len(rank.cpu_set) for rank in ranks if rank.cpu_set})
    return (
        node.host,
        "CPU" if ranks and all(rank.on_cpu for rank in ranks) else gpus,
        "-".join(map(str, cores)) or "?",
    )
