"""`hpctrain fit`: what memory and time a job needs, and which layouts fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpctrain.cli.job_options import JobCommand, Request, job_options, request, words_of
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell
from hpctrain.scheduler.parse import memory_size

if TYPE_CHECKING:
    from hpctrain.cli.fit_facts import Question
    from hpctrain.fit.layouts import Row


@click.command(cls=JobCommand)
@click.argument("config_file", required=False, metavar="[CONFIG]")
@job_options
@click.option("--gpu", metavar="NAME", help="The GPU, such as h100, a100-80gb, mi250x. Default: that of the cluster's profile.")
@click.option("--gpu-memory", metavar="SIZE", help="Memory of each GPU, such as 80G, where the name does not say it.")
@click.option("--model", metavar="FOLDER", help="A folder with config.json, in place of model_name_or_path.")
@click.option("--all", "every", is_flag=True, help="Show every layout that fits, not the ten that matter.")
@click.option(
    "--apply",
    "apply",
    is_flag=False,
    flag_value="best",
    metavar="[ROW]",
    help="Write the layout of this row of the table into the config; without a number, the one marked >.",
)
@click.option("--exact", is_flag=True, help="Count the asked layout's memory with torch's fake tensors too; needs the training's packages.")
@click.option("--no-correction", is_flag=True, help="Do not correct the predictions by what your own runs measured.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def command(ctx: click.Context, /, config_file: str | None, **parameters: Any) -> int:
    """Work out what memory and time a job needs, and which layouts fit.

    The job of CONFIG (./config.yaml) and of these options is worked out from the model's config.json alone: the peak of each GPU by part,
    the host memory of each node, and the layouts that fit on the cluster's GPUs with the same global batch, fastest first. Nothing is
    downloaded, queued or imported. Exit code 1 where the asked layout does not fit.

    \b
    hpctrain fit
    hpctrain fit --gpu h100 --gpus 4 --model models/llama
    hpctrain fit --apply
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    asked = request(ctx, {**parameters, "config": _config(config_file, parameters["config"])})
    from hpctrain.cli import fit_facts, fit_page
    from hpctrain.fit import layouts

    chosen = _row_number(parameters["apply"])
    if chosen is not None and parameters["as_json"]:
        raise UsageError("--apply shows a diff, and --json one object", fix="hpctrain fit --apply, or: hpctrain fit --json")
    typed = _typed(parameters)
    question = fit_facts.question(asked, typed)
    own = layouts.judged(question.shape, question.layout, question.site, question.work, question.learnt)
    rows = layouts.table(
        question.shape, question.layout, question.site, question.work, question.learnt, every=parameters["every"]
    )  # fmt: skip
    best = layouts.choice(question.layout, rows, question.site)
    exact = _exact(question) if parameters["exact"] else None
    if parameters["as_json"]:
        click.echo(json.dumps(fit_page.document(question, own, rows, best, exact), ensure_ascii=False))
    elif chosen is not None:
        _apply(asked, question, rows, best, chosen)
        return 0
    else:
        for line in fit_page.page(question, own, rows, best, exact, every=parameters["every"]):
            click.echo(line)
        _next(asked, own, best, fit_facts.again(typed, asked, "--apply"))
    return 0 if own.fits else 1


def _typed(parameters: dict[str, Any]) -> Any:
    from hpctrain.cli.fit_facts import Typed

    memory = parameters["gpu_memory"]
    try:
        size = memory_size.parse(memory) if memory is not None else None
    except ValueError as error:
        raise UsageError(f"--gpu-memory: {error}", fix="hpctrain fit --gpu-memory 80G") from error
    if size is not None and size < 1024**3:
        raise UsageError(f"--gpu-memory {memory} is less than a GiB; without a unit it counts MiB", fix="hpctrain fit --gpu-memory 80G")
    return Typed(gpu=parameters["gpu"], gpu_memory=size, model=parameters["model"], learn=not parameters["no_correction"])


def _config(named: str | None, option: str | None) -> str | None:
    if named is None:
        return option
    if option is not None:
        raise UsageError(f"two job configs: {named} and --config {option}", fix=f"hpctrain fit {shell.quote(named)}")
    if Path(named).suffix not in (".yaml", ".yml"):
        what = f"{named} is a folder" if Path(named).is_dir() else f"{named} is no job config (.yaml)"
        raise UsageError(what, fix=f"hpctrain fit --model {shell.quote(named)}, if it is a model; else: hpctrain fit config.yaml")
    return named


def _row_number(said: str | None) -> int | str | None:
    """Return the number of a row; "best" without one; None where nothing is to be applied."""
    if said is None or said == "best":
        return said
    if said.endswith((".yaml", ".yml")):
        raise UsageError(f"--apply takes the number of a row, and {said} stands behind it", fix=f"hpctrain fit {shell.quote(said)} --apply")
    if not said.isdecimal() or len(said) > 6 or int(said) == 0:
        raise UsageError(f"--apply takes the number of a row, not {said!r}", fix="hpctrain fit, then: hpctrain fit --apply 2")
    return int(said)


def _exact(question: Question) -> dict[str, Any]:
    """Return what torch's memory tracker counts, in a process of its own: this one stays free of torch.

    Raises:
        HpctrainError: torch is not installed, or the layout is none that can be run so.
    """
    from hpctrain.cli import fit_exact

    return fit_exact.count(question)


def _apply(asked: Request, question: Question, rows: tuple[Row, ...], best: Row | None, chosen: int | str) -> None:
    from hpctrain.cli import fit_apply

    if best is None:
        raise HpctrainError("nothing fits, so there is nothing to apply", fix="hpctrain fit, which says what would")
    if isinstance(chosen, int) and chosen > len(rows):
        raise UsageError(f"there is no row {chosen}: the table has {len(rows)}", fix="hpctrain fit")
    row = best if isinstance(chosen, str) else rows[chosen - 1]
    for line in fit_apply.apply(asked, question, row):
        click.echo(line)
    for note in question.notes:
        click.echo(f"note: {note}", err=True)
    config = ("--config", asked.config) if asked.config is not None else ()
    click.echo(f"next: {shell.join(('hpctrain', 'check', *config))}", err=True)


def _next(asked: Request, own: Row, best: Row | None, apply: str) -> None:
    if best is None:
        return
    if best.layout == own.layout:
        click.echo(f"next: {shell.join(('hpctrain', 'check', *(() if asked.is_bare else words_of(asked))))}", err=True)
    else:
        click.echo(f"--apply writes the row marked > into the config, --apply ROW another\nnext: {apply}", err=True)
