"""`hpctrain report`: one run as a page, or several of them compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpctrain.cli.runs_filter import runs_dir_option
from hpctrain.errors import UsageError

if TYPE_CHECKING:
    from hpctrain.cli.report_chosen import Chosen


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN|SWEEP]...")
@click.option("--to", metavar="FILE", help="Write the page there, not beside the run; - writes it to standard output.")
@click.option("--terminal", is_flag=True, help="In characters, 80 columns, for ssh; no file is written.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, raw units; no file is written.")
@click.option("--force", is_flag=True, help="Replace FILE even where it is no report.")
@click.option("--x", "axis", type=click.Choice(("step", "time")), help="What lies below loss and speed. [default: step, and time]")
@click.option("--metric", metavar="NAME", help="Of several runs: what they are ordered by, such as eval_loss.")
@runs_dir_option
def command(
    *,
    words: tuple[str, ...],
    to: str | None,
    terminal: bool,
    as_json: bool,
    force: bool,
    axis: str | None,
    metric: str | None,
    runs_dir: Path,
) -> int:
    """Write a page about a run, or compare the points of a sweep.

    The page is one HTML file that needs no network: curves, memory of every rank, restarts, efficiency with what to ask for next time,
    config, environment and diagnosis. Copy it with scp and open it.

    RUN is an id, or the beginning of it; without, it is the newest run. The tag of a sweep, a study, a glob, or several runs are compared.
    """
    if to is not None and (terminal or as_json):
        raise UsageError("--to writes a page, and --terminal and --json write none; keep one of them", fix="hpctrain report --to FILE")
    if axis is not None and as_json:
        raise UsageError("--x is of the charts, and --json has steps and times", fix="hpctrain report --json")
    if terminal and as_json:
        raise UsageError("--terminal and --json exclude each other", fix="hpctrain report --json")
    from hpctrain.cli import report_chosen, report_facts, report_write

    chosen = report_chosen.choose(words, runs_dir)
    if metric is not None and len(chosen.runs) == 1:
        raise UsageError("--metric orders several runs, and this is one", fix=f"hpctrain report {chosen.runs[0].id}")
    if axis is not None and len(chosen.runs) > 1:
        raise UsageError("--x is of the charts of one run", fix=f"hpctrain report {chosen.runs[0].id} --x {axis}")
    if len(chosen.runs) > 1:
        return _several(chosen, to=to, terminal=terminal, as_json=as_json, force=force, metric=metric)
    facts = report_facts.of_run(chosen)
    if axis is not None and facts.from_log:
        click.echo(f"note: the log of {facts.run.id} says no times; --x changes nothing", err=True)
    if as_json:
        from hpctrain.report import as_json as document

        click.echo(json.dumps(document.run(facts), allow_nan=False))
    elif terminal:
        from hpctrain.report import terminal as characters

        click.echo("\n".join(characters.run(facts, plain=not report_write.has_unicode(), x=axis)))
    else:
        from hpctrain.report import page

        report_write.write(page.run_page(facts, x=axis), to, chosen.default, what=facts.run.id, force=force)
        if facts.is_running:
            click.echo("note: the run goes on; the report shows what there is now", err=True)
    return 0


def _several(chosen: Chosen, *, to: str | None, terminal: bool, as_json: bool, force: bool, metric: str | None) -> int:
    from hpctrain.cli import report_facts, report_write
    from hpctrain.report import compare, page_compare

    found = report_facts.of_several(chosen, metric)
    if as_json:
        click.echo(json.dumps(compare.to_json(found), allow_nan=False))
    elif terminal:
        click.echo("\n".join(compare.lines(found)))
    else:
        report_write.write(page_compare.comparison_page(found), to, chosen.default, what=chosen.title, force=force)
    return 0
