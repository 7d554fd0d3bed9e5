"""The options that describe a job, shared by all commands that render a script."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpctrain.cli import options
from hpctrain.config.fields import FIELDS
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.util import shell

if TYPE_CHECKING:
    from hpctrain.jobs.request import Request

ARGUMENTS, _ALL = "hpctrain.arguments", "hpctrain.help_all"
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
#: Only shown by --help-all.
_RARE = {
    "--mem-per-cpu",
    "--cpus-per-gpu",
    "--reservation",
    "--gpu-type",
    "--gpu-directive",
    "--ignore",
    "--template",
    "--chdir",
    "--accelerate-config",
    "--uv",
    "--pixi",
    "--container-engine",
    "--env-profile",
    "--parsable",
}


#: Options with their completion functions.
_COMPLETED = {
    "--partition": options.complete_partitions,
    "--account": options.complete_accounts,
    "--cluster": options.complete_clusters,
}


#: An unknown option at least this similar to one of hpctrain's is a typo, not one of the training.
_SIMILAR = 0.8


def _show_all(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


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
                fix=f"hpctrain {ctx.info_name} {shell.join(words)}",
            ) from error
        except click.UsageError as error:
            script = next((word for word in ours if word.endswith(".py")), None)
            if script is None or "unexpected extra argument" not in error.message:
                raise
            raise UsageError(
                f"unexpected argument {script!r}; arguments of your script go after --",
                fix=f"hpctrain {ctx.info_name} --script {shell.quote(script)}",
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
        """Write the options in groups, rarely used ones only with --help-all."""
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in _ORDER}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            name = next((word for word in parameter.opts if word.startswith("--")), "")
            if record is not None and (ctx.meta.get(_ALL) or name not in _RARE):
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
    """Add the options of `config.fields`, --sbatch, --config, --to and --help-all."""
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
        click.option(
            "--help-all",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show this message with the rare options, and exit.",
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
            fix=f"hpctrain {ctx.info_name} {shell.quote(named)}",
        )
    if Path(named).suffix not in (".yaml", ".yml"):
        raise UsageError(
            f"{named} is not a job config (.yaml)", fix=f"{for_others} {shell.quote(named)}"
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
