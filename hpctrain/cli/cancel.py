"""`hpctrain cancel`: cancel jobs."""

from __future__ import annotations

import click

from hpctrain.cli.options import complete_runs, yes_option


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...", shell_complete=complete_runs)
@yes_option
def command(jobs: tuple[str, ...], yes: bool) -> None:
    """Cancel jobs.

    JOB is an id, a job's name, or a run; default: the jobs named as in config.yaml (sft), as
    scancel -n sft does.
    """
    from hpctrain.cli.actions import cancel

    cancel.run(jobs, yes=yes)
