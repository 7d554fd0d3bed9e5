"""Which files are found, with their splits and forms, and everything that is wrong with them at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sources_made import ROWS, jsonl, read, values

from hpctrain.errors import UsageError
from hpctrain.preparation import sources


def test_a_folder_gives_its_data_files_with_the_splits_of_their_names(tmp_path: Path) -> None:
    for name in ("data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl", "data/validation.jsonl", "dev/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        jsonl(tmp_path / name, ROWS[:2])
    for name in ("README.md", ".hidden.jsonl", "LICENSE", "load.py", "dataset_info.json"):
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
def test_splits_are_those_of_the_names_where_there_are_several(tmp_path: Path, names: list[str], splits: list[str | None]) -> None:
    found = sources.find([jsonl(tmp_path / name) for name in names])
    assert [source.split for source in found] == splits


def test_text_is_read_by_lines_or_blocks_and_that_is_said(tmp_path: Path) -> None:
    lines, blocks = tmp_path / "lines.txt", tmp_path / "blocks.txt"
    lines.write_text("one\ntwo\n\n")
    blocks.write_text("one\ntwo\n\n\n three\n")
    assert values(read(lines)) == [{"text": "one"}, {"text": "two"}]
    assert values(read(blocks)) == [{"text": "one\ntwo"}, {"text": " three"}]
    assert [row.where.rpartition(":")[2] for row in read(blocks)] == ["1", "5"]
    assert values(read(blocks, unit="file")) == [{"text": "one\ntwo\n\n\n three"}]
    assert values(read(blocks, unit="line")) == [{"text": "one"}, {"text": "two"}, {"text": " three"}]
    assert "one example between blank lines" in sources.sentence(sources.find([blocks]))


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "d.jsonl")
    (tmp_path / "link.jsonl").symlink_to(path)
    assert len(sources.find([path, tmp_path])) == 1
    assert values(read(tmp_path / "link.jsonl")) == ROWS


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "sheet.xlsx").write_bytes(b"PK\x03\x04")
    (tmp_path / "utf16.csv").write_text("a,b", encoding="utf-16")
    (tmp_path / "latin.txt").write_text("café\nnaïve\n" * 50, encoding="latin-1")
    (tmp_path / "cut.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00")
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "hpctrain.json").write_text("{}")
    names = ["empty.jsonl", "gone.jsonl", "pipe.jsonl", "sheet.xlsx", "utf16.csv", "latin.txt", "cut.jsonl.gz", "done", "not-there"]
    with pytest.raises(UsageError) as raised:
        sources.find([tmp_path / name for name in names])
    said = raised.value.render()
    assert "9 problems with the data" in said
    for words in (
        "empty.jsonl is empty",
        "No such file or directory",
        "pipe.jsonl is not a regular file",
        "sheet.xlsx is of no kind that is known: .xlsx",
        "utf16.csv is UTF-16",
        "latin.txt:1 is not UTF-8 (byte 0xe9): iconv -f ISO-8859-1 -t UTF-8",
        "cut.jsonl.gz is damaged or ends early",
        "tokenised already",
        "not-there",
    ):
        assert words in said
    assert said.splitlines()[-1].startswith("fix: ")


def test_a_few_bytes_that_are_no_utf8_do_not_refuse_a_file(tmp_path: Path) -> None:
    path = tmp_path / "d.txt"
    path.write_bytes(b"good words\n" * 2000 + b"caf\xe9\n")
    found = read(path)
    assert values(found)[-1] == "not UTF-8"
    assert len(found) == 2001


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("words")
    with pytest.raises(UsageError, match="no data in"):
        sources.find([tmp_path])
    with pytest.raises(UsageError, match="no data was named"):
        sources.find([])


def test_what_may_not_be_read_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    jsonl(folder / "d.jsonl")
    for path in (tmp_path, *tmp_path.parents[:3]):
        path.chmod(path.stat().st_mode | 0o055)
    folder.chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # nobody; root may read everything
    try:
        with pytest.raises(UsageError) as raised:
            sources.find([folder, folder / "d.jsonl"])
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
    assert f"cannot read the folder {folder}: Permission denied" in raised.value.details
    assert f"cannot read {folder / 'd.jsonl'}: Permission denied" in raised.value.details
