"""Timelines as a Trainer reads them: rows of event ids, cut at random where that is asked for, made into padded batches.

What is cut depends on the seed, the epoch and the row alone, and on nothing that is drawn meanwhile: neither the number of processes, nor
the workers that load data, nor a resume in the middle of an epoch changes it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What is kept of a row.

    Attributes:
        probability: of cutting a row at random.
        least: events that stay at least.
        window: what stays may lie anywhere; otherwise it is the beginning.
        most: events at most, of all rows: the last ones; None for no bound. It comes after the cut at random.
        seed: of the random lengths.
    """

    probability: float = 0.0
    least: int = 1
    window: bool = False
    most: int | None = None
    seed: int = 0

    def of(self, length: int, row: int, epoch: int) -> tuple[int, int]:
        """Return where what stays of a row of `length` events begins and ends."""
        begin, end = 0, length
        if self.probability > 0:
            draw = random.Random(f"{self.seed}:{epoch}:{row}")  # noqa: S311 - not a secret
            if draw.random() < self.probability:
                kept = draw.randint(min(self.least, length), length)
                begin = draw.randint(0, length - kept) if self.window else 0
                end = begin + kept
        return (begin if self.most is None else max(begin, end - self.most)), end


class Timelines(Dataset):  # type: ignore[misc]  # torch is not there on the login node
    """A split, as `{"input_ids": [...], "labels": ...}` without padding.

    Args:
        rows: the datasets.Dataset.
        facts: what is known of the data (hpctrain/training/classify_data.py).
        lengths: events of each row, without its padding.
        targets: labels of each row, as numbers.
        cut: what stays of a row.
    """

    def __init__(self, rows: Any, facts: Any, lengths: Sequence[int], targets: Sequence[Any], cut: Cut) -> None:
        self.rows, self.facts, self.cut = rows, facts, cut
        self._lengths, self.targets = lengths, targets
        self._ids = rows.select_columns(["input_ids"]).with_format(None)
        # Workers that live on from one epoch to the next have a copy of this object, but share this number.
        self._epoch = torch.zeros(1, dtype=torch.long).share_memory_()

    @property
    def column_names(self) -> list[str]:
        """The columns of the dataset as it was saved."""
        return list(self.rows.column_names)

    @property
    def features(self) -> Any:
        """The columns' types, of the dataset as it was saved."""
        return self.rows.features

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins."""
        self._epoch[0] = epoch

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        epoch = int(self._epoch[0])
        found = []
        for row, ids in zip(rows, self._ids[list(rows)]["input_ids"], strict=True):
            begin, end = self.cut.of(self._lengths[row], row, epoch)
            found.append({"input_ids": ids[begin:end], "labels": self.targets[row]})
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Collator:
    """Makes a batch of rows: as long as its longest, padded on the side on which the model can bear it.

    Attributes:
        pad: the id of the padding.
        side: `left`: the last event of each row stands in the last column; or `right`.
        positions: give the model position_ids, so that each row's first event has position 0 (of `left` only).
        floats: labels are numbers, not classes.
    """

    pad: int
    side: str
    positions: bool
    floats: bool

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return input_ids and attention_mask (rows, longest), labels (rows,) or (rows, classes), and position_ids like input_ids."""
        longest = max(len(row["input_ids"]) for row in rows)
        ids = torch.full((len(rows), longest), self.pad, dtype=torch.long)
        mask = torch.zeros((len(rows), longest), dtype=torch.long)
        for number, row in enumerate(rows):
            length = len(row["input_ids"])
            where = slice(longest - length, longest) if self.side == "left" else slice(0, length)
            ids[number, where] = torch.tensor(row["input_ids"], dtype=torch.long)
            mask[number, where] = 1
        batch = {"input_ids": ids, "attention_mask": mask}
        if self.side == "left" and self.positions:
            batch["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
        if "labels" in rows[0]:
            batch["labels"] = torch.tensor([row["labels"] for row in rows], dtype=torch.float if self.floats else torch.long)
        return batch
