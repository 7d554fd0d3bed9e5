"""Timelines made ready for training a classifier: rows of events and a label in, a dataset of numbers out, with its vocabulary.

    python -m hpctrain.preparation.timelines visits.jsonl --to dataset --group patient
    python -m hpctrain.preparation.timelines --help

A row has `events`, a list of strings or of numbers (in CSV one string, its events between spaces), and `label`: a string, a whole number,
a list of 0 and 1, or a number with a fraction. Written is what `datasets.load_from_disk` reads: the splits train and test with input_ids
and label, vocabulary.json, and hpctrain.json, the manifest. Files are read twice, row by row; memory holds the vocabulary and one block.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpctrain import __version__, installed
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell
from hpctrain.preparation import manifest
from hpctrain.preparation.timelines_rows import read_rows

PAD, UNKNOWN = "<pad>", "<unk>"
VOCABULARY = "vocabulary.json"
_MARGINS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for.

    Attributes:
        files: JSONL, CSV or Parquet, by their names' ends.
        to: the folder to make; it must not be there.
        events, label: names of columns.
        group: the column whose equal values stay in one split, such as the patient's; None: each row goes by itself.
        held_out: the fraction of rows (or groups) in the split test, 0 to below 1.
        seed: of the split.
        least: an event that is rarer in the training rows becomes `<unk>`.
        most: events of a row at most: the last ones; None: all.
        padded: write rows of one length, padded on the right, with attention_mask.
        vocabulary: the vocabulary.json of an earlier dataset, whose numbers are taken; None: a new one.
    """

    files: tuple[Path, ...]
    to: Path
    events: str = "events"
    label: str = "label"
    group: str | None = None
    held_out: float = 0.1
    seed: int = 0
    least: int = 1
    most: int | None = None
    padded: bool = False
    vocabulary: Path | None = None


@dataclass(slots=True)
class Counted:
    """What the first reading finds."""

    events: Counter[str] = field(default_factory=Counter)
    numbers: bool | None = None
    highest: int = -1
    zero: bool = False
    labels: Counter[str] = field(default_factory=Counter)
    longest: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    longest_of: dict[str, int] = field(default_factory=dict)
    lengths: dict[str, Counter[int]] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)


