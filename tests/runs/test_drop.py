"""Removing runs: whole or not at all, whatever starts or is killed meanwhile."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.errors import HpctrainError
from hpctrain.runs import drop, store
from hpctrain.runs.store import Run
from tests.runs import make

HERE = str(Path(__file__).parent)


def build(runs: Path, run_id: str = "sft-1") -> Run:
    directory = make.run(runs, run_id)
    make.metrics(make.attempt(directory, outcome="failed", status=1), {"step": 10, "loss": 1.0})
    (directory / "checkpoints" / "checkpoint-10").mkdir(parents=True)
    (directory / "checkpoints" / "checkpoint-10" / "model.safetensors").write_bytes(b"x" * 1000)
    return read(runs, run_id)


def read(runs: Path, run_id: str = "sft-1") -> Run:
    found = store.read_run(runs, run_id)
    assert found is not None
    return found


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_run_goes_and_nothing_else(tmp_path: Path) -> None:
    run, other = build(tmp_path), build(tmp_path, "sft-10")
    (tmp_path / "sft-1" / "code").symlink_to(
        tmp_path / "sft-10", target_is_directory=True
    )  # a link is removed, and not followed
    before = files(tmp_path / "sft-10")
    drop.drop(tmp_path, run)
    assert [path.name for path in tmp_path.iterdir()] == ["sft-10"]
    assert files(tmp_path / "sft-10") == before
    drop.drop(tmp_path, run)  # somebody else was faster
    assert read(tmp_path, "sft-10") == other


CHANGES: dict[str, Callable[[Path], object]] = {
    "attempt": lambda run: make.attempt(run, "124"),
    "half an attempt": lambda run: (run / "attempts" / "124.0").mkdir(),
    "log": lambda run: make.metrics(run / "attempts" / "123.0", {"step": 11}),
    "checkpoint": lambda run: (run / "checkpoints" / "checkpoint-11").mkdir(),
    "end": lambda run: (run / "attempts" / "123.0" / "end.json").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_since_it_was_judged_stays(tmp_path: Path, change: str) -> None:
    run, directory = build(tmp_path), tmp_path / "sft-1"
    CHANGES[change](directory)
    before = files(directory)
    with pytest.raises(HpctrainError, match="sft-1 has changed while it was being removed"):
        drop.drop(tmp_path, run)
    assert files(directory) == before
    assert [path.name for path in tmp_path.iterdir()] == ["sft-1"]


def test_a_removal_that_was_killed_is_finished(tmp_path: Path) -> None:
    for name in ("sft-1", "sft-2"):
        build(tmp_path, name)
    (tmp_path / "sft-1").rename(tmp_path / ".dropped-ab.sft-1")
    drop.clean(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["sft-2"]


def test_weight(tmp_path: Path) -> None:
    build(tmp_path)
    size = sum(path.lstat().st_size for path in (tmp_path / "sft-1").rglob("*"))
    (tmp_path / "huge").write_bytes(b"x" * 10**6)
    (tmp_path / "sft-1" / "link").symlink_to(tmp_path / "huge")
    assert size < drop.weigh(tmp_path, "sft-1")[0] < size + 1000
    assert drop.weigh(tmp_path, "sft-1")[1] is None
    (tmp_path / "sft-2").symlink_to(tmp_path / "sft-1")
    assert "is a link to" in str(drop.weigh(tmp_path, "sft-2")[1])


def test_a_job_that_starts_meanwhile_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, directory = build(tmp_path), tmp_path / "sft-1"
    older = files(directory)

    def lexists(_: Path) -> bool:
        make.attempt(directory, "124")  # the job makes the directory again
        return True

    monkeypatch.setattr(drop.os.path, "lexists", lexists)
    with pytest.raises(HpctrainError, match="has written sft-1 again"):
        drop.drop(tmp_path, run)
    assert [path.name for path in (directory / "attempts").iterdir()] == ["124.0"]
    (kept,) = tmp_path.glob(".kept-*")
    assert files(kept) == older
