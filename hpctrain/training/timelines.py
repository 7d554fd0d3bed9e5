"""Properties of a timelines dataset, found by reading all of it once, its rows as a model gets
them, and the metrics of an evaluation.

Columns: `input_ids`, event ids per row, padded on the right or not at all; `attention_mask`, if the
padding has no id of its own; `label` or `labels`: a class by its number or name, a list of 0 and 1
(any of several classes), or a number with a fraction (regression).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpctrain.data import manifest
from hpctrain.training.preflight import Problem, usage_error
from hpctrain.util import files

#: Metrics in addition to `loss`; a regression has none.
METRICS = ("accuracy", "f1_macro", "auroc")
#: In a dataset's and a model's directory: the id of each event, written by
#: hpctrain/data/timelines.py.
VOCABULARY = "vocabulary.json"

Floats = NDArray[np.floating[Any]]


def compute_metrics(kind: str, logits: Floats, labels: NDArray[Any]) -> dict[str, float]:
    """Return the metrics of an evaluation.

    Args:
        kind: `single` (one class of several), `multi` (any of several), or `regression`.
        logits: (rows, classes).
        labels: (rows,) class numbers; for `multi` (rows, classes) with 0 and 1.
    """
    if kind == "regression":
        return {}
    logits = np.asarray(logits, dtype=np.float64)
    columns = range(logits.shape[1])
    if kind == "multi":
        scores, predicted, actual = logits, logits > 0, labels > 0
        counted = list(columns)
    else:
        # Log-odds instead of probabilities, which would tie at 1.0.
        others = [
            np.logaddexp.reduce(np.delete(logits, column, axis=1), axis=1) for column in columns
        ]
        scores = logits - np.stack(others, axis=1)
        predicted = logits.argmax(axis=1)[:, None] == np.arange(len(columns))
        actual = labels[:, None] == np.arange(len(columns))
        counted = [each for each in columns if (predicted | actual)[:, each].any()]
    both, either = (predicted & actual).sum(axis=0), predicted.sum(axis=0) + actual.sum(axis=0)
    f1 = 2 * both / np.maximum(either, 1)
    found = {
        "accuracy": float((predicted == actual).all(axis=1).mean()),
        "f1_macro": float(f1[counted].mean()),
    }
    areas = [auroc(scores[:, each], actual[:, each]) for each in columns]
    known = [area for area in areas if area is not None]
    return {**found, "auroc": float(np.mean(known))} if known else found


def auroc(scores: Floats, positive: NDArray[Any]) -> float | None:
    """Return the probability that a positive row scores above a negative one, ties counting half;
    None if either is missing.

    Args:
        scores: (rows,) the higher, the more positive.
        positive: (rows,) of bool.
    """
    above = int(positive.sum())
    below = int(positive.size - above)
    if above == 0 or below == 0:
        return None
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]  # ties share the mean of their ranks
    return float((ranks[positive].sum() - above * (above + 1) / 2) / (above * below))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Properties of the data.

    Attributes:
        kind: `single`, `multi` or `regression`.
        names: class names, in the order of their numbers; empty for a regression.
        counts: training rows of each class.
        pad: the padding id, if set by the options or the dataset.
        longest: number of events in the longest row of all splits, after truncation.
        highest: the highest event id.
        last: event ids at the end of rows.
        vocabulary: number of event ids, if in the dataset's manifest.
        file: the vocabulary's file, if there is one.
        rows: number of training rows.
    """

    kind: str
    names: tuple[str, ...]
    counts: tuple[int, ...]
    pad: int | None
    longest: int
    highest: int
    last: frozenset[int]
    vocabulary: int | None
    file: Path | None
    rows: int


