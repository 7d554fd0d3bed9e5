"""Files found, cut and read: the same rows whatever the cut, and every oddity of a file said with its place."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sources_made import ROWS, jsonl, read, values

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.preparation import sources, sources_lines
from hpctrain.preparation.rows import Dropped, Row

# -- JSON Lines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [1, 100, 997, 10**9])
def test_jsonl_is_the_same_however_it_is_cut(tmp_path: Path, target: int) -> None:
    found = read(jsonl(tmp_path / "d.jsonl"), target)
    assert values(found) == ROWS
    assert [row.where for row in found] == [f"{tmp_path}/d.jsonl:{number + 1}" for number in range(200)]


def test_pieces_cover_a_file_of_lines_without_a_gap(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "d.jsonl")
    pieces = sources.pieces(sources.find([path]), target_bytes=1000)
    assert len(pieces) > 5
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    assert (pieces[0].start, pieces[-1].stop) == (0, None)
    assert sum(piece.bytes for piece in pieces) == path.stat().st_size


def test_odd_lines_of_jsonl_are_rows_or_reasons_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"text": "bom"}\r\n\r\n   \n{"text": "caf\xe9"}\n{bad}\n[1]\n"words"\nnull\n{"text": "nul \\u0000"}\n{"a": 1}'
        + b"\n" + b'{"text": ' + b"[" * 100_000 + b"\n"
        + json.dumps({"text": "x" * 100_000}).encode() * 50 + b"\n" + b'{"text": "last line, no end"}'
    )  # fmt: skip
    found = read(path)
    assert values(found)[:8] == [
        {"text": "bom"},
        "not UTF-8",
        "not JSON",
        "a row is not an object",
        {"text": "words"},
        "a row is not an object",
        {"text": "nul \x00"},
        {"a": 1},
    ]
    assert values(found)[8:] == ["not JSON", "not JSON", {"text": "last line, no end"}]
    assert [int(row.where.rpartition(":")[2]) for row in found] == [1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    bad = [row for row in found if isinstance(row, Dropped)]
    assert bad[0].detail == "byte 0xe9 at 13"


def test_a_line_that_is_too_long_is_left_out_and_never_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_lines, "MAX_LINE", 1000)
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "a"}\n' + '{"text": "' + "x" * 5000 + '"}\n{"text": "b"}\n')
    assert values(read(path)) == [{"text": "a"}, sources_lines.TOO_LONG, {"text": "b"}]
    assert read(path)[2].where.endswith(":3")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(copies: int, name: str, content: str, between: str, around: tuple[str, str]) -> int:
        path = tmp_path / name
        path.write_text(around[0] + between.join([content] * copies) + around[1])
        tracemalloc.start()
        for piece in sources.pieces(sources.find([path]), target_bytes=10**6):
            for _ in sources.read(piece):
                pass
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    row = json.dumps({"text": "word " * 200})
    for name, between, around in (("d.jsonl", "\n", ("", "\n")), ("d.json", ",\n", ("[", "]")), ("d.txt", "\n", ("", "\n"))):
        # 17 MB are held while places are looked for, whatever the file's size
        assert peak(40_000, name, row, between, around) < peak(20_000, name, row, between, around) + 2_000_000


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=20),
    st.integers(1, 30),
    st.booleans(),
    st.sampled_from(["line", "block", "file"]),
    st.integers(1, 40),
)
def test_text_is_the_same_however_it_is_cut(tmp_path: Path, lines: list[bytes], target: int, ended: bool, unit: Any, chunk: int) -> None:  # noqa: PLR0917 - hypothesis gives them
    path = tmp_path / "d.txt"
    sources_lines._CHUNK = chunk  # put back below
    path.write_bytes(b"x\n" + b"\n".join(lines) + (b"\n" if ended else b""))
    source = sources.Source(path=path, kind="text", bytes=path.stat().st_size, unit=unit)
    try:
        pieces = sources.pieces([source], target_bytes=target)
    finally:
        sources_lines._CHUNK = 16 << 20
    cut = [row for piece in pieces for row in sources.read(piece)]
    whole = list(sources.read(sources.Piece(source=source)))
    assert values(cut) == values(whole)
    assert [row.where for row in cut] == [row.where for row in whole]


def test_a_blank_line_across_two_chunks_is_a_place_to_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "d.txt"
    path.write_text("seven 7\n\nthe rest\n")
    for chunk in (8, 9, 4):
        monkeypatch.setattr(sources_lines, "_CHUNK", chunk)
        pieces = sources.pieces(sources.find([path]), target_bytes=1)
        assert [(piece.start, piece.first) for piece in pieces] == [(0, 1), (9, 3)]


# -- JSON --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("shape", ["array", "object"])
def test_a_json_array_is_read_row_by_row(tmp_path: Path, indent: int | None, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpctrain.preparation.sources_json._CHUNK", 7)
    path = tmp_path / "d.json"
    content = ROWS if shape == "array" else {"version": "1.0", "about": {"x": [1, 2]}, "data": ROWS, "more": 12345.5}
    path.write_text(json.dumps(content, indent=indent, ensure_ascii=False))
    found = read(path)
    assert values(found) == ROWS
    assert found[0].where == f"{path}:{1 if indent is None else 2 if shape == 'array' else 10}"


def test_json_files_that_are_lines_or_one_row_are_seen_as_that(tmp_path: Path) -> None:
    assert values(read(jsonl(tmp_path / "lines.json"))) == ROWS
    row = {"messages": [{"role": "user", "content": "q"}], "id": 3}
    (tmp_path / "one.json").write_text(json.dumps(row, indent=1))
    assert values(read(tmp_path / "one.json")) == [row]
    (tmp_path / "bare.data").write_text(json.dumps([row]))
    assert values(read(tmp_path / "bare.data")) == [row]
    (tmp_path / "empty.json").write_text(" [ ] \n")
    assert read(tmp_path / "empty.json") == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[{"a": 1}, {"a": 2', "not JSON from here on"),
        ('[{"a": 1} {"a": 2}]', "not JSON from here on"),
        ("[{'a': 1}]", "not JSON from here on"),
        ('[{"a": 1}] x', "not JSON from here on"),
        ("words", "not JSON from here on"),
        ('{"train": [{"a": 1}],\n "test": [{"a": 1}]}', "several lists of rows: train, test"),
    ],
)
def test_a_json_file_that_is_broken_says_where(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "d.json"
    path.write_text(content)
    with pytest.raises(HpctrainError, match=said):
        read(path)


# -- CSV ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [1, 500, 10**9])
@pytest.mark.parametrize(("name", "delimiter"), [("d.csv", ","), ("d.tsv", "\t"), ("semi.csv", ";")])
def test_csv_with_lines_in_its_fields_is_the_same_however_it_is_cut(tmp_path: Path, target: int, name: str, delimiter: str) -> None:
    path = tmp_path / name
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text", "n"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)
    found = read(path, target)
    assert values(found) == [{"text": row["text"], "n": str(row["n"])} for row in ROWS]
    assert [int(row.where.rpartition(":")[2]) for row in found] == [2 + 2 * number for number in range(200)]


def test_odd_rows_of_csv(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    big = "x" * 300_000
    path.write_bytes(b"\xef\xbb\xbfprompt,completion\r\na,b\r\n\r\nonly\r\nc,d,e\r\ncaf\xe9,x\r\n" + f"{big},y\n".encode() + b'z,"no end')
    found = read(path)
    assert values(found)[0] == {"prompt": "a", "completion": "b"}
    assert values(found)[1:] == [
        "another number of fields than the header",
        "another number of fields than the header",
        "not UTF-8",
        {"prompt": big, "completion": "y"},
        {"prompt": "z", "completion": "no end"},
    ]


@pytest.mark.parametrize("content", ["\n1,2\n", "a,a\n1,2\n"])
def test_a_csv_without_names_of_columns_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "d.csv").write_text(content)
    with pytest.raises(UsageError, match="the first line of"):
        read(tmp_path / "d.csv")


# -- compressed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_compressed_files_are_read_as_they_are(tmp_path: Path, suffix: str) -> None:
    content = jsonl(tmp_path / "d.jsonl").read_bytes()
    packed = tmp_path / f"e.jsonl.{suffix}"
    packed.write_bytes({"gz": gzip, "bz2": bz2, "xz": lzma}[suffix].compress(content))
    assert values(read(packed, 100)) == ROWS
    # Half of it: what is there is read, and then it is an error, since nobody knows what is missing.
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
    with pytest.raises(HpctrainError, match="damaged or ends early"):
        read(packed, 100)


@pytest.mark.torch
def test_zstandard_is_read_by_pyarrow(tmp_path: Path) -> None:
    import pyarrow

    content = jsonl(tmp_path / "d.jsonl").read_bytes()
    packed = tmp_path / "e.jsonl.zst"
    packed.write_bytes(pyarrow.compress(content, "zstd", asbytes=True))
    assert values(read(packed)) == ROWS


# -- parquet, Arrow ----------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("target", [1, 2000, 10**9])
def test_parquet_is_the_same_however_it_is_cut(tmp_path: Path, target: int) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{**row, "messages": [{"role": "user", "content": None, "x": {"y": None}}]} for row in ROWS]
    path = tmp_path / "d.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=30)
    found = read(path, target)
    assert values(found) == rows
    assert [row.where for row in found] == [f"{path}:row {number}" for number in range(1, 201)]
    piece = sources.pieces(sources.find([path]), target_bytes=10**9)[0]
    assert values(list(sources.read(piece, columns=["n", "other"]))) == [{"n": row["n"]} for row in ROWS]
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(HpctrainError, match="no parquet file, or is damaged"):
        read(path)


@pytest.mark.torch
@pytest.mark.parametrize("target", [1, 10**9])
def test_a_folder_that_save_to_disk_wrote_keeps_its_splits(tmp_path: Path, target: int) -> None:
    from datasets import Dataset, DatasetDict

    whole = Dataset.from_list(ROWS)
    DatasetDict(train=whole, test=whole.select(range(5))).save_to_disk(tmp_path / "both", num_shards={"train": 3, "test": 1})
    found = sources.find([tmp_path / "both"])
    assert [source.split for source in found] == ["train"] * 3 + ["test"]
    assert "splits of their own: train 3, test 1" in sources.sentence(found)
    pieces = sources.pieces(found, target_bytes=target)
    assert values([row for piece in pieces for row in sources.read(piece)]) == ROWS + ROWS[:5]
    whole.shuffle(seed=1).save_to_disk(tmp_path / "one")
    one = read(tmp_path / "one", target)
    assert sorted(row["n"] for row in one if isinstance(row, Row)) == list(range(200))
    assert [row["n"] for row in one if isinstance(row, Row)] != list(range(200))
