"""Reading the file that W&B writes for a run, `run-ID.wandb`: the package that W&B ships has no reader for Python.

A LevelDB log (github.com/google/leveldb, doc/log_format.md) of protobuf records: 7 bytes of W&B's own, then blocks of 32 KiB with chunks of
checksum (4 bytes), length (2), type (1: whole, 2: first, 3: middle, 4: last) and data.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

_MARK = b":W&B"
_HEADER_BYTES = 7
_BLOCK_BYTES = 32768
_CHUNK_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file that may end in the middle of one, as it does after a kill; nothing of a file that is something else.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        header = stream.read(_HEADER_BYTES)
        if header[: len(_MARK)] != _MARK:
            return
        parts: list[bytes] = []
        # The first block is shorter by the header, as W&B counts its blocks from the beginning of the file.
        block = stream.read(_BLOCK_BYTES - _HEADER_BYTES)
        while block:
            for kind, data in _chunks(block):
                if kind in (_WHOLE, _FIRST):
                    parts = []
                parts.append(data)
                if kind in (_WHOLE, _LAST):
                    yield b"".join(parts)
                    parts = []
            block = stream.read(_BLOCK_BYTES)


def _chunks(block: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _CHUNK_HEADER.size <= len(block):
        _, length, kind = _CHUNK_HEADER.unpack_from(block, at)
        at += _CHUNK_HEADER.size
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or at + length > len(block):
            return  # the padding at a block's end, or where the writer was killed
        yield kind, block[at : at + length]
        at += length


def pairs(path: Path, *, step: str) -> set[tuple[str, int]]:
    """Return the name and the step of every value in a file's history.

    Args:
        path: a .wandb file.
        step: the name of the value that holds the step.

    Raises:
        OSError: it cannot be read.
    """
    from wandb.proto import wandb_internal_pb2

    found: set[tuple[str, int]] = set()
    for data in records(path):
        record = wandb_internal_pb2.Record()
        try:
            record.ParseFromString(data)
            row = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            number = int(json.loads(row[step])) if step in row else None
        except Exception:  # noqa: S112 - protobuf's errors differ between its versions; a record that cannot be read says nothing
            continue
        if number is not None:
            found.update((name, number) for name in row)
    return found
