"""The commands of the group `Manage results`: `hpctrain runs` and `hpctrain checkpoints`."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from hpctrain.cli import CommandGroup, run_table
from hpctrain.cli.options import (
    complete_runs,
    filter_options,
    json_option,
    runs_dir_option,
    typed,
    yes_option,
)
from hpctrain.cli.output import print_json, say, show_table
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.jobs import deletion, request, schedulers, targets
from hpctrain.runs import checkpoints as stored
from hpctrain.runs import drop, job_state, layout, manifest, predicted, store
from hpctrain.slurm import job_ids
from hpctrain.util import files, installed, text


@click.group(cls=CommandGroup)
def runs() -> None:
    """Manage runs.

    A run is a directory in runs/: one training from start to end, over restarts. RUN is its id, a
    prefix of it, or a glob such as 'sft-*'; the tag of a sweep means all of its runs. `delete`
    takes no prefix.
    """


@click.group(cls=CommandGroup)
def checkpoints() -> None:
    """Manage checkpoints.

    RUN is a run's id, a prefix of it, or a glob such as 'sft-*'; RUN/checkpoint-40 is one
    checkpoint, RUN/model the final weights. `delete` takes no prefix.
    """


#: The number of newest runs to list if none are named.
SHOWN = 30


# -- runs ------------------------------------------------------------------------------------------


@runs.command("list")
@filter_options
@runs_dir_option
@click.option("--all", "show_all", is_flag=True, help=f"All of them, not only the newest {SHOWN}.")
@json_option
def list_runs(chosen: targets.RunFilter, runs_dir: Path, show_all: bool, as_json: bool) -> None:
    """List runs, the newest at the end."""
    now = time.time()
    if not runs_dir.exists():
        if as_json:
            print_json(runs=[], foreign=[])
        say(f"no runs: {Path.cwd()} has no directory {runs_dir}; next: hpctrain submit")
        return
    listing = targets.existing_runs(runs_dir)
    meant = sorted(
        chosen.choose(listing, now, started=False), key=lambda run: (run.since or 0.0, run.id)
    )
    survey = schedulers.survey(runs_dir, meant)
    states = survey.states
    meant = [run for run in meant if chosen.has(states[run.id].word)]
    if as_json:
        print_json(
            runs=[
                _run_row(run, states[run.id]) | {"trial": run_table.trial_of(runs_dir, run.id)}
                for run in meant
            ],
            foreign=list(listing.foreign),
        )
    else:
        shown = meant if show_all or chosen.words else meant[-SHOWN:]
        if not shown:
            say(f"no runs{'' if chosen.is_empty else ' like that'} in {runs_dir.absolute()}")
        else:
            _show_runs(shown, states, runs_dir, now)
        if len(shown) < len(meant):
            listed = layout.in_runs_dir("hpctrain runs list", runs_dir)
            say(f"and {len(meant) - len(shown)} older ones: {listed} --all")
        if listing.foreign and chosen.is_empty:
            say(f"note: not runs, ignored: {', '.join(map(text.printable, listing.foreign[:3]))}")
    if survey.silent is not None and any(state.word == "unknown" for state in states.values()):
        say(f"note: {run_table.summary(survey.silent)}; some states are unknown")


def _run_row(run: store.Run, state: job_state.State) -> dict[str, Any]:
    """Return a run as JSON values: seconds since the epoch, null for unknown."""
    row = asdict(run) | {
        "since": run.since,
        "job_ids": list(run.job_ids),
        "state": state.word,
        "reason": state.reason,
        "live_jobs": list(state.live),
        "summary": job_state.of_run(run, state).words or None,
    }
    # JSON has no NaN or infinity
    if run.last_loss is not None and not math.isfinite(run.last_loss):
        row |= {"last_loss": None, "nonfinite": {"last_loss": str(run.last_loss)}}
    return row


def _show_runs(
    shown: list[store.Run], states: dict[str, job_state.State], runs_dir: Path, now: float
) -> None:
    pairs = [(run, states[run.id]) for run in shown]
    run_table.show([(*run_table.cells(*pair, now), run_table.why(*pair)) for pair in pairs], "WHY")
    for run in shown:
        for problem in run.problems[:1]:
            say(f"note: {run.id}: {text.printable(problem)}")
    say(f"next: {layout.in_runs_dir(f'hpctrain runs show {shown[-1].id}', runs_dir)}")


@runs.command("show")
@click.argument("run", required=False, shell_complete=complete_runs)
@runs_dir_option
@json_option
def show_run(run: str | None, runs_dir: Path, as_json: bool) -> None:
    """Show a run: its config, code, attempts and checkpoints.

    Default: the newest run.
    """
    from hpctrain.report import model

    listing = targets.existing_runs(runs_dir)
    shown = targets.newest_run(listing) if run is None else targets.one_run(run, listing)
    survey = schedulers.survey(runs_dir, [shown])
    state = survey.states[shown.id]
    directory = runs_dir / shown.id
    launch = runs_dir / layout.LAUNCHES / shown.tag
    config, origins = request.ran_with(shown, runs_dir)
    saved = [one for one in stored.saved_in(directory) if one.is_checkpoint]
    fit = predicted.read(directory)
    facts: dict[str, Any] = {
        "directory": str(directory.absolute()),
        "owner": drop.owner((directory if directory.is_dir() else launch).stat().st_uid),
        "bytes": drop.weigh(runs_dir, shown.id)[0] if directory.is_dir() else 0,
        "config": None if config is None else dict(config),
        "origins": None if config is None else dict(origins),
        "code": model.code_of(shown, runs_dir) or None,
        "environment": model.environment_of(shown, runs_dir) or None,
        "saved": [one.summary() for one in saved],
        "fit": fit,
        "evaluation": request.first_object(directory / layout.EVALUATION) or None,
    }
    if as_json:
        print_json(**_run_row(shown, state), **facts)
        return
    for label, value in _facts(shown, state, directory, facts):
        click.echo(f"{label:10} {value}")
    _section(
        ("ATTEMPT", "JOB", "HOST", "STARTED", "TOOK", "EXIT", "HOW IT ENDED"),
        _attempts(shown, state),
    )
    _section(
        ("CHECKPOINT", "STEP", "FILES"),
        [
            (one["name"], text.number(one["step"]), one["problem"] or "complete")
            for one in facts["saved"]
        ],
    )
    _section(
        ("WHAT", "PREDICTED", "MEASURED", "PREDICTION IS OFF"),
        [
            (
                each.name,
                *(
                    text.size(value) if each.is_size and value is not None else text.number(value)
                    for value in (each.predicted, each.measured)
                ),
                "-" if each.off is None else f"{100 * each.off:+.1f} %",
            )
            for each in (predicted.beside(fit) if fit is not None else ())
        ],
    )
    metrics = model.evaluation_of(directory).items()
    _section(("EVALUATION", "VALUE"), [(name, text.number(value, 6)) for name, value in metrics])
    rows = model.config_rows(config, origins)
    _section(("CONFIG", "VALUE", "FROM"), [(key, value[:50], where) for key, value, where in rows])
    for problem in shown.problems:
        say(f"note: {text.printable(problem)}")
    if survey.silent is not None:
        say(f"note: {run_table.summary(survey.silent)}")
    for line in _next_steps(shown, state, runs_dir, saved=any(not one.wrong for one in saved)):
        say(f"next: {line}")


def _section(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if rows:
        click.echo()
        show_table(head, rows)


def _next_steps(
    run: store.Run, state: job_state.State, runs_dir: Path, *, saved: bool
) -> list[str]:
    name, path = shlex.quote(run.id), shlex.quote(str(runs_dir / run.id))
    where = layout.in_runs_dir("", runs_dir)
    job = run.job_ids[-1] if run.job_ids else ""
    logs = f"hpctrain logs {name if job_ids.split(job)[1] else shlex.quote(job)}"
    resubmit = f"hpctrain resubmit {name}{where}"
    resubmit += "  # resumes from its newest checkpoint" if saved else ""
    explain = f"hpctrain explain {path if where else name}"
    steps = {
        "running": [f"hpctrain watch {name}{where}", f"touch {path}/stop  # saves and stops"],
        "failed": [explain, resubmit],
        "stopped": [resubmit],
        "completed": [f"hpctrain report {name}{where}"],
        "unknown": ["hpctrain ps"],
    }
    return [*steps.get(state.word, ()), *([logs] if job else ())]


def _facts(
    run: store.Run, state: job_state.State, directory: Path, facts: dict[str, Any]
) -> list[tuple[str, str]]:
    point = f", combination {run.index}" if run.index is not None else ""
    stage = f", stage {text.printable(run.stage)}" if run.stage else ""
    words = run_table.why(run, state)
    code = facts["code"] or {}
    commit, digest = (str(code.get(name) or "")[:12] for name in ("commit", "digest"))
    changes = " and changes that are not committed (code.diff)" if code.get("dirty") else ""
    return [
        ("run", run.id),
        ("state", words if state.word in words else ": ".join(filter(None, (state.word, words)))),
        ("launch", f"{run.tag}{point}{stage}"),
        ("name", text.printable(run.name or "-")),
        ("owner", facts["owner"]),
        ("created", text.date(run.created)),
        ("directory", f"{directory} ({text.size(facts['bytes'])})"),
        (
            "step",
            "-" if run.last_step is None else f"{run.last_step}, loss {text.number(run.last_loss)}",
        ),
        ("code", text.printable(commit or f"files {digest}" if code else "-") + changes),
    ]


def _attempts(run: store.Run, state: job_state.State) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for each in run.attempts:
        # Only the last attempt's job state is known; for earlier ones, use their files.
        ended = job_state.of_job(None, each, next_job=job_state.continuation(run, each, state.live))
        if each is run.last and state.word not in ("pending", "running", "unknown"):
            ended = job_state.of_run(run, state)
        code = each.status if each.status is not None else each.exit_code
        took = "-" if each.ended is None else run_table.ago(each.started, each.ended)
        cells = (each.name, each.job, each.host, text.date(each.started), took, code, ended.words)
        rows.append(tuple("-" if cell in (None, "") else str(cell) for cell in cells))
    return rows


# -- checkpoints -----------------------------------------------------------------------------------


@checkpoints.command("list")
@filter_options
@runs_dir_option
@json_option
def list_checkpoints(chosen: targets.RunFilter, runs_dir: Path, as_json: bool) -> None:
    """List checkpoints, complete or not.

    Names and sizes are compared, and what `verify` found before is shown; `verify` reads the files.
    """
    found = deletion.choose(chosen, runs_dir).all
    if as_json:
        # Bytes, seconds, seconds since the epoch, or null.
        print_json(
            checkpoints=[
                {
                    "run_id": one.run,
                    "name": one.path.name,
                    "path": str(one.path.absolute()),
                    "complete": not one.wrong,
                    "problems": list(one.wrong),
                    "best": one.best,
                    "bytes": one.size(),
                    "step": one.manifest and one.manifest.step,
                    "world_size": one.manifest and one.manifest.world_size,
                    "saved_at": one.manifest and one.manifest.saved_at,
                    "seconds": one.manifest and one.manifest.seconds,
                    "attempt": one.manifest and one.manifest.attempt,
                    "state": one.manifest and list(one.manifest.state),
                }
                for one in found
            ]
        )
        return
    if not found:
        say(f"no such checkpoints in {runs_dir.absolute()}")
        return
    _show_checkpoints(found)
    damaged = [one.path for one in found if one.wrong and not one.unfinished]
    if damaged:
        say(f"next: {stored.drop_damaged(damaged)}")
    else:
        verify = layout.in_runs_dir(f"hpctrain checkpoints verify {found[-1].run}", runs_dir)
        say(f"next: {verify}, which reads the files")


def _show_checkpoints(found: list[stored.Saved], *, err: bool = False) -> None:
    now = time.time()
    show_table(
        ("RUN", "CHECKPOINT", "STEP", "SAVED", "SIZE", "RANKS", "BEST", "STATE"),
        [
            (
                one.run,
                one.path.name,
                "-" if one.manifest is None else str(one.manifest.step),
                run_table.ago(one.manifest.saved_at if one.manifest else None, now),
                text.size(one.size()),
                "-" if one.manifest is None else str(one.manifest.world_size),
                "best" if one.best else "-",
                "; ".join(one.wrong) or "complete",
            )
            for one in found
        ],
        err=err,
    )


@checkpoints.command("verify")
@filter_options
@runs_dir_option
@json_option
def verify_checkpoints(chosen: targets.RunFilter, runs_dir: Path, as_json: bool) -> int:
    """Compare checkpoints with what was saved.

    Exit code 1 if one is damaged. Unfinished saves are ignored.
    """
    found = [one for one in deletion.choose(chosen, runs_dir).all if not one.unfinished]
    if not found and not chosen.is_empty:
        raise HpctrainError("no matching checkpoints to verify", fix="hpctrain checkpoints list")
    rows, damaged = [], []
    for one in found:
        wrong = manifest.problems(one.path, digests=True)
        damaged += [one.path] if wrong else []
        rows.append(
            {"run_id": one.run, "name": one.path.name, "ok": not wrong, "problems": list(wrong)}
        )
        if not as_json:
            click.echo(f"{one.name}  {'damaged' if wrong else 'ok'}  {text.size(one.size())}")
            for problem in wrong:
                click.echo(f"  {text.printable(problem)}")
    if as_json:
        print_json(checkpoints=rows)
    if damaged:
        # A checkpoint that merely cannot be read here may be complete: do not suggest deleting it.
        known = [path for path in damaged if manifest.problems(path, digests=False)]
        raise HpctrainError(
            f"{len(damaged)} of {len(found)} are not as they were saved",
            fix=stored.drop_damaged(known) if known else f"ls -lR {shlex.quote(str(damaged[0]))}",
        )
    if not as_json:
        say(f"{len(found)} as saved")
    return 0


T = TypeVar("T")
_SHOWN = 20
_dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing."
)


@runs.command("delete")
@filter_options
@runs_dir_option
@_dry_run_option
@yes_option
@json_option
def delete_runs(
    *, chosen: targets.RunFilter, runs_dir: Path, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete runs with everything they wrote.

    A run that is pending, running or in an unknown state is never deleted. Shows what would be
    deleted, and asks.

    \b
    hpctrain runs delete --state failed --older-than 7d
    hpctrain runs delete 'sft-*' --dry-run
    """  # noqa: D301 - \b keeps click from wrapping
    if chosen.is_empty:
        raise UsageError(
            "no runs are named", fix="hpctrain runs delete --state failed --older-than 7d --dry-run"
        )
    if not dry_run:
        drop.clean(runs_dir)
    meant = chosen.choose(targets.existing_runs(runs_dir), time.time(), whole=True)
    plan = deletion.plan_runs(meant, chosen, runs_dir)

    def plan_again() -> deletion.DeletionPlan[store.Run]:
        now = [run for name in plan.go if (run := store.read_run(runs_dir, name)) is not None]
        return deletion.plan_runs(now, chosen, runs_dir)

    def show(runs: list[store.Run]) -> None:
        now = time.time()
        run_table.show(
            [
                (*run_table.cells(run, plan.states[run.id], now), text.size(plan.sizes[run.id]))
                for run in runs
            ],
            "SIZE",
            err=not dry_run,
        )

    def remove(run: store.Run) -> str | None:
        try:
            drop.drop(runs_dir, run)
        except HpctrainError as error:
            return error.what
        return None

    removed = _carry_out(
        plan,
        plan_again,
        remove,
        show,
        noun="run",
        key="id",
        command=typed("hpctrain runs delete", chosen, runs_dir),
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )
    if removed:
        deletion.forget_launches(runs_dir, [plan.go[name] for name in removed])
    if named := _refuse_silence(plan, "run", runs_dir, chosen.words):
        name, live = named[0], plan.states[named[0]].live
        raise _kept(
            plan,
            name,
            fix=job_ids.cancel_command(live) if live else "squeue --me",
            hint=None
            if live
            else f"if nothing of it runs: rm -r {shlex.quote(str(runs_dir / name))}",
        )


