"""`hpctrain check`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from hpctrain.checks.service import JobCheck, check_job
from hpctrain.cli.options import JobCommand, job_options, json_option, request_with_config
from hpctrain.cli.output import counts, print_json, say, show_findings
from hpctrain.config import layers
from hpctrain.config.profile_layer import cluster_layer
from hpctrain.config.spec import shown_value
from hpctrain.finding import LEVELS, Finding
from hpctrain.jobs.request import Job, Request, layers_of, suggested
from hpctrain.util.text import wrap


@click.command("check", cls=JobCommand)
@click.argument("config_file", required=False, metavar="[CONFIG]")
@job_options
@click.option("--no-slurm", is_flag=True, help="Do not query Slurm.")
@click.option(
    "--show-origin",
    is_flag=True,
    help="Show each value, its origin, and what it overrides.",
)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="note",
    show_default=True,
    help="Show findings of this level and above.",
)
@json_option
@click.pass_context
def command(ctx: click.Context, /, config_file: str | None, **parameters: Any) -> int:
    """Validate a job before submitting it.

    The job of CONFIG (./config.yaml) and of these options is compared with the cluster's profile,
    with Slurm's configuration, and with the files and the environment that it will use; last, with
    sbatch --test-only. Nothing is submitted or written. Exit code 1 with findings of level error.

    \b
    hpctrain check
    hpctrain check --nodes 2 --gpus 4 --time 24:00:00
    """  # noqa: D301 - \b keeps click from wrapping
    others = "hpctrain check --script" if str(config_file).endswith(".py") else "hpctrain lint"
    asked = request_with_config(ctx, config_file, parameters, for_others=others)
    examined = check_job(asked, slurm=not parameters["no_slurm"])
    level = LEVELS.index(parameters["level"])
    shown = [each for each in examined.findings if LEVELS.index(each.level) <= level]
    values = list(_values(asked, examined.job)) if parameters["show_origin"] else None
    if parameters["as_json"]:
        spec, more = examined.job.spec, {} if values is None else {"values": values}
        print_json(
            **{
                "job": {
                    "name": spec.job_name,
                    "nodes": spec.nodes,
                    "gpus_per_node": spec.gpus_per_node,
                    "processes": spec.processes,
                },
                "cluster": examined.cluster.profile.name if examined.cluster is not None else None,
                "findings": [
                    finding.to_json() | {"ignored": finding in examined.ignored}
                    for finding in (*shown, *examined.ignored)
                ],
                "counts": {
                    level: sum(finding.level == level for finding in examined.findings)
                    for level in LEVELS
                },
                "checked": list(examined.checked),
                "not_checked": list(examined.not_checked),
                "start_estimate": examined.estimate,
            }
            | more
        )
        return 1 if examined.errors else 0
    _print(examined, shown, values)
    verb = "submit" if examined.job.config.tune is None else "tune"
    if examined.errors:
        say("more on each: hpctrain explain ID")
    say(f"next: {suggested(asked, 'check' if examined.errors else verb)}")
    return 1 if examined.errors else 0


def _print(examined: JobCheck, shown: list[Finding], values: list[dict[str, Any]] | None) -> None:
    for value in values or ():
        over = f"   (over {', '.join(value['over'])})" if value["over"] else ""
        click.echo(f"{value['key']} = {value['value']}   {value['origin']}{over}")
    show_findings(shown)
    what = ", ".join(examined.names) or examined.job.spec.layout
    ignored = ", ".join(f"{each.level} {each.id}" for each in examined.ignored)
    for line in (
        f"{what}: {counts(examined.findings)}",
        f"ignored: {ignored}" if ignored else "",
        f"Slurm says: {examined.estimate}" if examined.estimate else "",
        f"checked: {', '.join(examined.checked)}",
        *(f"not checked: {sentence}" for sentence in examined.not_checked),
    ):
        if line:
            click.echo("\n".join(wrap(line, hanging="  ")))


def _values(asked: Request, job: Job) -> Iterator[dict[str, Any]]:
    """Return each value of the job: the key, its origin, and the origins that it overrides, highest
    precedence first.
    """
    stacked = layers_of(asked)
    if job.cluster is not None:
        stacked.append(cluster_layer(job.cluster, stacked))
    for path, value in _leaves(job.config.to_data(), ()):
        places = [
            layer.origins.get(path, layer.title)
            for layer in stacked
            if layers.written([layer], path) is not None
        ]
        if places or value is not None:
            yield {
                "key": ".".join(path),
                "value": str(value).lower()
                if isinstance(value, bool)
                else shown_value(path, value),
                "origin": places[0] if places else "default",
                "over": places[1:],
            }


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif not isinstance(value, dict):
        yield path, value
