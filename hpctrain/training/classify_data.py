"""What a dataset of timelines is, found by reading all of it once: classes, padding, lengths; and what is wrong with it.

Columns: `input_ids`, rows of event ids, padded on the right or not at all; `attention_mask` where the padding cannot be told by its id;
`label` or `labels`: a class by its number or name, a list of 0 and 1 (any of several classes), or a number with a fraction (regression).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpctrain.preparation import manifest
from hpctrain.training.preflight import Problem, json_object

LABELS = ("label", "labels")
VOCABULARY = "vocabulary.json"
"""In the folder of a dataset and of a model: the id of each event, written by hpctrain/preparation/timelines.py."""
_CHUNK = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of the data.

    Attributes:
        kind: `single`, `multi` or `regression`.
        names: of the classes, in the order of their numbers; of a regression empty.
        counts: training rows of each class.
        pad: the id that pads, where the options or the dataset say one.
        longest: events of the longest row of all splits, as they are trained on.
        highest: the highest event id.
        last: the ids that stand last in a row.
        vocabulary: event ids, where the dataset's manifest says how many.
        file: the vocabulary's file, where there is one.
        rows: training rows.
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
        """Numbers that the model puts out for a row."""
        return len(self.names) or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One split's events.

    Attributes:
        lengths: (rows,) without padding.
        highest, lowest: event ids.
        last: the ids that stand last in a row.
        problems: what is wrong with it.
    """

    lengths: NDArray[np.int64]
    highest: int
    lowest: int
    last: frozenset[int]
    problems: tuple[str, ...]


def padding_of(asked: Any, folder: Path, model: str | None) -> int | None:
    """Return the id of the padding: of the options, of the dataset's manifest, or of the model's config.json."""
    if asked.pad_token_id is not None:
        return int(asked.pad_token_id)
    known = manifest.read(folder)
    said = known.settings.get("pad_token_id") if known is not None else None
    if said is None and model is not None:
        said = (json_object(Path(model) / "config.json") or {}).get("pad_token_id")
    return said if isinstance(said, int) else None


# -- events ------------------------------------------------------------------------------------------------------------


def scan(rows: Any, pad: int | None, split: str) -> Scan:
    """Read all events of a split.

    Args:
        rows: a datasets.Dataset with `input_ids`, and `attention_mask` or not.
        pad: the id of the padding; without a mask, trailing ones are left out.
        split: its name, for what is said.
    """
    lengths, highest, lowest, last, wrong = [], -1, 0, set[int](), dict[str, int]()
    masked = "attention_mask" in rows.column_names
    table = rows.select_columns(["input_ids", *(["attention_mask"] if masked else [])]).with_format("arrow")
    for begin in range(0, len(rows), _CHUNK):
        part = table[begin : begin + _CHUNK]
        ids, starts = _flat(part["input_ids"])
        sizes = np.diff(starts)
        if masked:
            mask, others = _flat(part["attention_mask"])
            real = mask != 0 if np.array_equal(starts, others) else np.ones_like(ids, dtype=bool)
            _note(wrong, "have an attention_mask of another length", int((np.diff(others) != sizes).sum()))
        else:
            real = ids != pad if pad is not None else np.ones_like(ids, dtype=bool)
        ends, counts = _ends(real, starts)
        lengths.append(ends)
        _note(wrong, "have no events", int((ends == 0).sum()))
        if masked:
            _note(wrong, "are not padded on the right: attention_mask has a 0 in front of a 1", int((counts != ends).sum()))
        elif pad is not None:
            first = ids[np.minimum(starts[:-1], max(len(ids) - 1, 0))] if len(ids) else ids
            _note(wrong, f"begin with the padding, {pad}: they are padded on the left", int(((first == pad) & (ends > 0)).sum()))
        kept = ends > 0
        last |= set(ids[(starts[:-1] + ends - 1)[kept]].tolist())
        inside = ids[np.arange(len(ids)) < np.repeat(starts[:-1] + ends, sizes)]
        if len(inside):
            highest, lowest = max(highest, int(inside.max())), min(lowest, int(inside.min()))
    said = tuple(f"{count} of {len(rows)} rows of split '{split}' {what}" for what, count in wrong.items())
    if lowest < 0:
        said += (f"split '{split}' has the event id {lowest}",)
    return Scan(lengths=np.concatenate(lengths), highest=highest, lowest=lowest, last=frozenset(last), problems=said)


def _note(wrong: dict[str, int], what: str, count: int) -> None:
    if count:
        wrong[what] = wrong.get(what, 0) + count


