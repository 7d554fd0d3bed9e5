"""One row of the data as it was read, and what stands in its place when it cannot be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class Row(dict[str, Any]):
    """The values of one row by column, and where it was read.

    Attributes:
        where: `FILE:LINE`, or `FILE:row N` in a file without lines (N from 1).
    """

    __slots__ = ("where",)

    def __init__(self, values: Any = (), where: str = "") -> None:
        super().__init__(values)
        self.where = where

    def __reduce__(self) -> tuple[type[Row], tuple[dict[str, Any], str]]:
        return Row, (dict(self), self.where)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that is left out.

    Attributes:
        reason: few words, the same for all rows with the same fault, so that they can be counted.
        where: as in `Row`.
        detail: what is special to this one: the value, or the parser's words; may be empty.
    """

    reason: str
    where: str = ""
    detail: str = ""
