"""Files found, cut and read: the same rows whatever the cut, and every oddity of a file said with
its place.
"""

import csv
import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpctrain.data import readers, sources
from hpctrain.data.readers import Dropped, SourceRow
from hpctrain.errors import HpctrainError, UsageError
from tests.preparation.sources_made import ROWS, jsonl, read, values

# -- JSON Lines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [1, 100, 997, 10**9])
def test_jsonl_is_the_same_however_it_is_cut(tmp_path: Path, target: int) -> None:
    found = read(jsonl(tmp_path / "d.jsonl"), target)
    assert values(found) == ROWS
    assert [row.where for row in found] == [
        f"{tmp_path}/d.jsonl:{number + 1}" for number in range(200)
    ]


def test_odd_lines_of_jsonl_are_rows_or_reasons_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"text": "bom"}\r\n\r\n   \n{"text":'
        b' "caf\xe9"}\n{bad}\n[1]\n"words"\nnull\n{"text": "nul \\u0000"}\n{"a": 1}'
        + b"\n"
        + b'{"text": '
        + b"[" * 100_000
        + b"\n"
        + json.dumps({"text": "x" * 100_000}).encode() * 50
        + b"\n"
        + b'{"text": "last line, no end"}'
    )
    found = read(path)
    assert values(found)[:8] == [
        {"text": "bom"},
        "not UTF-8",
        "not JSON",
        "an example is not an object",
        {"text": "words"},
        "an example is not an object",
        {"text": "nul \x00"},
        {"a": 1},
    ]
    assert values(found)[8:] == ["not JSON", "not JSON", {"text": "last line, no end"}]
    assert [int(row.where.rpartition(":")[2]) for row in found] == [1, *range(4, 14)]
    bad = [row for row in found if isinstance(row, Dropped)]
    assert bad[0].detail == "byte 0xe9 at 13"


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=20),
    st.integers(1, 30),
    st.booleans(),
    st.booleans(),
)
def test_text_is_the_same_however_it_is_cut(
    tmp_path: Path, lines: list[bytes], target: int, ended: bool, blocks: bool
) -> None:
    path = tmp_path / "d.txt"
    path.write_bytes(b"x\n" + b"\n".join(lines) + (b"\n" if ended else b""))
    source = sources.Source(path=path, kind="text", bytes=path.stat().st_size, blocks=blocks)
    pieces = readers.pieces([source], target_bytes=target)
    cut = [row for piece in pieces for row in readers.read_rows(piece)]
    whole = list(readers.read_rows(readers.SourcePiece(source=source)))
    assert values(cut) == values(whole)
    assert [row.where for row in cut] == [row.where for row in whole]


# -- JSON ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_read_row_by_row(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "d.json"
    path.write_text(json.dumps(ROWS, indent=indent, ensure_ascii=False))
    found = read(path)
    assert values(found) == ROWS
    assert [row.where for row in found[:2]] == [f"{path}:row 1", f"{path}:row 2"]


def test_json_files_that_are_lines_or_one_row_are_seen_as_that(tmp_path: Path) -> None:
    assert values(read(jsonl(tmp_path / "lines.json"))) == ROWS
    row = {"messages": [{"role": "user", "content": "q"}], "id": 3}
    (tmp_path / "one.json").write_text(json.dumps(row, indent=1))
    assert values(read(tmp_path / "one.json")) == [row]
    (tmp_path / "empty.json").write_text(" [ ] \n")
    assert read(tmp_path / "empty.json") == []


# -- CSV -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "delimiter"), [("d.csv", ","), ("d.tsv", "\t"), ("semi.csv", ";")]
)
def test_csv_with_lines_in_its_fields(tmp_path: Path, name: str, delimiter: str) -> None:
    path = tmp_path / name
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text", "n"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)
    found = read(path)
    assert values(found) == [{"text": row["text"], "n": str(row["n"])} for row in ROWS]
    assert [int(row.where.rpartition(":")[2]) for row in found] == [
        2 + 2 * number for number in range(200)
    ]


