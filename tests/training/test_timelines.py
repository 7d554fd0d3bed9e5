"""Timelines in files become a dataset of numbers: nothing is learned of held-out rows, nobody is in
two splits, nothing is half made.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain.data import manifest
from hpctrain.data.timelines import PAD, UNKNOWN, TimelineRequest, prepare
from hpctrain.errors import UsageError

pytestmark = pytest.mark.torch

ROWS = [
    {
        "patient": number // 3,
        "events": [f"e{number % 7}", "visit", *["rare"] * (number == 5)],
        "label": "yes" if number % 2 else "no",
    }
    for number in range(60)
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(folder: Path) -> dict[str, list[dict[str, Any]]]:
    import datasets

    return {name: list(rows) for name, rows in datasets.load_from_disk(str(folder)).items()}


def test_strings_become_numbers_of_the_training_rows(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", ROWS)
    made = prepare(
        TimelineRequest(files=(file,), to=tmp_path / "out", group="patient", held_out=0.3, least=2)
    )
    data, numbers = (
        load(tmp_path / "out"),
        json.loads((tmp_path / "out" / "vocabulary.json").read_text()),
    )
    assert (numbers[PAD], numbers[UNKNOWN], numbers["visit"]) == (
        0,
        1,
        2,
    ), "the most frequent first"
    assert "rare" not in numbers
    assert made == manifest.read_manifest(tmp_path / "out")
    assert (made.vocabulary, made.labels, made.form) == (len(numbers), ("no", "yes"), "classes")
    assert made.settings["pad_token_id"] == 0
    names = {number: name for name, number in numbers.items()}
    wanted = sorted(
        (*("<unk>" if event == "rare" else event for event in row["events"]), row["label"])
        for row in ROWS
    )
    assert (
        sorted(
            (*(names[each] for each in row["input_ids"]), row["label"])
            for rows in data.values()
            for row in rows
        )
        == wanted
    )
    assert {name: split.rows for name, split in made.splits.items()} == {
        name: len(rows) for name, rows in data.items()
    }
    assert 5 <= len(data["test"]) <= 30
    assert len(data["test"]) % 3 == 0, "all three rows of a patient are in one split"


def test_an_event_of_held_out_rows_alone_is_unknown(tmp_path: Path) -> None:
    rows = [
        {"patient": number, "events": [f"only{number}", "visit"], "label": number % 2}
        for number in range(50)
    ]
    prepare(
        TimelineRequest(
            files=(write(tmp_path / "a.jsonl", rows),), to=tmp_path / "out", held_out=0.3
        )
    )
    data = load(tmp_path / "out")
    assert data["test"]
    assert all(row["input_ids"][0] == 1 for row in data["test"])
    assert (
        len(json.loads((tmp_path / "out" / "vocabulary.json").read_text()))
        == len(data["train"]) + 3
    )


def test_the_same_rows_and_seed_make_the_same_dataset_and_another_seed_another_split(
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "a.jsonl", ROWS)
    made = [
        prepare(TimelineRequest(files=(file,), to=tmp_path / str(number), seed=number // 2))
        for number in range(3)
    ]
    assert made[0].digest == made[1].digest != made[2].digest


def test_numbers_are_their_own_ids(tmp_path: Path) -> None:
    rows = [{"events": list(range(1, length)), "label": length % 2} for length in (3, 9, 5)]
    file = write(tmp_path / "a.jsonl", rows)
    made = prepare(TimelineRequest(files=(file,), to=tmp_path / "out", held_out=0))
    data = load(tmp_path / "out")
    assert list(data) == ["train"]
    assert data["train"][0] == {
        "input_ids": [1, 2],
        "label": 1,
    }
    assert (made.vocabulary, made.settings["pad_token_id"]) == (9, 0)
    assert not (tmp_path / "out" / "vocabulary.json").exists(), "events are numbers already"
    zero = write(
        tmp_path / "b.jsonl", [{"events": [0, 3], "label": 0}, {"events": [2], "label": 1}]
    )
    made = prepare(TimelineRequest(files=(zero,), to=tmp_path / "zero", held_out=0))
    assert (made.vocabulary, made.settings["pad_token_id"]) == (
        5,
        4,
    ), "0 is an event here, and cannot be the padding"


def test_csv_and_parquet_are_read_as_jsonl_is(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    with (tmp_path / "a.csv").open("w", newline="") as stream:
        out = csv.DictWriter(stream, ["patient", "events", "label"])
        out.writeheader()
        out.writerows({**row, "events": " ".join(row["events"])} for row in ROWS)
    write(tmp_path / "a.jsonl", ROWS)
    made = [
        prepare(
            TimelineRequest(files=(tmp_path / f"a.{kind}",), to=tmp_path / kind, group="patient")
        ).digest
        for kind in ("jsonl", "csv", "parquet")
    ]
    assert len(set(made)) == 1


def test_the_numbers_of_an_earlier_vocabulary_are_taken(tmp_path: Path) -> None:
    first = prepare(
        TimelineRequest(files=(write(tmp_path / "a.jsonl", ROWS),), to=tmp_path / "out")
    )
    later = write(
        tmp_path / "b.jsonl",
        [{"events": ["visit", "new", "e1"], "label": "no"}, {"events": ["e2"], "label": "yes"}],
    )
    made = prepare(
        TimelineRequest(
            files=(later,),
            to=tmp_path / "later",
            held_out=0,
            vocabulary=tmp_path / "out" / "vocabulary.json",
        )
    )
    numbers = json.loads((tmp_path / "out" / "vocabulary.json").read_text())
    assert load(tmp_path / "later")["train"][0]["input_ids"] == [numbers["visit"], 1, numbers["e1"]]
    assert made.tokenizer == first.tokenizer, "one fingerprint for one vocabulary"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", "{", "a.jsonl:1: not JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl:1: an example is not an object"),
        ("a.jsonl", '{"events": ["a"]}\n', "a.jsonl:1 has no label; it has events"),
        ("a.jsonl", '{"events": 5, "label": 1}\n', "events are int, and must be a list"),
        (
            "a.jsonl",
            '{"events": [1.5], "label": 1}\n',
            "an event must be a string or a whole number from 0, got 1.5",
        ),
        (
            "a.jsonl",
            '{"events": [-1], "label": 1}\n',
            "an event must be a string or a whole number from 0, got -1",
        ),
        (
            "a.jsonl",
            '{"events": ["a"], "label": 1}\n{"events": [3], "label": 0}\n',
            "strings in some rows and numbers in others",
        ),
        (
            "a.jsonl",
            '{"events": ["a"], "label": 1}\n{"events": ["b"], "label": "x"}\n',
            "labels are of several kinds",
        ),
        ("a.jsonl", '{"events": [], "label": 1}\n', "no rows are left for training"),
    ],
)
def test_rows_that_are_none_are_told_with_their_place(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        prepare(TimelineRequest(files=(tmp_path / name,), to=tmp_path / "out", held_out=0))
    assert said in caught.value.what
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing is half made"


def test_what_is_left_out_is_counted_and_the_command_says_it(tmp_path: Path) -> None:
    write(
        tmp_path / "a.jsonl",
        [
            *ROWS,
            {"patient": 99, "events": [], "label": "no"},
            {"patient": 99, "events": ["a"], "label": None},
        ],
    )
    words = [sys.executable, "-m", "hpctrain.data.timelines", "a.jsonl"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*words, "--to", "out"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "out\n"
    assert done.stderr.splitlines()[0].startswith("train: ")
    assert done.stderr.splitlines()[-2:] == [
        "dropped: 1 rows with no events",
        "dropped: 1 rows with no label",
    ]
    assert "classes: no, yes" in done.stderr
    again = subprocess.run(
        [*words, "--to", "out"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert again.returncode == 2
    assert again.stderr.startswith("error: out exists\n")
