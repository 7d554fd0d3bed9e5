"""What the rows of a tokenised dataset are like: their lengths, and in a sample of them which tokens are trained on.

Reads columns of the memory-mapped tables only; the sample is bounded, so that a dataset of any size takes a moment.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

SAMPLE = 512
"""Rows that are looked into, evenly spaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """See the module.

    Attributes:
        lengths: int64 array (rows): tokens of each row, before anything is cut.
        sampled: rows that were looked into.
        tokens, trained: of these rows, the tokens, and the ones that the loss looks at.
        highest: the highest token id in them; -1 where there is none.
        used: token ids in them.
        trained_ids: token ids that the loss looks at.
        padded: tokens of them that the attention_mask leaves out and the loss looks at.
        last: how often each token id is the last one of a row.
    """

    lengths: Any
    sampled: int
    tokens: int
    trained: int
    highest: int
    used: frozenset[int]
    trained_ids: frozenset[int]
    padded: int = 0
    last: frozenset[int] = frozenset()

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int(self.lengths.max()) if len(self.lengths) else 0

    def over(self, most: int) -> tuple[int, int]:
        """Return how many rows are longer than `most` tokens, and how many tokens lie beyond it."""
        beyond = self.lengths[self.lengths > most] - most
        return len(beyond), int(beyond.sum())


def look(dataset: Any, *, completion_only: bool) -> RowFacts:
    """Return the facts of a datasets.Dataset with `input_ids`.

    Args:
        dataset: as it was saved.
        completion_only: a completion_mask counts, as SFTTrainer has it with completion_only_loss.
    """
    import numpy as np

    lengths = lengths_of(dataset)
    rows = np.unique(np.linspace(0, len(dataset) - 1, min(SAMPLE, len(dataset))).astype(int))
    names = [n for n in ("input_ids", "labels", "completion_mask", "assistant_masks", "attention_mask") if n in dataset.column_names]
    table = dataset.select_columns(names).select(rows.tolist()).with_format("arrow")[:]
    flat = {name: _flat(table.column(name)) for name in names}
    ids = flat["input_ids"]
    if "labels" in flat:
        trained = flat["labels"] != -100
    else:
        trained = np.ones(len(ids), dtype=bool)
        for name in ("completion_mask",) * completion_only + ("assistant_masks",):
            if name in flat and len(flat[name]) == len(ids):
                trained &= flat[name] != 0
    mask = flat.get("attention_mask")
    ends = np.cumsum(lengths[rows])
    return RowFacts(
        lengths=lengths,
        sampled=len(rows),
        tokens=len(ids),
        trained=int(trained.sum()),
        highest=int(ids.max()) if len(ids) else -1,
        used=frozenset(np.unique(ids).tolist()),
        trained_ids=frozenset(np.unique(ids[trained]).tolist()) if len(trained) == len(ids) else frozenset(),
        padded=int((trained & (mask == 0)).sum()) if mask is not None and len(mask) == len(trained) else 0,
        last=frozenset(ids[ends[lengths[rows] > 0] - 1].tolist()),
    )


def lengths_of(dataset: Any) -> Any:
    """Return the tokens of each row of a datasets.Dataset with `input_ids`: an int64 array (rows)."""
    import numpy as np

    pc: Any = importlib.import_module("pyarrow.compute")  # which has no types

    if getattr(dataset, "_indices", None) is not None:  # rows in another order than their table's
        return np.array(
            [len(row) for batch in dataset.select_columns("input_ids").iter(1000) for row in batch["input_ids"]], dtype=np.int64
        )
    chunks = [pc.list_value_length(chunk).to_numpy(zero_copy_only=False) for chunk in dataset.data.column("input_ids").chunks]
    return np.concatenate(chunks).astype(np.int64) if chunks else np.zeros(0, dtype=np.int64)


def _flat(column: Any) -> Any:
    import numpy as np

    parts = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