def test_odd_rows_of_csv(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    big = "x" * 300_000
    path.write_bytes(
        b"\xef\xbb\xbfprompt,completion\r\na,b\r\n\r\nonly\r\nc,d,e\r\ncaf\xe9,x\r\n"
        + f"{big},y\n".encode()
        + b'z,"no end'
    )
    found = read(path)
    assert values(found)[0] == {"prompt": "a", "completion": "b"}
    assert values(found)[1:] == [
        "another number of fields than the header",
        "another number of fields than the header",
        "not UTF-8",
        {"prompt": big, "completion": "y"},
        {"prompt": "z", "completion": "no end"},
    ]


# -- compressed ------------------------------------------------------------------------------------


def test_compressed_files_are_read_as_they_are(tmp_path: Path) -> None:
    content = jsonl(tmp_path / "d.jsonl").read_bytes()
    packed = tmp_path / "e.jsonl.gz"
    packed.write_bytes(gzip.compress(content))
    assert values(read(packed, 100)) == ROWS
    # Half of it: what is there is read, and then it is an error, since nobody knows what is
    # missing.
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
    with pytest.raises(HpctrainError, match="damaged or ends early"):
        read(packed, 100)
    other = tmp_path / "e.jsonl.xz"
    other.write_bytes(content)
    with pytest.raises(UsageError, match="is not data"):
        read(other, 100)


# -- parquet, Arrow --------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("target", [1, 2000, 10**9])
def test_parquet_is_the_same_however_it_is_cut(tmp_path: Path, target: int) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [
        {**row, "messages": [{"role": "user", "content": None, "x": {"y": None}}]} for row in ROWS
    ]
    path = tmp_path / "d.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=30)
    found = read(path, target)
    assert values(found) == rows
    assert [row.where for row in found] == [f"{path}:row {number}" for number in range(1, 201)]
    piece = readers.pieces(sources.find([path]), target_bytes=10**9)[0]
    assert values(list(readers.read_rows(piece, columns=["n", "other"]))) == [
        {"n": row["n"]} for row in ROWS
    ]
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(HpctrainError, match="is damaged, or not a Parquet file"):
        read(path)


@pytest.mark.torch
@pytest.mark.parametrize("target", [1, 10**9])
def test_a_folder_that_save_to_disk_wrote_keeps_its_splits(tmp_path: Path, target: int) -> None:
    from datasets import Dataset, DatasetDict

    whole = Dataset.from_list(ROWS)
    DatasetDict(train=whole, test=whole.select(range(5))).save_to_disk(
        tmp_path / "both", num_shards={"train": 3, "test": 1}
    )
    found = sources.find([tmp_path / "both"])
    assert [source.split for source in found] == ["test"] + ["train"] * 3
    assert "own splits: test 1, train 3" in sources.sentence(found)
    pieces = readers.pieces(found, target_bytes=target)
    assert values([row for piece in pieces for row in readers.read_rows(piece)]) == ROWS[:5] + ROWS
    whole.shuffle(seed=1).save_to_disk(tmp_path / "one")
    one = read(tmp_path / "one", target)
    assert sorted(row["n"] for row in one if isinstance(row, SourceRow)) == list(range(200))
    assert [row["n"] for row in one if isinstance(row, SourceRow)] != list(range(200))


# -- which files ---------------------------------------------------------------------------------


@pytest.mark.torch
def test_splits_of_save_to_disk_keep_their_names(tmp_path: Path) -> None:
    """UltraChat's train_gen has prompts: it is no part of train_sft."""
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_dict({"text": ["a", "b"]})
    DatasetDict(train=rows, train_sft=rows, train_gen=rows).save_to_disk(tmp_path / "several")
    found = sources.find([tmp_path / "several"])
    assert {each.split for each in found} == {"train", "train_sft", "train_gen"}


def test_a_folder_gives_its_data_files_with_the_splits_of_their_names(tmp_path: Path) -> None:
    for name in (
        "data/train-00000-of-00002.jsonl",
        "data/train-00001-of-00002.jsonl",
        "data/validation.jsonl",
        "dev/notes.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        jsonl(tmp_path / name, ROWS[:2])
    for name in ("README.md", ".hidden.jsonl", "LICENSE", "dataset_info.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "data" / "empty.jsonl").touch()
    found = sources.find([tmp_path / "data"])
    assert [(source.path.name, source.split) for source in found] == [
        ("train-00000-of-00002.jsonl", "train"),
        ("train-00001-of-00002.jsonl", "train"),
        ("validation.jsonl", "validation"),
    ]
    every = sources.find([tmp_path])
    assert [source.path.name for source in every][-1] == "notes.txt"
    assert every[-1].split == "validation"


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train.jsonl"], [None]),
        (["test.jsonl"], [None]),
        (["train.jsonl", "test.jsonl"], ["train", "test"]),
        (["mine.jsonl", "val.jsonl"], ["train", "validation"]),
        (["training_set.jsonl", "evaluation_set.jsonl"], ["train", "test"]),
        (["constrained.jsonl", "latest.jsonl"], [None, None]),
    ],
)
def test_splits_are_those_of_the_names_where_there_are_several(
    tmp_path: Path, names: list[str], splits: list[str | None]
) -> None:
    found = sources.find([jsonl(tmp_path / name) for name in names])
    assert [source.split for source in found] == splits


def test_text_is_read_by_lines_or_blocks_and_that_is_said(tmp_path: Path) -> None:
    lines, blocks = tmp_path / "lines.txt", tmp_path / "blocks.txt"
    lines.write_text("one\ntwo\n\n")
    blocks.write_text("one\ntwo\n\n\n three\n")
    assert values(read(lines)) == [{"text": "one"}, {"text": "two"}]
    assert values(read(blocks)) == [{"text": "one\ntwo"}, {"text": " three"}]
    assert [row.where.rpartition(":")[2] for row in read(blocks)] == ["1", "5"]
    assert "1 file of text by block" in sources.sentence(sources.find([blocks]))


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("words")
    with pytest.raises(UsageError, match="no data in"):
        sources.find([tmp_path])
    (tmp_path / "sheet.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(UsageError, match=r"sheet\.xlsx is not data"):
        sources.find([tmp_path / "sheet.xlsx"])
    full, empty = jsonl(tmp_path / "full.jsonl"), tmp_path / "validation.jsonl"
    empty.touch()
    with pytest.raises(UsageError, match=r"validation\.jsonl is empty"):
        sources.find([full, empty])
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(UsageError, match=r"cannot read .*pipe"):
        sources.find([tmp_path / "pipe.jsonl"])