def _flat(column: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all values of a column of lists, and where each row begins, with the end as the last."""
    lists = column.combine_chunks()
    lists = lists.chunk(0) if hasattr(lists, "chunk") else lists
    sizes = np.asarray(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    values = np.asarray(lists.flatten().to_numpy(zero_copy_only=False), dtype=np.int64)
    return values, np.concatenate([[0], np.cumsum(sizes)])


def _ends(real: NDArray[np.bool_], starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return of each row the place behind its last real event, and how many real events there are."""
    below = np.concatenate([[0], np.cumsum(real)])
    counts = below[starts[1:]] - below[starts[:-1]]
    where = np.flatnonzero(real)
    # The last real event before a row's end; it is the row's own where the row has any.
    last = where[np.maximum(below[starts[1:]] - 1, 0)] if len(where) else np.zeros_like(counts)
    return np.where(counts > 0, last - starts[:-1] + 1, 0), counts


# -- labels ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The labels of the splits as numbers, and what they are; `kind` and `names` as in Facts."""

    kind: str
    names: tuple[str, ...]
    values: tuple[list[Any], ...]
    problems: tuple[Problem, ...] = ()


def column_of(rows: Any, asked: str | None) -> str | None:
    """Return the column of the labels."""
    names = (asked,) if asked else LABELS
    return next((name for name in names if name in rows.column_names), None)


#: Different whole numbers that are rather classes than measurements.
_FEW = 10


def labels_of(splits: Mapping[str, Any], column: str, *, names: Sequence[str] | None) -> Labels:
    """Return the labels of all splits, the training split first.

    Args:
        splits: datasets by name.
        column: of the labels.
        names: of the classes, where the options or the manifest say them.
    """
    raw = {split: list(rows.with_format(None)[column]) for split, rows in splits.items()}
    problems = [
        Problem(f"{empty} rows of split '{split}' have no label", "leave them out: dataset.filter(lambda row: row['label'] is not None)")
        for split, values in raw.items()
        if (empty := sum(value is None for value in values))
    ]
    train = next(iter(raw.values()))
    kind = _kind(train[0])
    if problems or kind is None:
        if kind is None:
            problems.append(
                Problem(f"labels like {train[0]!r} are none of a class, a list of 0 and 1, and a number", "--label_column NAME")
            )
        return Labels(kind="single", names=(), values=(), problems=tuple(problems))
    if kind == "regression":
        return _numbers(raw)
    known = tuple(names or getattr(next(iter(splits.values())).features[column], "names", None) or ())
    return _several(raw, known) if kind == "multi" else _classes(raw, known)


def _kind(value: Any) -> str | None:
    if isinstance(value, bool | int | str):
        return "single"
    if isinstance(value, float):
        return "regression"
    if isinstance(value, list) and value and all(isinstance(each, bool | int | float) for each in value):
        return "multi"
    return None


def _numbers(raw: Mapping[str, list[Any]]) -> Labels:
    bad = sum(not np.isfinite(value) or value == -100 for values in raw.values() for value in values)
    wrong = [Problem(f"{bad} labels are NaN, infinite, or -100, which stands for none", "leave these rows out")] if bad else []
    return Labels(kind="regression", names=(), values=tuple(raw.values()), problems=tuple(wrong))


def _several(raw: Mapping[str, list[Any]], known: tuple[str, ...]) -> Labels:
    width = len(next(iter(raw.values()))[0])
    names = known or tuple(str(number) for number in range(width))
    problems = []
    if len(names) != width:
        problems.append(Problem(f"each label has {width} places, and there are {len(names)} class names", "--class_names NAME ..."))
    for split, values in raw.items():
        if bad := sum(len(value) != width or any(each not in (0, 1) for each in value) for value in values):
            problems.append(Problem(f"{bad} labels of split '{split}' are not {width} numbers of 0 and 1", "--label_column NAME"))
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
            what = f"split '{split}' has labels that are no class: {', '.join(unknown[:5])}; the classes are {in_short(names, number)}"
            problems.append(Problem(what, "--class_names NAME ..., or leave these rows out"))
        found.append([number.get(value, -1) for value in values])
    if len(names) < 2 and not problems:
        problems.append(Problem(f"all rows have one label, {names[0]}: there is nothing to tell apart", "--label_column NAME"))
    return Labels(kind="single", names=names, values=tuple(found), problems=tuple(problems))


def in_short(names: Sequence[str], number: Mapping[Any, int] | None = None) -> str:
    """Return class names for an error, not too many of them."""
    shown = list(names) if number is None or any(isinstance(key, str) for key in number) else [str(key) for key in number]
    return ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")


def like_classes(values: Sequence[float]) -> list[int]:
    """Return the different values of a regression where they look like classes (all of them whole, and few); else none.

    A table with a gap in its column of labels, read by pandas, has 0.0 and 1.0 in place of 0 and 1.
    """
    found = sorted(set(values))
    return [int(value) for value in found] if len(found) <= _FEW and all(value == int(value) for value in found) else []


def counts_of(labels: Labels) -> tuple[int, ...]:
    """Return how many training rows each class has."""
    if labels.kind == "regression" or not labels.values:
        return ()
    train = np.asarray(labels.values[0])
    if labels.kind == "multi":
        return tuple(int(count) for count in train.sum(axis=0))
    return tuple(int(count) for count in np.bincount(train, minlength=len(labels.names)))
