"""The implementation of `hpctrain prepare`."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml
from rich.console import Console
from rich.progress import Progress

from hpctrain.cli.output import WIDTH, print_json, say
from hpctrain.config import layers
from hpctrain.data import show as drawing
from hpctrain.data.encode import FastTokenizer, load_libraries
from hpctrain.data.manifest import (
    DatasetManifest,
    Split,
    read_manifest,
    tokenizer_fingerprint,
)
from hpctrain.data.request import PrepareRequest, resolve
from hpctrain.data.show import ShownExample
from hpctrain.errors import UsageError
from hpctrain.jobs import script_files
from hpctrain.terminal import raw
from hpctrain.util import shell, stored, text

if TYPE_CHECKING:
    from hpctrain.data.pipeline import PrepareSummary
    from hpctrain.data.pipeline import Progress as ProgressCallback

DEFAULT_LENGTH = 4096
"""Sequence length in tokens if neither the options nor the config set it; less if the model has
fewer positions.
"""
_SHOWN_DROPPED = 3
_FEW_TRAINED = 0.05
"""Below this fraction of unmasked tokens, a wrong mask is more likely than short answers."""


def _load_libraries() -> None:
    # A program that calls this may need torch.
    load_libraries(without_torch=Path(sys.argv[0]).name == "hpctrain")


def run(data: Sequence[str], options: Mapping[str, Any], *, as_json: bool) -> None:
    """Write the dataset; `options` are the command's parameters by name."""
    _load_libraries()
    from hpctrain.data import pipeline

    with _progress() as progress:
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
    for line in summary_lines(summary):
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


def make_demo(demo: str, data: Sequence[str]) -> None:
    """Make a demo with its own data.

    Raises:
        UsageError: DATA was given.
    """
    if data:
        fix = f"hpctrain prepare --demo {shell.quote(demo)}"
        raise UsageError("--demo makes its own data, and DATA was given", fix=fix)
    # Only this command needs the training libraries.
    from hpctrain.training import demo as maker

    say("reading docstrings, training a tokenizer (about 15 s)")
    summary = maker.make_demo(Path(demo))
    config = summary.directory / "config.yaml"
    job: dict[str, Any] = {
        "job_name": "sft",
        "resources": {"nodes": 1, "gpus_per_node": 1, "time": "00:30:00", "cpus_per_task": 2},
    }
    if sys.prefix != sys.base_prefix:
        job["environment"] = {"venv": sys.prefix}
    job["training"] = {
        "model_name_or_path": "model",
        "dataset_name": "dataset",
        **maker.DEMO_TRAINING,
    }
    head = "# The demo's job config, made by `hpctrain prepare --demo`. Options override it.\n"
    written = head + yaml.safe_dump(job, sort_keys=False)
    script_files.write_file(config, written, fix=f"df -h {shell.quote(summary.directory)}")
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
    """Return the request of these options; print the origin of each default.

    Args:
        data: the DATA arguments.
        options: the command's parameters by name.
        show: nothing will be written, so no target is needed.

    Raises:
        UsageError: something is missing.
    """
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
        length = min(DEFAULT_LENGTH, _positions(tokenizer))
        _say(f"examples of at most {length} tokens (--max-length N)")
    pack = options["pack"]
    if pack is None:
        pack = str(_configured(config, "packing")).lower() not in ("false", "no")
    if not show:
        _say(
            f"packed into sequences of {length} tokens (or: --no-pack)"
            if pack
            else "one example in a sequence, not packed (or: --pack)"
        )
    template = options["template"]
    return PrepareRequest(
        paths=tuple(map(Path, data)),
        target=Path(target),
        tokenizer=tokenizer,
        tokenizer_name=str(model),
        form=options["form"],
        columns=options["columns"],
        max_length=length,
        template=Path(template) if template else None,
        template_options={name: _value(word) for name, word in options["template_options"].items()},
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
        what = f"--model {name} is a file; a model is a directory"
        raise UsageError(what, hint=f"use --model {shell.quote(folder.parent)}")
    download = f"hf download {shell.quote(name)} --local-dir models/{folder.name}"
    raise UsageError(
        f"the model directory '{name}' does not exist",
        hint=f"for a model on the hub: {download}",
    )


def _configured(config: str | None, name: str) -> Any:
    stacked = layers.gather(
        options={}, sbatch=(), config=config, directory=Path.cwd(), environment=os.environ
    )
    path = ("training", name)
    value = layers.written(stacked, path)
    if value is not None:
        origins = (layer.origins.get(path) for layer in stacked)
        _say(f"{name} {value}, from {next(filter(None, origins), 'the config')}")
    return value


def _positions(folder: Path) -> int:
    config = stored.read_object(folder / "config.json") or {}
    config = config.get("text_config") or config
    positions = config.get("max_position_embeddings") or config.get("n_positions")
    return max(2, positions) if isinstance(positions, int) else DEFAULT_LENGTH


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


# -- progress --------------------------------------------------------------------------------------


@contextmanager
def _progress() -> Iterator[ProgressCallback]:
    """Yield a progress callback: a bar on a terminal, else a line for each tenth."""
    shown: set[tuple[str, int]] = set()
    tasks: dict[str, Any] = {}
    is_terminal = sys.stderr.isatty()
    with Progress(
        console=Console(file=raw(sys.stderr)), transient=True, disable=not is_terminal
    ) as bar:

        def move(stage: str, done: int, total: int) -> None:
            tenth = stage, 10 * done // max(1, total)
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage)
            bar.update(tasks[stage], completed=done, total=total)
            if not is_terminal and tenth not in shown:
                shown.add(tenth)
                say(f"{stage}: {10 * tenth[1]} %")

        yield move


