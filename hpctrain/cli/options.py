"""Options and arguments shared by several commands, and their shell completion.

`filter_options` selects runs, for every command that works on several:

```
@click.command()
@filter_options
@runs_dir_option
def command(runs_dir: Path, chosen: RunFilter) -> int: ...
```
"""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

import hpctrain.clusters
from hpctrain.errors import HpctrainError
from hpctrain.runs import layout

if TYPE_CHECKING:
    from hpctrain.jobs.targets import RunFilter

F = TypeVar("F", bound=Callable[..., Any])


#: Timeout in seconds of Slurm queries for shell completion.
_PATIENCE_S = 3.0


# -- completion ------------------------------------------------------------------------------------


def complete_runs(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the runs in ./runs with this prefix."""
    try:
        names = [entry.name for entry in os.scandir("runs") if entry.is_dir()]
    except OSError:
        return []
    return sorted(name for name in names if name[0] != "." and name.startswith(incomplete))


def complete_clusters(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the built-in profiles with this prefix."""
    names = (path.stem for path in Path(hpctrain.clusters.__file__).parent.glob("*.yaml"))
    return sorted(name for name in names if name.startswith(incomplete))


def complete_partitions(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the partitions in Slurm with this prefix."""
    return _answered(["sinfo", "--noheader", "--format=%R"], incomplete)


def complete_accounts(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the user's accounts with this prefix."""
    user = os.environ.get("USER", "")
    words = ["sacctmgr", "--noheader", "--parsable2", "show", "assoc", f"user={user}"]
    return _answered([*words, "format=account"], incomplete)


def _answered(argv: list[str], incomplete: str) -> list[str]:
    from hpctrain.util import process

    try:
        done = process.run(argv, timeout=_PATIENCE_S)
    except HpctrainError:
        return []
    return sorted(
        {line.strip() for line in done.stdout.splitlines() if line.startswith(incomplete)}
    )


# -- options ---------------------------------------------------------------------------------------

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
runs_dir_option = click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    default=layout.RUNS,
    show_default=True,
    metavar="DIR",
    help="Run directory.",
)
local_option = click.option(
    "--local", is_flag=True, help="Run locally, even if Slurm is available."
)
parallel_option = click.option(
    "--parallel",
    type=click.IntRange(1),
    metavar="N",
    help="With --local: number of array tasks at a time.",
)
device_option = click.option(
    "--device", metavar="LIST", help="With --local: GPUs to use, e.g. 0,1; or cpu."
)


class _Age(click.ParamType[int]):
    name = "AGE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from hpctrain.jobs.targets import parse_age

        try:
            return parse_age(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


_FILTERS = (
    click.argument("words", nargs=-1, metavar="[RUN]...", shell_complete=complete_runs),
    click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice(layout.STATES),
        help="Runs in this state; repeatable.",
    ),
    click.option("--stage", "stages", multiple=True, metavar="NAME", help="Runs of this stage."),
    click.option(
        "--older-than",
        "older_than_s",
        type=_Age(),
        help="Runs in which nothing has started or ended for 7d (12h, 30m, 2w).",
    ),
)


def filter_options(function: F) -> F:
    """Add the filter options to a command, which receives a `RunFilter` as `chosen`."""

    @functools.wraps(function)
    def with_filter(*args: Any, **parameters: Any) -> Any:
        from hpctrain.jobs.targets import RunFilter

        fields = {name: parameters.pop(name) for name in RunFilter.__slots__}
        return function(*args, chosen=RunFilter(**fields), **parameters)

    decorated: Any = with_filter
    for option in reversed(_FILTERS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def typed(command: str, chosen: RunFilter, runs_dir: Path) -> str:
    """Return a command with the words and options that selected the runs."""
    words = list(chosen.words)
    several = (("--state", chosen.states), ("--stage", chosen.stages))
    words += [word for option, values in several for value in values for word in (option, value)]
    if chosen.older_than_s is not None:
        words += ["--older-than", f"{chosen.older_than_s}s"]
    return layout.in_runs_dir(f"{command} {shlex.join(words)}", runs_dir)
