"""A save whose directory is not what every process sees at once, and what unfinished saves leave."""

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import survival

from hpctrain.errors import HpctrainError
from hpctrain.runs import layout, manifest

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def attempt(tmp_path: Path, wait_s: float) -> Any:
    """A save of two ranks: this one has written its weights, and the other one sees its shard."""
    from hpctrain.training.process import Ranks
    from hpctrain.training.survival.saving import Attempt

    class OfTwo(Ranks):
        def gather(self, value: Any) -> list[Any]:
            return [value, {"shards/one.bin": 1000}] if isinstance(value, dict) else [value]

    made = Attempt(OfTwo(), tmp_path / "checkpoints" / "checkpoint-4", 4, "1.0", wait_s=wait_s)
    made.begin()
    (made.writing / "model.safetensors").write_bytes(b"x" * 1000)
    (made.writing / "shards").mkdir()
    return made


def test_a_file_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    from hpctrain.training.survival import ResilienceContext

    late = attempt(tmp_path, 60)
    shard = late.writing / "shards" / "one.bin"
    threading.Timer(0.3, shard.write_bytes, [b"x" * 1000]).start()
    late.finish(step=4, needed=("model.safetensors",), survival=ResilienceContext())
    final = tmp_path / "checkpoints" / "checkpoint-4"
    saved = manifest.read_manifest(final)
    assert {name: file.bytes for name, file in saved.files.items()} == {
        "model.safetensors": 1000,
        "shards/one.bin": 1000,
    }
    assert manifest.problems(final, digests=True) == ()


def test_a_file_that_does_not_come_fails_the_save(tmp_path: Path) -> None:
    from hpctrain.training.survival import ResilienceContext

    late = attempt(tmp_path, 0.1)
    with pytest.raises(HpctrainError, match="checkpoint-4 could not be saved: ") as failed:
        late.finish(step=4, needed=("model.safetensors",), survival=ResilienceContext())
    assert "rank 0 does not see shards/one.bin after 0.1 s" in failed.value.render()
    assert survival.listed(tmp_path / "checkpoints") == []


def test_a_failure_of_another_rank_fails_the_save_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = attempt(tmp_path, 60)
    other = "rank 1 on node-2: OSError: No space left on device"
    monkeypatch.setattr(sound.ranks, "gather", lambda value: [value, other])
    with pytest.raises(HpctrainError, match="checkpoint-4 could not be saved: the disk is full"):
        sound.agree()
    assert survival.listed(tmp_path / "checkpoints") == []


def test_unfinished_saves_of_what_is_over_are_removed_at_the_start(
    tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "r"
    surroundings = survival.run_environment(environment, run, "9.1")
    (run / "attempts/8.0").mkdir()
    (run / "attempts/8.0/end.json").write_text("{}")
    kept = [run / "checkpoints/.saving-2.7.0", run / ".saving-model.7.0"]
    over = [
        run / "checkpoints" / name
        for name in (".saving-2.9.0.writing", ".saving-2.8.0", ".saving-2.6.0")
    ]
    over += [run / ".saving-model.9.0.writing", run / ".saving-model.8.0"]
    for path in kept + over:
        path.mkdir(parents=True)
        (path / "half").write_text("x")
    for path in (over[2] / "half", over[2]):
        os.utime(path, (1e9, 1e9))  # nobody has written there for years
    options = {
        "model_name_or_path": tiny[0],
        "dataset_name": tiny[1],
        **survival.BASE,
        "eval_strategy": "no",
        "max_steps": 1,
    }
    command = survival.argv(*survival.words(options))
    done = subprocess.run(
        command, env=surroundings, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert [path for path in kept if not path.is_dir()] == [], "their job may be alive"
    assert [path for path in over if path.exists()] == []
    for path in over:
        assert f"[train] removed {path.name}: its save was not finished\n" in done.stdout


@pytest.mark.parametrize("damage", ["weights", "manifest"])
def test_an_incomplete_checkpoint_alone_is_refused_with_what_can_be_typed(
    tmp_path: Path, damage: str
) -> None:
    from hpctrain.errors import UsageError
    from hpctrain.training.survival.resume import _requested

    folder = tmp_path / "checkpoint-4"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"x")
    manifest.write_manifest(folder, step=4, world_size=1, state=())
    if damage == "weights":
        (folder / "model.safetensors").write_bytes(b"y")
    else:
        (folder / layout.CHECKPOINT_MANIFEST).unlink()
    with pytest.raises(UsageError, match="is not complete") as refused:
        _requested(folder)
    said = f"hint: use another one, or its weights only: --init_from {folder}"
    assert said in refused.value.render()
