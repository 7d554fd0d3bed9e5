"""`hpctrain resubmit`: submit failed or missing runs again."""

from __future__ import annotations

from typing import Any

import click

from hpctrain.cli.options import (
    complete_runs,
    device_option,
    json_option,
    local_option,
    parallel_option,
    runs_dir_option,
)


@click.command()
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_runs)
@click.option(
    "--array", metavar="LIST", help="Resubmit only these combinations of a sweep, e.g. 0,3,7-9."
)
@click.option(
    "--apply-fix",
    is_flag=True,
    help="First change the config as `hpctrain explain` suggests.",
)
@click.option(
    "--yes", is_flag=True, help="With --apply-fix: do not ask if the diagnosis is only likely."
)
@click.option(
    "--new-code",
    is_flag=True,
    help="Run the current code, not the snapshot of the first submission.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be submitted; submit nothing.")
@runs_dir_option
@local_option
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until the jobs end, and exit with the worst exit code.",
)
@parallel_option
@device_option
@click.option("--parsable", is_flag=True, help="Print only the job ids, as sbatch does.")
@json_option
def command(name: str | None, **parameters: Any) -> int:
    """Resubmit the failed or missing jobs of a run or sweep.

    NAME is a run, a job id, or the tag that `hpctrain submit` printed. Default: the newest.
    Completed, pending and running runs are left alone. The others resume from their newest complete
    checkpoint, in the same directory, with the code of the first submission.

    With --apply-fix, their config is changed as the first diagnosis of `hpctrain explain` suggests;
    the global batch size stays the same.

    \b
    hpctrain resubmit sft-261121-035908-9ae7
    hpctrain resubmit sft-261121-035908-9ae7 --array 3,7-9 --dry-run
    hpctrain resubmit sft-261121-035908-9ae7 --apply-fix
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import resubmit

    return resubmit.run(name, parameters)
