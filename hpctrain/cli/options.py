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

import difflib
import functools
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

import hpctrain.clusters
from hpctrain.config.fields import FIELDS
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import layout

if TYPE_CHECKING:
    from hpctrain.jobs.request import Request
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


def _complete_clusters(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    names = (path.stem for path in Path(hpctrain.clusters.__file__).parent.glob("*.yaml"))
    return sorted(name for name in names if name.startswith(incomplete))


def _complete_partitions(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return _answered(["sinfo", "--noheader", "--format=%R"], incomplete)


def _complete_accounts(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
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


def _age(_context: click.Context, _parameter: click.Parameter, word: str | None) -> int | None:
    from hpctrain.jobs.targets import parse_age

    try:
        return None if word is None else parse_age(word)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


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
        callback=_age,
        metavar="AGE",
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


# -- the options of a job, shared by all commands that render a script ------------------------------

ARGUMENTS = "hpctrain.arguments"
#: Titles of the option groups, by the first part of a key's path; the default is Training.
_TITLES = {
    "resources": "Resources",
    "environment": "Environment",
    "offline": "Environment",
    "chdir": "Environment",
    "restart": "Restart",
    "job_name": "Output",
    "check": "Output",
    "template": "Output",
    "cluster": "Resources",
}
_ORDER = ("Resources", "Training", "Environment", "Restart", "Output", "Options")
_GROUP = {entry.option: _TITLES.get(entry.path[0], "Training") for entry in FIELDS} | {
    "--sbatch": "Resources",
    "--config": "Output",
    "--to": "Output",
    "--force": "Output",
}
#: Options with their completion functions.
_COMPLETED = {
    "--partition": _complete_partitions,
    "--account": _complete_accounts,
    "--cluster": _complete_clusters,
}


#: An unknown option at least this similar to one of hpctrain's is a typo, not one of the training.
_SIMILAR = 0.8


class JobCommand(click.Command):
    """A command that passes the arguments after `--` to the training script unchanged."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments after the first `--` away from click."""
        split = args.index("--") if "--" in args else len(args)
        ours, ctx.meta[ARGUMENTS] = args[:split], tuple(args[split + 1 :])
        try:
            return super().parse_args(ctx, list(ours))
        except click.NoSuchOption as error:
            parameters = self.get_params(ctx)
            known = {name for each in parameters for name in (*each.opts, *each.secondary_opts)}
            split_words: tuple[list[str], list[str]] = ([], [])
            is_theirs = False
            for word in ours:
                name = word.partition("=")[0]
                is_theirs = name not in known and (is_theirs or word.startswith("--"))
                split_words[is_theirs].append(word)
            ours, theirs = split_words
            typed = error.option_name
            similar = difflib.get_close_matches(
                typed.replace("_", "-"), error.possibilities or (), n=1, cutoff=_SIMILAR
            )
            if similar or not any(word.partition("=")[0] == typed for word in theirs):
                raise
            words = (*ours, "--", *theirs, *ctx.meta[ARGUMENTS])
            raise UsageError(
                f"no such option {typed!r}; arguments of the training go after --",
                fix=f"hpctrain {ctx.info_name} {shlex.join(words)}",
            ) from error
        except click.UsageError as error:
            script = next((word for word in ours if word.endswith(".py")), None)
            if script is None or "unexpected extra argument" not in error.message:
                raise
            raise UsageError(
                f"unexpected argument {script!r}; arguments of your script go after --",
                fix=f"hpctrain {ctx.info_name} --script {shlex.quote(script)}",
            ) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; add the request's options to suggested commands in errors."""
        try:
            return super().invoke(ctx)
        except HpctrainError as error:
            if not ctx.params.get("batch_script"):
                from hpctrain.jobs.request import keeping

                named = str(ctx.params.get("config_file") or "")
                is_config = named.endswith((".yaml", ".yml"))
                config = ctx.params["config"] or (named if is_config else None)
                asked = request(ctx, {**ctx.params, "config": config})
                error.fix = error.fix and keeping(asked, error.fix)
                error.hint = error.hint and keeping(asked, error.hint)
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups."""
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in _ORDER}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            name = next((word for word in parameter.opts if word.startswith("--")), "")
            if record is not None:
                groups[_GROUP.get(name, "Options")].append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Add the training arguments to the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- TRAINING_ARGUMENTS]"]


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `config.fields`, --sbatch, --config and --to."""
    decorators = [
        click.option(
            entry.option,
            *entry.aliases,
            _parameter(entry.option),
            metavar=entry.metavar,
            help=entry.help,
            shell_complete=_COMPLETED.get(entry.option),
        )
        for entry in FIELDS
    ]
    decorators += [
        click.option(
            "--sbatch",
            multiple=True,
            metavar="KEY=VALUE",
            help="Extra sbatch option; repeatable.",
        ),
        click.option(
            "--config", metavar="FILE", help="Job config. Default: ./config.yaml, if it exists."
        ),
        click.option(
            "--to",
            metavar="FILE",
            help="Script to write; - for stdout. Default: JOB_NAME.sbatch.",
        ),
    ]
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


def request_with_config(
    ctx: click.Context, named: str | None, parameters: dict[str, Any], *, for_others: str
) -> Request:
    """Return the request of a command that also takes its job config as an argument.

    Args:
        ctx: of the command.
        named: the argument.
        parameters: click's.
        for_others: the command for an argument that is not a job config.

    Raises:
        UsageError: there is also --config, or the argument is not a job config.
    """
    if named is None:
        return request(ctx, parameters)
    if parameters["config"] is not None:
        raise UsageError(
            f"two job configs: {named} and --config {parameters['config']}",
            fix=f"hpctrain {ctx.info_name} {shlex.quote(named)}",
        )
    if Path(named).suffix not in (".yaml", ".yml"):
        raise UsageError(
            f"{named} is not a job config (.yaml)", fix=f"{for_others} {shlex.quote(named)}"
        )
    return request(ctx, {**parameters, "config": named})


def request(ctx: click.Context, parameters: dict[str, Any]) -> Request:
    """Return the request from click's parameters."""
    from hpctrain.jobs.request import Request

    typed = {entry.path: parameters[_parameter(entry.option)] for entry in FIELDS}
    return Request(
        options={path: value for path, value in typed.items() if value is not None},
        sbatch=tuple(parameters["sbatch"]),
        config=parameters["config"],
        to=parameters["to"],
        arguments=ctx.meta[ARGUMENTS],
        verb=f"{ctx.info_name} --local" if parameters.get("local") else str(ctx.info_name),
    )


def _parameter(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")
