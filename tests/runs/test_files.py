"""Small files of JSON: read whatever lies there, without waiting."""

from __future__ import annotations

import os
from pathlib import Path

from hpctrain.runs import files


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
    padded = b'{"a": 1}' + b" " * (files.MAX_BYTES - 8)
    (tmp_path / "largest").write_bytes(padded)
    assert files.read_json(tmp_path / "largest") == {"a": 1}
    (tmp_path / "larger").write_bytes(padded + b" ")
    assert files.read_json(tmp_path / "larger") is None


def test_a_link_and_bytes_that_are_no_utf8_are_read(tmp_path: Path) -> None:
    files.write_json(tmp_path / "real", {"name": os.fsdecode(b"caf\xe9")})
    (tmp_path / "link").symlink_to("real")
    assert files.read_json(tmp_path / "link") == {"name": os.fsdecode(b"caf\xe9")}
