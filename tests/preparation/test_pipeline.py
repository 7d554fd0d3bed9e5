"""The whole preparation: what load_from_disk reads, the same for any number of workers, kept over kills, and never a loss."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from prepare_made import chats, everything, model, prepared

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.preparation import manifest, pipeline, request, stages, work_folder
from hpctrain.preparation.request import Request
from hpctrain.training import preflight

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


def test_it_is_what_save_to_disk_writes(whole: Path, tmp_path: Path) -> None:
    import datasets

    loaded = datasets.load_from_disk(str(whole))
    assert preflight.check_dataset(str(whole), ["train", "validation"]) == []
    loaded.save_to_disk(str(tmp_path / "saved"))
    ours, theirs = everything(whole), everything(tmp_path / "saved")
    assert ours.keys() - {"hpctrain.json"} == theirs.keys()
    for name in theirs:
        if name.endswith(".json"):
            one, other = json.loads(ours[name]), json.loads(theirs[name])
            if name.endswith("state.json"):  # loading a dataset gives it another fingerprint
                assert len(one.pop("_fingerprint")) == len(other.pop("_fingerprint")) == 16
            assert one == other, name
        elif name.endswith(".arrow"):
            assert ours[name] == theirs[name], name


def test_tokens_and_masks_are_those_of_the_encoder(data: Path, model_folder: Path, whole: Path) -> None:
    """Every example of the source is in one row of one split, as it was encoded, but for the label of its first token."""
    import datasets

    meaning = request.understand(Request(paths=(data,), target=whole, tokenizer=model_folder, max_length=256))
    expected = []
    for line in data.read_text().splitlines():
        (example,) = meaning.encoder.encode([json.loads(line)])
        expected.append((tuple(example.input_ids), (-100, *example.labels()[1:])))
    found = []
    for part in datasets.load_from_disk(str(whole)).values():
        for row in part:
            assert sum(row["seq_lengths"]) == len(row["input_ids"]) == len(row["labels"]) <= 256
            start = 0
            for size in row["seq_lengths"]:
                found.append((tuple(row["input_ids"][start : start + size]), tuple(row["labels"][start : start + size])))
                start += size
    assert sorted(found) == sorted(expected)


def test_the_collator_of_trl_masks_nothing_more(model_folder: Path, tmp_path: Path) -> None:
    """Also where all tokens are trained on: the first of each example is masked in what is stored, as the collator masks it."""
    import datasets
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    made = prepared(chats(tmp_path / "few.jsonl", 60), model_folder, tmp_path / "d", loss_on="all", validation=0)
    train = datasets.load_from_disk(str(made.folder))["train"]
    rows = [train[number] for number in range(5)]
    batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(rows)
    assert batch["labels"].tolist() == [[label for row in rows for label in row["labels"]]]
    starts = [0, *(size for row in rows for size in row["seq_lengths"])]
    assert batch["cu_seq_lens_q"].tolist() == [sum(starts[: place + 1]) for place in range(len(starts))]
    assert batch["labels"].eq(-100).sum() == len(starts) - 1


def test_the_manifest_counts_what_is_stored(data: Path, whole: Path) -> None:
    import datasets

    made = manifest.read(whole)
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
    assert len(made.sources[0]["sha256"]) == 64
    assert (made.form, made.loss_on, made.packed, made.max_length, made.vocabulary) == ("messages", "assistant", True, 256, 600)


def test_what_was_cut_is_counted(model_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": "a word " * count}) + "\n" for count in (1, 2, 3, 90, 91)))
    made = prepared(source, model_folder, tmp_path / "d", max_length=32, pack=False, validation=0, workers=1).manifest
    assert made.truncated == 2
    split = made.splits["train"]
    assert (split.examples, split.longest) == (5, 32)
    assert sum(count for most, count in split.histogram if most >= 32) == 2
    assert sum(count for _, count in split.histogram) == 5


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_makes_the_same(workers: int, data: Path, model_folder: Path, whole: Path, tmp_path: Path) -> None:
    made = prepared(data, model_folder, tmp_path / "d", workers=workers)
    assert everything(made.folder) == everything(whole)


def command(data: Path, model_folder: Path, target: Path, hpctrain: str, *more: str) -> list[str]:
    words = [hpctrain, "prepare", str(data), "--model", str(model_folder), "--to", str(target), "--max-length", "256"]
    return [*words, "--validation", "0.1", "--workers", "2", *more]


def test_killed_again_and_again_it_goes_on_and_makes_the_same(
    data: Path, model_folder: Path, whole: Path, tmp_path: Path, hpctrain: str
) -> None:
    """SIGKILL for the command alone, at growing counts of finished pieces: no worker may outlive it, no torn file may count."""
    target, journal = tmp_path / "d", tmp_path / ".d.preparing/finished.jsonl"
    words = command(data, model_folder, target, hpctrain)

    def finished() -> int:
        return journal.read_text().count('"piece", "name"') if journal.exists() else 0

    pieces = 0
    for wanted in (1, 2, 3):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and finished() < wanted:
            time.sleep(0.005)
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        process.communicate()
        psutil.wait_procs(children, timeout=20)
        assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
        assert not target.exists()
        pieces = finished()
        assert pieces >= wanted
        with journal.open("a") as stream:
            stream.write('{"kind": "piece", "na')  # a line that a kill tore
        (journal.parent / "pieces/.000001.arrow.torn").write_bytes(b"half")
    done = subprocess.run([*words, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"going on: {pieces} of " in done.stderr
    assert json.loads(done.stdout)["pieces_reused"] == pieces
    found = manifest.read(target)
    expected = manifest.read(whole)
    assert found is not None
    assert expected is not None
    assert found.digest == expected.digest
    for name in ("train", "validation"):
        assert everything(target / name) == everything(whole / name)
    assert not journal.parent.exists()


def test_pieces_of_another_request_are_not_gone_on_from(data: Path, model_folder: Path, tmp_path: Path) -> None:
    """Stopped before the end; then asked for otherwise: with another length all is made anew, with another seed only the shards."""
    target = tmp_path / "d"
    asked: dict[str, Any] = {"paths": (data,), "target": target, "tokenizer": model_folder, "pack": True, "workers": 1}

    class StoppedError(Exception):
        pass

    def stop(now: stages.Progress) -> None:
        if now.stage == "writing":
            raise StoppedError

    with pytest.raises(StoppedError):
        pipeline.prepare(Request(**asked, max_length=256, validation=0.1), progress=stop)
    said: list[str] = []
    seeded = pipeline.prepare(Request(**asked, max_length=256, validation=0.1, seed=5), progress=lambda _: None, say=said.append)
    assert seeded.reused == seeded.pieces > 3
    fresh = prepared(data, model_folder, tmp_path / "fresh", seed=5)
    assert seeded.manifest.digest == fresh.manifest.digest
    with pytest.raises(StoppedError):
        pipeline.prepare(Request(**asked, max_length=200, validation=0.1, force=True), progress=stop)
    other = pipeline.prepare(Request(**asked, max_length=64, validation=0.1, force=True), progress=lambda _: None, say=said.append)
    assert other.reused == 0
    assert any("left by another request" in sentence for sentence in said)
    assert other.manifest.splits["train"].longest <= 64
    assert other.manifest.truncated > 0


def test_two_at_once(data: Path, model_folder: Path, tmp_path: Path) -> None:
    with work_folder.held(tmp_path / "d"), pytest.raises(UsageError, match="another command is preparing") as refused:
        prepared(data, model_folder, tmp_path / "d")
    assert f"process {os.getpid()}" in refused.value.details[0]
    assert not (tmp_path / "d").exists()
    prepared(chats(tmp_path / "few.jsonl", 30), model_folder, tmp_path / "d")


def test_the_same_again_is_nothing_to_do_and_other_needs_force(model_folder: Path, tmp_path: Path) -> None:
    few = chats(tmp_path / "few.jsonl", 60)
    first = prepared(few, model_folder, tmp_path / "d")
    before = everything(tmp_path / "d")
    again = prepared(few, model_folder, tmp_path / "d")
    assert again.there
    assert again.manifest == first.manifest
    with pytest.raises(UsageError, match="prepared from other data or with other options") as refused:
        prepared(few, model_folder, tmp_path / "d", seed=1)
    assert "--force" in (refused.value.fix or "")
    assert everything(tmp_path / "d") == before
    assert prepared(few, model_folder, tmp_path / "d", seed=1, force=True).manifest.seed == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "few.jsonl"]


@pytest.mark.parametrize("force", [False, True])
def test_what_is_not_ours_is_never_replaced(force: bool, data: Path, model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/mine").write_text("precious")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "d")
    for name in ("d", "file", "link"):
        with pytest.raises(UsageError, match="is there"):
            prepared(data, model_folder, tmp_path / name, force=force)
    assert everything(tmp_path) == {"d/mine": b"precious", "file": b"precious", "link/mine": b"precious"} or everything(tmp_path) == {
        "d/mine": b"precious",
        "file": b"precious",
    }


def test_a_source_that_changes_meanwhile(model_folder: Path, tmp_path: Path) -> None:
    few = chats(tmp_path / "few.jsonl", 60)

    def change(now: stages.Progress) -> None:
        if now.stage == "writing":
            os.utime(few)

    with pytest.raises(HpctrainError, match="was changed while it was read"):
        pipeline.prepare(Request(paths=(few,), target=tmp_path / "d", tokenizer=model_folder, max_length=64, workers=1), progress=change)
    assert not (tmp_path / "d").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounts a file system")
    where = tmp_path / "small"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "hpctrain-test", str(where)], check=True)
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def test_a_full_disk(data: Path, model_folder: Path, whole: Path, small_disk: Path) -> None:
    with pytest.raises(HpctrainError, match=f"no space is left in {small_disk}") as full:
        prepared(data, model_folder, small_disk / "d")
    kept = int(full.value.details[0].split(" ")[0])
    assert kept > 0
    assert not [path for path in (small_disk / ".d.preparing").rglob(".*") if path.name != ".d.preparing"], "half a file is left"
    subprocess.run(["mount", "-o", "remount,size=30m", str(small_disk)], check=True)
    made = prepared(data, model_folder, small_disk / "d")
    assert made.reused == kept
    assert everything(made.folder) == everything(whole)


def test_a_worker_that_is_killed(data: Path, model_folder: Path, tmp_path: Path) -> None:
    """As the kernel kills for want of memory: what is finished stays."""

    def kill_one(now: stages.Progress) -> None:
        for child in psutil.Process().children(recursive=True):
            try:
                if "forkserver" in " ".join(child.cmdline()) and not child.children():
                    child.kill()
                    return
            except psutil.NoSuchProcess:  # ended meanwhile, or a zombie
                continue

    asked = Request(paths=(data,), target=tmp_path / "d", tokenizer=model_folder, max_length=256, workers=2)
    with pytest.raises(HpctrainError, match="a worker was killed") as killed:
        pipeline.prepare(asked, progress=kill_one)
    assert "pieces are finished and kept" in killed.value.details[0]
    assert killed.value.fix == "the same command with --workers 1"
    assert pipeline.prepare(asked, progress=lambda _: None).reused > 0


def test_interrupted(data: Path, model_folder: Path, tmp_path: Path) -> None:
    def interrupt(now: stages.Progress) -> None:
        raise KeyboardInterrupt

    said: list[str] = []
    asked = Request(paths=(data,), target=tmp_path / "d", tokenizer=model_folder, max_length=256, workers=2)
    with pytest.raises(KeyboardInterrupt):
        pipeline.prepare(asked, progress=interrupt, say=said.append)
    assert said[-1].startswith("interrupted: 1 of ")
    assert said[-1].endswith("the same command goes on from there")
    assert pipeline.prepare(asked, progress=lambda _: None).reused == 1


def test_splits_dedupe_and_dropped_rows(model_folder: Path, tmp_path: Path) -> None:
    """A folder with splits of its own keeps them; equal examples go but for the first; what is dropped is counted, with its place."""
    import datasets

    folder = tmp_path / "odd folder's ünïcode"
    folder.mkdir()
    texts = [f"text number {number % 40}" for number in range(50)]
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) + '{"text": 3}\n{broken\n')
    (folder / "test.jsonl").write_text(json.dumps({"text": "text number 3"}) + "\n" + json.dumps({"text": "another"}) + "\n")
    made = prepared(folder, model_folder, tmp_path / "d's", validation=None, pack=False, dedupe=True)
    assert {name: split.examples for name, split in made.manifest.splits.items()} == {"train": 40, "test": 1} or {
        name: split.examples for name, split in made.manifest.splits.items()
    } == {"train": 39, "test": 2}
    assert made.manifest.dropped[stages.DUPLICATE] == 11
    assert sum(made.manifest.dropped.values()) == 13
    assert made.manifest.rows == 54
    assert any(place.split(": ")[0].endswith("train.jsonl:51") for place in made.manifest.dropped_first.values())
    assert any(place.split(": ")[0].endswith("train.jsonl:52") for place in made.manifest.dropped_first.values())
    train = datasets.load_from_disk(str(made.folder))["train"]
    assert train.column_names == ["input_ids", "labels", "length"]
    assert train["length"] == [len(ids) for ids in train["input_ids"]]
    with pytest.raises(UsageError, match="the data has splits of its own"):
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
    assert list(prepared(few, model_folder, tmp_path / "d", validation=None).manifest.splits) == ["train"]
