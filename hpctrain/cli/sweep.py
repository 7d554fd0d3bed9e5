"""`hpctrain sweep`: the points of a sweep, before they become jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from hpctrain.cli.job_options import JobCommand, job_options, mention_unknown_variables, request
from hpctrain.errors import UsageError

if TYPE_CHECKING:
    from hpctrain.cli.sweep_plan import Plan


class PlanCommand(JobCommand):
    """A job's command that messages call by both of its words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as every job's command does."""
        name, ctx.info_name = ctx.info_name, "sweep plan"
        try:
            return super().parse_args(ctx, args)
        finally:
            ctx.info_name = name

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage line, in which the group's name stands already."""
        name, ctx.info_name = ctx.info_name, "plan"
        try:
            super().format_usage(ctx, formatter)
        finally:
            ctx.info_name = name


@click.group()
def command() -> None:
    """Show the points of a sweep before they become jobs."""


@command.command(cls=PlanCommand, short_help="Show the points, and what running them takes.")
@job_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def plan(ctx: click.Context, /, as_json: bool, **parameters: Any) -> None:
    """Show the points of a sweep, and what running them takes; nothing is written.

    The sweep is that of the config, or of --sweep FILE: a list of points, or keys and values such as `grid: {learning_rate: [1e-5, 3e-5]}`.
    Points are counted from 0, and --array takes some of them.

    \b
    hpctrain sweep plan
    hpctrain sweep plan --sweep points.json --array 0,3,7-9
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    from hpctrain.cli import sweep_page, sweep_plan

    asked = replace(request(ctx, parameters), verb="sweep plan")
    mention_unknown_variables()
    made = sweep_plan.plan(asked)
    if made is None:
        raise UsageError(
            "there is no sweep in the config",
            details=("a sweep is a list of points, or says what varies: sweep: {grid: {learning_rate: [1e-5, 3e-5]}}",),
            fix="hpctrain sweep plan --sweep FILE, or add sweep: to config.yaml",
        )
    if as_json:
        click.echo(sweep_page.document(made))
        return
    sweep_page.show(made)
    for note in _notes(made):
        click.echo(note, err=True)
    click.echo("next: hpctrain render, with the same options", err=True)


def _notes(made: Plan) -> list[str]:
    """Return which arguments of the script are called as keys of config.yaml are, and may be meant as such."""
    from hpctrain.config.fields import ALIASES, FIELDS

    known = {entry.name: ".".join(entry.path) for entry in FIELDS if len(entry.path) > 1}
    known |= {alias[-1]: ".".join(path) for alias, path in ALIASES.items()}
    taken = [key for key in made.sweep.keys if key in known and key not in made.sweep.config_keys]
    return [f"note: {key} goes to the script; {known[key]} is the job's" for key in taken]
