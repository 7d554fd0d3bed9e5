"""`hpctrain logs`: the merged logs of a job, complete or followed."""

from __future__ import annotations

from typing import Any

import click

from hpctrain.cli.options import complete_runs


@click.command()
@click.argument("words", nargs=-1, metavar="[JOB | RUN | FILES...]", shell_complete=complete_runs)
@click.option(
    "-f",
    "--follow",
    "following",
    is_flag=True,
    help="Follow until the job ends. Ctrl-C does not stop the job.",
)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Only output of this rank.")
@click.option("--node", metavar="X", help="Only output of this node.")
@click.option("--err", is_flag=True, help="Only the error log.")
@click.option(
    "-n",
    "--lines",
    "last",
    type=click.IntRange(min=0),
    metavar="LINES",
    help="Only the last N lines.",
)
@click.option(
    "--since", metavar="TIME", help="Only lines since then, e.g. 10m, 2h, 04:10, 2026-11-22T04:10."
)
@click.option("--all", "every_job", is_flag=True, help="All jobs of the run, the oldest first.")
def command(words: tuple[str, ...], **parameters: Any) -> int:
    """Show the merged logs of all ranks.

    JOB is an id or a job's name; of a RUN, its newest job; without either, the newest job. FILES
    are logs of any job, and directories of them. Of an array, the task that started last; 123_4 is
    one task.

    Output and errors, and restarts, come in order, without progress bars and colours.
    The same line of many ranks is printed once, with the ranks and a count.

    \b
    hpctrain logs -f
    hpctrain logs sft --rank 3
    hpctrain logs slurm-123.out old_logs/
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import logs

    return logs.run(words, **parameters)
