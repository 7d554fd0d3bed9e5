"""The commands of the group `Monitor and debug`: their options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpctrain.cli.options import complete_runs, json_option, runs_dir_option

# -- ps --------------------------------------------------------------------------------------------

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
def ps(jobs: tuple[str, ...], as_json: bool, show_all: bool) -> int:
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


# -- watch -----------------------------------------------------------------------------------------

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
def watch(words: tuple[str, ...], runs_dir: Path, **parameters: Any) -> int:
    """Show live progress, loss and GPU memory.

    Also its speed, the utilization of every GPU, and whether it will finish within its time limit.

    RUN is a run, the tag of a sweep, a job's id or its name. Default: the newest job of this project
    that runs, else that is pending, else the newest run. Piped, it prints one line for each change. Ctrl-C
    leaves the job alone.
    """
    from hpctrain.cli.actions import watch

    return watch.run(words, runs_dir, **parameters)


# -- logs ------------------------------------------------------------------------------------------


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
    "--since", metavar="TIME", help="Only lines since then, e.g. 10m, 2h, 2026-11-22T04:10."
)
@click.option("--all", "every_job", is_flag=True, help="All jobs of the run, the oldest first.")
def logs(words: tuple[str, ...], **parameters: Any) -> int:
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


# -- explain ---------------------------------------------------------------------------------------


@click.command()
@click.argument(
    "words", nargs=-1, metavar="[RUN | JOBID | FILES... | ID]", shell_complete=complete_runs
)
@click.option("--list", "list_ids", is_flag=True, help="List all findings and diagnoses.")
@json_option
def explain(words: tuple[str, ...], list_ids: bool, as_json: bool) -> None:
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


# -- report ----------------------------------------------------------------------------------------


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
def report(words: tuple[str, ...], runs_dir: Path, **parameters: Any) -> None:
    """Create an HTML report of a run or sweep.

    The page is one HTML file that needs no network: curves, memory of every rank, restarts,
    efficiency with what to request next time, config, environment and diagnosis. Copy it with scp
    and open it.

    RUN is an id or a prefix of it; default: the newest run. The tag of a sweep, a study, a glob, or
    several runs are compared.
    """
    from hpctrain.cli.actions import report

    report.run(words, runs_dir, **parameters)
