"""The options by which runs are chosen, for every verb that works on several: `runs list|drop|export`, `checkpoints …`.

```
@click.command()
@runs_dir_option
@filter_options
def command(runs_dir: Path, chosen: Filter) -> int: ...
```
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from hpctrain.runs import layout
from hpctrain.runs.select import Filter, parse_age
from hpctrain.runs.states import STATES

F = TypeVar("F", bound=Callable[..., Any])


class _Age(click.ParamType[int]):
    name = "AGE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_age(value) if isinstance(value, str) else int(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


_OPTIONS = (
    click.argument("words", nargs=-1, metavar="[RUN]..."),
    click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Runs in this state; may be repeated."),
    click.option("--tag", "tags", multiple=True, metavar="TAG", help="Runs of this launch: all points of a sweep, all stages. A glob too."),
    click.option("--stage", "stages", multiple=True, metavar="NAME", help="Runs of this stage."),
    click.option("--older-than", "older_than_s", type=_Age(), help="Runs in which nothing has started or ended for 7d (12h, 30m, 2w)."),
    click.option("--newer-than", "newer_than_s", type=_Age(), help="Runs in which something has started or ended since."),
)


def filter_options(function: F) -> F:
    """Add the options to a command, which gets them as one keyword, `chosen`: a `Filter`."""

    @functools.wraps(function)
    def with_filter(*args: Any, **parameters: Any) -> Any:
        fields = {name: parameters.pop(name) for name in Filter.__slots__}
        return function(*args, chosen=Filter(**fields), **parameters)

    decorated: Any = with_filter
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def runs_dir_option(function: F) -> F:
    """Add `--runs-dir`, which arrives as `runs_dir`: a Path."""
    return click.option(
        "--runs-dir", type=click.Path(path_type=Path), default=layout.RUNS, show_default=True, metavar="DIRECTORY",
        help="Where the runs are.",
    )(function)  # fmt: skip