@checkpoints.command("delete")
@filter_options
@runs_dir_option
@click.option(
    "--keep-last",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Keep the N newest of each run.",
)
@click.option(
    "--damaged",
    is_flag=True,
    help="Only damaged checkpoints (reads the files) and unfinished saves.",
)
@_dry_run_option
@yes_option
@json_option
def delete_checkpoints(
    *,
    chosen: targets.RunFilter,
    runs_dir: Path,
    keep_last: int,
    damaged: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete checkpoints to free space.

    The newest complete checkpoint of each run is kept, and the best one unless it is named. Nothing
    is deleted of a run that is pending, running or in an unknown state; final weights (RUN/model)
    only when they are named. Shows what would be deleted, and asks.

    \b
    hpctrain checkpoints delete 'sft-*' --state completed --keep-last 2
    hpctrain checkpoints delete sft-1/checkpoint-40
    """  # noqa: D301 - \b keeps click from wrapping
    if chosen.is_empty:
        raise UsageError(
            "no checkpoints are named",
            fix="hpctrain checkpoints delete '*' --keep-last 2 --dry-run",
        )
    command = typed("hpctrain checkpoints delete", chosen, runs_dir)
    command += f" --keep-last {keep_last}" if keep_last > 1 else ""
    command += " --damaged" if damaged else ""
    meant = deletion.choose(chosen, runs_dir, whole=True)
    if damaged:
        meant = deletion.choose_again(meant, runs_dir, read=True)
    plan_of = partial(
        deletion.plan_checkpoints, runs_dir=runs_dir, keep_last=keep_last, damaged=damaged
    )
    plan = plan_of(meant)
    _carry_out(
        plan,
        lambda: plan_of(deletion.choose_again(meant, runs_dir)),
        deletion.remove_checkpoint,
        lambda found: _show_checkpoints(found, err=not dry_run),
        noun="checkpoint",
        key="name",
        command=command,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )
    if named := _refuse_silence(plan, "checkpoint", runs_dir, meant.named):
        show = f"hpctrain runs show {shlex.quote(named[0].partition('/')[0])}"
        raise _kept(plan, named[0], fix=layout.in_runs_dir(show, runs_dir))


def _carry_out(
    plan: deletion.DeletionPlan[T],
    plan_again: Callable[[], deletion.DeletionPlan[T]],
    remove: Callable[[T], str | None],
    show: Callable[[list[T]], None],
    *,
    noun: str,
    key: str,
    command: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> list[str]:
    """Show a plan, ask, delete, and return the names of what was deleted.

    Raises:
        UsageError: there is no terminal to ask on.
        Exit: the user declined.
    """
    if not as_json or not (yes or dry_run):
        if plan.go:
            show(list(plan.go.values()))
            click.echo(_sum(plan, plan.go, noun), err=not dry_run)
        for name, why in plan.keep.items():
            say(f"stays: {name} ({text.printable(why)})")
        if not plan.go:
            say("nothing to remove")
    removed = []
    if plan.go and not dry_run:
        what = _sum(plan, plan.go, noun)
        if not yes and not sys.stdin.isatty():
            raise UsageError(f"this would remove {what}", fix=f"{command} --yes")
        if not yes and not click.confirm(f"Remove {what}?", err=True):
            say("nothing was removed")
            raise click.exceptions.Exit(0)
        removed = _remove(plan, plan_again(), remove)
    if as_json:
        gone = plan.go if dry_run else removed
        print_json(
            dry_run=dry_run,
            dropped=[{key: name, "bytes": plan.sizes[name]} for name in gone],
            kept=[{key: name, "why": why} for name, why in plan.keep.items()],
            failed=[{key: name, "why": why} for name, why in plan.failed.items()],
        )
    if removed:
        say(f"removed {_sum(plan, removed, noun)}")
    return removed


def _sum(plan: deletion.DeletionPlan[T], names: Iterable[str], noun: str) -> str:
    sizes = [plan.sizes[name] for name in names]
    return f"{text.count(len(sizes), noun)}, {text.size(sum(sizes))}"


def _remove(
    plan: deletion.DeletionPlan[T], now: deletion.DeletionPlan[T], remove: Callable[[T], str | None]
) -> list[str]:
    """Delete what both plans allow; a job may have started since the first. Return the names."""
    plan.silent = plan.silent or now.silent
    plan.held |= now.held
    plan.failed |= now.failed
    removed = []
    for name in plan.go:
        if name in now.go:
            problem = remove(now.go[name])
            if problem is None:
                removed.append(name)
            else:
                plan.failed[name] = problem
        elif name not in now.failed:
            plan.keep[name] = now.keep.get(name, "it has changed, or is removed")
            say(f"stays: {name} ({text.printable(plan.keep[name])}), since a moment ago")
    return removed


def _refuse_silence(
    plan: deletion.DeletionPlan[T], noun: str, runs_dir: Path, named: Iterable[str]
) -> list[str]:
    """Return the named items that are kept.

    Raises:
        HpctrainError: something could not be deleted.
        SchedulerError: something is kept because Slurm did not answer.
    """
    if plan.failed:
        first = next(iter(plan.failed)).partition("/")[0]
        raise HpctrainError(
            f"{text.count(len(plan.failed), noun)} cannot be removed",
            details=tuple(
                f"  {name}: {text.printable(why)}"
                for name, why in list(plan.failed.items())[:_SHOWN]
            ),
            fix=f"ls -ld {shlex.quote(str(runs_dir / first))}",
        )
    if plan.held and plan.silent is not None:
        raise SchedulerError(
            run_table.summary(plan.silent),
            details=("what a job may use is kept; delete again when Slurm answers",),
            fix="hpctrain ps",
        )
    return [name for name in plan.keep if name in set(named)]


def _kept(
    plan: deletion.DeletionPlan[T], name: str, *, fix: str, hint: str | None = None
) -> HpctrainError:
    return HpctrainError(f"{name} stays: {text.printable(plan.keep[name])}", fix=fix, hint=hint)


@checkpoints.command("merge")
@click.argument("word", metavar="RUN|DIR", shell_complete=complete_runs)
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Output directory. Default: merged, in the run's directory.",
)
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Base model. Default: the one that the adapter names.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="dtype of the merged weights. Default: the base model's.",
)
@runs_dir_option
@json_option
def merge_adapter(  # noqa: PLR0917 - click names them
    word: str,
    to: Path | None,
    base: Path | None,
    dtype: str | None,
    runs_dir: Path,
    as_json: bool,
) -> None:
    """Merge a LoRA adapter into its base model.

    RUN is a run's id: its final model, else its newest checkpoint; RUN/checkpoint-40 is one
    checkpoint; DIR any directory with an adapter. stdout is the path of the result.
    """
    adapter = stored.weights_of(word, runs=runs_dir, tag=None)
    import hpctrain.training  # noqa: F401 - before peft: it keeps bitsandbytes quiet

    installed.require("train", "peft", "torch", "transformers")
    from hpctrain.training import merge

    made = merge.merge(adapter, to or _target(adapter), base=base, dtype=dtype, say=say)
    if as_json:
        print_json(
            folder=str(made.folder),
            adapter=str(adapter),
            base=str(made.base),
            dtype=made.dtype,
            parameters=made.parameters,
            bytes=made.bytes,
            notes=list(made.notes),
        )
        return
    for note in made.notes:
        say(f"notice: {note}")
    say(f"{text.size(made.bytes)} in {made.dtype}")
    click.echo(str(made.folder))
    say(f"next: --model_name_or_path {shlex.quote(str(made.folder))}, or serve it")


def _target(adapter: Path) -> Path:
    inside = adapter.absolute().parent
    name = adapter.name if adapter.name != stored.MODEL else ""
    if inside.name == stored.CHECKPOINTS and (inside.parent / "run.json").is_file():
        run = inside.parent if adapter.is_absolute() else adapter.parent.parent
        return run / f"merged-{name.removeprefix('checkpoint-')}"
    if not name and files.read_json(inside / "run.json") is not None:
        return adapter.with_name("merged")
    return adapter.with_name(f"{adapter.absolute().name}-merged")
