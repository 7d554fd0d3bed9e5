"""`hpctrain doctor --job`: the user's own job with a test in the place of the training, and what its nodes report."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpctrain.cli import follow, schedulers, script_file
from hpctrain.cli.doctor import case_of, errors, finding_lines, summary
from hpctrain.cli.job_options import Request
from hpctrain.cli.job_scripts import scripts_of
from hpctrain.doctor import report as reports
from hpctrain.doctor.judge.network import used
from hpctrain.doctor.judge.nodes import judge
from hpctrain.doctor.words import many, rate, size
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs.arguments import Arguments
from hpctrain.scheduler.local.scheduler import LocalScheduler
from hpctrain.scheduler.slurm import SlurmScheduler

if TYPE_CHECKING:
    from hpctrain.doctor.facts import Case
    from hpctrain.doctor.report import NodeFacts, Report
    from hpctrain.jobs.finding import Finding
    from hpctrain.scheduler.base import LogFiles, Scheduler
    from hpctrain.scheduler.parse.records import JobRecord

SCRIPT = "doctor.sbatch"
#: Minutes: the test itself takes one or two, of which the imports are the most.
_MINUTES = "5"
#: Where a job's launcher says what is wrong.
_WORDS = 3


def run(asked: Request, *, job_id: str | None, local: bool, wait: bool, as_json: bool) -> int:
    """Submit the preflight job and report, or report on one that was submitted before."""
    case = case_of(asked)
    if job_id is not None:
        scheduler = schedulers.owner(job_id)
        return _report(scheduler, job_id, case, as_json=as_json, of_old=True)
    if case.spec.array is not None and case.spec.study is None:
        raise UsageError("the preflight job is one job, and the config asks for a job array", fix="take array out of config.yaml")
    made = scripts_of(request_of(asked, case), alone=True)
    script = made.scripts[0]
    if script.path is None:
        raise UsageError("--to - writes no script that could be submitted", fix="hpctrain doctor --job")
    for note in script_file.write(made, force=False):
        click.echo(note, err=True)
    scheduler = LocalScheduler() if local or not SlurmScheduler.is_available() else SlurmScheduler()
    submission = scheduler.submit(script.path)
    for note in submission.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"submitted job {submission.job_id}: {case.spec.layout}", err=True)
    if not wait:
        click.echo(submission.job_id)
        click.echo(f"next: hpctrain doctor --of {submission.job_id}", err=True)
        return 0
    return _report(scheduler, submission.job_id, case, as_json=as_json)


def request_of(asked: Request, case: Case) -> Request:
    """Return the request of the preflight job: the same job, with the test in the place of the training and a time limit of its own."""
    spec = case.spec
    dataset = Arguments(spec).get("dataset_name")
    checkpoint = Arguments(spec).get("output_dir")
    words = ["--doctor-gpus", str(spec.gpus_per_node)]
    words += ["--doctor-mem"] if spec.mem_bytes is not None or spec.mem_per_cpu_bytes is not None else []
    words += ["--doctor-dataset", dataset] if dataset else []
    words += ["--doctor-checkpoint", checkpoint] if checkpoint else []
    ours: dict[tuple[str, ...], str] = {
        ("script",): _program(), ("task",): "sft", ("job_name",): "doctor", ("resources", "time"): _MINUTES,
    }  # fmt: skip
    if spec.sharding != "ddp":
        ours["sharding",] = "ddp"
    return replace(asked, options={**asked.options, **ours}, arguments=tuple(words), to=asked.to or SCRIPT)


def _program() -> str:
    """Return the path of the program that runs on the nodes; it is not imported here, because it imports torch."""
    package = find_spec("hpctrain")
    folders = list(package.submodule_search_locations or []) if package is not None else []
    return str(Path(folders[0]).resolve() / "training" / "node_check.py")


def _report(scheduler: Scheduler, job_id: str, case: Case, *, as_json: bool, of_old: bool = False) -> int:
    logs = scheduler.logs(job_id)
    if logs is None:
        raise HpctrainError(f"where job {job_id} writes is not known", fix="hpctrain ps")
    try:
        tails = [follow.Tail(logs.output, io.StringIO())]
        record = follow.until_the_end(scheduler, job_id, tails, lambda line: click.echo(line, err=True))
    except KeyboardInterrupt:
        click.echo(
            f"\njob {job_id} keeps running; its report: hpctrain doctor --of {job_id}; to stop it: hpctrain cancel {job_id}", err=True
        )
        return 130
    report = reports.read(_text(logs.output))
    if of_old:
        case = _case_of_the_job(case, report)
    findings = judge(report, case, _job_words(logs))
    completed = record is None or record.state == "COMPLETED"
    if as_json:
        click.echo(json.dumps(_json(job_id, record, report, findings)))
    else:
        _print(report, case, findings)
        if not completed and record is not None:
            click.echo(f"{follow.describe(record)}; its log: hpctrain logs --err {job_id}", err=True)
        click.echo(summary(findings, well="the nodes are fit for training", following="hpctrain submit"), err=True)
    return 1 if errors(findings) or not completed else 0


def _case_of_the_job(case: Case, report: Report) -> Case:
    """Return the case with nodes and GPUs as the job itself had them: the options may not be those that it was submitted with."""
    if not report.ranks:
        return case
    first = report.ranks[0]
    spec = replace(case.spec, nodes=first.job_nodes or case.spec.nodes, gpus_per_node=first.gpus_asked or case.spec.gpus_per_node)
    return replace(case, spec=spec)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _job_words(logs: LogFiles) -> tuple[str, ...]:
    """Return the first lines in which the job's own script, srun or the launcher call something an error."""
    lines = [line.strip() for line in _text(logs.error).splitlines()]
    return tuple(line[:200] for line in lines if "error" in line.lower())[:_WORDS]


