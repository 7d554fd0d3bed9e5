"""`hpctrain report`: report on one run, or compare several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpctrain.cli.options import complete_runs, json_option, runs_dir_option


@click.command()
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
def command(words: tuple[str, ...], runs_dir: Path, **parameters: Any) -> None:
    """Create an HTML report of a run or sweep.

    The page is one HTML file that needs no network: curves, memory of every rank, restarts,
    efficiency with what to request next time, config, environment and diagnosis. Copy it with scp
    and open it.

    RUN is an id or a prefix of it; default: the newest run. The tag of a sweep, a study, a glob, or
    several runs are compared.
    """
    from hpctrain.cli.actions import report

    report.run(words, runs_dir, **parameters)
