"""`hpctrain prepare --show N`: examples as they are, or would be, trained on. Writes nothing.

Examples drawn by --seed from all over the data: of raw data encoded as a prepare with the same options would, of a folder that was
prepared as they are stored, a packed row taken apart.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpctrain.cli import prepare_asked, prepare_hub, prepare_progress
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell

if TYPE_CHECKING:
    from hpctrain.preparation.rows import Dropped
    from hpctrain.preparation.sampling import Example

_WIDEST = 120
_DROPPED_SAID = 3


def show(data: Sequence[str], options: Mapping[str, Any], *, count: int, as_json: bool) -> None:
    """Print examples.

    Raises:
        UsageError: there is nothing to show, or a model is missing.
    """
    if len(data) == 1 and (Path(data[0]) / "dataset_dict.json").is_file() and _is_tokenised(Path(data[0])):
        tokenizer, examples = _stored(Path(data[0]), options, count)
    else:
        tokenizer, examples = _raw(data, options, count)
    if as_json:
        click.echo(json.dumps({"schema": 1, "examples": [_document(tokenizer, example) for example in examples]}, ensure_ascii=False))
        return
    from hpctrain.preparation import show as drawing

    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = min(_WIDEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 80
    for example in examples:
        click.echo(f"{example.where}:")
        for line in drawing.lines(tokenizer, example.ids, example.labels, colour=colour, width=width):
            click.echo(line, color=colour)
        click.echo()


def _document(tokenizer: Any, example: Example) -> dict[str, Any]:
    return {
        "where": example.where,
        "input_ids": list(example.ids),
        "labels": list(example.labels),
        "text": tokenizer.decode(list(example.ids)),
        "trained_text": tokenizer.decode([label for label in example.labels if label != -100]),
    }


# -- raw data ------------------------------------------------------------------------------------------------------------


def _raw(data: Sequence[str], options: Mapping[str, Any], count: int) -> tuple[Any, list[Example]]:
    from hpctrain.preparation import request as requests
    from hpctrain.preparation import sampling
    from hpctrain.preparation.rows import Dropped

    asked = prepare_asked.request(data, {**options, "pack": False}, say=_say, show=True)
    meaning = requests.understand(asked)
    for note in meaning.notes:
        _say(note)
    found: list[tuple[sampling.Place, sampling.Example]] = []
    dropped: list[Dropped] = []
    tried = 0
    for place, row in sampling.rows(meaning.sources, target_bytes=meaning.target_bytes, count=count, seed=asked.seed):
        tried += 1
        for each in [row] if isinstance(row, Dropped) else meaning.encoder.encode([row]):
            if isinstance(each, Dropped):
                dropped.append(each)
            else:
                labels = each.labels()
                labels[0] = -100  # nothing before it could predict it; so it is stored too
                found.append((place, sampling.Example(each.where, each.input_ids, labels)))
        if len(found) >= count:
            break
    _say_dropped(dropped)
    if not found:
        raise HpctrainError(f"none of {tried} rows gives an example", fix="--form and --column ROLE=NAME")
    return meaning.encoder.tokenizer, [example for _, example in sorted(found[:count], key=itemgetter(0))]


def _say_dropped(dropped: Sequence[Dropped]) -> None:
    """Say of each reason how often it was met, and the first rows of it."""
    reasons = Counter(each.reason for each in dropped)
    for reason, count in reasons.items():
        for each in [each for each in dropped if each.reason == reason][:_DROPPED_SAID]:
            _say(f"dropped: {each.where}: {reason}" + (f" ({each.detail})" if each.detail else ""))
        if count > _DROPPED_SAID:
            _say(f"dropped: {count - _DROPPED_SAID} more rows like this: {reason}")


def _say(sentence: str) -> None:
    prepare_progress.Lines().say(sentence)


# -- what is stored ------------------------------------------------------------------------------------------------------


def _is_tokenised(folder: Path) -> bool:
    return "input_ids" in _columns(folder)


def _columns(folder: Path) -> list[str]:
    for split in _splits(folder):
        try:
            info = json.loads((folder / split / "dataset_info.json").read_text(encoding="utf-8"))
            return list(info["features"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return []


def _splits(folder: Path) -> list[str]:
    try:
        splits = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [str(split) for split in splits] if isinstance(splits, list) else []


def _stored(folder: Path, options: Mapping[str, Any], count: int) -> tuple[Any, list[Example]]:
    from hpctrain.preparation import manifest, sampling
    from hpctrain.preparation.encode_tokenizer import Tokenizer
    from hpctrain.preparation.fingerprint import tokenizer_fingerprint

    made = manifest.read(folder)
    name = options["model"] or (made.tokenizer_name if made else None)
    if name is None:
        raise UsageError(f"{folder} does not say which tokenizer made it", fix="--model FOLDER")
    model = prepare_hub.model_folder(str(name), say=_say)
    if made is not None and tokenizer_fingerprint(model) != made.tokenizer:
        _say(f"warning: {folder} was not made with the tokenizer of {model}: the text below is not what was read")
    found = sampling.stored(folder, _splits(folder), count, seed=options["seed"])
    if not found:
        raise HpctrainError(f"{folder} holds no example", fix=f"ls {shell.quote(folder)}")
    return Tokenizer(str(model), trust_remote_code=options["trust_remote_code"]).tokenizer, found
