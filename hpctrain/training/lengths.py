"""How long the rows of a dataset are: read from its offsets, and so in a moment for millions of rows; the tokens are not looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Of the rows of one split.

    Attributes:
        rows: how many; `examples` in them, which are more where rows are packed.
        tokens: of all.
        longest: tokens of the longest row.
        squares: the sum of the squared lengths of the examples.
        packed: rows hold several examples.
    """

    rows: int
    examples: int
    tokens: int
    longest: int
    squares: int
    packed: bool

    @property
    def mean(self) -> float:
        """Tokens of a row."""
        return self.tokens / self.rows if self.rows else 0.0

    @property
    def context(self) -> float | None:
        """Mean length of the examples, weighted by their tokens: the length within which a token attends."""
        return self.squares / self.tokens if self.tokens else None


def lengths_of(dataset: Any) -> Lengths | None:
    """Return the lengths of a datasets.Dataset with a column `input_ids`; None for any other, such as one that streams."""
    try:
        names = dataset.column_names
        if "input_ids" not in names:
            return None
        rows = _column(dataset, "input_ids")
        packed = "seq_lengths" in names
        examples = _inner(dataset, "seq_lengths") if packed else rows
    except Exception:  # a dataset of another kind: nothing is known of it before it is read
        return None
    if len(rows) == 0:
        return None
    return Lengths(
        rows=len(rows),
        examples=len(examples),
        tokens=int(rows.sum()),
        longest=int(rows.max()),
        squares=int((examples * examples).sum()),
        packed=packed,
    )


def _table(dataset: Any, name: str) -> Any:
    """Return a column as a pyarrow array, in the dataset's order."""
    column = dataset.data.column(name)
    return column if dataset._indices is None else column.take(dataset._indices.column(0))


def _column(dataset: Any, name: str) -> Any:
    """Return the length of each row's list, as a numpy array of int64."""
    import pyarrow.compute

    return pyarrow.compute.list_value_length(_table(dataset, name)).to_numpy().astype("int64")


def _inner(dataset: Any, name: str) -> Any:
    """Return all numbers in a column of lists, as a numpy array of int64."""
    import pyarrow.compute

    return pyarrow.compute.list_flatten(_table(dataset, name)).to_numpy().astype("int64")
