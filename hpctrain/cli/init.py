"""`hpctrain init`: a config.yaml for this cluster."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hpctrain import yaml12
from hpctrain.cli import init_file, init_found, init_questions, script_file
from hpctrain.cli.init_answers import Answers, Mode
from hpctrain.cli.init_found import Found
from hpctrain.config import files, layers
from hpctrain.config.fields import BY_PATH
from hpctrain.config.layers import KeyPath, Layer
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.jobs import shell

CONFIG = Path("config.yaml")
_OPTIONS: tuple[KeyPath, ...] = (
    ("cluster",), ("resources", "account"), ("resources", "partition"), ("resources", "qos"), ("resources", "gpu_type"),
    ("resources", "gpus_per_node"), ("resources", "nodes"), ("resources", "time"), ("environment", "venv"), ("environment", "conda"),
)  # fmt: skip
_FURTHER = {"model": ("training", "model_name_or_path"), "dataset": ("training", "dataset_name")}


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that answer the questions, as `hpctrain render` has them."""
    for path in reversed(_OPTIONS):
        entry = BY_PATH[path]
        function = click.option(entry.option, *entry.aliases, entry.name, metavar=entry.metavar, help=entry.help)(function)
    return function


@click.command()
@_options
@click.option("--model", metavar="DIR", help="Folder of the model to train.")
@click.option("--dataset", metavar="DIR", help="Folder of the tokenised dataset.")
@click.option("-y", "--yes", "--defaults", "yes", is_flag=True, help="Ask nothing: take the best of several, and say so.")
@click.option("--no-slurm", is_flag=True, help="Do not ask Slurm: the profile of --cluster alone, or this machine.")
@click.option("--force", is_flag=True, help="Replace a config.yaml that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found, as one JSON object; ask and write nothing.")
def command(yes: bool, no_slurm: bool, force: bool, as_json: bool, **parameters: Any) -> None:
    """Write config.yaml for this cluster, asking only what cannot be found out.

    The cluster's profile, sinfo, scontrol and sacctmgr say the rest; where several answers are left, you are asked, and each question has
    an option. Behind each value stands where it comes from. Without a terminal nothing is asked. stdout is the path of the file.

    \b
    hpctrain init
    hpctrain init --yes --account my_project
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    if not as_json:
        _refuse_to_lose(force)
    terminal = sys.stdin.isatty() and sys.stderr.isatty()
    mode: Mode = "best" if yes or as_json else "ask" if terminal else "strict"
    answers = Answers(mode, _given(parameters), {path: parameters[name] for name, path in _FURTHER.items() if parameters[name]})
    found = _find(answers, slurm=not no_slurm)
    init_questions.answer_all(answers, found)
    if as_json:
        click.echo(json.dumps(_to_json(found, answers)))
        return
    if answers.missing:
        raise _unanswered(answers, parameters)
    _write(found, answers)


def _unanswered(answers: Answers, parameters: dict[str, Any]) -> UsageError:
    """Return the error that names every option which would have answered a question."""
    typed = [(BY_PATH[path].option, parameters[path[-1]]) for path in _OPTIONS]
    typed += [(f"--{name}", parameters[name]) for name in _FURTHER]
    words = [word for option, value in (*typed, *(each.words_of_best for each in answers.missing)) if value for word in (option, value)]
    details = [f"  {each.words}" for each in answers.missing]
    if answers.mode == "strict" and all(each.best is not None for each in answers.missing):
        details.append("or the best of each: hpctrain init --yes")
    what = "there is no terminal to ask at, and no answer for:" if answers.mode == "strict" else "nobody but you knows:"
    return UsageError(what.rstrip(":"), details=tuple(details), fix=shell.join(("hpctrain", "init", *words)))


def _given(parameters: dict[str, Any]) -> list[Layer]:
    """Return what has been said already: options, HPCTRAIN_* variables and the user's own config.

    Raises:
        UsageError: some of it is wrong; all problems at once.
    """
    options = {path: parameters[path[-1]] for path in _OPTIONS if parameters[path[-1]] is not None}
    given = [layers.from_options(options, ()), layers.from_environment(os.environ)]
    user = files.user_config(os.environ)
    if user is not None and user.exists():
        try:
            given.append(layers.from_document(yaml12.load(user.read_text(encoding="utf-8"), str(user)), str(user)))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {user}: {error}", fix=f"ls -l {shell.quote(user)}") from error
    layers.resolve(given, again="hpctrain init")
    for name, value in parameters.items():
        # What is no UTF-8 has no place in YAML; of the two that are no keys of the table, nobody else looks at the rest.
        if value is not None and (re.search("[\ud800-\udfff]", value) or (name in _FURTHER and not value.isprintable())):
            raise UsageError(f"--{name} must be printable text, not {value!r}", fix=f"hpctrain init --{name} NAME")
    return given


def _find(answers: Answers, *, slurm: bool) -> Found:
    live, silent = None, None
    try:
        live = init_found.live_cluster() if slurm else None
    except SchedulerError as error:
        silent = error
    known = init_found.detected(live, os.environ)
    name = answers.ask(init_questions.cluster(known))
    if silent is not None:
        if name is None:
            raise SchedulerError(
                silent.what,
                details=tuple(line for sentence in silent.details for line in textwrap.wrap(sentence, 78)),
                fix="load your site's Slurm module, name a profile (hpctrain init --cluster NAME), or: hpctrain init --no-slurm",
            ) from silent
        words = f"note: {silent.what} ({'; '.join(silent.details)}), so the profile alone counts"
        click.echo(textwrap.fill(words, 80, subsequent_indent="  "), err=True)
    for sentence in live.silent if live is not None else ():
        click.echo(textwrap.fill(f"note: Slurm did not say: {sentence}", 80, subsequent_indent="  "), err=True)
    found = init_found.gather(name, live, known, os.environ)
    if found.profile is not None:
        # As the file is called, whatever the person typed: Jean-Zay is jean_zay.
        answers.put(("cluster",), found.profile.profile.name, answers.known["cluster",].why)
        known_as = [each.lower() for each in found.profile.profile.detect.cluster_names]
        if live is not None and live.cluster_name and known_as and live.cluster_name.lower() not in known_as:
            click.echo(f"note: Slurm calls this cluster {live.cluster_name!r}; is it {found.profile.profile.name}?", err=True)
    return found


def _refuse_to_lose(force: bool) -> None:
    if CONFIG.is_dir():
        raise UsageError(f"{CONFIG} is a directory", fix=f"mv {CONFIG} {CONFIG}.old")
    if (CONFIG.exists() or CONFIG.is_symlink()) and not force:
        raise UsageError(
            f"{CONFIG} is there already, and may hold what you wrote",
            fix="hpctrain init --force to replace it; to keep it: hpctrain check",
        )


def _write(found: Found, answers: Answers) -> None:
    try:
        script_file.write_whole({CONFIG: init_file.text(found, answers)})
    except OSError as error:
        raise HpctrainError(f"cannot write {CONFIG}: {error.strerror}", fix="df -h . && ls -ld .") from error
    for line in _summary(found, answers):
        click.echo(line, err=True)
    click.echo(str(CONFIG))
    click.echo("next: hpctrain check", err=True)


def _summary(found: Found, answers: Answers) -> list[str]:
    """Return what a person reads at the end: which cluster, what was taken, and how large the job is."""
    if found.profile is not None:
        lines = [f"cluster {found.profile.profile.name}: {found.profile.profile.title}"]
    elif found.live is not None:
        lines = [f"cluster {found.live.cluster_name or 'of no name'}: no profile, so Slurm's own words alone"]
    else:
        lines = ["no cluster named, and no Slurm asked: a config for this machine;", "for a cluster: hpctrain init --cluster NAME"]
    lines += [f"took {taken}" for taken in answers.taken]
    nodes, gpus = int(answers.value("resources", "nodes") or 1), int(answers.value("resources", "gpus_per_node") or 1)
    lines.append(f"{_count(nodes, 'node')} x {_count(gpus, 'GPU')} = {_count(nodes * gpus, 'process', 'es')}")
    return lines


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def _to_json(found: Found, answers: Answers) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "schema": 1,
        "cluster": found.profile.profile.name if found.profile is not None else None,
        "detected": list(found.detected),
        "slurm": asdict(found.live) if found.live is not None else None,
        "models": list(found.models),
        "datasets": list(found.datasets),
        "environments": [asdict(each) for each in found.environments],
        "answers": {".".join(path): {"value": each.value, "from": each.why} for path, each in answers.known.items()},
        "unanswered": [each.option for each in answers.missing],
    }
