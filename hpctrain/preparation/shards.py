"""The folder that `datasets.load_from_disk` reads, as `DatasetDict.save_to_disk` writes it, made shard by shard.

Written with pyarrow alone: importing `datasets` imports torch where it is installed. A test holds the result against `save_to_disk`'s.
Everything is written under another name and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpctrain.runs import files

ROWS_PER_BATCH = 1000
"""Rows of one record batch, as `datasets` has them: what a lookup of one row reads the headers of."""
_INT = {"dtype": "int32", "_type": "Value"}
_LIST = {"feature": _INT, "_type": "List"}


def features(*, packed: bool) -> dict[str, Any]:
    """Return the columns and their types, in datasets' words."""
    return {"input_ids": _LIST, "labels": _LIST, **({"seq_lengths": _LIST} if packed else {"length": _INT})}


def schema(*, packed: bool) -> Any:
    """Return the Arrow schema of a shard, with what `datasets` writes into its metadata."""
    import pyarrow as pa

    described = features(packed=packed)
    fields = [pa.field(name, pa.int32() if kind is _INT else pa.list_(pa.int32())) for name, kind in described.items()]
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": described}})})


def shard_name(number: int, of: int) -> str:
    """Return the file name of a shard."""
    return f"data-{number:05d}-of-{of:05d}.arrow"


@contextmanager
def stream_to(path: Path, schema_: Any) -> Iterator[Any]:
    """Give a writer of an Arrow stream; the file is synced and has its name when the block ends well, and is gone otherwise.

    Raises:
        OSError: the file system refuses.
    """
    import pyarrow as pa

    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as sink:
            with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema_) as writer:
                yield writer
            sink.flush()
            os.fsync(sink.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def table_of(ids: Any, labels: Any, sizes: Any, *, seq_lengths: Any = None, per_row: Any = None) -> Any:
    """Return a table of rows that lie one after the other.

    Args:
        ids: int32, tokens of all rows.
        labels: int32, as many, -100 where not trained.
        sizes: tokens of each row.
        seq_lengths: of packed rows, tokens of each example, in the order of the rows.
        per_row: of packed rows, examples of each row.
    """
    import numpy as np
    import pyarrow as pa

    def lists(values: Any, counts: Any) -> Any:
        offsets = np.zeros(len(counts) + 1, dtype=np.int32)
        np.cumsum(counts, out=offsets[1:])
        return pa.ListArray.from_arrays(offsets, pa.array(values, type=pa.int32()))

    packed = seq_lengths is not None
    last = lists(seq_lengths, per_row) if packed else pa.array(np.asarray(sizes, dtype=np.int32))
    return pa.Table.from_arrays([lists(ids, sizes), lists(labels, sizes), last], schema=schema(packed=packed))


def hash_rows(digest: Any, *arrays: Any) -> None:
    """Let a digest see arrays of int32, each with its length before it."""
    import numpy as np

    for array in arrays:
        values = np.ascontiguousarray(array, dtype="<i4")
        digest.update(len(values).to_bytes(8, "little"))
        digest.update(values.view(np.uint8).data)


def combined(shards: Mapping[str, Sequence[str]]) -> str:
    """Return the digest of a dataset, from those of the shards of each split."""
    lines = [f"{split} {number} {digest}\n" for split in sorted(shards) for number, digest in enumerate(shards[split])]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def describe(folder: Path, splits: Mapping[str, int], *, packed: bool, digest: str) -> None:
    """Write what stands beside the shards: dataset_dict.json, and for each split state.json and dataset_info.json.

    Args:
        folder: the dataset's.
        splits: number of shards of each split, in their order.
        packed: see `features`.
        digest: what the fingerprint of each split is made of: `datasets` names its caches by it.

    Raises:
        OSError: the file system refuses.
    """
    info = {"citation": "", "description": "", "features": features(packed=packed), "homepage": "", "license": ""}
    for split, count in splits.items():
        state: dict[str, Any] = {
            "_data_files": [{"filename": shard_name(number, count)} for number in range(count)],
            "_fingerprint": hashlib.sha256(f"{split} {digest}".encode()).hexdigest()[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": split,
        }
        files.write_text(folder / split / "state.json", json.dumps(state, indent=2, sort_keys=True))
        files.write_text(folder / split / "dataset_info.json", json.dumps(info, indent=2))
    files.write_text(folder / "dataset_dict.json", json.dumps({"splits": list(splits)}))
