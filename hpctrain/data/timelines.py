"""Prepares timelines for a classifier: sequences of events with a label in, a dataset of event ids
with its vocabulary out.

    python -m hpctrain.data.timelines visits.jsonl --to dataset --group patient
    python -m hpctrain.data.timelines --help

An example has `events`, a list of strings or numbers (in CSV one string, separated by spaces), and
`label`: a string, an integer, a list of 0 and 1, or a decimal number. The result is a dataset for
`datasets.load_from_disk`: splits train and test with input_ids and label, vocabulary.json, and
hpctrain.json, the manifest. Files are read twice, example by example; memory contains only the
vocabulary and one block.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from hpctrain import __version__
from hpctrain.data import readers, sources
from hpctrain.data.manifest import NAME as MANIFEST
from hpctrain.data.manifest import DatasetManifest, Split, histogram
from hpctrain.data.readers import Dropped
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.util import files, installed, shell
from hpctrain.util.text import is_number

PAD, UNKNOWN = "<pad>", "<unk>"
VOCABULARY = "vocabulary.json"
_PATH = click.Path(path_type=Path)
#: Label kinds by type; the same for all rows of a dataset. Any other type is an integer.
_KINDS = {list: "list", str: "string", float: "fraction"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRequest:
    """The options of one run.

    Attributes:
        files: JSONL, CSV or Parquet, by suffix.
        to: the directory to create; it must not exist.
        events, label: column names.
        group: column whose equal values stay in one split, such as the patient; None: rows are
            independent.
        held_out: the fraction of rows (or groups) in the test split, from 0 to below 1.
        seed: of the split.
        least: events that are rarer in the training rows become `<unk>`.
        vocabulary: the vocabulary.json of an earlier dataset to reuse; None: create a new one.
    """

    files: tuple[Path, ...]
    to: Path
    events: str = "events"
    label: str = "label"
    group: str | None = None
    held_out: float = 0.1
    seed: int = 0
    least: int = 1
    vocabulary: Path | None = None


class TimelineRow(NamedTuple):
    """One row.

    Attributes:
        where: `FILE:LINE`; for Parquet the row number, from 1.
        split: `train` or `test`: random, and the same for all rows of a group.
        events: strings or integers; may be empty.
        label: a string, a number, a list of 0 and 1; None if missing.
    """

    where: str
    split: str
    events: list[Any]
    label: Any


class TimelineCounts(NamedTuple):
    """The counts of the first pass; lengths are of the rows of each split."""

    lengths: dict[str, Counter[int]]
    events: Counter[Any]
    labels: set[str]
    dropped: Counter[str]


def prepare(request: TimelineRequest) -> DatasetManifest:
    """Create the dataset; it appears in place only when complete.

    Raises:
        UsageError: a file or a column is missing, a row is not a timeline, or the directory exists.
        HpctrainError: `datasets` is not installed.
        OSError: the directory cannot be written.
    """
    try:
        import datasets
    except ImportError as error:
        raise HpctrainError(
            f"cannot import {error.name}", fix=installed.command("train")
        ) from error
    datasets.disable_progress_bars()
    if request.to.exists():
        raise UsageError(f"{request.to} exists", hint="use another directory for --to")
    known = None if request.vocabulary is None else files.read_json(request.vocabulary) or {}
    if known is not None and not {PAD, UNKNOWN} <= set(known):
        raise UsageError(
            f"{request.vocabulary} is not a vocabulary: it must have the id of each event, {PAD} and"
            f" {UNKNOWN}",
            fix=f"head {shell.quote(request.vocabulary or '')}",
        )
    counted = _count(request)
    if all(isinstance(event, int) for event in counted.events):  # they are their own ids
        numbers, highest = None, max(counted.events)
        pad = 0 if min(counted.events) else highest + 1
        size = max(highest, pad) + 1
        text = f"numbers below {size}"
    else:
        frequent = sorted(counted.events, key=lambda event: (-counted.events[event], event))
        kept = [event for event in frequent if counted.events[event] >= request.least]
        new = enumerate(dict.fromkeys([PAD, UNKNOWN, *kept]))
        numbers = known or {name: number for number, name in new}
        pad, size = numbers[PAD], max(numbers.values()) + 1
        text = json.dumps(numbers, sort_keys=True, ensure_ascii=False)
    columns = {"events": request.events, "label": request.label, "group": request.group}
    manifest = DatasetManifest(
        sources=tuple(
            {"path": str(file), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
            for file, stat in ((file, file.stat()) for file in request.files)
        ),
        form="classes",
        columns={role: name for role, name in columns.items() if name is not None},
        loss_on="label",
        tokenizer=hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest(),
        tokenizer_name=str(request.vocabulary or VOCABULARY),
        template=None,
        vocabulary=size,
        max_length=None,
        packed=False,
        splits={split: _split(lengths) for split, lengths in counted.lengths.items() if lengths},
        dropped=dict(counted.dropped),
        seed=request.seed,
        labels=tuple(sorted(counted.labels)),
        settings={"pad_token_id": pad, "held_out": request.held_out, "min_count": request.least},
        version=__version__,
    )
    parent = request.to.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{request.to.name}.", dir=parent) as draft:
        whole = Path(draft, "dataset")
        splits, digest = {}, hashlib.sha256()
        for split in manifest.splits:
            splits[split] = datasets.Dataset.from_generator(
                _examples,
                gen_kwargs={"request": request, "split": split, "numbers": numbers},
                cache_dir=f"{draft}/cache",
                split=split,
            )
        datasets.DatasetDict(splits).save_to_disk(str(whole))
        for file in sorted(whole.rglob("*.arrow")):
            digest.update(file.read_bytes())
        if numbers is not None:
            vocabulary = json.dumps(numbers, ensure_ascii=False, indent=0) + "\n"
            files.write_text(whole / VOCABULARY, vocabulary)
        manifest = replace(manifest, digest=digest.hexdigest())
        files.write_text(whole / MANIFEST, manifest.to_json())
        whole.rename(request.to)
    return manifest


def _count(request: TimelineRequest) -> TimelineCounts:
    found = TimelineCounts({"train": Counter(), "test": Counter()}, Counter(), set(), Counter())
    kinds, types = set[str](), set[type]()
    for where, split, events, label in _rows(request):
        if not events or label is None:
            found.dropped["no label" if events else "no events"] += 1
            continue
        kinds.add(_KINDS.get(type(label), "whole"))
        if len(kinds) > 1 and kinds != {"whole", "fraction"}:
            raise UsageError(f"{where}: labels are of several kinds: {label!r}")
        types |= set(map(type, events))
        if len(types) > 1:
            raise UsageError(f"{where}: events are strings in some rows and numbers in others")
        found.lengths[split][len(events)] += 1
        found.labels.update([label] if isinstance(label, str) else [])
        if split == "train" or int in types:
            found.events.update(events)  # the vocabulary must not depend on the validation split
    if not found.lengths["train"]:
        raise UsageError(
            "no rows are left for training",
            details=tuple(f"{count} rows: {why}" for why, count in found.dropped.items()),
            hint="use --held-out 0.1, --events COLUMN or --label COLUMN",
        )
    return found


def _examples(
    request: TimelineRequest, split: str, numbers: Mapping[str, int] | None
) -> Iterator[dict[str, Any]]:
    for row in _rows(request):
        if row.events and row.label is not None and row.split == split:
            ids = row.events
            if numbers is not None:
                ids = [numbers.get(event, numbers[UNKNOWN]) for event in ids]
            yield {"input_ids": ids, "label": row.label}


def _rows(request: TimelineRequest) -> Iterator[TimelineRow]:
    needed = [request.events, request.label, *([request.group] if request.group else [])]
    for source in sources.find(request.files):
        for row in readers.read_rows(readers.SourcePiece(source=source)):
            where = row.where.replace(":row ", ":")
            if isinstance(row, Dropped):
                raise UsageError(f"{where}: {row.reason}: {row.detail}")
            if absent := [name for name in needed if name not in row]:
                raise UsageError(
                    f"{where} has no {' and no '.join(absent)}; it has {', '.join(row)}",
                    hint="use --events COLUMN --label COLUMN"
                    + (" --group COLUMN" if request.group else ""),
                )
            label = row[request.label]
            if source.kind in ("csv", "tsv"):
                label = str(label).strip() or None
                label = int(label) if label and is_number(label.lstrip("-")) else label
            elif isinstance(label, bool):
                label = int(label)
            events = _events(row[request.events], where)
            key = f"{request.seed}:{row[request.group] if request.group is not None else where}"
            drawn = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
            held_out = int.from_bytes(drawn[:8], "big") / 2**64 < request.held_out
            yield TimelineRow(where, "test" if held_out else "train", events, label)


def _events(value: Any, where: str) -> list[Any]:
    found = value.split() if isinstance(value, str) else value or []
    if not isinstance(found, list):
        raise UsageError(f"{where}: events are {type(found).__name__}, and must be a list")
    for event in found:
        if not isinstance(event, str) and not (type(event) is int and event >= 0):
            raise UsageError(
                f"{where}: an event must be a string or a whole number from 0, got {event!r}"
            )
    return found


def _split(lengths: Counter[int]) -> Split:
    rows, tokens = lengths.total(), sum(size * count for size, count in lengths.items())
    return Split(
        rows=rows,
        examples=rows,
        tokens=tokens,
        trained=tokens,
        longest=max(lengths),
        histogram=histogram(lengths),
    )


# -- the command -----------------------------------------------------------------------------------


@click.command()
@click.argument("files", nargs=-1, required=True, type=_PATH, metavar="FILE...")
@click.option("--to", required=True, type=_PATH, metavar="DIR", help="Output directory.")
@click.option("--events", default="events", metavar="COLUMN", help="Default: events.")
@click.option("--label", default="label", metavar="COLUMN", help="Default: label.")
@click.option(
    "--group",
    metavar="COLUMN",
    help="Column whose equal values stay in one split, such as the patient.",
)
@click.option(
    "--held-out",
    type=float,
    default=0.1,
    metavar="FRACTION",
    help="Fraction of the rows in the split test. Default: 0.1.",
)
@click.option("--seed", type=int, default=0, metavar="N", help="Of the split. Default: 0.")
@click.option(
    "--min-count", "least", type=int, default=1, metavar="N", help="Rarer events become <unk>."
)
@click.option(
    "--vocabulary",
    type=_PATH,
    metavar="FILE",
    help="vocabulary.json of an earlier dataset whose ids are used.",
)
def main(**asked: Any) -> None:
    """Make a dataset of timelines from JSONL, CSV or Parquet.

    A summary is printed to stderr, and the directory to stdout.
    """
    request = TimelineRequest(**asked)
    try:
        made = prepare(request)
    except HpctrainError as error:
        click.echo(error.render(), err=True)
        sys.exit(error.exit_code)
    lines = [
        f"{name}: {split.rows:,} rows, {split.tokens:,} events, the longest row {split.longest}"
        for name, split in made.splits.items()
    ]
    lines.append(f"{made.vocabulary:,} event ids, padding {made.settings['pad_token_id']}")
    lines += [f"classes: {', '.join(made.labels)}"] if made.labels else []
    lines += [f"dropped: {count:,} rows with {why}" for why, count in made.dropped.items()]
    click.echo("\n".join(lines), err=True)
    click.echo(request.to)


if __name__ == "__main__":
    # `datasets` pickles a generator's globals: all of __main__, but only the name of a module.
    from hpctrain.data.timelines import main as _main

    _main(prog_name="python -m hpctrain.data.timelines")