def _say(sentence: str) -> None:
    say("\n".join(text.wrap(sentence, WIDTH, hanging="  ")))


# -- the summary -----------------------------------------------------------------------------------


def summary_lines(summary: PrepareSummary) -> Iterator[str]:
    """Yield the summary of the dataset, in at most 80 columns unless the data itself is longer."""
    made = summary.manifest
    if summary.already_there:
        yield f"{summary.folder} was prepared by the same command before: nothing to do"
    for name, split in made.splits.items():
        yield from _split_lines(name, split, made)
    if made.truncated:
        yield f"truncated at {made.max_length} tokens: {text.count(made.truncated, 'example')}"
    if made.context_turns:
        turns = text.count(made.context_turns, "turn")
        yield f"masked, because the template rewrites them: {turns}"
    if made.dropped:
        yield f"dropped: {sum(made.dropped.values()):,} of {text.count(made.rows, 'example')}"
        for reason, count in Counter(made.dropped).most_common():
            yield f"  {count:,} x {reason}"
            if first := made.dropped_first.get(reason):
                yield f"    first: {first[:200]}"
    if not summary.already_there:
        yield f"{text.duration(summary.seconds)} with {text.count(summary.workers, 'worker')}"


def _split_lines(name: str, split: Split, made: DatasetManifest) -> Iterator[str]:
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
            f"  the longest has {text.count(split.longest, 'token')}; padding of random batches of"
            f" 8: {split.padded - 1:.0%}"
        )
    if unmasked < _FEW_TRAINED:
        yield f"warning: only {unmasked:.1%} of the tokens in {name} are unmasked"
        yield "  is the mask right? look at examples with --show, or set --loss-on"


# -- examples --------------------------------------------------------------------------------------


def show(data: Sequence[str], options: Mapping[str, Any], *, count: int, as_json: bool) -> None:
    """Print examples: raw data encoded as a prepare with the same options would, or the sequences
    of a prepared directory, with packed ones split.

    Raises:
        UsageError: there is nothing to show, or a model is missing.
    """
    _load_libraries()
    if len(data) == 1 and _is_tokenised(Path(data[0])):
        tokenizer = _tokenizer_of(Path(data[0]), options)
        examples = drawing.of_dataset(Path(data[0]), count)
    else:
        resolved = resolve(_request(data, {**options, "pack": False}, show=True))
        for note in resolved.notes:
            _say(note)
        tokenizer = resolved.encoder.tokenizer
        examples, dropped = drawing.of_raw_data(resolved, count)
        reasons = Counter(each.reason for each in dropped)
        for reason, number in reasons.items():
            for each in [one for one in dropped if one.reason == reason][:_SHOWN_DROPPED]:
                _say(f"dropped: {each.where}: {reason}{each.detail and f' ({each.detail})'}")
            if number > _SHOWN_DROPPED:
                more = number - _SHOWN_DROPPED
                _say(f"dropped: {more} more examples like this: {reason}")
    if as_json:
        print_json(examples=[_document(tokenizer, example) for example in examples])
        return
    for example in examples:
        click.echo(f"{example.where}:")
        for line in drawing.lines(tokenizer, example.ids, example.labels):
            click.echo(line)
        click.echo()


def _is_tokenised(folder: Path) -> bool:
    splits = (stored.read_object(folder / "dataset_dict.json") or {}).get("splits")
    if not isinstance(splits, list) or not splits:
        return False
    info = stored.read_object(folder / str(splits[0]) / "dataset_info.json") or {}
    return "input_ids" in (info.get("features") or {})


def _tokenizer_of(folder: Path, options: Mapping[str, Any]) -> Any:
    made = read_manifest(folder)
    name = options["model"] or (made.tokenizer_name if made else None)
    if name is None:
        raise UsageError(f"{folder} does not say which tokenizer made it", hint="use --model DIR")
    model = _model_directory(str(name))
    if made is not None and tokenizer_fingerprint(model) != made.tokenizer:
        _say(
            f"warning: {folder} was not made with the tokenizer of {model}: the text below is not the"
            " original"
        )
    return FastTokenizer(str(model)).tokenizer


def _document(tokenizer: Any, example: ShownExample) -> dict[str, Any]:
    return {
        "where": example.where,
        "input_ids": list(example.ids),
        "labels": list(example.labels),
        "text": tokenizer.decode(list(example.ids)),
        "trained_text": tokenizer.decode([label for label in example.labels if label != -100]),
    }
