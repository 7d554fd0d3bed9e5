"""What is drawn to be shown: spread over the data, the same for a seed, each once, and all where there is less."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from hpctrain.errors import HpctrainError
from hpctrain.preparation import sampling, sources
from hpctrain.preparation.rows import Row

pytestmark = pytest.mark.torch  # pyarrow is of the [train] extra


def numbered(path: Path, count: int) -> Path:
    lines = "".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(count))
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())
    return path


def drawn(*paths: Path, seed: int = 0, count: int = 8) -> list[str]:
    found = sources.find(paths)
    return [str(row["text"]) for _, row in sampling.rows(found, target_bytes=1 << 12, count=count, seed=seed) if isinstance(row, Row)]


def test_raw_rows_are_spread_and_each_is_drawn_once(tmp_path: Path) -> None:
    file = numbered(tmp_path / "a.jsonl", 20_000)
    rows = drawn(file)
    assert len(rows) == len(set(rows)) > 300
    first = [int(row.split()[1]) for row in rows[:8]]
    assert max(first) - min(first) > 5000
    assert first != sorted(first)
    assert drawn(file) == rows
    assert drawn(file, seed=1)[:8] != rows[:8]
    assert sorted(drawn(numbered(tmp_path / "few.jsonl", 5))) == [f"row {number}" for number in range(5)]
    assert set(drawn(numbered(tmp_path / "b.jsonl.gz", 30))) == {f"row {number}" for number in range(30)}


def test_a_large_file_of_lines_is_not_read_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_CUT_BYTES", 1000)
    rows = drawn(numbered(tmp_path / "a.jsonl", 20_000))
    assert max(int(row.split()[1]) for row in rows) < 1000


def test_places_have_the_order_of_the_data(tmp_path: Path) -> None:
    found = sources.find([numbered(tmp_path / "a.jsonl", 3000), numbered(tmp_path / "b.jsonl", 3000)])
    chosen = sorted(sampling.rows(found, target_bytes=1 << 12, count=3, seed=0), key=lambda each: each[0])
    wheres = [row.where.rpartition(":") for _, row in chosen]
    assert wheres == sorted(wheres, key=lambda where: (where[0], int(where[2])))


def dataset(folder: Path, rows: int, *, per_batch: int = 7, per_row: int = 1) -> Path:
    """Write a packed dataset of two shards, whose tokens say which example they are of."""
    from hpctrain.preparation import shards

    folder.mkdir()
    (folder / "train").mkdir()
    for shard, numbers in enumerate((range(rows // 2), range(rows // 2, rows))):
        with shards.stream_to(folder / "train" / shards.shard_name(shard, 2), shards.schema(packed=True)) as writer:
            import numpy as np

            ids = np.array([row * 100 + place for row in numbers for place in range(per_row)], dtype=np.int32)
            sizes, ones = [per_row] * len(numbers), [1] * len(ids)
            table = shards.table_of(ids, ids, np.array(sizes), seq_lengths=np.array(ones), per_row=np.array(sizes))
            writer.write_table(table, max_chunksize=per_batch)
    return folder


def test_stored_examples_are_spread_over_batches_and_shards(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "d", 100, per_row=3)
    (folder / "train/cache-0123.arrow").write_bytes(b"of datasets.map")
    found = sampling.stored(folder, ["train"], 10, seed=0)
    rows = [int(example.where.removeprefix("train[").partition("]")[0]) for example in found]
    assert len(set(rows)) == 10
    assert rows == sorted(rows)
    assert min(rows) < 50 <= max(rows)
    for row, example in zip(rows, found, strict=True):
        place = int(example.where.partition("example ")[2].partition(" of 3")[0])
        assert list(example.ids) == list(example.labels) == [row * 100 + place - 1]
    assert sampling.stored(folder, ["train"], 10, seed=0) == found
    assert sampling.stored(folder, ["train"], 10, seed=1) != found


def test_all_where_fewer_rows_than_examples_are_wanted(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "d", 4, per_row=3)
    assert len(sampling.stored(folder, ["train"], 6, seed=0)) == 6
    assert [list(each.ids) for each in sampling.stored(folder, ["train"], 99, seed=0)] == [
        [row * 100 + place] for row in range(4) for place in range(3)
    ]
    assert sampling.stored(folder, ["none"], 3, seed=0) == []


def test_a_damaged_shard(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "d", 4)
    next((folder / "train").iterdir()).write_bytes(b"\0" * 40)
    with pytest.raises(HpctrainError, match="cannot be read"):
        sampling.stored(folder, ["train"], 3, seed=0)
