"""Properties of a timelines dataset, found by reading all of it once: classes, padding, lengths,
and problems.

Columns: `input_ids`, event ids per row, padded on the right or not at all; `attention_mask`, if the
padding has no id of its own; `label` or `labels`: a class by its number or name, a list of 0 and 1
(any of several classes), or a number with a fraction (regression).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpctrain.data import manifest
from hpctrain.training.preflight import Problem
from hpctrain.util import files

#: Metrics by kind of target, in addition to `loss`.
NAMES = {
    "single": ("loss", "accuracy", "f1_macro", "auroc"),
    "multi": ("loss", "accuracy", "f1_macro", "auroc"),
    "regression": ("loss", "mse", "mae", "r2"),
}
LOWER_IS_BETTER = ("loss", "mse", "mae")

Floats = NDArray[np.floating[Any]]


def compute_metrics(kind: str, logits: Floats, labels: NDArray[Any]) -> dict[str, float]:
    """Return the metrics of an evaluation.

    Args:
        kind: `single` (one class of several), `multi` (any of several), or `regression`.
        logits: (rows, classes); for a regression (rows,) or (rows, 1).
        labels: (rows,) class numbers; for `multi` (rows, classes) with 0 and 1; for a regression
            (rows,) values.
    """
    logits = np.asarray(logits, dtype=np.float64)
    if kind == "regression":
        return regression_metrics(
            logits.reshape(-1), np.asarray(labels, dtype=np.float64).reshape(-1)
        )
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
    found = {
        "accuracy": float((predicted == actual).all(axis=1).mean()),
        "f1_macro": float(np.mean([_f1(predicted[:, each], actual[:, each]) for each in counted])),
    }
    areas = [auroc(scores[:, each], actual[:, each]) for each in columns]
    known = [area for area in areas if area is not None]
    return {**found, "auroc": float(np.mean(known))} if known else found


def _f1(predicted: NDArray[Any], actual: NDArray[Any]) -> float:
    both = int((predicted & actual).sum())
    either = int(predicted.sum()) + int(actual.sum())
    return 2 * both / either if either else 0.0


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


def regression_metrics(predicted: Floats, actual: Floats) -> dict[str, float]:
    """Return MSE, MAE, and R2 unless all values are equal."""
    error = predicted - actual
    found = {"mse": float((error**2).mean()), "mae": float(np.abs(error).mean())}
    spread = float(((actual - actual.mean()) ** 2).sum())
    return {**found, "r2": 1 - float((error**2).sum()) / spread} if spread else found


LABELS = ("label", "labels")
#: In a dataset's and a model's directory: the id of each event, written by
#: hpctrain/data/timelines.py.
VOCABULARY = "vocabulary.json"


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

    @property
    def outputs(self) -> int:
        """Number of model outputs per row."""
        return len(self.names) or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One split's events.

    Attributes:
        lengths: row lengths, without padding.
        highest: the highest event id.
        last: event ids at the end of rows.
        problems: what is wrong with the split.
    """

    lengths: list[int]
    highest: int
    last: frozenset[int]
    problems: tuple[str, ...]


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


def scan(rows: Any, pad: int | None, split: str) -> Scan:
    """Read all events of a split.

    Args:
        rows: a datasets.Dataset with `input_ids` and optionally `attention_mask`.
        pad: the padding id; without a mask, trailing ones are removed.
        split: its name, for messages.
    """
    masked = "attention_mask" in rows.column_names
    names = ["input_ids", "attention_mask"] if masked else ["input_ids"]
    lengths, highest, lowest, last, wrong = [], -1, 0, set[int](), Counter[str]()
    for batch in rows.select_columns(names).with_format("numpy").iter(1000):
        masks = batch["attention_mask"] if masked else [None] * len(batch["input_ids"])
        for ids, mask in zip(batch["input_ids"], masks, strict=True):
            if mask is not None and len(mask) != len(ids):
                wrong["have an attention_mask of another length"] += 1
                continue
            real = np.flatnonzero(mask if mask is not None else ids != pad)
            if not len(real):
                wrong["have no events"] += 1
                continue
            end = int(real[-1]) + 1
            lengths.append(end)
            if mask is not None and len(real) != end:
                wrong["are not padded on the right: attention_mask has a 0 in front of a 1"] += 1
            elif mask is None and ids[0] == pad:
                wrong[f"begin with the padding, {pad}: they are padded on the left"] += 1
            last.add(int(ids[end - 1]))
            highest = max(highest, int(ids[:end].max()))
            lowest = min(lowest, int(ids[:end].min()))
    said = tuple(
        f"{count} of {len(rows)} rows of split '{split}' {what}" for what, count in wrong.items()
    )
    if lowest < 0:
        said += (f"split '{split}' has the event id {lowest}",)
    return Scan(lengths=lengths, highest=highest, last=frozenset(last), problems=said)


