"""`hpctrain init`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hpctrain.cli.output import print_json, say
from hpctrain.config import layers
from hpctrain.config.fields import BY_PATH
from hpctrain.config.spec import layout_text
from hpctrain.errors import SchedulerError, UsageError
from hpctrain.jobs import proposal, script_files
from hpctrain.jobs.proposal import SHOWN, Answer, ConfigQuestion, Mode, Proposal, checked
from hpctrain.util import shell
from hpctrain.util.schema import KeyPath
from hpctrain.util.text import wrap

CONFIG = Path("config.yaml")
#: Options that answer the questions.
OPTIONS: tuple[tuple[str, ...], ...] = (
    ("cluster",),
    ("resources", "account"),
    ("resources", "partition"),
    ("resources", "qos"),
    ("resources", "gpu_type"),
    ("resources", "gpus_per_node"),
    ("resources", "nodes"),
    ("resources", "time"),
    ("environment", "venv"),
    ("environment", "conda"),
)
FURTHER = {"model": ("training", "model_name_or_path"), "dataset": ("training", "dataset_name")}


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for path in reversed(OPTIONS):
        entry = BY_PATH[path]
        function = click.option(
            entry.option, *entry.aliases, entry.name, metavar=entry.metavar, help=entry.help
        )(function)
    return function


@click.command("init")
@_options
@click.option("--model", metavar="DIR", help="Directory of the model to train.")
@click.option("--dataset", metavar="DIR", help="Directory of the tokenized dataset.")
@click.option(
    "-y",
    "--yes",
    "--defaults",
    "yes",
    is_flag=True,
    help="Ask nothing; use the best answer and print it.",
)
@click.option(
    "--no-slurm",
    is_flag=True,
    help="Do not query Slurm; use the profile of --cluster, or this machine.",
)
@click.option("--force", is_flag=True, help="Overwrite config.yaml.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print what was found as JSON; ask and write nothing.",
)
def command(yes: bool, no_slurm: bool, force: bool, as_json: bool, **parameters: Any) -> None:
    """Create config.yaml for this cluster.

    Values come from the cluster's profile, sinfo, scontrol and sacctmgr; if several answers are
    possible, you are asked. Each question has an option, and each value a comment with its source.
    Without a terminal nothing is asked. stdout is the path of the file.

    \b
    hpctrain init
    hpctrain init --yes --account my_project
    """  # noqa: D301 - \b keeps click from wrapping
    if not as_json and CONFIG.is_dir():
        raise UsageError(f"{CONFIG} is a directory", fix=f"mv {CONFIG} {CONFIG}.old")
    if not as_json and not force and (CONFIG.exists() or CONFIG.is_symlink()):
        raise UsageError(f"{CONFIG} exists", fix=shell.join(("hpctrain", *sys.argv[1:], "--force")))
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    mode: Mode = "best" if yes or as_json else "ask" if is_terminal else "strict"
    further: dict[KeyPath, str] = {
        path: parameters[name] for name, path in FURTHER.items() if parameters[name]
    }
    answers = Proposal(mode, _given(parameters), _prompt, further)
    _find(answers, slurm=not no_slurm)
    answers.answer_all()
    if as_json:
        print_json(
            cluster=answers.profile.profile.name if answers.profile is not None else None,
            detected=list(answers.detected),
            slurm=asdict(answers.live) if answers.has_slurm else None,
            models=answers.models,
            datasets=answers.datasets,
            environments=[asdict(each) for each in answers.environments],
            answers={
                ".".join(path): {"value": each.value, "from": each.why}
                for path, each in answers.known.items()
            },
            unanswered=[each.option for each in answers.missing],
        )
        return
    if answers.missing:
        raise _unanswered(answers, parameters)
    script_files.write_file(CONFIG, answers.text())
    if answers.profile is not None:
        say(f"cluster {answers.profile.profile.name}: {answers.profile.profile.title}")
    elif answers.has_slurm:
        say(f"cluster {answers.live.cluster_name or '-'}: no profile, only Slurm's information")
    else:
        say("no cluster and no Slurm: a config for this machine;")
        say("for a cluster: hpctrain init --cluster NAME")
    for taken in answers.taken:
        say(f"chosen: {taken}")
    nodes = int(answers.value("resources", "nodes") or 1)
    say(layout_text(nodes, int(answers.value("resources", "gpus_per_node") or 1)))
    click.echo(str(CONFIG))
    say("next: hpctrain check")


def _unanswered(answers: Proposal, parameters: dict[str, Any]) -> UsageError:
    typed = {BY_PATH[path].option: parameters[path[-1]] for path in OPTIONS}
    typed |= {f"--{name}": parameters[name] for name in FURTHER}
    typed = {option: value for option, value in typed.items() if value}
    details = []
    for each in answers.missing:
        typed[each.option] = each.best or each.path[-1].upper()
        choices = " | ".join(list(each.choices)[:SHOWN])
        details.append(f"  {each.option} {choices or each.path[-1].upper()}")
    again = shell.join(("hpctrain", "init", *(word for pair in typed.items() for word in pair)))
    is_complete = all(each.best for each in answers.missing)
    return UsageError(
        "missing required options (no terminal to ask at)",
        details=tuple(details),
        fix=again if is_complete else None,
        hint=None if is_complete else f"give a value for each word in capitals: {again}",
    )


def _given(parameters: dict[str, Any]) -> list[layers.Layer]:
    for name, value in parameters.items():
        if value is not None and not value.isprintable():
            raise UsageError(f"--{name} must be printable text", hint=f"change --{name}")
    options = {path: parameters[path[-1]] for path in OPTIONS if parameters[path[-1]] is not None}
    given = [layers.from_options(options, ()), layers.from_environment(os.environ)]
    user = layers.user_config(os.environ)
    if user is not None and user.exists():
        given.append(layers.from_file(user, str(user)))
    layers.resolve(given, again="hpctrain init")
    return given


def _find(answers: Proposal, *, slurm: bool) -> None:
    live, silent = None, None
    try:
        live = proposal.live_cluster() if slurm else None
    except SchedulerError as error:
        silent = error
    answers.gather(live)
    if silent is not None and answers.profile is None:
        raise SchedulerError(
            silent.what,
            details=tuple(line for each in silent.details for line in wrap(each, hanging="  ")),
            hint=(
                "load your site's Slurm module, name a profile (hpctrain init --cluster NAME),"
                " or: hpctrain init --no-slurm"
            ),
        ) from silent
    unanswered = [f"note: Slurm did not report: {each}" for each in (live.silent if live else ())]
    if silent is not None:
        unanswered = [f"note: Slurm: {'; '.join(silent.details)}; only the profile is used"]
    for sentence in unanswered:
        say("\n".join(wrap(sentence, hanging="  ")))


def _prompt(question: ConfigQuestion) -> Answer:
    say(f"\n{question.text}")
    numbers = {str(number): each for number, each in enumerate(list(question.choices)[:SHOWN], 1)}
    for number, line in enumerate(question.lines, 1):
        say(f"  {number}  {line}")
    if len(question.choices) > SHOWN:
        say(f"  and {len(question.choices) - SHOWN} more, by name")
    while True:
        typed = str(click.prompt(question.option, default=question.best, err=True)).strip()
        chosen = numbers.get(typed, typed)
        try:
            checked(chosen, question)
        except UsageError as error:
            say("\n".join([f"  {error.what}", *error.details]))
            continue
        return Answer(chosen, question.why if chosen == question.best else "your answer")
