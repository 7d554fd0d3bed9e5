"""The implementation of `hpctrain init`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hpctrain.cli.output import print_json, say
from hpctrain.cli.set_up import FURTHER, OPTIONS
from hpctrain.config import layers
from hpctrain.config.fields import BY_PATH
from hpctrain.config.layers import Layer
from hpctrain.config.spec import layout_text
from hpctrain.errors import SchedulerError, UsageError
from hpctrain.jobs import proposal, script_files
from hpctrain.jobs.proposal import SHOWN, Answer, ConfigQuestion, Mode, Proposal, checked
from hpctrain.util import shell, stored, yaml12
from hpctrain.util.schema import KeyPath
from hpctrain.util.text import wrap

CONFIG = Path("config.yaml")


def run(parameters: dict[str, Any], *, yes: bool, slurm: bool, force: bool, as_json: bool) -> None:
    """Write config.yaml, or print the facts found."""
    if not as_json and CONFIG.is_dir():
        raise UsageError(f"{CONFIG} is a directory", fix=f"mv {CONFIG} {CONFIG}.old")
    if not as_json and not force and (CONFIG.exists() or CONFIG.is_symlink()):
        raise UsageError(f"{CONFIG} exists", fix="hpctrain init --force")
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    mode: Mode = "best" if yes or as_json else "ask" if is_terminal else "strict"
    further: dict[KeyPath, str] = {
        path: parameters[name] for name, path in FURTHER.items() if parameters[name]
    }
    answers = Proposal(mode, _given(parameters), _prompt, further)
    _find(answers, slurm=slurm)
    found = answers.found
    answers.answer_all()
    if as_json:
        print_json(
            cluster=found.profile.profile.name if found.profile is not None else None,
            detected=list(found.detected),
            slurm=asdict(found.live) if found.has_slurm else None,
            models=list(found.models),
            datasets=list(found.datasets),
            environments=[asdict(each) for each in found.environments],
            answers={
                ".".join(path): {"value": each.value, "from": each.why}
                for path, each in answers.known.items()
            },
            unanswered=[each.option for each in answers.missing],
        )
        return
    if answers.missing:
        raise _unanswered(answers, parameters)
    script_files.write_file(CONFIG, answers.text(), fix="df -h . && ls -ld .")
    _say_summary(answers)
    click.echo(str(CONFIG))
    say("next: hpctrain check")


def _unanswered(answers: Proposal, parameters: dict[str, Any]) -> UsageError:
    options = {BY_PATH[path].option: parameters[path[-1]] for path in OPTIONS}
    options |= {f"--{name}": parameters[name] for name in FURTHER}
    typed = {option: value for option, value in options.items() if value}
    details = []
    for each in answers.missing:
        placeholder = each.path[-1].upper()
        typed[each.option] = each.best or placeholder
        choices = " | ".join(list(each.choices)[:SHOWN])
        details.append(f"  {each.option} {choices or placeholder}")
    is_complete = all(each.best for each in answers.missing)
    strict = answers.mode == "strict"
    if strict and is_complete:
        details.append("or the best of each: hpctrain init --yes")
    again = shell.join(("hpctrain", "init", *(word for pair in typed.items() for word in pair)))
    return UsageError(
        f"missing required options{' (no terminal to ask at)' if strict else ''}",
        details=tuple(details),
        fix=again if is_complete else None,
        hint=None if is_complete else f"give a value for each word in capitals: {again}",
    )


def _given(parameters: dict[str, Any]) -> list[Layer]:
    """Return the values that are already set: options, HPCTRAIN_* variables and the user's own
    config.

    Raises:
        UsageError: some are invalid; all problems at once.
    """
    for name, value in parameters.items():
        if value is not None and not value.isprintable():
            raise UsageError(
                f"--{name} must be printable text, not {value!r}",
                hint=f"give --{name} a name without control characters",
            )
    options = {path: parameters[path[-1]] for path in OPTIONS if parameters[path[-1]] is not None}
    given = [layers.from_options(options, ()), layers.from_environment(os.environ)]
    user = layers.user_config(os.environ)
    if user is not None and user.exists():
        try:
            document = yaml12.load(stored.read_text(user), str(user))
        except (OSError, UnicodeDecodeError) as error:
            fix = f"ls -l {shell.quote(user)}"
            raise UsageError(f"cannot read {user}: {error}", fix=fix) from error
        given.append(layers.from_document(document, str(user)))
    layers.resolve(given, again="hpctrain init")
    return given


def _find(answers: Proposal, *, slurm: bool) -> None:
    live, silent = None, None
    try:
        live = proposal.live_cluster() if slurm else None
    except SchedulerError as error:
        silent = error
    known = proposal.detected(live, os.environ)
    name = answers.ask(
        ("cluster",),
        "Which cluster is this? Several profiles match.",
        choices=dict.fromkeys(known, ""),
        best=next(iter(known), None),
        why="the profile matches this machine",
        needed=len(known) > 1,
    )
    if silent is not None and name is None:
        raise SchedulerError(
            silent.what,
            details=_wrapped(silent.details),
            hint=(
                "load your site's Slurm module, name a profile (hpctrain init --cluster NAME),"
                " or: hpctrain init --no-slurm"
            ),
        ) from silent
    unanswered = [f"note: Slurm did not report: {each}" for each in (live.silent if live else ())]
    if silent is not None:
        unanswered = [f"note: Slurm: {'; '.join(silent.details)}; only the profile is used"]
    for line in _wrapped(unanswered):
        say(line)
    answers.found = proposal.gather(name, live, known, os.environ)
    if answers.found.profile is not None:
        profile = answers.found.profile.profile
        # The profile's own name: Jean-Zay becomes jean_zay.
        answers.known["cluster",] = Answer(profile.name, answers.known["cluster",].why)


def _wrapped(sentences: Iterable[str]) -> tuple[str, ...]:
    return tuple(line for each in sentences for line in wrap(each, hanging="  "))


def _prompt(question: ConfigQuestion) -> Answer:
    """Prompt until the answer is valid: a choice, or its number; Enter takes the best."""
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


def _say_summary(answers: Proposal) -> None:
    found = answers.found
    if found.profile is not None:
        say(f"cluster {found.profile.profile.name}: {found.profile.profile.title}")
    elif found.has_slurm:
        name = found.live.cluster_name or "without a name"
        say(f"cluster {name}: no profile, only Slurm's information")
    else:
        say("no cluster and no Slurm: a config for this machine;")
        say("for a cluster: hpctrain init --cluster NAME")
    for taken in answers.taken:
        say(f"chosen: {taken}")
    nodes = int(answers.value("resources", "nodes") or 1)
    say(layout_text(nodes, int(answers.value("resources", "gpus_per_node") or 1)))