# -- labels ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The labels of the splits as numbers; `kind` and `names` as in Facts."""

    kind: str
    names: tuple[str, ...]
    values: tuple[list[Any], ...]
    problems: tuple[Problem, ...] = ()


def labels_of(splits: Mapping[str, Any], column: str, *, names: Sequence[str] | None) -> Labels:
    """Return the labels of all splits, the training split first.

    Args:
        splits: datasets by name.
        column: the label column.
        names: class names, if set by the options or the manifest.
    """
    raw = {split: list(rows.with_format(None)[column]) for split, rows in splits.items()}
    problems = [
        Problem(
            f"{empty} rows of split '{split}' have no label",
            "leave them out: dataset.filter(lambda row: row['label'] is not None)",
        )
        for split, values in raw.items()
        if (empty := sum(value is None for value in values))
    ]
    train = next(iter(raw.values()))
    kind = _kind(train[0])
    if kind is None:
        problems.append(
            Problem(
                f"labels like {train[0]!r} are none of a class, a list of 0 and 1, and a number",
                "use --label_column NAME",
            )
        )
    if kind is None or problems:
        return Labels(kind="single", names=(), values=(), problems=tuple(problems))
    if kind == "regression":
        return _numbers(raw)
    known = tuple(
        names or getattr(next(iter(splits.values())).features[column], "names", None) or ()
    )
    return _several(raw, known) if kind == "multi" else _classes(raw, known)


def _kind(value: Any) -> str | None:
    if isinstance(value, bool | int | str):
        return "single"
    if isinstance(value, float):
        return "regression"
    if (
        isinstance(value, list)
        and value
        and all(isinstance(each, bool | int | float) for each in value)
    ):
        return "multi"
    return None


def _numbers(raw: Mapping[str, list[Any]]) -> Labels:
    bad = sum(
        not np.isfinite(value) or value == -100 for values in raw.values() for value in values
    )
    wrong = (
        [
            Problem(
                f"{bad} labels are NaN, infinite, or -100, which stands for none",
                "leave these rows out",
            )
        ]
        if bad
        else []
    )
    return Labels(kind="regression", names=(), values=tuple(raw.values()), problems=tuple(wrong))


def _several(raw: Mapping[str, list[Any]], known: tuple[str, ...]) -> Labels:
    width = len(next(iter(raw.values()))[0])
    names = known or tuple(str(number) for number in range(width))
    problems = []
    if len(names) != width:
        problems.append(
            Problem(
                f"each label has {width} places, and there are {len(names)} class names",
                "use --class_names NAME ...",
            )
        )
    for split, values in raw.items():
        if bad := sum(
            len(value) != width or any(each not in (0, 1) for each in value) for value in values
        ):
            problems.append(
                Problem(
                    f"{bad} labels of split '{split}' are not {width} numbers of 0 and 1",
                    "use --label_column NAME",
                )
            )
    return Labels(kind="multi", names=names, values=tuple(raw.values()), problems=tuple(problems))


def _classes(raw: Mapping[str, list[Any]], known: tuple[str, ...]) -> Labels:
    train = next(iter(raw.values()))
    if isinstance(train[0], str):
        names = known or tuple(sorted(set(train)))
        number: dict[Any, int] = {name: place for place, name in enumerate(names)}
    else:
        most = max(int(value) for value in train)
        names = known or tuple(str(each) for each in range(most + 1))
        number = {each: each for each in range(len(names))}
    problems, found = [], []
    for split, values in raw.items():
        unknown = sorted({str(value) for value in values if value not in number})
        if unknown:
            what = (
                f"split '{split}' has labels that are no class: {', '.join(unknown[:5])}; the"
                f" classes are {in_short(number)}"
            )
            problems.append(Problem(what, "use --class_names NAME ..., or leave these rows out"))
        found.append([number.get(value, -1) for value in values])
    if len(names) < 2 and not problems:
        problems.append(
            Problem(
                f"all rows have one label, {names[0]}: there is nothing to tell apart",
                "use --label_column NAME",
            )
        )
    return Labels(kind="single", names=names, values=tuple(found), problems=tuple(problems))


def in_short(names: Iterable[object]) -> str:
    """Return class names for an error message, shortened if there are many."""
    shown = [str(name) for name in names]
    return ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")


def counts_of(labels: Labels) -> tuple[int, ...]:
    """Return the number of training rows per class."""
    if labels.kind == "regression" or not labels.values:
        return ()
    train = np.asarray(labels.values[0])
    if labels.kind == "multi":
        return tuple(int(count) for count in train.sum(axis=0))
    return tuple(int(count) for count in np.bincount(train, minlength=len(labels.names)))
