"""`hpctrain ps`: the user's jobs, on Slurm and local."""

from __future__ import annotations

import click

from hpctrain.cli.options import complete_runs, json_option

#: Jobs that ended, without --all.
SHOWN_ENDED = 10


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...", shell_complete=complete_runs)
@json_option
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help=f"All jobs of the last day, not only the last {SHOWN_ENDED} that ended; each task.",
)
def command(jobs: tuple[str, ...], as_json: bool, show_all: bool) -> int:
    """List jobs, their progress and pending reasons.

    Shows what waits or runs, at the end of the list, and what ended within the last day, each with
    how far its training is. JOB, an id, a name or a run, shows that alone; of one that waits also
    why, and when Slurm expects it to start.

    \b
    hpctrain ps
    hpctrain ps 123
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import ps

    return ps.run(jobs, as_json=as_json, show_all=show_all)
