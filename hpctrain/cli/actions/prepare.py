"""`hpctrain prepare`."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from hpctrain.cli.options import json_option
from hpctrain.cli.output import WIDTH, print_json, say
from hpctrain.config import layers
from hpctrain.data import show as drawing
from hpctrain.data.encode import FastTokenizer, load_libraries
from hpctrain.data.manifest import (
    read_manifest,
    tokenizer_fingerprint,
)
from hpctrain.data.request import PrepareRequest, resolve
from hpctrain.errors import UsageError
from hpctrain.jobs import script_files
from hpctrain.util import shell, stored, text
from hpctrain.util.yaml12 import Plain, to_json_value

if TYPE_CHECKING:
    from hpctrain.data.pipeline import PrepareSummary

DEFAULT_LENGTH = 4096
"""Sequence length in tokens if neither the options nor the config set it; less if the model has
fewer positions.
"""
#: A program that calls this may need torch.
_IS_COMMAND = Path(sys.argv[0]).name == "hpctrain"
_SHOWN_DROPPED = 3
_FEW_TRAINED = 0.05
"""Below this fraction of unmasked tokens, a wrong mask is more likely than short answers."""


def _run(data: Sequence[str], options: Mapping[str, Any], *, as_json: bool) -> None:
    load_libraries(without_torch=_IS_COMMAND)
    from hpctrain.data import pipeline

    shown: set[tuple[str, int]] = set()

    def progress(stage: str, done: int, total: int) -> None:
        tenth = stage, 10 * done // max(1, total)
        if tenth not in shown:
            shown.add(tenth)
            say(f"{stage}: {10 * tenth[1]} %")

    summary = pipeline.prepare(_request(data, options), progress=progress, say=_say)
    if as_json:
        print_json(
            folder=str(summary.folder),
            already_there=summary.already_there,
            seconds=round(summary.seconds, 3),
            workers=summary.workers,
            pieces=summary.pieces,
            pieces_reused=summary.reused,
            manifest=json.loads(summary.manifest.to_json()),
        )
        return
    for line in _summary(summary):
        say(line)
    click.echo(str(summary.folder))
    made = summary.manifest
    training = {"model_name_or_path": made.tokenizer_name, "dataset_name": str(summary.folder)}
    if {"validation", "test"} & made.splits.keys():
        training["eval_strategy"] = "epoch"
    lines = yaml.safe_dump({"training": training}, sort_keys=False, allow_unicode=True, width=1000)
    say(f"look: hpctrain prepare --show 3 {shell.quote(summary.folder)}")
    say("in config.yaml:\n" + textwrap.indent(lines, "  ").rstrip())
    say("next: hpctrain check")


def _make_demo(demo: str, data: Sequence[str]) -> None:
    if data:
        raise UsageError(
            "--demo makes its own data, and DATA was given",
            fix=f"hpctrain prepare --demo {shell.quote(demo)}",
        )
    # Only this command needs the training libraries.
    from hpctrain.training import demo as maker

    say("reading docstrings, training a tokenizer (about 15 s)")
    summary = maker.make_demo(Path(demo))
    config = summary.directory / "config.yaml"
    is_venv = sys.prefix != sys.base_prefix
    job = {
        "job_name": "sft",
        "resources": {"nodes": 1, "gpus_per_node": 1, "time": "00:30:00", "cpus_per_task": 2},
        **({"environment": {"venv": sys.prefix}} if is_venv else {}),
        "training": {
            "model_name_or_path": "model",
            "dataset_name": "dataset",
            **maker.DEMO_TRAINING,
        },
    }
    script_files.write_file(
        config,
        "# The demo's job config, made by `hpctrain prepare --demo`. Options override it.\n"
        + yaml.safe_dump(job, sort_keys=False),
    )
    say(
        f"{summary.train_pairs:,} pairs of {summary.modules} modules, {summary.tokens:,} tokens,"
        f" vocabulary {summary.vocabulary:,}, model of {summary.parameters / 1e6:.1f} million"
        " parameters"
    )
    click.echo(str(config))
    # `init` finds the demo; an existing config is already for this cluster and account.
    words = ("--model_name_or_path", f"{demo}/model", "--dataset_name", f"{demo}/dataset")
    exists = Path("config.yaml").exists()
    say(f"next: hpctrain {f'check -- {shell.join(words)}' if exists else 'init'}")


# -- the request -----------------------------------------------------------------------------------


def _request(
    data: Sequence[str], options: Mapping[str, Any], *, show: bool = False
) -> PrepareRequest:
    config = options["config"]
    model = options["model"] or _configured(config, "model_name_or_path")
    target = options["to"] or ("unused" if show else _configured(config, "dataset_name"))
    needed = {"DATA": data, "--model DIR": model, "--to DIR": target}
    if missing := [name for name, value in needed.items() if not value]:
        raise UsageError(
            f"missing {text.listed(missing)}",
            hint="hpctrain prepare FILE.jsonl --model models/my_model --to data/my_dataset",
        )
    tokenizer = _model_directory(str(model))
    length = options["max_length"] or text.integer(str(_configured(config, "max_length"))) or 0
    if length < 2:
        of_model = stored.read_object(tokenizer / "config.json") or {}
        of_model = of_model.get("text_config") or of_model
        positions = of_model.get("max_position_embeddings") or of_model.get("n_positions")
        length = DEFAULT_LENGTH
        if isinstance(positions, int):
            length = max(2, min(length, positions))
    pack = options["pack"]
    if pack is None:
        pack = str(_configured(config, "packing")).lower() not in ("false", "no")
    how = "packed (or: --no-pack)" if pack else "not packed (or: --pack)"
    _say(f"sequences of at most {length} tokens (--max-length N), {how}")
    return PrepareRequest(
        paths=tuple(map(Path, data)),
        target=Path(target),
        tokenizer=tokenizer,
        tokenizer_name=str(model),
        form=options["form"],
        columns=options["columns"],
        max_length=length,
        template=Path(options["template"]) if options["template"] else None,
        template_options={
            name: to_json_value(Plain(word)) for name, word in options["template_options"].items()
        },
        pack=pack,
        **{
            name: options[name]
            for name in (
                "loss_on",
                "truncation",
                "system",
                "as_chat",
                "validation",
                "seed",
                "workers",
                "force",
            )
        },
    )


def _model_directory(name: str) -> Path:
    folder = stored.expanded(name)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise UsageError(
            f"--model {name} is a file; a model is a directory",
            hint=f"use --model {shell.quote(folder.parent)}",
        )
    raise UsageError(
        f"the model directory '{name}' does not exist",
        hint=(
            "for a model on the hub: hf download"
            f" {shell.quote(name)} --local-dir models/{folder.name}"
        ),
    )


def _configured(config: str | None, name: str) -> Any:
    stacked = layers.gather(
        options={}, sbatch=(), config=config, directory=Path.cwd(), environment=os.environ
    )
    value = layers.written(stacked, ("training", name))
    if value is not None:
        _say(f"{name} {value}, from the config")
    return value


def _say(sentence: str) -> None:
    say("\n".join(text.wrap(sentence, WIDTH, hanging="  ")))


# -- the summary -----------------------------------------------------------------------------------


def _summary(summary: PrepareSummary) -> Iterator[str]:
    made = summary.manifest
    if summary.already_there:
        yield f"{summary.folder} was prepared by the same command before: nothing to do"
    for name, split in made.splits.items():
        unmasked = split.trained / split.tokens if split.tokens else 0.0
        yield f"{name}: {text.count(split.examples, 'example')}, {text.count(split.tokens, 'token')}"
        yield f"  {unmasked:.1%} of the tokens are unmasked ({made.loss_on})"
        if made.packed:
            yield (
                f"  {text.count(split.rows, 'packed sequence')} of {made.max_length} tokens,"
                f" {split.examples / split.rows:.1f} examples each, {1 / split.padded:.1%} full"
            )
        else:
            yield (
                f"  the longest has {text.count(split.longest, 'token')}; padding of random batches"
                f" of 8: {split.padded - 1:.0%}"
            )
        if unmasked < _FEW_TRAINED:
            yield (
                f"warning: only {unmasked:.1%} of the tokens in {name} are unmasked; look at"
                " examples with --show, or set --loss-on"
            )
    if made.truncated:
        yield f"truncated at {made.max_length} tokens: {text.count(made.truncated, 'example')}"
    if made.context_turns:
        yield (
            f"masked, because the template rewrites them: {text.count(made.context_turns, 'turn')}"
        )
    if made.dropped:
        yield f"dropped: {sum(made.dropped.values()):,} of {text.count(made.rows, 'example')}"
    for reason, count in Counter(made.dropped).most_common():
        yield f"  {count:,} x {reason}; first: {made.dropped_first.get(reason, '-')[:200]}"
    if not summary.already_there:
        yield f"{text.duration(summary.seconds)} with {text.count(summary.workers, 'worker')}"


# -- examples --------------------------------------------------------------------------------------


def _show(data: Sequence[str], options: Mapping[str, Any], *, count: int, as_json: bool) -> None:
    """Print examples: raw data encoded as a prepare with the same options would, or the sequences
    of a prepared directory, with packed ones split.

    Raises:
        UsageError: there is nothing to show, or a model is missing.
    """
    load_libraries(without_torch=_IS_COMMAND)
    if len(data) == 1 and _is_tokenised(Path(data[0])):
        tokenizer = _tokenizer_of(Path(data[0]), options)
        examples = drawing.of_dataset(Path(data[0]), count)
    else:
        resolved = resolve(_request(data, {**options, "pack": False}, show=True))
        tokenizer = resolved.encoder.tokenizer
        examples, dropped = drawing.of_raw_data(resolved, count)
        for note in resolved.notes:
            _say(note)
        for each in dropped[:_SHOWN_DROPPED]:
            _say(f"dropped: {each.where}: {each.reason}{each.detail and f' ({each.detail})'}")
        if len(dropped) > _SHOWN_DROPPED:
            _say(f"dropped: {len(dropped) - _SHOWN_DROPPED} more examples")
    if as_json:
        print_json(
            examples=[
                {
                    "where": each.where,
                    "input_ids": list(each.ids),
                    "labels": list(each.labels),
                    "text": tokenizer.decode(list(each.ids)),
                    "trained_text": tokenizer.decode([id_ for id_ in each.labels if id_ != -100]),
                }
                for each in examples
            ]
        )
        return
    for example in examples:
        click.echo(f"{example.where}:")
        for line in drawing.lines(tokenizer, example.ids, example.labels):
            click.echo(line)
        click.echo()


def _is_tokenised(folder: Path) -> bool:
    splits = (stored.read_object(folder / "dataset_dict.json") or {}).get("splits") or []
    infos = [stored.read_object(folder / str(name) / "dataset_info.json") for name in splits[:1]]
    return any("input_ids" in ((info or {}).get("features") or {}) for info in infos)


def _tokenizer_of(folder: Path, options: Mapping[str, Any]) -> Any:
    made = read_manifest(folder)
    name = options["model"] or (made.tokenizer_name if made else None)
    if name is None:
        raise UsageError(f"{folder} does not say which tokenizer made it", hint="use --model DIR")
    model = _model_directory(str(name))
    if made is not None and tokenizer_fingerprint(model) != made.tokenizer:
        _say(f"warning: {folder} was made with another tokenizer than that of {model}")
    return FastTokenizer(str(model)).tokenizer


# -- the command ------------------------------------------------------------------------------------

_FORMS = ("text", "prompt-completion", "messages", "alpaca")


def _fraction(_context: click.Context, _parameter: click.Parameter, word: str | None) -> Any:
    if word is None:
        return None
    try:
        value = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not (0 <= value < 1 or (value.is_integer() and 1 <= value < 1e15 and "%" not in word)):
        raise click.BadParameter(
            f"{word!r} is neither a number of examples nor a fraction: use 500 or 0.05"
        )
    return value


def _pairs(_context: click.Context, parameter: click.Parameter, words: Sequence[str]) -> Any:
    pairs: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not (name and value) or name in pairs:
            raise click.BadParameter(f"{word!r} is not {parameter.metavar}, once for each name")
        pairs[name] = value
    return pairs


@click.command("prepare")
@click.argument("data", nargs=-1, metavar="[DATA]...")
@click.option(
    "--model",
    metavar="DIR",
    help="Model whose tokenizer is used. Default: the config's.",
)
@click.option("--to", metavar="DIR", help="Output directory. Default: dataset_name in the config.")
@click.option(
    "--form",
    type=click.Choice(_FORMS),
    help="Dataset format. Default: detected from the columns.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    callback=_pairs,
    metavar="ROLE=NAME",
    help="Column of a role (text, prompt, completion, messages ...).",
)
@click.option(
    "--loss-on",
    type=click.Choice(("all", "completion", "assistant")),
    help="Tokens to train on. Default: the form's.",
)
@click.option(
    "--max-length",
    type=click.IntRange(2),
    metavar="N",
    help="Tokens of an example, and of a packed sequence. Default: the config's.",
)
@click.option(
    "--truncation",
    type=click.Choice(("keep_start", "drop")),
    default="keep_start",
    show_default=True,
    help="How longer examples are truncated.",
)
@click.option(
    "--pack/--no-pack",
    default=None,
    help="Pack several examples into one sequence. Default: --pack.",
)
@click.option(
    "--validation",
    callback=_fraction,
    metavar="X",
    help="Validation split: 500 examples, a fraction 0.05, or 0. Default: 0.05, at most 2000.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed of the validation split, and of the order of packed sequences.",
)
@click.option("--template", metavar="FILE", help="Chat template. Default: the tokenizer's.")
@click.option(
    "--template-option",
    "template_options",
    multiple=True,
    callback=_pairs,
    metavar="NAME=VALUE",
    help="Variable of the template.",
)
@click.option("--system", metavar="TEXT", help="System prompt for conversations without one.")
@click.option(
    "--as-chat",
    is_flag=True,
    help="Turn prompt and completion strings into a conversation.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Number of processes. Default: one for each core.",
)
@click.option(
    "--show",
    type=click.IntRange(1),
    metavar="N",
    help="Print N examples with unmasked tokens marked; write nothing.",
)
@click.option("--force", is_flag=True, help="Overwrite a dataset that prepare wrote at --to.")
@click.option(
    "--config",
    metavar="FILE",
    help="Job config to take defaults from. Default: ./config.yaml, if there is one.",
)
@json_option
@click.option(
    "--demo",
    metavar="DIR",
    help=(
        "Make DIR with a small model, data from the standard library's docstrings, and a job"
        " config."
    ),
)
def command(
    demo: str | None, data: tuple[str, ...], show: int | None, as_json: bool, **options: Any
) -> None:
    """Tokenize, mask and pack a dataset.

    Run it once, on the login node; a training only loads the result. DATA are files (JSONL, JSON,
    CSV, Parquet, text), directories of them, or directories of `save_to_disk`.
    The same command continues after an interruption. With --show, DATA may also be a prepared
    dataset. --demo makes model, data and job config from Python's own sources. stdout is the
    directory.

    \b
    hpctrain prepare chats.jsonl --model models/my_model --show 3
    hpctrain prepare chats.jsonl --model models/my_model --to data/chats
    """  # noqa: D301 - \b keeps click from wrapping
    if demo is not None:
        _make_demo(demo, data)
    elif show is not None:
        _show(data, options, count=show, as_json=as_json)
    else:
        _run(data, options, as_json=as_json)
