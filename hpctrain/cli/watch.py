"""`hpctrain watch`: live progress of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpctrain.cli.options import complete_runs, runs_dir_option

#: Seconds between two updates: the default, and the minimum.
_INTERVAL_S, _LEAST_S = 2.0, 1.0


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN|JOB]...", shell_complete=complete_runs)
@click.option(
    "--interval",
    type=click.FloatRange(_LEAST_S),
    default=_INTERVAL_S,
    show_default=True,
    metavar="SECONDS",
    help="Time between two reads of the files. Slurm is queried every 30 s.",
)
@click.option("--once", is_flag=True, help="Print the current state and exit.")
@click.option(
    "--exit-status", is_flag=True, help="Exit with the job's own exit code; of several, the worst."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per change.")
@runs_dir_option
def command(words: tuple[str, ...], runs_dir: Path, **parameters: Any) -> int:
    """Show live progress, loss and GPU memory.

    Also its speed, the utilization of every GPU, and whether it will finish within its time limit.

    RUN is a run, the tag of a sweep, a job's id or its name. Default: the newest job of this project
    that runs, else that is pending, else the newest run. Piped, it prints one line for each change. Ctrl-C
    leaves the job alone.
    """
    from hpctrain.cli.actions import watch

    return watch.run(words, runs_dir, **parameters)
