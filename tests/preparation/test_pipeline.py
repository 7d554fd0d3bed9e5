"""The whole preparation: what load_from_disk reads, the same for any number of workers, kept over
kills, and never a loss.
"""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpctrain.data import manifest, pipeline
from hpctrain.data.request import PrepareRequest, resolve
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.training import preflight
from hpctrain.util import files
from tests.preparation.prepare_made import chats, everything, model, prepared

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chats(tmp_path_factory.mktemp("data") / "chats.jsonl", 3000)


@pytest.fixture(scope="module")
def whole(data: Path, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset as one uninterrupted command makes it."""
    return prepared(data, model_folder, tmp_path_factory.mktemp("whole") / "d").folder


def test_it_loads_and_names_its_splits(whole: Path) -> None:
    import datasets

    assert preflight.check_dataset(str(whole), ["train", "validation"]) == []
    for name, split in datasets.load_from_disk(str(whole)).items():
        assert split.column_names == ["input_ids", "labels", "seq_lengths"]
        assert str(split.split) == name
    assert not [name for name in everything(whole) if "cache" in name]


def test_tokens_and_masks_are_those_of_the_encoder(
    data: Path, model_folder: Path, whole: Path
) -> None:
    """Every example of the source is in one row of one split, as it was encoded, but for the label
    of its first token.
    """
    import datasets

    resolved = resolve(
        PrepareRequest(paths=(data,), target=whole, tokenizer=model_folder, max_length=256)
    )
    expected = []
    for line in data.read_text().splitlines():
        (example,) = resolved.encoder.encode([json.loads(line)])
        expected.append((tuple(example.input_ids), (-100, *example.labels()[1:])))
    found = []
    for part in datasets.load_from_disk(str(whole)).values():
        for row in part:
            assert sum(row["seq_lengths"]) == len(row["input_ids"]) == len(row["labels"]) <= 256
            start = 0
            for size in row["seq_lengths"]:
                found.append(
                    (
                        tuple(row["input_ids"][start : start + size]),
                        tuple(row["labels"][start : start + size]),
                    )
                )
                start += size
    assert sorted(found) == sorted(expected)


def test_the_manifest_counts_what_is_stored(data: Path, whole: Path) -> None:
    import datasets

    made = manifest.read_manifest(whole)
    assert made is not None
    for name, part in datasets.load_from_disk(str(whole)).items():
        split = made.splits[name]
        assert split.rows == len(part)
        assert split.examples == sum(len(sizes) for sizes in part["seq_lengths"])
        assert split.tokens == sum(map(len, part["input_ids"]))
        assert split.trained == sum(label != -100 for labels in part["labels"] for label in labels)
        assert split.longest == max(map(len, part["input_ids"]))
        assert split.padded == pytest.approx(256 * split.rows / split.tokens, abs=1e-4)
    assert made.splits["validation"].examples == 300
    assert made.rows == 3000
    assert made.sources[0]["bytes"] == data.stat().st_size
    assert made.sources[0]["mtime_ns"] == data.stat().st_mtime_ns
    assert (made.form, made.loss_on, made.packed, made.max_length, made.vocabulary) == (
        "messages",
        "assistant",
        True,
        256,
        600,
    )


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_makes_the_same(
    workers: int, data: Path, model_folder: Path, whole: Path, tmp_path: Path
) -> None:
    made = prepared(data, model_folder, tmp_path / "d", workers=workers)
    assert everything(made.folder) == everything(whole)


def command(data: Path, model_folder: Path, target: Path, hpctrain: str, *more: str) -> list[str]:
    words = [
        hpctrain,
        "prepare",
        str(data),
        "--model",
        str(model_folder),
        "--to",
        str(target),
        "--max-length",
        "256",
    ]
    return [*words, "--validation", "0.1", "--workers", "2", *more]


@pytest.mark.extended
def test_killed_again_and_again_it_goes_on_and_makes_the_same(
    data: Path, model_folder: Path, whole: Path, tmp_path: Path, hpctrain: str
) -> None:
    """SIGKILL for the command alone, at growing counts of finished pieces: no worker may outlive
    it, no torn file may count.
    """
    target, work = tmp_path / "d", tmp_path / ".d.preparing"
    words = command(data, model_folder, target, hpctrain)

    def finished() -> int:
        return len(list(work.glob("pieces-*/0*.json")))

    pieces = 0
    for wanted in (1, 3):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and finished() < wanted:
            time.sleep(0.005)
        children = (
            psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        )
        process.kill()
        process.communicate()
        psutil.wait_procs(children, timeout=600)
        assert not [
            child
            for child in children
            if child.is_running() and child.status() != psutil.STATUS_ZOMBIE
        ]
        assert not target.exists()
        pieces = finished()
        assert pieces >= wanted
        (work / "result").mkdir(exist_ok=True)
        (work / "result/half").write_bytes(b"half")
    done = subprocess.run([*words, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"continuing: {pieces} of " in done.stderr
    assert json.loads(done.stdout)["pieces_reused"] == pieces
    found = manifest.read_manifest(target)
    expected = manifest.read_manifest(whole)
    assert found.digest == expected.digest
    for name in ("train", "validation"):
        assert everything(target / name) == everything(whole / name)
    assert not work.exists()


def test_pieces_of_another_request_are_not_reused(
    data: Path, model_folder: Path, tmp_path: Path
) -> None:
    """Another seed makes the dataset again, another length the pieces too."""
    asked: dict[str, Any] = {
        "paths": (data,),
        "target": tmp_path / "d",
        "tokenizer": model_folder,
        "pack": True,
        "workers": 1,
        "validation": 0.1,
    }

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "writing":
            raise RuntimeError

    with pytest.raises(RuntimeError):
        pipeline.prepare(PrepareRequest(**asked, max_length=256), progress=stop)
    seeded = pipeline.prepare(PrepareRequest(**asked, max_length=256, seed=5))
    assert seeded.reused == seeded.pieces > 3
    fresh = prepared(data, model_folder, tmp_path / "fresh", seed=5)
    assert seeded.manifest.digest == fresh.manifest.digest
    with pytest.raises(RuntimeError):
        pipeline.prepare(PrepareRequest(**asked, max_length=200, force=True), progress=stop)
    other = pipeline.prepare(PrepareRequest(**asked, max_length=64, force=True))
    assert other.reused == 0
    assert other.manifest.splits["train"].longest <= 64
    assert other.manifest.truncated > 0


def test_two_at_once(data: Path, model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / ".d.preparing").mkdir()
    with (
        files.lock(tmp_path / ".d.preparing/lock"),
        pytest.raises(UsageError, match="another command is preparing"),
    ):
        prepared(data, model_folder, tmp_path / "d")
    assert not (tmp_path / "d").exists()
    prepared(chats(tmp_path / "few.jsonl", 30), model_folder, tmp_path / "d")


def test_the_same_again_is_nothing_to_do_and_other_needs_force(
    model_folder: Path, tmp_path: Path
) -> None:
    few = chats(tmp_path / "few.jsonl", 60)
    first = prepared(few, model_folder, tmp_path / "d")
    before = everything(tmp_path / "d")
    again = prepared(few, model_folder, tmp_path / "d")
    assert again.already_there
    assert again.manifest == first.manifest
    with pytest.raises(
        UsageError, match="prepared from other data or with other options"
    ) as refused:
        prepared(few, model_folder, tmp_path / "d", seed=1)
    assert "--force" in (refused.value.hint or "")
    assert everything(tmp_path / "d") == before
    assert prepared(few, model_folder, tmp_path / "d", seed=1, force=True).manifest.seed == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "few.jsonl"]


@pytest.mark.parametrize("force", [False, True])
def test_what_is_not_ours_is_never_replaced(
    force: bool, data: Path, model_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/mine").write_text("precious")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "d")
    for name in ("d", "file", "link"):
        with pytest.raises(UsageError, match="exists, and"):
            prepared(data, model_folder, tmp_path / name, force=force)
    assert everything(tmp_path) == {"d/mine": b"precious", "file": b"precious"}


def test_a_source_that_changes_meanwhile(model_folder: Path, tmp_path: Path) -> None:
    few = chats(tmp_path / "few.jsonl", 60)

    def change(stage: str, done: int, total: int) -> None:
        if stage == "writing":
            os.utime(few)

    with pytest.raises(HpctrainError, match="changed while it was read"):
        pipeline.prepare(
            PrepareRequest(
                paths=(few,),
                target=tmp_path / "d",
                tokenizer=model_folder,
                max_length=64,
                workers=1,
            ),
            progress=change,
        )
    assert not (tmp_path / "d").exists()


def test_splits_and_dropped_rows(model_folder: Path, tmp_path: Path) -> None:
    """A folder with splits of its own keeps them; what is dropped is counted, with its place."""
    import datasets

    folder = tmp_path / "odd folder's ünïcode"
    folder.mkdir()
    texts = [f"text number {number % 40}" for number in range(50)]
    (folder / "train.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts) + '{"text": 3}\n{broken\n'
    )
    (folder / "test.jsonl").write_text(
        json.dumps({"text": "text number 3"}) + "\n" + json.dumps({"text": "another"}) + "\n"
    )
    made = prepared(folder, model_folder, tmp_path / "d's", validation=None, pack=False)
    examples = {name: split.examples for name, split in made.manifest.splits.items()}
    assert examples == {"train": 50, "test": 2}
    assert sum(made.manifest.dropped.values()) == 2
    assert made.manifest.rows == 54
    places = {place.split(": ")[0] for place in made.manifest.dropped_first.values()}
    assert places == {str(folder / "train.jsonl:51"), str(folder / "train.jsonl:52")}
    train = datasets.load_from_disk(str(made.folder))["train"]
    assert train.column_names == ["input_ids", "labels", "length"]
    assert train["length"] == [len(ids) for ids in train["input_ids"]]
    with pytest.raises(UsageError, match="the data has its own splits"):
        prepared(folder, model_folder, tmp_path / "e", validation=0.5)


def test_nothing_left_and_nothing_to_hold_out(model_folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": ""}\n{"text": ""}\n')
    with pytest.raises(HpctrainError) as nothing:
        prepared(bad, model_folder, tmp_path / "d", form="text", validation=None)
    assert "bad.jsonl:1" in nothing.value.render()
    few = chats(tmp_path / "few.jsonl", 5)
    with pytest.raises(UsageError, match="leaves none to train on"):
        prepared(few, model_folder, tmp_path / "d", validation=5)
    assert list(prepared(few, model_folder, tmp_path / "d", validation=None).manifest.splits) == [
        "train"
    ]
