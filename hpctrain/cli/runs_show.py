"""`hpctrain runs show`: all that is known of one run, and what to type next."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hpctrain.cli import runs, runs_jobs, runs_table, runs_trials
from hpctrain.cli.runs_filter import runs_dir_option
from hpctrain.cli.runs_table import printable, when
from hpctrain.errors import SchedulerError
from hpctrain.report import ran_with
from hpctrain.runs import checkpoints, drop, layout, manifest, predicted, select, store
from hpctrain.runs.states import State
from hpctrain.runs.store import Attempt, Run
from hpctrain.scheduler.parse import duration, memory_size

#: The column behind `config.yaml:12`, which a table has no room for.
_IN_LINE = re.compile(r":(\d+):\d+$")


@dataclass(frozen=True, slots=True)
class _Page:
    """What is shown.

    Attributes:
        config: what its newest job was submitted with, what was typed behind `--` too; empty without.
        code: what code.json of the run, or of its launch, holds; empty without.
        environment: of the last attempt that wrote it.
        saved: (name, step, why it does not count or None) of each checkpoint.
        fit: memory and speed, predicted and measured (hpctrain.runs.predicted); None without.
        evaluation: what an evaluation-only run measured; empty without.
        size: bytes of the whole run.
        silent: what kept a scheduler from answering.
    """

    run: Run
    state: State
    directory: Path
    owner: str
    size: int
    config: dict[str, Any]
    code: dict[str, Any]
    environment: dict[str, Any]
    saved: list[tuple[str, int | None, str | None]]
    fit: dict[str, Any] | None
    evaluation: dict[str, Any]
    silent: SchedulerError | None


@click.command("show")
@click.argument("run")
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, raw units.")
def show_command(run: str, runs_dir: Path, as_json: bool) -> int:
    """Show a run: who, when, with which config and code, its attempts, its checkpoints, and what to type next."""
    page = _page(runs_dir, run)
    if as_json:
        click.echo(json.dumps(_as_json(page)))
        return 0
    click.echo("\n".join(_lines(page)))
    for problem in page.run.problems:
        click.echo(f"note: {printable(problem)}", err=True)
    if page.silent is not None:
        click.echo(f"note: {runs.silence(page.silent)}", err=True)
    for line in next_steps(page.run, page.state, runs_dir, saved=any(why is None for *_, why in page.saved)):
        click.echo(f"next: {line}", err=True)
    return 0


def _page(runs_dir: Path, word: str) -> _Page:
    listing = runs.all_runs(runs_dir)
    if listing is None:
        raise runs.no_runs(runs_dir)
    name = select.one(word, listing.runs).id
    run = store.read_run(runs_dir, name) or select.one(word, listing.runs)
    directory = runs_dir / name
    launch = runs_dir / layout.LAUNCHES / run.tag
    made = ran_with.read(run, runs_dir)
    survey = runs_jobs.survey(runs_dir, [run])
    attempts = [directory / "attempts" / attempt.name / "environment.json" for attempt in reversed(run.attempts)]
    return _Page(
        run=run,
        state=survey.states[name],
        silent=survey.silent,
        directory=directory,
        owner=drop.owner(directory.stat().st_uid),
        size=drop.weigh(runs_dir, name).size,
        config={} if made.config is None else {"config": dict(made.config), "origins": dict(made.origins)},
        code=_first(directory / "code.json", launch / "code.json"),
        environment=_first(*attempts),
        saved=_saved(directory / checkpoints.CHECKPOINTS),
        fit=predicted.read(directory),
        evaluation=_first(directory / layout.EVALUATION),
    )


def _first(*paths: Path) -> dict[str, Any]:
    """Return the JSON object in the first of the files that holds one."""
    return next((value for path in paths if (value := store.read_object(str(path)))), {})


def _saved(directory: Path) -> list[tuple[str, int | None, str | None]]:
    found = []
    for path in checkpoints.all_of(directory):
        read = manifest.read_manifest(path)
        wrong = manifest.problems(path, digests=False, extra=False)
        found.append((path.name, read.step if read else None, "; ".join(wrong) or None))
    return found


def next_steps(run: Run, state: State, runs_dir: Path, *, saved: bool) -> list[str]:
    """Return commands that make sense for a run in this state."""
    name = shlex.quote(run.id)
    where = "" if str(runs_dir) == layout.RUNS else f" --runs-dir {shlex.quote(str(runs_dir))}"
    steps = []
    job = run.job_ids[-1] if run.job_ids else None
    if job is not None:
        follow = " -f" if state.word == "running" else ""
        steps.append(f"hpctrain logs{follow} {shlex.quote(job)}")
    if state.word == "running":
        steps.insert(0, f"hpctrain watch {name}")
    elif state.word == "failed":
        steps.insert(0, f"hpctrain explain {name}{where}")
    elif state.word == "completed":
        steps.insert(0, f"hpctrain report {name}{where}")
    if state.word == "unknown":
        steps.append("hpctrain ps, to see whether a job of it waits or runs")
    if state.word in ("failed", "stopped"):
        steps.append(f"hpctrain resubmit {name}" + (", which goes on from its newest checkpoint" if saved else ""))
    if state.word == "running":
        steps.append(f"touch {shlex.quote(str(runs_dir / run.id / 'stop'))}, and it saves and stops")
    if run.checkpoints:
        steps.append(f"hpctrain checkpoints list {name}{where}")
    return steps


def _as_json(page: _Page) -> dict[str, Any]:
    return {
        "schema": 1, **runs.as_json_row(page.run, page.state), "directory": str(page.directory.absolute()), "owner": page.owner,
        "bytes": page.size, "config": page.config.get("config"), "origins": page.config.get("origins"), "code": page.code or None,
        "environment": page.environment or None,
        "saved": [{"name": name, "step": step, "problem": why} for name, step, why in page.saved],
        "fit": page.fit, "evaluation": page.evaluation or None,
    }  # fmt: skip


def _lines(page: _Page) -> list[str]:
    run = page.run
    point = f", point {run.index}" if run.index is not None else ""
    stage = f", stage {printable(run.stage)}" if run.stage else ""
    facts = [
        ("run", run.id),
        ("state", page.state.word + (f": {reason}" if (reason := runs_table.why(page.state)) else "")),
        ("launch", f"{run.tag}{point}{stage}"),
        *runs_trials.facts(page.directory),
        ("name", printable(run.name or "-")),
        ("who", page.owner),
        ("created", when(run.created)),
        ("directory", f"{page.directory} ({runs_table.size(page.size)})"),
        ("step", "-" if run.last_step is None else f"{run.last_step}, loss {runs_table.loss(run.last_loss)}"),
        ("code", _code(page.code)),
    ]
    lines = [f"{label:10} {value}" for label, value in facts]
    if page.environment:
        lines.append(f"{'ran with':10} {_environment(page.environment)}")
    lines += ["", *_attempts(run.attempts)]
    if page.saved:
        rows = [(printable(name), "-" if step is None else str(step), printable(why or "complete")) for name, step, why in page.saved]
        lines += ["", *runs_table.table(("CHECKPOINT", "STEP", "FILES"), rows, state_column=None)]
    return lines + _fit(page.fit) + _evaluation(page.evaluation) + _config(page.config)


def _fit(record: dict[str, Any] | None) -> list[str]:
    """Return predicted beside measured."""
    rows = []
    for each in predicted.beside(record) if record is not None else ():
        shown = [
            "-" if value is None else f"{value / 2**30:.2f} GiB" if each.is_size else f"{value:.0f}"
            for value in (each.predicted, each.measured)
        ]
        rows.append((each.name, *shown, "-" if each.off is None else f"{100 * each.off:+.1f} %"))
    return ["", *runs_table.table(("WHAT", "PREDICTED", "MEASURED", "PREDICTION IS OFF"), rows, state_column=None)] if rows else []


def _evaluation(record: dict[str, Any]) -> list[str]:
    """Return what an evaluation-only run measured."""
    metrics = record.get("metrics")
    if not isinstance(metrics, dict):
        return []
    rows = [(printable(str(name)), f"{value:.6g}") for name, value in metrics.items() if isinstance(value, int | float)]
    return ["", *runs_table.table(("EVALUATION", "VALUE"), rows, state_column=None)] if rows else []


def _attempts(attempts: tuple[Attempt, ...]) -> list[str]:
    if not attempts:
        return ["it has not started"]
    rows = []
    for each in attempts:
        took = None if each.started is None or each.ended is None else max(0.0, each.ended - each.started)
        code = each.status if each.status is not None else each.exit_code
        rows.append((
            printable(each.name), printable(each.job_id or "-"), printable(each.host or "-"), when(each.started),
            "-" if took is None else runs_table.ago(0, took), "-" if code is None else str(code),
            printable(" ".join(dict.fromkeys(word for word in (each.outcome, each.reason) if word)) or "-"),
        ))  # fmt: skip
    return runs_table.table(("ATTEMPT", "JOB", "HOST", "STARTED", "TOOK", "EXIT", "HOW IT ENDED"), rows, state_column=None)


def _code(code: dict[str, Any]) -> str:
    commit, dirty, digest = code.get("commit"), code.get("dirty"), code.get("digest")
    if isinstance(commit, str):
        return printable(commit[:12]) + (" and changes that are not committed (code.diff)" if dirty else "")
    return f"files {printable(digest[:12])}" if isinstance(digest, str) else "-"


def _environment(environment: dict[str, Any]) -> str:
    flat = environment | (environment["versions"] if isinstance(environment.get("versions"), dict) else {})
    told = [f"{name} {flat[name]}" for name in ("python", "torch", "transformers", "trl") if isinstance(flat.get(name), str)]
    return printable(", ".join(told) or "see environment.json")


def _config(config: dict[str, Any]) -> list[str]:
    """Return what somebody has written into the config, and where; defaults are left out."""
    values, origins = config.get("config"), config.get("origins")
    if not isinstance(values, dict) or not isinstance(origins, dict) or not origins:
        return []
    rows = [
        (printable(str(path)), printable(_value(values, str(path)))[:50], printable(_IN_LINE.sub(r":\1", str(where))))
        for path, where in origins.items()
    ]
    return ["", *runs_table.table(("CONFIG", "VALUE", "FROM"), rows, state_column=None)]


def _value(values: dict[str, Any], path: str) -> str:
    found: Any = values
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if path == "resources.time" and isinstance(found, int):
        return duration.format(found)
    if path in ("resources.mem", "resources.mem_per_cpu") and isinstance(found, int):
        return memory_size.format(found)
    return found if isinstance(found, str) else json.dumps(found)
