"""Rows of timelines as they lie in JSONL, CSV and Parquet files, one after the other; knows nothing of numbers or splits."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import UsageError
from hpctrain.jobs import shell

_BLOCK = 10_000


@dataclass(frozen=True, slots=True)
class Row:
    """One timeline.

    Attributes:
        events: strings or whole numbers; empty where there are none.
        label: a string, a number, a list of 0 and 1; None where there is none.
        group: of `group`'s column, as text.
        where: `file:line`, of Parquet the row's number, from 1.
    """

    events: list[Any]
    label: Any
    group: str
    where: str


def read_rows(file: Path, *, events: str, label: str, group: str | None) -> Iterator[Row]:
    """Yield the rows of a file.

    Raises:
        UsageError: it is of no known kind, has no such columns, or a line is damaged.
    """
    readers = {".jsonl": _jsonl, ".ndjson": _jsonl, ".csv": _csv, ".parquet": _parquet}
    reader = readers.get(file.suffix)
    if reader is None:
        raise UsageError(
            f"{file} is none of JSONL, CSV and Parquet, by its name", fix=f"mv {shell.quote(file)} {shell.quote(file.stem)}.jsonl"
        )
    for number, row in reader(file):
        where = f"{file}:{number}"
        if absent := [name for name in (events, label, *([group] if group else [])) if name not in row]:
            raise UsageError(
                f"{where} has no {' and no '.join(absent)}; it has {', '.join(map(str, row))}",
                fix="--events COLUMN --label COLUMN" + (" --group COLUMN" if group else ""),
            )
        yield Row(_events(row[events], where), _label(row[label], file), str(row[group]) if group else "", where)


def _events(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    found = value.split() if isinstance(value, str) else value
    if not isinstance(found, list):
        raise UsageError(f"{where}: events are {type(found).__name__}, and must be a list", fix="--events COLUMN")
    bad = next((each for each in found if not isinstance(each, str | int) or isinstance(each, bool)), None)
    if bad is not None or any(isinstance(each, int) and each < 0 for each in found):
        raise UsageError(f"{where}: an event must be a string or a whole number from 0, not {bad if bad is not None else min(found)!r}",
                         fix="--events COLUMN")  # fmt: skip
    return found


def _label(value: Any, file: Path) -> Any:
    if file.suffix == ".csv":  # where everything is text
        text = str(value).strip()
        if text.lstrip("-").isdecimal():
            return int(text)
        return text or None
    return int(value) if isinstance(value, bool) else value


def _jsonl(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with file.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UsageError(f"{file}:{number} is no JSON: {error}", fix=f"sed -n {number}p {shell.quote(file)}") from error
            if not isinstance(row, dict):
                raise UsageError(f"{file}:{number} is no JSON object", fix=f"sed -n {number}p {shell.quote(file)}")
            yield number, row


def _csv(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with file.open(encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(stream)
        for row in rows:
            yield rows.line_num, row


def _parquet(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import pyarrow.parquet

    number = 0
    for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=_BLOCK):
        for row in batch.to_pylist():
            number += 1
            yield number, row