def prepare(request: Request) -> manifest.Manifest:
    """Make the dataset; nothing is at its place before it is whole.

    Raises:
        UsageError: a file or a column is missing, a row is no timeline, or the folder is there already.
        HpctrainError: `datasets` is not installed.
        OSError: the folder cannot be written.
    """
    try:
        import datasets
    except ImportError as error:
        raise HpctrainError(f"cannot import {error.name}", fix=installed.command("train")) from error
    datasets.disable_progress_bars()
    _check(request)
    known = _read_vocabulary(request.vocabulary) if request.vocabulary is not None else None
    counted = _count(request)
    numbers, pad = _numbers(request, counted, known)
    request.to.absolute().parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{request.to.name}.", dir=request.to.absolute().parent))
    try:
        whole = draft / "dataset"
        splits, digest = {}, hashlib.sha256()
        for split in ("train", "test"):
            if counted.rows[split]:
                plan = {"request": request, "split": split, "numbers": numbers, "pad": pad, "longest": counted.longest}
                splits[split] = datasets.Dataset.from_generator(_rows_of, gen_kwargs=plan, cache_dir=str(draft / "cache"), split=split)
        datasets.DatasetDict(splits).save_to_disk(str(whole))
        for file in sorted(whole.rglob("*.arrow")):
            digest.update(file.read_bytes())
        made = _manifest(request, counted, numbers, pad, digest.hexdigest())
        if numbers is not None:
            (whole / VOCABULARY).write_text(json.dumps(numbers, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
        (whole / manifest.NAME).write_text(made.to_json(), encoding="utf-8")
        whole.rename(request.to)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return made


def _check(request: Request) -> None:
    said: list[tuple[str, str]] = []
    if request.to.exists():
        said.append((f"{request.to} is there already", "--to ANOTHER_FOLDER"))
    if not 0 <= request.held_out < 1:
        said.append((f"the held-out part must be at least 0 and below 1, not {request.held_out:g}", "--held-out 0.1"))
    said += [(f"there is no file {file}", f"ls {file.parent}") for file in request.files if not file.is_file()]
    if said:
        what = said[0][0] if len(said) == 1 else f"{len(said)} problems"
        raise UsageError(what, details=tuple(each for each, _ in said) if len(said) > 1 else (), fix="; ".join(fix for _, fix in said))


# -- the first reading -------------------------------------------------------------------------------------------------


def _count(request: Request) -> Counted:
    found, kinds = Counted(), Counter[str]()
    for row in _all_rows(request):
        events = row.events
        if not events:
            found.dropped["no events"] += 1
            continue
        if row.label is None:
            found.dropped["no label"] += 1
            continue
        kinds[_kind(row.label)] += 1
        if len(kinds) > 1 and set(kinds) != {"whole", "fraction"}:
            raise UsageError(f"labels are of several kinds: {row.label!r} in {row.where}", fix=f"--label COLUMN, of one kind; {_show(row)}")
        numbers = isinstance(events[0], int)
        if found.numbers is None:
            found.numbers = numbers
        if numbers != found.numbers or any(isinstance(event, int) != numbers for event in events):
            raise UsageError(f"events are strings in some rows and numbers in others: {row.where}", fix=_show(row))
        events = events[-request.most :] if request.most else events
        _note(found, _split(request, row), events, row.label)
    if not found.rows["train"]:
        details = tuple(f"{count} rows: {why}" for why, count in found.dropped.items())
        raise UsageError("no rows are left for training", details=details, fix="--held-out 0.1, --events COLUMN, --label COLUMN")
    return found


def _note(found: Counted, split: str, events: Sequence[Any], label: Any) -> None:
    found.rows[split] += 1
    found.tokens[split] += len(events)
    found.longest = max(found.longest, len(events))
    found.longest_of[split] = max(found.longest_of.get(split, 0), len(events))
    margin = next((each for each in _MARGINS if len(events) <= each), len(events))
    found.lengths.setdefault(split, Counter())[margin] += 1
    if isinstance(label, str):
        found.labels[label] += 1
    if found.numbers:
        found.highest = max(found.highest, *events)
        found.zero = found.zero or min(events) <= 0
    elif split == "train":  # of rows that are held out nothing may be learned, not even which events there are
        found.events.update(events)


def _numbers(request: Request, counted: Counted, known: dict[str, int] | None) -> tuple[dict[str, int] | None, int]:
    """Return the number of each event (None where events are numbers already), and that of the padding."""
    if counted.numbers:
        return None, counted.highest + 1 if counted.zero else 0
    if known is None:
        kept = sorted((event for event, count in counted.events.items() if count >= request.least), key=lambda e: (-counted.events[e], e))
        known = {name: number for number, name in enumerate([PAD, UNKNOWN, *(each for each in kept if each not in (PAD, UNKNOWN))])}
    return known, known[PAD]


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the vocabulary {path}", details=(str(error),), fix=f"ls -l {shell.quote(path)}") from error
    if not isinstance(found, dict) or not {PAD, UNKNOWN} <= set(found) or not all(isinstance(number, int) for number in found.values()):
        raise UsageError(
            f"{path} is no vocabulary: it must name the number of each event, of {PAD} and of {UNKNOWN}", fix=f"head {shell.quote(path)}"
        )
    return found


# -- the second reading ------------------------------------------------------------------------------------------------


def _rows_of(request: Request, split: str, numbers: Mapping[str, int] | None, pad: int, longest: int) -> Iterator[dict[str, Any]]:
    unknown = numbers[UNKNOWN] if numbers is not None else -1
    for row in _all_rows(request):
        if not row.events or row.label is None or _split(request, row) != split:
            continue
        events = row.events[-request.most :] if request.most else row.events
        ids = list(events) if numbers is None else [numbers.get(event, unknown) for event in events]
        if request.padded:
            empty = longest - len(ids)
            yield {"input_ids": ids + [pad] * empty, "attention_mask": [1] * len(ids) + [0] * empty, "label": row.label}
        else:
            yield {"input_ids": ids, "label": row.label}


def _all_rows(request: Request) -> Iterator[Any]:
    for file in request.files:
        yield from read_rows(file, events=request.events, label=request.label, group=request.group)


def _split(request: Request, row: Any) -> str:
    """Return the split of a row: by chance, and the same for all rows of a group."""
    key = row.group if request.group is not None else row.where
    drawn = hashlib.sha256(f"{request.seed}:{key}".encode("utf-8", "surrogateescape")).digest()
    return "test" if int.from_bytes(drawn[:8], "big") / 2**64 < request.held_out else "train"


def _kind(label: Any) -> str:
    if isinstance(label, list):
        return "list"
    return "string" if isinstance(label, str) else "fraction" if isinstance(label, float) else "whole"


def _show(row: Any) -> str:
    file, _, line = row.where.rpartition(":")
    return f"sed -n {line}p {file}" if file.endswith((".jsonl", ".csv")) else f"look at row {line} of {file}"


def _manifest(request: Request, counted: Counted, numbers: Mapping[str, int] | None, pad: int, digest: str) -> manifest.Manifest:
    size = max(counted.highest, pad) + 1 if numbers is None else max(numbers.values()) + 1
    splits = {
        split: manifest.Split(
            rows=rows, examples=rows, tokens=counted.tokens[split], trained=counted.tokens[split],
            longest=counted.longest if request.padded else counted.longest_of[split],
            histogram=tuple(sorted(counted.lengths[split].items())),
            padded=counted.longest * rows / counted.tokens[split] if request.padded else 1.0,
        )
        for split, rows in counted.rows.items() if rows
    }  # fmt: skip
    text = json.dumps(numbers, sort_keys=True, ensure_ascii=False) if numbers is not None else f"numbers below {size}"
    return manifest.Manifest(
        sources=tuple({"path": str(file), "bytes": file.stat().st_size, "mtime_ns": file.stat().st_mtime_ns} for file in request.files),
        form="classes", columns={"events": request.events, "label": request.label, **({"group": request.group} if request.group else {})},
        loss_on="label", tokenizer=hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest(),
        tokenizer_name=str(request.vocabulary or VOCABULARY), template=None, vocabulary=size, max_length=request.most, packed=False,
        splits=splits, dropped=dict(counted.dropped), seed=request.seed, digest=digest, labels=tuple(sorted(counted.labels)),
        settings={"pad_token_id": pad, "padded": request.padded, "held_out": request.held_out, "min_count": request.least},
        version=__version__,
    )  # fmt: skip


# -- the command -------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options, make the dataset, and say on stderr what it is; stdout is its folder."""
    parser = argparse.ArgumentParser(prog="python -m hpctrain.preparation.timelines", description="Make a dataset of timelines.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSONL, CSV or Parquet.")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="The folder to make.")
    parser.add_argument("--events", default="events", metavar="COLUMN", help="Default: events.")
    parser.add_argument("--label", default="label", metavar="COLUMN", help="Default: label.")
    parser.add_argument("--group", metavar="COLUMN", help="Rows with the same value stay in one split: the patient's, for instance.")
    parser.add_argument("--held-out", type=float, default=0.1, metavar="PART", help="Of the rows, into the split test. Default: 0.1.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--min-count", type=int, default=1, metavar="N", help="Rarer events become <unk>.")
    parser.add_argument("--max-events", type=int, metavar="N", help="Keep the last N events of a row.")
    parser.add_argument("--padded", action="store_true", help="Pad all rows on the right to one length.")
    parser.add_argument("--vocabulary", type=Path, metavar="FILE", help="Take the numbers of an earlier dataset's vocabulary.json.")
    asked = parser.parse_args(argv)
    request = Request(
        files=tuple(asked.files), to=asked.to, events=asked.events, label=asked.label, group=asked.group, held_out=asked.held_out,
        seed=asked.seed, least=asked.min_count, most=asked.max_events, padded=asked.padded, vocabulary=asked.vocabulary,
    )  # fmt: skip
    try:
        made = prepare(request)
    except HpctrainError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_code
    for line in _lines(made):
        sys.stderr.write(line + "\n")
    sys.stdout.write(f"{request.to}\n")
    return 0


def _lines(made: manifest.Manifest) -> Iterator[str]:
    for name, split in made.splits.items():
        yield f"{name}: {split.rows:,} rows, {split.tokens:,} events, the longest row {split.longest}"
    yield f"{made.vocabulary:,} event ids, padding {made.settings['pad_token_id']}"
    if made.labels:
        yield f"classes: {', '.join(made.labels[:12])}" + (f" and {len(made.labels) - 12} more" if len(made.labels) > 12 else "")
    for why, count in made.dropped.items():
        yield f"left out: {count:,} rows with {why}"


if __name__ == "__main__":
    sys.exit(main())
