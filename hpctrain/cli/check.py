"""`hpctrain check`: find what would go wrong, before the job queues."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpctrain.cli.job_options import Job, JobCommand, Request, job_options, request, words_of
from hpctrain.errors import UsageError
from hpctrain.jobs import shell
from hpctrain.jobs.finding import LEVELS, Finding

if TYPE_CHECKING:
    from hpctrain.cli.examine import Examined

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
_WIDTH = 80
#: Values whose config path ends so are not shown.
_NOT_SHOWN = "(not shown)"


@click.command(cls=JobCommand)
@click.argument("config_file", required=False, metavar="[CONFIG]")
@job_options
@click.option("--no-slurm", is_flag=True, help="Ask Slurm nothing, also where it is there.")
@click.option("--show-origin", is_flag=True, help="Show each value, where it was written, and what it won over.")
@click.option("--level", type=click.Choice(LEVELS), default="note", show_default=True, help="Show findings of this level and above.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def command(ctx: click.Context, /, config_file: str | None, **parameters: Any) -> int:
    """Find what would go wrong, before the job queues.

    The job of CONFIG (./config.yaml) and of these options is held against the cluster's profile, against what Slurm says of itself,
    and against the files and the environment that it will use; last, Slurm itself judges the script (sbatch --test-only). Nothing is
    submitted or written. Exit code 1 with findings of level error.

    \b
    hpctrain check
    hpctrain check --nodes 2 --gpus 4 --time 24:00:00
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    asked = request(ctx, {**parameters, "config": _config(config_file, parameters["config"])})
    from hpctrain.cli.examine import examine

    examined = examine(asked, slurm=not parameters["no_slurm"])
    shown = [finding for finding in examined.findings if LEVELS.index(finding.level) <= LEVELS.index(parameters["level"])]
    values = list(_values(asked, examined.job)) if parameters["show_origin"] else None
    if parameters["as_json"]:
        click.echo(json.dumps(_document(examined, shown, values), ensure_ascii=False))
    else:
        _print(examined, shown, values)
        click.echo(_next(asked, examined), err=True)
    return 1 if examined.errors else 0


def _config(named: str | None, option: str | None) -> str | None:
    if named is None:
        return option
    if option is not None:
        raise UsageError(f"two job configs: {named} and --config {option}", fix=f"hpctrain check {shell.quote(named)}")
    if named.endswith(".py"):
        raise UsageError(f"{named} is a training script, and check takes a job config", fix=f"hpctrain check --script {shell.quote(named)}")
    if Path(named).suffix in (".sbatch", ".sh", ".slurm"):
        raise UsageError(f"{named} is a batch script, and check takes a job config", fix=f"hpctrain lint {shell.quote(named)}")
    return named


def _document(examined: Examined, shown: list[Finding], values: list[dict[str, Any]] | None) -> dict[str, Any]:
    spec = examined.job.spec
    return {
        "schema": 1,
        "job": {"name": spec.job_name, "nodes": spec.nodes, "gpus_per_node": spec.gpus_per_node, "processes": spec.processes},
        "cluster": examined.cluster.profile.name if examined.cluster is not None else None,
        "findings": [finding.to_json() for finding in shown],
        "counts": {level: sum(finding.level == level for finding in examined.findings) for level in LEVELS},
        "checked": list(examined.checked),
        "not_checked": list(examined.not_checked),
        "start_estimate": examined.estimate,
    } | ({"values": values} if values is not None else {})


def _print(examined: Examined, shown: list[Finding], values: list[dict[str, Any]] | None) -> None:
    from hpctrain.jobs.check import show

    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for value in values or ():
        over = f"   (over {', '.join(value['over'])})" if value["over"] else ""
        click.echo(f"{value['key']} = {value['value']}   {value['origin']}{over}")
    if values:
        click.echo()
    for finding in shown:
        first, _, rest = show.block(finding, _WIDTH).partition("\n")
        click.echo((click.style(first, fg=_COLOURS[finding.level]) if colour else first) + f"\n{rest}\n", color=colour)
    what = ", ".join(examined.names) or examined.job.spec.layout
    summary = [f"{what}: {show.counts(examined.findings)}"]
    summary += [f"Slurm says: {examined.estimate}"] if examined.estimate is not None else []
    summary.append(f"checked: {', '.join(examined.checked)}")
    summary += [f"not checked: {sentence}" for sentence in examined.not_checked]
    for line in summary:
        click.echo(show.wrapped(line, _WIDTH))


def _next(asked: Request, examined: Examined) -> str:
    """Return what to type next: the verb that starts this job, with the words that it was checked with."""
    words = () if asked.is_bare else words_of(asked)
    if examined.errors:
        return f"more on each: hpctrain docs ID\nnext: mend the errors, then: {shell.join(('hpctrain', 'check', *words))}"
    verb = "submit" if examined.job.config.tune is None else "tune"
    return f"next: {shell.join(('hpctrain', verb, *words))}"


def _values(asked: Request, job: Job) -> Iterator[dict[str, Any]]:
    """Return each value of the job: the key, where it was written, and the places that it won over, the strongest first."""
    from hpctrain.config import cluster_layer, files, layers

    stacked = files.gather(options=asked.options, sbatch=asked.sbatch, config=asked.config, directory=Path.cwd(), environment=os.environ)
    if job.cluster is not None:
        stacked.append(cluster_layer.layer(job.cluster, stacked))
    for path, value in _leaves(job.config.model_dump(), ()):
        places = [layer.origins.get(path, layer.title) for layer in stacked if layers.written([layer], path) is not None]
        if places or value is not None:
            yield {"key": ".".join(path), "value": _shown(path, value), "origin": places[0] if places else "default", "over": places[1:]}


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif not isinstance(value, dict):
        yield path, value


def _shown(path: tuple[str, ...], value: Any) -> Any:
    """Return a value as people write it."""
    from hpctrain.jobs.secret_forms import looks_secret, named_secret
    from hpctrain.scheduler.parse import duration, memory_size

    if isinstance(value, str) and (looks_secret(path[-1], value) or (path[:2] == ("environment", "env") and named_secret(path[-1]))):
        return _NOT_SHOWN
    if path == ("resources", "time") and isinstance(value, int):
        return duration.format(value)
    if path in (("resources", "mem"), ("resources", "mem_per_cpu")) and isinstance(value, int):
        return memory_size.format(value)
    if isinstance(value, bool):
        return str(value).lower()
    return list(value) if isinstance(value, tuple) else value