def read(asked: Any, splits: Mapping[str, Any]) -> tuple[Facts, list[Any]]:
    """Read all data once.

    Args:
        asked: the options.
        splits: datasets by name, the training split first.

    Returns:
        The facts, and each split with the columns `input_ids`, without padding, and `labels`.

    Raises:
        UsageError: the data have problems; all in one error.
    """
    folder, train = Path(asked.dataset_name), next(iter(splits.values()))
    known = manifest.read_manifest(folder)
    column = asked.label_column or ("labels" if "labels" in train.column_names else "label")
    problems = [
        Problem(
            f"split '{split}' has no {column}; it has {', '.join(rows.column_names)}",
            "use --label_column NAME",
        )
        for split, rows in splits.items()
        if column not in rows.column_names
    ]
    if problems:
        raise usage_error(problems)
    names = asked.class_names or (known.labels if known is not None else None)
    kind, classes, values = labels_of(splits, column, names, problems)
    pad = padding_of(asked, folder, asked.model_name_or_path)
    scans = [scan(rows, pad, split, problems) for split, rows in splits.items()]
    if problems:
        raise usage_error(problems)
    longest = max(longest for longest, _, _ in scans)
    counts: Iterable[Any] = ()
    if kind == "single":
        counts = np.bincount(values[0], minlength=len(classes))
    elif kind == "multi":
        counts = np.sum(values[0], axis=0)
    vocabulary = folder / VOCABULARY
    facts = Facts(
        kind=kind,
        names=classes,
        counts=tuple(int(each) for each in counts),
        pad=pad,
        longest=min(longest, asked.max_events or longest),
        highest=max(highest for _, highest, _ in scans),
        last=frozenset().union(*(last for _, _, last in scans)),
        vocabulary=known.vocabulary if known is not None else None,
        file=vocabulary if vocabulary.is_file() else None,
        rows=len(train),
    )
    made = [
        rows.select_columns(_event_columns(rows))
        .add_column("labels", labels)
        .with_transform(unpadded(pad, asked.max_events))
        for rows, labels in zip(splits.values(), values, strict=True)
    ]
    return facts, made


def padding_of(asked: Any, folder: Path, model: str | None) -> int | None:
    """Return the padding id, from the options, the dataset's manifest or the model's config.json."""
    if asked.pad_token_id is not None:
        return int(asked.pad_token_id)
    known = manifest.read_manifest(folder)
    said = known.settings.get("pad_token_id") if known is not None else None
    if said is None and model is not None:
        said = (files.read_json(Path(model) / "config.json") or {}).get("pad_token_id")
    return said if isinstance(said, int) else None


# -- events ----------------------------------------------------------------------------------------


def _event_columns(rows: Any) -> list[str]:
    return [name for name in ("input_ids", "attention_mask") if name in rows.column_names]


def _real(batch: Mapping[str, Any], pad: int | None) -> list[NDArray[Any]]:
    """Return the places of the events that are not padding, of each row."""
    if "attention_mask" in batch:
        return [np.flatnonzero(mask) for mask in batch["attention_mask"]]
    return [np.flatnonzero(np.asarray(ids) != pad) for ids in batch["input_ids"]]


