"""What one piece of the source became: examples as tokens and the spans that are trained on, in one Arrow file that is read by mapping it.

Half the size of ids and labels: these are made of the spans when the dataset is written. Knows no tokenizer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpctrain.preparation import shards

_MAX_ROWS, _MAX_TOKENS = 2048, 1 << 20
"""A batch is written when it has as many: what a writer holds in memory."""
_KEY_BYTES = 16


def _schema() -> Any:
    import pyarrow as pa

    lists = pa.list_(pa.int32())
    return pa.schema([("input_ids", lists), ("spans", lists), ("key", pa.uint64()), ("check", pa.uint64())])


class Batches:
    """Collects examples, and writes them in batches."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._clear()

    def _clear(self) -> None:
        self._ids: list[Any] = []
        self._spans: list[int] = []
        self._span_counts: list[int] = []
        self._keys: list[bytes] = []
        self._tokens = 0

    def add(self, ids: Any, spans: Sequence[int]) -> None:
        """Take one example.

        Args:
            ids: int32 array of its tokens.
            spans: start and stop of what is trained on, one after the other, rising, from token 1 on.
        """
        told = hashlib.blake2b(ids.tobytes(), digest_size=_KEY_BYTES)
        told.update(repr(spans).encode())
        self._ids.append(ids)
        self._spans += spans
        self._span_counts.append(len(spans))
        self._keys.append(told.digest())
        self._tokens += len(ids)
        if len(self._ids) >= _MAX_ROWS or self._tokens >= _MAX_TOKENS:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        import numpy as np
        import pyarrow as pa

        if not self._ids:
            return
        keys = np.frombuffer(b"".join(self._keys), dtype="<u8").reshape(-1, 2)
        columns = [
            _lists(np.concatenate(self._ids).astype(np.int32, copy=False), [len(ids) for ids in self._ids]),
            _lists(np.array(self._spans, dtype=np.int32), self._span_counts),
            pa.array(np.ascontiguousarray(keys[:, 0])),
            pa.array(np.ascontiguousarray(keys[:, 1])),
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_schema()))
        self._clear()


def _lists(values: Any, counts: Sequence[int]) -> Any:
    import numpy as np
    import pyarrow as pa

    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(offsets, pa.array(values))


@contextmanager
def writing(path: Path) -> Iterator[Batches]:
    """Give the batches of a new file, which is there when the block has ended well.

    Raises:
        OSError: the file system refuses.
    """
    with shards.stream_to(path, _schema()) as writer:
        batches = Batches(writer)
        yield batches
        batches.flush()


def table(path: Path) -> Any:
    """Return the examples of a file as a pyarrow table that lies in the file, not in memory.

    Raises:
        OSError: the file cannot be read.
    """
    import pyarrow as pa

    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        return reader.read_all()


def lengths(examples: Any) -> Any:
    """Return the tokens of each example, as an int32 array."""
    import numpy as np
    import pyarrow.compute as pc

    found = [pc.list_value_length(chunk).to_numpy() for chunk in examples.column("input_ids").chunks]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int32)


def column(examples: Any, name: str) -> Any:
    """Return the column `key` or `check` as an array of uint64."""
    return examples.column(name).to_numpy()


def labels(ids: Any, starts: Any, spans: Any, span_counts: Any) -> Any:
    """Return the labels: the ids inside of the spans, and -100 elsewhere.

    Args:
        ids: int32, tokens of all examples, one after the other.
        starts: where each example begins in `ids`.
        spans: starts and stops of all spans, counted from the beginning of their example.
        span_counts: numbers in `spans` of each example.
    """
    import numpy as np

    places = spans.astype(np.int64) + np.repeat(starts, span_counts)
    steps = np.zeros(len(ids) + 1, dtype=np.int8)
    np.add.at(steps, places[0::2], 1)  # one span may begin where another ends
    np.add.at(steps, places[1::2], -1)
    return np.where(np.cumsum(steps[:-1], dtype=np.int8) > 0, ids, np.int32(-100)).astype(np.int32, copy=False)
