"""`hpctrain prepare --show N`: examples as they are, or would be, trained on. Writes nothing.

Of raw data the first rows that give an example, encoded as a prepare with the same options would; of a folder that was prepared the
first of its stored examples, a packed row taken apart.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hpctrain.cli import prepare_asked, prepare_hub, prepare_progress
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell

_WIDEST = 120


@dataclass(frozen=True, slots=True)
class _Example:
    """One example: where it is, its tokens, and the labels."""

    where: str
    ids: Sequence[int]
    labels: Sequence[int]


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


def _document(tokenizer: Any, example: _Example) -> dict[str, Any]:
    return {
        "where": example.where,
        "input_ids": list(example.ids),
        "labels": list(example.labels),
        "text": tokenizer.decode(list(example.ids)),
        "trained_text": tokenizer.decode([label for label in example.labels if label != -100]),
    }


# -- raw data ------------------------------------------------------------------------------------------------------------


def _raw(data: Sequence[str], options: Mapping[str, Any], count: int) -> tuple[Any, list[_Example]]:
    from hpctrain.preparation import request as requests
    from hpctrain.preparation.rows import Dropped

    asked = prepare_asked.request(data, {**options, "pack": False}, say=_say, show=True)
    meaning = requests.understand(asked)
    for note in meaning.notes:
        _say(note)
    found: list[_Example] = []
    dropped: list[Dropped] = []
    for row in meaning.rows:
        for each in meaning.encoder.encode([row]):
            if isinstance(each, Dropped):
                dropped.append(each)
            else:
                labels = each.labels()
                labels[0] = -100  # nothing before it could predict it; so it is stored too
                found.append(_Example(each.where, each.input_ids, labels))
        if len(found) >= count:
            break
    for each in dropped:
        _say(f"dropped: {each.where}: {each.reason}" + (f" ({each.detail})" if each.detail else ""))
    if not found:
        raise HpctrainError(f"none of the first {len(meaning.rows)} rows gives an example", fix="--form and --column ROLE=NAME")
    return meaning.encoder.tokenizer, found[:count]


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


def _stored(folder: Path, options: Mapping[str, Any], count: int) -> tuple[Any, list[_Example]]:
    from hpctrain.preparation import manifest
    from hpctrain.preparation.encode_tokenizer import Tokenizer
    from hpctrain.preparation.fingerprint import tokenizer_fingerprint

    made = manifest.read(folder)
    name = options["model"] or (made.tokenizer_name if made else None)
    if name is None:
        raise UsageError(f"{folder} does not say which tokenizer made it", fix="--model FOLDER")
    model = prepare_hub.model_folder(str(name), say=_say)
    if made is not None and tokenizer_fingerprint(model) != made.tokenizer:
        _say(f"warning: {folder} was not made with the tokenizer of {model}: the text below is not what was read")
    found: list[_Example] = []
    for example in _examples(folder):
        found.append(example)
        if len(found) >= count:
            break
    if not found:
        raise HpctrainError(f"{folder} holds no example", fix=f"ls {shell.quote(folder)}")
    return Tokenizer(str(model), trust_remote_code=options["trust_remote_code"]).tokenizer, found


def _examples(folder: Path) -> Iterator[_Example]:
    import pyarrow as pa

    for split in _splits(folder):
        row = 0
        for path in sorted((folder / split).glob("*.arrow")):
            try:
                with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
                    for batch in reader:
                        yield from _of_batch(batch, split, row)
                        row += batch.num_rows
            except pa.ArrowInvalid as error:
                raise HpctrainError(f"{path} cannot be read: {error}", fix=f"ls -l {shell.quote(path)}") from error


def _of_batch(batch: Any, split: str, first: int) -> Iterator[_Example]:
    names = batch.schema.names
    for number in range(batch.num_rows):
        ids = batch["input_ids"][number].as_py()
        labels = batch["labels"][number].as_py() if "labels" in names else ids
        sizes = batch["seq_lengths"][number].as_py() if "seq_lengths" in names else [len(ids)]
        start = 0
        for place, size in enumerate(sizes):
            where = f"{split}[{first + number}]" + (f", example {place + 1} of {len(sizes)}" if len(sizes) > 1 else "")
            yield _Example(where, ids[start : start + size], labels[start : start + size])
            start += size
