"""`hpctrain explain`: diagnose a failed job, or print the help page of a finding or diagnosis."""

from __future__ import annotations

import click

from hpctrain.cli.options import complete_runs, json_option


@click.command()
@click.argument(
    "words", nargs=-1, metavar="[RUN | JOBID | FILES... | ID]", shell_complete=complete_runs
)
@click.option("--list", "list_ids", is_flag=True, help="List all findings and diagnoses.")
@json_option
def command(words: tuple[str, ...], list_ids: bool, as_json: bool) -> None:
    """Diagnose a failed job and suggest a fix.

    Without an argument: the newest job that has ended. FILES are logs of any job, or directories of
    them. ID is a finding of check, lint or doctor, or a diagnosis: its help page
    is printed.

    If no rule matches the failure, the first error of the rank that failed first is shown.

    \b
    hpctrain explain
    hpctrain explain 123456
    hpctrain explain slurm-123456.out
    hpctrain explain cuda-oom
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import explain

    explain.run(words, list_ids=list_ids, as_json=as_json)