def unpadded(
    pad: int | None, most: int | None
) -> Callable[[dict[str, list[Any]]], dict[str, list[Any]]]:
    """Return a transform of batches that removes the padding, and keeps at most the last `most`
    events.
    """

    def transform(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        found = []
        for ids, real in zip(batch["input_ids"], _real(batch, pad), strict=True):
            end = int(real[-1]) + 1
            found.append(ids[max(0, end - most) if most else 0 : end])
        kept = {"labels": batch["labels"]} if "labels" in batch else {}
        return {"input_ids": found, **kept}

    return transform


def scan(
    rows: Any, pad: int | None, split: str, problems: list[Problem]
) -> tuple[int, int, frozenset[int]]:
    """Read all events of a split, and append what is wrong with them to `problems`.

    Args:
        rows: a datasets.Dataset with `input_ids` and optionally `attention_mask`.
        pad: the padding id; without a mask, trailing ones are padding.
        split: its name, for messages.
        problems: what is wrong so far.

    Returns:
        The length of the longest row, the highest event id, the ids at the end of rows.
    """
    longest, highest, last, wrong = 0, -1, set[int](), Counter[str]()
    columns = rows.select_columns(_event_columns(rows)).with_format("numpy")
    for batch in columns.iter(1000):
        masks = batch.get("attention_mask", batch["input_ids"])
        for ids, mask, real in zip(batch["input_ids"], masks, _real(batch, pad), strict=True):
            if not len(real) or len(mask) != len(ids):
                wrong["have no events, or an attention_mask of another length"] += 1
                continue
            end = int(real[-1]) + 1
            if ("attention_mask" in batch and len(real) != end) or real[0] > 0:
                wrong["are not padded on the right"] += 1
            if ids[:end].min() < 0:
                wrong["have a negative event id"] += 1
            longest, highest = max(longest, end), max(highest, int(ids[:end].max()))
            last.add(int(ids[end - 1]))
    problems += [
        Problem(
            f"{count} of {len(rows)} rows of split '{split}' {what}",
            "store rows of events, padded on the right or not at all",
        )
        for what, count in wrong.items()
    ]
    return longest, highest, frozenset(last)


# -- labels ----------------------------------------------------------------------------------------


def labels_of(
    splits: Mapping[str, Any], column: str, names: Sequence[str] | None, problems: list[Problem]
) -> tuple[str, tuple[str, ...], list[list[Any]]]:
    """Return the kind, the class names, and the labels of each split as numbers; append what is
    wrong with them to `problems`.

    Args:
        splits: datasets by name, the training split first.
        column: the label column.
        names: class names, if set by the options or the manifest.
        problems: what is wrong so far.
    """
    raw = {split: list(rows.with_format(None)[column]) for split, rows in splits.items()}
    train = next(iter(raw.values()))
    first = next((value for value in train if value is not None), None)
    features = next(iter(splits.values())).features
    names = tuple(names or getattr(features[column], "names", None) or ())
    number: dict[Any, int] = {}
    if isinstance(first, float):
        kind, names, wanted = "regression", (), "finite number, nor -100, which stands for none"
    elif isinstance(first, list):
        kind, names = "multi", names or tuple(str(place) for place in range(len(first)))
        wanted = f"list of 0 and 1 for {len(names)} classes"
    else:
        kind, present = "single", {value for value in train if value is not None}
        if isinstance(first, str):
            names = names or tuple(sorted(present))
            number = {name: place for place, name in enumerate(names)}
        else:
            names = names or tuple(str(each) for each in range(int(max(present)) + 1))
            number = {place: place for place in range(len(names))}
        wanted = f"class; the classes are {in_short(names)}"
    if len(names) == 1:
        what = f"all rows have one label, {names[0]}: there is nothing to tell apart"
        problems.append(Problem(what, "use --label_column NAME"))
    for split, values in raw.items():
        bad = sorted({str(each) for each in values if not _fits(each, kind, names, number)})
        if bad:
            problems.append(
                Problem(
                    f"split '{split}' has labels that are no {wanted}: {in_short(bad)}",
                    "use --label_column NAME, use --class_names NAME ..., or leave these rows out",
                )
            )
    if problems:
        return kind, names, []
    if kind == "single":
        raw = {split: [number[value] for value in values] for split, values in raw.items()}
    elif kind == "multi":
        raw = {split: [[float(one) for one in each] for each in raw[split]] for split in raw}
    return kind, names, list(raw.values())


def _fits(value: Any, kind: str, names: Sequence[str], number: Mapping[Any, int]) -> bool:
    if kind == "single":
        return value in number
    if kind == "multi":
        return isinstance(value, list) and len(value) == len(names) and {*value} <= {0, 1}
    return value is not None and math.isfinite(value) and value != -100


def in_short(names: Iterable[object]) -> str:
    """Return class names for an error message, shortened if there are many."""
    shown = [str(name) for name in names]
    return ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")
