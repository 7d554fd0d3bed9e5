"""The options that describe a job, for every verb that makes a script, and the job that they make."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpctrain.cli import HpctrainUsage
from hpctrain.config import files, layers
from hpctrain.config.fields import FIELDS, RIVALS
from hpctrain.config.to_spec import to_spec
from hpctrain.jobs import shell
from hpctrain.jobs.spec import JobSpec

if TYPE_CHECKING:
    from hpctrain.clusters.profile import Cluster
    from hpctrain.config.layers import Layer
    from hpctrain.config.schema import Config

ARGUMENTS = "hpctrain.arguments"


@dataclass(frozen=True, slots=True)
class Request:
    """What was typed: the verb, options by path, --sbatch words, --config, --to, and what came after `--`.

    `tasks` was not typed, and stands in no header: of a study, the array of the trials that are missing of it.
    """

    options: dict[tuple[str, ...], str]
    sbatch: tuple[str, ...] = ()
    config: str | None = None
    to: str | None = None
    arguments: tuple[str, ...] = ()
    verb: str = "render"
    tasks: str | None = None

    @property
    def again(self) -> str:
        """The words that an error tells to type."""
        return f"hpctrain {self.verb}"

    @property
    def is_bare(self) -> bool:
        """Whether nothing was typed at all."""
        return not (self.options or self.sbatch or self.config or self.to or self.arguments or self.tasks)


@dataclass(frozen=True, slots=True)
class Job:
    """A job with every layer resolved.

    Attributes:
        cluster: the profile that had a say.
        origins: config path → where its value was written; what is not there is a default.
    """

    spec: JobSpec
    config: Config
    cluster: Cluster | None
    origins: Mapping[tuple[str, ...], str]


class JobCommand(click.Command):
    """A verb whose words after `--` go to the training script untouched."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words after the first `--` away from click."""
        ctx.meta[ARGUMENTS] = ()
        if "--" in args:
            split = args.index("--")
            ctx.meta[ARGUMENTS] = tuple(args[split + 1 :])
            args = args[:split]
        try:
            return super().parse_args(ctx, list(args))
        except click.UsageError as error:
            if isinstance(error, click.NoSuchOption) and not error.possibilities:
                rest = shell.join(tuple(args[args.index(error.option_name) :])) if error.option_name in args else error.option_name
                fix = f"hpctrain {ctx.info_name} -- {rest}, if it is meant for the training script; else hpctrain {ctx.info_name} --help"
                raise HpctrainUsage(error.format_message(), fix) from error
            script = next((word for word in args if word.endswith(".py")), None)
            if script is not None and "unexpected extra argument" in error.message:
                raise HpctrainUsage(
                    f"{error.message}; what your script gets stands behind --", f"hpctrain {ctx.info_name} --script {shell.quote(script)}"
                ) from error
            raise

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Name the training arguments in the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- TRAINING_ARGUMENTS]"]


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `config.fields`, --sbatch, --config and --to."""
    decorators = [
        click.option(entry.option, *entry.aliases, _parameter(entry.option), metavar=entry.metavar, help=entry.help) for entry in FIELDS
    ]
    decorators += [
        click.option("--sbatch", multiple=True, metavar="KEY=VALUE", help="Any further sbatch option; again for several."),
        click.option("--config", metavar="FILE", help="Job config. Default: ./config.yaml, if there is one."),
        click.option("--to", metavar="FILE", help="Where to write the script; - is stdout. Default: JOB_NAME.sbatch."),
    ]
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


def request(ctx: click.Context, parameters: dict[str, Any]) -> Request:
    """Return what was typed, from click's parameters."""
    return Request(
        options={entry.path: parameters[_parameter(entry.option)] for entry in FIELDS if parameters[_parameter(entry.option)] is not None},
        sbatch=tuple(parameters["sbatch"]), config=parameters["config"], to=parameters["to"], arguments=ctx.meta[ARGUMENTS],
        verb=f"{ctx.info_name} --local" if parameters.get("local") else str(ctx.info_name),
    )  # fmt: skip


def parse_request(words: tuple[str, ...]) -> Request:
    """Return the request in the words of a script's header."""
    from hpctrain.cli.render import command

    # As hpctrain's own group does: click keeps the help option that a command was first asked for.
    with command.make_context("render", list(words), help_option_names=["-h", "--help"]) as ctx:
        return request(ctx, ctx.params)


def spec_of(asked: Request) -> JobSpec:
    """Return the job of a request, every layer resolved.

    Raises:
        UsageError: all config errors at once.
    """
    return job_of(asked).spec


def job_of(asked: Request) -> Job:
    """Return the job of a request with what it was made of.

    Raises:
        UsageError: all config errors at once.
    """
    mention_unknown_variables()
    return job_from(asked, layers_of(asked))


def layers_of(asked: Request) -> list[Layer]:
    """Return the layers of a request, the strongest first, without the cluster's.

    Raises:
        UsageError: a file that cannot be read.
    """
    return files.gather(options=asked.options, sbatch=asked.sbatch, config=asked.config, directory=Path.cwd(), environment=os.environ)


def job_from(asked: Request, stacked: Sequence[Layer]) -> Job:
    """Return the job of these layers, the profile of the cluster that they name below them.

    Raises:
        UsageError: all config errors at once.
    """
    found, cluster = list(stacked), None
    name = layers.written(found, ("cluster",))
    if isinstance(name, str) and name.strip():
        from hpctrain.clusters import load
        from hpctrain.config import cluster_layer

        cluster = load.load(name, os.environ)
        found.append(cluster_layer.layer(cluster, found))
    resolved = layers.resolve(found, again=asked.again)
    spec = to_spec(resolved.config, directory=str(Path.cwd()), home=str(Path.home()), arguments=asked.arguments)
    return Job(spec, resolved.config, cluster, resolved.origins)


def _parameter(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def words_of(asked: Request) -> tuple[str, ...]:
    """Return the words behind `hpctrain render` that ask for the same again; HPCTRAIN_* variables become options."""
    words: list[str] = []
    # As in config.layers: --mem-per-cpu of the command line takes the place of HPCTRAIN_MEM.
    displaced = {rival for group in RIVALS for path in group & set(asked.options) for rival in group - {path}}
    for entry in FIELDS:
        variables = [os.environ[name] for name in entry.variables if os.environ.get(name) and entry.path not in displaced]
        value = asked.options.get(entry.path) or (variables[-1] if variables else None)
        if value:
            words += [f"{entry.option}={value}"] if value.startswith("-") else [entry.option, value]
    for option in asked.sbatch:
        words += ["--sbatch", option]
    words += ["--config", asked.config] if asked.config else []
    words += ["--to", asked.to] if asked.to else []
    return (*words, "--", *asked.arguments) if asked.arguments else tuple(words)


def mention_unknown_variables() -> None:
    """Say which HPCTRAIN_* variables look like a key and are none."""
    known = {variable for entry in FIELDS for variable in entry.variables}
    for name in sorted(name for name in os.environ if name.startswith("HPCTRAIN_") and name not in known):
        import difflib

        for close in difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.85):
            click.echo(f"note: {name} is set and has no meaning; did you mean {close}?", err=True)