def _json(job_id: str, record: JobRecord | None, report: Report, findings: list[Finding]) -> dict[str, object]:
    return {
        "schema": 1,
        "job_id": job_id,
        "state": None if record is None else record.state,
        "ok": not errors(findings),
        **{key: value for key, value in asdict(report).items() if key != "speeds"},
        "all_reduce": [asdict(speed) for speed in report.speeds],
        "findings": [finding.to_json() for finding in findings],
    }


def _print(report: Report, case: Case, findings: list[Finding]) -> None:
    rows: list[tuple[str, ...]] = [("NODE", "GPUS", "CORES", "MEMORY", "SHM", "TMP", "READ", "WRITE", "CLOCK")]
    rows += [_row(node, report, case) for node in report.nodes]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows if report.nodes else []:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for group in dict.fromkeys(speed.group for speed in report.speeds):
        best = report.speed_of(group)
        if best is not None:
            who = f"{many(best.ranks, 'rank')}" + (f" of {many(len(report.nodes), 'node')}" if group == "all" else f" of {group}")
            over = f" over {', '.join(used(report)) or 'an unknown interface'}" if group == "all" else ""
            click.echo(f"all-reduce: {who}: {rate(best.bandwidth)} ({best.backend}, {best.bytes >> 20} MiB){over}")
    if any(node.read is not None and node.read.dropped for node in report.nodes):
        click.echo("read: dropped from the nodes' page cache first; a file server may still hold it")
    for finding in findings:
        click.echo("\n".join(finding_lines(finding, 0)))


def _row(node: NodeFacts, report: Report, case: Case) -> tuple[str, ...]:
    ranks = report.ranks_of(node.host)
    seen = [rank.visible for rank in ranks if rank.visible is not None]
    gpus = "CPU" if ranks and all(rank.on_cpu for rank in ranks) else f"{min(seen)} of {case.spec.gpus_per_node}" if seen else "?"
    cores = sorted({len(rank.cpu_set) for rank in ranks if rank.cpu_set})
    return (
        node.host, gpus, "-".join(map(str, cores)) or "?", size(node.memory_limit or node.memory or 0),
        size(node.shm.free) if node.shm is not None and node.shm.free is not None else "?",
        size(node.tmp.free) if node.tmp is not None and node.tmp.free is not None else "?",
        rate(node.read.speed) if node.read is not None and node.read.speed else "-",
        rate(node.write.speed) if node.write is not None and node.write.speed else "-",
        f"{node.ahead_s * 1000:+.2g} ms" if node.ahead_s is not None else "0" if any(rank.rank == 0 for rank in ranks) else "?",
    )  # fmt: skip
