"""A request (options, files, arguments after `--`), the job that it resolves to, and the request and
the config that a run was launched with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.clusters import load
from hpctrain.config import layers
from hpctrain.config.fields import FIELDS, IGNORE, RIVALS
from hpctrain.config.spec import JobSpec
from hpctrain.config.to_spec import to_spec
from hpctrain.errors import UsageError
from hpctrain.jobs import header, suggest
from hpctrain.runs import launch, layout
from hpctrain.runs.launch import Launch
from hpctrain.runs.store import Run
from hpctrain.slurm import job_ids
from hpctrain.slurm.ledger import Submission
from hpctrain.util import shell, stored

if TYPE_CHECKING:
    from hpctrain.clusters.profile import Cluster
    from hpctrain.config.layers import Layer
    from hpctrain.config.schema import Config


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed command line: the command, options by path, --sbatch options, --config, --to, and
    the arguments after `--`.

    `tasks` is not an option, and not in any header: the array of a study's missing trials.
    `standalone`: the script contains the functions that it would otherwise source.
    """

    options: dict[tuple[str, ...], str]
    sbatch: tuple[str, ...] = ()
    config: str | None = None
    to: str | None = None
    arguments: tuple[str, ...] = ()
    verb: str = "render"
    tasks: str | None = None
    standalone: bool = False

    @property
    def again(self) -> str:
        """The command that error messages suggest."""
        return f"hpctrain {self.verb}"

    @property
    def is_bare(self) -> bool:
        """Whether nothing on the command line changes the job."""
        return not (
            self.options.keys() - {IGNORE}
            or self.sbatch
            or self.config
            or self.to
            or self.arguments
            or self.tasks
        )


@dataclass(frozen=True, slots=True)
class Job:
    """A job with every layer resolved.

    Attributes:
        cluster: the profile that was used.
        origins: config path → where its value was written; a path that is missing has its default.
        request: the request that it was resolved from.
        varied: training arguments that the points of its sweep set.
    """

    spec: JobSpec
    config: Config
    cluster: Cluster | None
    origins: Mapping[tuple[str, ...], str]
    request: Request
    varied: tuple[str, ...] = ()

    @classmethod
    def load(
        cls, config: str | Path | None = None, *, arguments: Sequence[str] = (), **options: object
    ) -> Job:
        """Return the job of a config file and options, as `hpctrain render` resolves them.

        Args:
            config: the file; None is ./config.yaml, if it exists.
            arguments: the arguments of the training script, after `--`.
            **options: the options of `hpctrain render --help`, such as `nodes=2, gpus=4,
                time="2:00:00"`.

        Raises:
            UsageError: an option that does not exist, or all config errors at once.
        """
        names = {entry.option.removeprefix("--").replace("-", "_"): entry for entry in FIELDS}
        unknown = [name for name in options if name not in names]
        if unknown:
            raise UsageError(
                f"there is no option {', '.join(unknown)}", fix="hpctrain render --help"
            )
        return job_of(
            Request(
                options={names[name].path: str(value) for name, value in options.items()},
                config=str(config) if config is not None else None,
                arguments=tuple(arguments),
                verb="submit",
            )
        )


def parse_request(words: Sequence[str]) -> Request:
    """Parse the request in a script's header, as `words_of` writes it.

    Raises:
        UsageError: an unknown option.
    """
    own, arguments = list(words), tuple[str, ...]()
    if "--" in own:
        split = own.index("--")
        own, arguments = own[:split], tuple(own[split + 1 :])
    paths = {name: entry.path for entry in FIELDS for name in (entry.option, *entry.aliases)}
    options: dict[tuple[str, ...], str] = {}
    others: dict[str, list[str]] = {"--sbatch": [], "--config": [], "--to": []}
    while own:
        name, equals, value = own.pop(0).partition("=")
        if name not in paths and name not in others:
            raise UsageError(f"{name} is not an option of hpctrain render", fix="hpctrain render")
        if not equals:
            value = own.pop(0) if own else ""
        if name in paths:
            options[paths[name]] = value
        else:
            others[name].append(value)
    return Request(
        options=options,
        sbatch=tuple(others["--sbatch"]),
        config=next(reversed(others["--config"]), None),
        to=next(reversed(others["--to"]), None),
        arguments=arguments,
    )


def layers_of(asked: Request) -> list[Layer]:
    """Return the layers of a request, highest precedence first, without the cluster's.

    Raises:
        UsageError: a file cannot be read.
    """
    return layers.gather(
        options=asked.options,
        sbatch=asked.sbatch,
        config=asked.config,
        directory=Path.cwd(),
        environment=os.environ,
    )


def job_of(asked: Request, stacked: Sequence[Layer] | None = None) -> Job:
    """Return the job of a request, or of these layers instead of its own, with the profile of the
    cluster that they name as the lowest layer.

    Raises:
        UsageError: all config errors at once.
    """
    found, cluster = list(layers_of(asked) if stacked is None else stacked), None
    name = layers.written(found, ("cluster",))
    if isinstance(name, str) and name.strip():
        cluster = load.load(name, os.environ)
        from hpctrain.config.profile_layer import cluster_layer

        found.append(cluster_layer(cluster, found))
    resolved = layers.resolve(found, again=asked.again)
    spec = to_spec(
        resolved.config, directory=str(Path.cwd()), home=str(Path.home()), arguments=asked.arguments
    )
    return Job(spec, resolved.config, cluster, resolved.origins, asked)


