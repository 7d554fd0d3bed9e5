"""Files that are written whole, locks that end with their process, and small files of JSON."""

import math
import os
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from hpctrain.util import files, stored


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"n": 1})

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        files.write_json(path, {"n": 2})
    assert files.read_json(path) == {"n": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_mode(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a", "x", mode=0o600)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("most", "lines"),
    [
        (100, [b"one\n", b"two\n", b"three\n"]),
        (10, [b"two\n", b"three\n"]),
        (9, [b"three\n"]),
        (6, [b"three\n"]),
        (3, []),
    ],
)
def test_tail_has_whole_lines_only(tmp_path: Path, most: int, lines: list[bytes]) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\nthree\n")
    assert files.tail(path, most) == lines


def test_tail_of_half_a_line_and_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\nhal")
    assert files.tail(tmp_path / "log", 100) == [b"one\n"]
    assert files.tail(tmp_path / "missing", 100) == []


# -- Small files of JSON: read whatever lies there, without waiting


def test_what_is_no_small_regular_file_holds_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken").symlink_to("nowhere")
    with (tmp_path / "huge").open("wb") as stream:
        stream.write(b'{"a": 1}')
        stream.truncate(1 << 40)
    for name in ("fifo", "zero", "folder", "broken", "huge"):
        assert files.read_json(tmp_path / name) is None
    padded = b'{"a": 1}' + b" " * (stored.MAX_BYTES - 8)
    (tmp_path / "largest").write_bytes(padded)
    assert files.read_json(tmp_path / "largest") == {"a": 1}
    (tmp_path / "larger").write_bytes(padded + b" ")
    assert files.read_json(tmp_path / "larger") is None


def test_a_link_and_bytes_that_are_no_utf8_are_read(tmp_path: Path) -> None:
    files.write_json(tmp_path / "real", {"name": os.fsdecode(b"caf\xe9")})
    (tmp_path / "link").symlink_to("real")
    assert files.read_json(tmp_path / "link") == {"name": os.fsdecode(b"caf\xe9")}


# -- JSON values held against the types that fields have


PAIR = tuple[str, int]
MANY = tuple[int, ...]
WORD = Literal["weights", "state"]


@pytest.mark.parametrize(
    ("value", "kind", "is_known"),
    [
        (["a", 1], PAIR, True),
        ([], MANY, True),
        ([1, 2, 3], MANY, True),
        ("state", WORD, True),
        (None, WORD | None, True),
        ([["a", 1]], list[PAIR], True),
        (["a", "b"], PAIR, False),
        ([1, 1], PAIR, False),
        (["a"], PAIR, False),
        (["a", 1, 2], PAIR, False),
        ([1, "2"], MANY, False),
        ("nothing", WORD, False),
        (["state"], WORD, False),
        (True, Literal[1], False),
        (True, float, False),
        (math.nan, float, False),
    ],
)
def test_a_record_has_values_of_its_types_only(value: Any, kind: Any, is_known: bool) -> None:
    record = make_dataclass("Record", [("value", kind)])
    assert (stored.made(record, {"value": value, "more": 1}) is not None) == is_known
