"""Manifests and what they find; publishing, finding and thinning out."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import checkpoints, manifest
from tests.runs.checkpoint_maker import FILES, fill, make_run, save

NAMES = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=12
).filter(lambda name: name not in (".", "..", "hpctrain.json") and len(name.encode()) < 200)
CONTENTS = st.dictionaries(NAMES, st.binary(max_size=300), min_size=1, max_size=5)


@given(content=CONTENTS, data=st.data())
@settings(max_examples=150, deadline=None)
@pytest.mark.slow
def test_one_flipped_bit_is_found_wherever_it_is(
    content: dict[str, bytes], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = save(Path(name), 40, content)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        victim = data.draw(st.sampled_from(files))
        old = victim.read_bytes()
        place = data.draw(st.integers(0, 10**6)) % len(
            old
        )  # the manifest's length changes with the time of day
        flipped = bytearray(old)
        flipped[place] ^= 1 << data.draw(st.integers(0, 7))
        victim.write_bytes(flipped)
        assert manifest.problems(folder, digests=True)
        if victim.name == "hpctrain.json":
            assert manifest.problems(folder, digests=False)
            assert checkpoints.newest_complete(Path(name), digests=False)[0] is None


def test_damage_never_raises(tmp_path: Path) -> None:
    assert manifest.problems(tmp_path / "nowhere", digests=True) == ("there is no such directory",)
    folder = save(tmp_path, 40)
    os.mkfifo(folder / "pipe")
    assert manifest.problems(folder, digests=True) == ()
    (folder / "optimizer.pt").unlink()
    os.mkfifo(folder / "optimizer.pt")
    assert "optimizer.pt is not a regular file" in manifest.problems(folder, digests=True)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")
    assert any(
        "model.safetensors cannot be read" in one for one in manifest.problems(folder, digests=True)
    )
    shutil.rmtree(folder / "nested")
    (folder / "nested").write_text("a file")
    assert "nested/rng.pth is missing" in manifest.problems(folder, digests=True)
    for text in (
        "",
        "[]",
        "null",
        "{",
        "[" * 100_000,
        '{"schema": 1}',
        "\0",
        '{"schema": 1, "files": 3}',
    ):
        (folder / "hpctrain.json").write_text(text)
        assert manifest.problems(folder, digests=True) == ("hpctrain.json is damaged",)
        assert manifest.read_manifest(folder) is None
    (folder / "hpctrain.json").write_text('{"schema": 2}')
    assert manifest.problems(folder, digests=True) == ("hpctrain.json is damaged",)
    (folder / "hpctrain.json").unlink()
    os.mkfifo(folder / "hpctrain.json")
    assert manifest.problems(folder, digests=True) == (
        "hpctrain.json cannot be read: it is not a regular file",
    )


def test_a_manifest_cannot_point_outside(tmp_path: Path) -> None:

    (tmp_path / "secret").write_text("1")
    folder = save(tmp_path, 40)
    value = json.loads((folder / "hpctrain.json").read_text())
    for name in ("../secret", str(tmp_path / "secret"), "a/../../secret", ""):
        value["files"] = {name: {"bytes": 1, "sha256": "0" * 64}}
        (folder / "hpctrain.json").write_text(manifest._render(value))
        assert manifest.problems(folder, digests=True) == ("hpctrain.json is damaged",)


def test_a_checkpoint_under_another_steps_name_is_found(tmp_path: Path) -> None:
    save(tmp_path, 40).rename(tmp_path / "checkpoint-50")
    assert manifest.problems(tmp_path / "checkpoint-50", digests=False) == (
        "hpctrain.json says step 40",
    )


def test_a_directory_that_holds_a_link_to_a_directory_is_not_saved(tmp_path: Path) -> None:
    saving = tmp_path / ".saving-1.1.0"
    fill(saving, FILES)
    (saving / "elsewhere").symlink_to(tmp_path)
    with pytest.raises(HpctrainError, match="'elsewhere', which is not a regular file"):
        manifest.write_manifest(saving, step=1, world_size=1, state=[])


def test_the_newest_complete_one_is_found_and_what_was_skipped_is_named(tmp_path: Path) -> None:
    assert checkpoints.newest_complete(tmp_path / "none", digests=True) == (None, ())
    for step in (5, 10, 100, 200, 300):
        save(tmp_path, step)
    (tmp_path / "checkpoint-300/hpctrain.json").unlink()
    os.truncate(tmp_path / "checkpoint-200/model.safetensors", 3)
    flipped = tmp_path / "checkpoint-100/optimizer.pt"
    flipped.write_bytes(b"M" + flipped.read_bytes()[1:])
    (tmp_path / ".saving-400.11.0").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-900").write_text("a file")

    newest, skipped = checkpoints.newest_complete(tmp_path, digests=False)
    assert newest.manifest.step == 100
    assert {one.name: one.why for one in skipped} == {
        ".saving-400.11.0": "its save was not finished",
        "checkpoint-300": "no hpctrain.json",
        "checkpoint-200": "model.safetensors has 3 bytes, and 280 were saved",
    }
    newest, skipped = checkpoints.newest_complete(tmp_path, digests=True)
    assert newest.path.name == "checkpoint-10"
    assert skipped[-1] == checkpoints.Skipped(
        "checkpoint-100", "optimizer.pt has changed since it was saved (SHA-256)"
    )


def test_a_directory_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(HpctrainError, match="cannot be read"):
        checkpoints.newest_complete(tmp_path / "checkpoints", digests=False)


def test_only_what_is_complete_is_published(tmp_path: Path) -> None:
    saving = checkpoints.saving_path(tmp_path, 40, "1.0")
    fill(saving, FILES)
    with pytest.raises(HpctrainError, match=r"no hpctrain\.json"):
        checkpoints.publish(saving, tmp_path / "checkpoint-40")
    manifest.write_manifest(saving, step=40, world_size=1, state=[])
    os.truncate(saving / "optimizer.pt", 1)
    with pytest.raises(HpctrainError, match=r"optimizer\.pt has 1 bytes"):
        checkpoints.publish(saving, tmp_path / "checkpoint-40")
    assert not (tmp_path / "checkpoint-40").exists()


def test_publishing_over_what_is_there(tmp_path: Path) -> None:
    final = tmp_path / "checkpoint-40"
    final.mkdir()  # empty
    save(tmp_path, 40, {"a": b"1"})
    save(tmp_path, 40, {"a": b"22"})  # complete
    assert (final / "a").read_bytes() == b"22"
    os.truncate(final / "a", 1)
    save(tmp_path, 40, {"a": b"333"})  # damaged, with a manifest
    assert (final / "a").read_bytes() == b"333"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-40"]

    (final / "hpctrain.json").unlink()  # somebody else's, as far as one can tell
    saving = checkpoints.saving_path(tmp_path, 40, "2.0")
    fill(saving, {"a": b"4444"})
    manifest.write_manifest(saving, step=40, world_size=1, state=[])
    kept = checkpoints.publish(saving, final)
    assert kept is not None
    assert (kept / "a").read_bytes() == b"333"
    assert (final / "a").read_bytes() == b"4444"


def test_rotation_keeps_the_newest_complete_the_protected_and_what_is_not_ours(
    tmp_path: Path,
) -> None:
    for step in (10, 20, 30, 40, 50, 60):
        save(tmp_path, step)
    os.truncate(
        tmp_path / "checkpoint-60/model.safetensors", 1
    )  # damaged, newer than the newest complete one
    os.truncate(tmp_path / "checkpoint-30/model.safetensors", 1)  # damaged, older
    fill(tmp_path / "checkpoint-15", {"pytorch_model.bin": b"of another program"})
    fill(tmp_path / ".saving-20.9.0", {"half": b""})
    fill(tmp_path / ".saving-70.9.0", {"half": b""})
    fill(tmp_path / ".removing-checkpoint-5.123", {"half": b""})
    fill(tmp_path / "notes", {"text": b""})
    removed = checkpoints.rotate(tmp_path, 2, {"checkpoint-10"})
    assert sorted(removed) == [".saving-20.9.0", "checkpoint-20", "checkpoint-30"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".saving-70.9.0",
        "checkpoint-10",
        "checkpoint-15",
        "checkpoint-40",
        "checkpoint-50",
        "checkpoint-60",
        "notes",
    ]
    checkpoints.rotate(tmp_path, 0)
    complete = [path for path in tmp_path.iterdir() if not manifest.problems(path, digests=False)]
    assert [path.name for path in complete] == ["checkpoint-50"]


def test_a_checkpoint_that_is_a_link_loses_its_name_and_not_its_files(tmp_path: Path) -> None:
    save(tmp_path / "scratch", 10)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/checkpoint-10").symlink_to(tmp_path / "scratch/checkpoint-10")
    save(tmp_path / "checkpoints", 20)
    assert checkpoints.rotate(tmp_path / "checkpoints", 1) == ("checkpoint-10",)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-20"]
    assert manifest.problems(tmp_path / "scratch/checkpoint-10", digests=True) == ()


def test_the_words_for_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = Path("runs")
    make_run(runs, "sft-1")
    make_run(runs, "sft-2", model=False)
    make_run(runs, "launch_warm")
    fill(tmp_path / "base", {"config.json": b"{}"})
    for word, expected in {
        "sft-1": "runs/sft-1/model",
        "sft-1/model": "runs/sft-1/model",
        "sft-1/checkpoint-10": "runs/sft-1/checkpoints/checkpoint-10",
        "sft-2": "runs/sft-2/checkpoints/checkpoint-20",
        "runs/sft-2": "runs/sft-2/checkpoints/checkpoint-20",
        "runs/sft-2/checkpoints/checkpoint-10": "runs/sft-2/checkpoints/checkpoint-10",
        "stage:warm": "runs/launch_warm/model",
        "base": "base",
        "./base": "base",
        str(tmp_path / "base"): str(tmp_path / "base"),
    }.items():
        assert checkpoints.weights_of(word, runs=runs, tag="launch") == Path(expected)


def test_words_that_stand_for_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = Path("runs")
    os.truncate(make_run(runs, "sft-1") / "model/model.safetensors", 1)
    os.truncate(
        make_run(runs, "sft-2", (10,), model=False) / "checkpoints/checkpoint-10/optimizer.pt", 1
    )
    (tmp_path / "empty").mkdir()
    for word, tag, what, more in (
        ("sft-1", None, "'sft-1' is not complete", "model.safetensors has 1 bytes"),
        (
            "sft-2",
            None,
            "run sft-2 has no complete checkpoint",
            "checkpoint-10: optimizer.pt has 1 bytes",
        ),
        ("sft-2/checkpoint-10", None, "is not complete", "optimizer.pt"),
        (
            "sft-2/checkpoint-30",
            None,
            "there are no weights 'sft-2/checkpoint-30'",
            "runs/sft-2/checkpoint-30",
        ),
        ("stf-2", None, "there are no weights 'stf-2'", "fix: hpctrain runs list"),
        ("stage:warm", None, "is not a stage of this submission", "fix: "),
        ("stage:warm", "launch", "there are no weights", "runs/launch_warm"),
        ("stage:../sft-1", "launch", "is not a stage of this submission", "fix: "),
        ("empty", None, "a directory without a model", "fix: ls empty"),
        ("/nowhere", None, "there are no weights", "looked for /nowhere"),
    ):
        with pytest.raises(UsageError) as raised:
            checkpoints.weights_of(word, runs=runs, tag=tag)
        assert what in raised.value.what
        assert more in raised.value.render()


def test_the_checkpoint_that_a_word_stands_for(tmp_path: Path) -> None:
    for step in (20, 40):
        save(tmp_path / "launch_pre/checkpoints", step)
    (tmp_path / "launch_pre/checkpoints/checkpoint-40/optimizer.pt").unlink()
    newest = tmp_path / "launch_pre/checkpoints/checkpoint-20"
    for word, expected in {
        "stage:pre": newest,
        "launch_pre": newest,
        "launch_pre/checkpoint-40": newest.with_name("checkpoint-40"),
        "some/folder": Path("some/folder"),
    }.items():
        assert checkpoints.checkpoint_of(word, runs=tmp_path, tag="launch") == expected
    for word, tag in (("stage:other", "launch"), ("stage:pre", None), ("stage:../x", "launch")):
        with pytest.raises(UsageError):
            checkpoints.checkpoint_of(word, runs=tmp_path, tag=tag)


def test_what_a_run_went_back_behind_counts_as_older(tmp_path: Path) -> None:
    for step in (20, 60, 80, 100):
        save(tmp_path, step, attempt="11.0")
    save(tmp_path, 30, attempt="12.0")
    assert sorted(checkpoints.rotate(tmp_path, 3, at=30)) == ["checkpoint-60", "checkpoint-80"]
    assert [path.name for path in checkpoints.all_of(tmp_path)] == [
        "checkpoint-20",
        "checkpoint-30",
        "checkpoint-100",
    ]
    found, skipped = checkpoints.newest_complete(tmp_path, digests=True, job="12")
    assert (found.manifest.step, skipped) == (30, ())
    assert checkpoints.newest_complete(tmp_path, digests=True, job="1") == (None, ())
    assert checkpoints.rotate(tmp_path, 1, at=30) == ("checkpoint-100", "checkpoint-20")


def test_only_what_is_over_is_cleaned(tmp_path: Path) -> None:
    names = (
        ".saving-20.11.0",
        ".saving-20.11.0.writing",
        ".saving-model.11.1.writing",
        ".saving-30.host.a-77",
        ".saving-40.12.0",
    )
    for name in names:
        fill(tmp_path / name, FILES)
    told: dict[str, str] = {}
    removed = checkpoints.clean(
        tmp_path, lambda path, attempt: told.setdefault(path.name, attempt).startswith("11.")
    )
    assert told == dict(zip(names, ("11.0", "11.0", "11.1", "host.a-77", "12.0"), strict=True))
    assert sorted(removed) == sorted(names[:3])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[3:])