def suggested(
    asked: Request, verb: str, *changes: str, without: Sequence[str] = ()
) -> suggest.Command:
    """Return the command that runs `verb` on the job of a request; bare if the request is bare,
    because the config and the environment already determine the job.
    """
    words = words_of(asked) if asked.options or not asked.is_bare else ()
    return suggest.command(verb, suggest.Asked(words=words), *changes, without=without)


def keeping(asked: Request, text: str) -> str:
    """Return a text with the request's options added to its commands; see `suggest.kept`."""
    return suggest.kept(text, suggest.Asked(words=words_of(asked, variables=False)))


def words_of(asked: Request, *, variables: bool = True) -> tuple[str, ...]:
    """Return the arguments of `hpctrain render` that reproduce the request; HPCTRAIN_* variables
    become options.
    """
    words: list[str] = []
    # As in config.layers: --mem-per-cpu on the command line replaces HPCTRAIN_MEM.
    displaced = {
        rival for group in RIVALS for path in group & set(asked.options) for rival in group - {path}
    }
    for entry in FIELDS:
        names = entry.variables if variables and entry.path not in displaced else ()
        said = [os.environ[name] for name in names if os.environ.get(name)]
        value = asked.options.get(entry.path) or (said[-1] if said else None)
        if value:
            words += [f"{entry.option}={value}"] if value.startswith("-") else [entry.option, value]
    for option in asked.sbatch:
        words += ["--sbatch", option]
    words += ["--config", asked.config] if asked.config else []
    words += ["--to", asked.to] if asked.to else []
    return (*words, "--", *asked.arguments) if asked.arguments else tuple(words)


# -- of a run: read from the header of its script, whoever submitted it, from whatever directory ----

_SCRIPT = "script.sbatch"
_MOST_COPIES = 20


def of_run(run: Run, runs_dir: Path) -> suggest.Asked | None:
    """Return the request of a run's newest job; None if its script no longer exists, or was not
    rendered by hpctrain.
    """
    newest = newest_of(run, launch.load(runs_dir, run.tag))
    named = runs_dir / layout.LAUNCHES / run.tag / "scripts" / ((newest and newest.script) or "")
    return _asked((runs_dir / run.id / _SCRIPT, named), run=run.id, tag=run.tag, index=run.index)


def of_launch(whole: Launch) -> suggest.Asked:
    """Return the latest request of a launch; without options if no rendered script is left."""
    parts = sorted(whole.parts, key=lambda part: part.at, reverse=True)
    copies = [whole.path.parent.parent / run / _SCRIPT for run in whole.run_ids[:_MOST_COPIES]]
    scripts = (*(whole.path / "scripts" / part.script for part in parts), *copies)
    return _asked(scripts, run=whole.tag, tag=whole.tag) or suggest.Asked(
        run=whole.tag, tag=whole.tag
    )


def ran_with(run: Run, runs_dir: Path) -> tuple[Mapping[str, Any] | None, Mapping[str, str]]:
    """Return the config that a run was launched with, as resolved, None if none was kept; and the
    path of a value, such as `training.max_steps` → where it was set. Unreadable files are skipped.

    Training options that were typed after -- are only in the job script, and override those of the
    config.
    """
    newest = newest_of(run, launch.load(runs_dir, run.tag))
    names = [newest.config if newest else None, f"config.{run.stage}.json" if run.stage else None]
    directory = runs_dir / layout.LAUNCHES / run.tag
    kept = first_object(*(directory / name for name in (*names, "config.json") if name))
    config, origins = kept.get("config"), kept.get("origins")
    if not isinstance(config, dict):
        return None, {}
    asked = of_run(run, runs_dir)
    words = asked.words if asked is not None else ()
    typed = shell.options_of(words[words.index("--") + 1 :]) if "--" in words else {}
    where = origins if isinstance(origins, dict) else {}
    where |= {f"training.{name}": "given after --" for name in typed}
    if typed:
        values = {
            name: "true" if value is True else list(value) if isinstance(value, tuple) else value
            for name, value in typed.items()
        }
        config = {**config, "training": {**(config.get("training") or {}), **values}}
    return config, where


def first_object(*paths: Path) -> dict[str, Any]:
    """Return the JSON object in the first of the files that contains one."""
    return next((value for path in paths if (value := stored.read_object(path))), {})


def newest_of(run: Run, whole: Launch | None) -> Submission | None:
    """Return the submission of the run's newest job; if the run has not started, the newest
    submission that covers it.
    """
    mine = (
        [each for each in whole.submissions if each.stage == run.stage] if whole is not None else []
    )
    jobs = [job_ids.array_of(attempt.job or "") for attempt in reversed(run.attempts)]
    started = next((each for job in jobs for each in reversed(mine) if each.job == job), None)
    return started or next((each for each in reversed(mine) if each.covers(run.index)), None)


def _asked(
    scripts: tuple[Path, ...], *, run: str, tag: str, index: int | None = None
) -> suggest.Asked | None:
    for script in scripts:
        try:
            text = stored.read_regular(script).decode("utf-8", "replace")
        except OSError:
            continue
        made = header.read_header(text)
        if made is not None:
            is_here = made.directory == os.getcwd() or not Path(made.directory).is_dir()  # noqa: PTH109
            there = None if is_here else made.directory
            return suggest.Asked(
                words=made.arguments, directory=there, run=run, tag=tag, index=index
            )
    return None
