"""When a gradient is not finite, the batch that made it is saved, once, and can be looked at."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import survival

from hpctrain.errors import UsageError
from hpctrain.training import bad_batch
from hpctrain.training.bad_batch import About, LastBatches, lines, write

torch: Any = None
pytestmark = pytest.mark.torch
OPTIONS = {
    **survival.BASE, "gradient_accumulation_steps": 3, "max_steps": 6, "eval_strategy": "no", "save_steps": 2, "logging_steps": 1,
    "output_dir": "out",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _torch() -> None:
    """Import torch when the first test begins: every worker collects this file, and none waits for it then."""
    globals()["torch"] = pytest.importorskip("torch")


def train(tiny: tuple[str, str], environment: dict[str, str], folder: Path, *more: str, ranks: int = 1, **variables: str) -> Any:
    words = survival.words({"model_name_or_path": tiny[0], "dataset_name": tiny[1], **OPTIONS})
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)] if ranks > 1 else []
    command = [*survival.PYTHON, *launch, str(Path(__file__).parent / "bad_rank.py"), *words, *more]
    env = survival.run_environment(environment, folder / "run") | variables
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_batch_of_a_nan_is_saved_and_shown(tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path) -> None:
    import datasets

    done = train(tiny, environment, tmp_path)
    assert done.returncode == 1, done.stderr
    folder = tmp_path / "run" / "bad-batch" / "step-3"
    assert f"the batch of that step is in {folder}\n" in done.stderr
    assert f"fix: python -m hpctrain.training.bad_batch {folder}; then --learning_rate" in done.stderr
    assert survival.exit_word(tmp_path / "run", "1.0") == "1 nan\n"
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0.json", "rank-0.pt"]
    assert [path.name for path in folder.parent.iterdir()] == ["step-3"]
    found = json.loads((folder / "rank-0.json").read_text())
    assert (found["step"], found["rank"], found["world_size"], found["micro_batches"]) == (3, 0, 1, 3)
    assert [loss == "nan" for loss in found["losses"]] == [False, True, False]
    kept = torch.load(folder / "rank-0.pt", weights_only=True)
    assert sorted(kept["batches"]) == [0, 1, 2]
    rows = datasets.load_from_disk(tiny[1])["train"]["input_ids"]
    bad = [each for each in found["examples"] if each["micro_batch"] == 1]
    assert len(bad) == 2
    for each, ids, mask in zip(bad, kept["batches"][1]["input_ids"], kept["batches"][1]["attention_mask"], strict=True):
        assert rows[each["row"]] == ids[mask.bool()].tolist()
        assert each["text"].split()[0] == f"w{rows[each['row']][0]}"
    assert kept["random"]["cpu"].dtype == torch.uint8
    shown = subprocess.run(
        [sys.executable, "-m", "hpctrain.training.bad_batch", str(tmp_path / "run" / "bad-batch")],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert shown.returncode == 0
    assert shown.stdout.splitlines()[0] == "step 3: the gradient norm is nan; 1 of 1 ranks wrote their batch"
    assert "the loss of micro batch 1 is not finite" in shown.stdout
    assert shown.stdout.count("micro batch 1, row ") == 2


@pytest.mark.slow
def test_every_rank_saves_and_the_one_with_the_nan_shows(tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path) -> None:
    done = train(tiny, environment, tmp_path, ranks=2, BAD_RANK="1")
    assert done.returncode == 1
    assert done.stderr.count("error: the gradient norm of step 3 is nan") == 1
    folder = tmp_path / "run" / "bad-batch" / "step-3"
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0.json", "rank-0.pt", "rank-1.json", "rank-1.pt"]
    text = "\n".join(lines(folder))
    assert "2 of 2 ranks wrote" in text
    assert "rank 0: " in text
    assert [line.rpartition(": ")[2] for line in text.splitlines() if line.startswith("rank ")] == [
        "all losses are finite",
        "the loss of micro batch 1 is not finite",
    ]


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_hides_no_nan(tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "bad-batch").write_text("a file where the folder should be")
    done = train(tiny, environment, tmp_path)
    assert done.returncode == 1
    assert "[train] notice: the batch of step 3 could not be saved: " in done.stdout
    assert "error: the gradient norm of step 3 is nan" in done.stderr
    assert "look at the data of that step" in done.stderr


@pytest.mark.slow
def test_nobody_who_goes_on_regardless_keeps_batches(tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path) -> None:
    done = train(tiny, environment, tmp_path, "--stop_on_nan", "false")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run" / "bad-batch").exists()


def batch(*rows: list[int], **more: Any) -> dict[str, Any]:
    return {"input_ids": torch.tensor(rows), "labels": torch.tensor(rows), **more}


def test_two_steps_are_held_by_reference() -> None:
    held = LastBatches()
    given = [batch([1, 2]), batch([3, 4]), batch([5, 6])]
    for step, inputs in zip((1, 2, 3), given, strict=True):
        held.keep(step, inputs)
        held.keep_loss(torch.tensor(1.0))
    assert held.of(1) is None
    assert held.of(2).batches[0]["input_ids"] is given[1]["input_ids"]  # type: ignore[union-attr]
    assert held.of(3).losses[0].item() == 1.0  # type: ignore[union-attr]
    held.drop()
    assert held.of(3) is None


def step(*batches: dict[str, Any], losses: tuple[float, ...] = ()) -> Any:
    held = LastBatches()
    for number, inputs in enumerate(batches):
        held.keep(7, inputs)
        if number < len(losses):
            held.keep_loss(torch.tensor(losses[number]))
    return held.of(7)


def test_what_is_written_is_bounded_and_has_the_bad_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_batch, "MAX_TOKENS", 8)
    monkeypatch.setattr(bad_batch, "MAX_EXAMPLES", 1)
    write(tmp_path, step(batch([1, 2, 3, 4]), batch([5, 6, 7, 8]), batch([9] * 4), losses=(1.0, 2.0, math.inf)), About(rank=2, world=4))
    kept = torch.load(tmp_path / "rank-2.pt", weights_only=True)
    assert sorted(kept["batches"]) == [0, 2]
    found = json.loads((tmp_path / "rank-2.json").read_text())
    assert (found["micro_batches"], found["micro_batches_written"], found["losses"]) == (3, [0, 2], [1.0, 2.0, "inf"])
    assert [each["micro_batch"] for each in found["examples"]] == [2]
    monkeypatch.setattr(bad_batch, "MAX_TOKENS", 2)
    write(tmp_path / "one", step(batch([1, 2, 3, 4])), About(rank=0, world=1))
    assert torch.load(tmp_path / "one" / "rank-0.pt", weights_only=True)["batches"][0]["input_ids"].shape == (1, 2)


def test_a_micro_batch_that_failed_before_its_loss_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_batch, "MAX_TOKENS", 2)
    write(tmp_path, step(batch([1, 2]), batch([3, 4]), losses=(1.0, math.nan)), About(rank=0, world=1))
    assert sorted(torch.load(tmp_path / "rank-0.pt", weights_only=True)["batches"]) == [1]


def test_rows_laid_end_to_end_are_found_in_the_dataset(tmp_path: Path) -> None:
    import datasets

    data = datasets.Dataset.from_dict({"input_ids": [[9, 9, 9], [1, 2, 3], [4, 5]], "labels": [[9, 9, 9], [-100, 2, 3], [-100, 5]]})
    packed = {
        "input_ids": torch.tensor([[1, 2, 3, 4, 5]]),
        "labels": torch.tensor([[-100, 2, 3, -100, 5]]),
        "position_ids": torch.tensor([[0, 1, 2, 0, 1]]),
    }
    write(tmp_path, step(packed, losses=(math.nan,)), About(rank=0, world=1, dataset=data))
    found = json.loads((tmp_path / "rank-0.json").read_text())["examples"]
    assert [(each["row"], each["tokens"], each["trained"]) for each in found] == [(1, 3, 2), (2, 2, 1)]


def test_a_folder_without_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="there is no bad batch"):
        lines(tmp_path)
    assert bad_batch.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: there is no bad batch")
    assert bad_batch.main([]) == 2
    assert os.linesep in capsys.readouterr().out


@pytest.mark.parametrize("fp16", [False, True])
def test_a_step_that_was_left_out_ends_the_training_unless_fp16_looks_for_its_scale(
    fp16: bool, tiny: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed leaves out each step with a NaN, in float32 and bfloat16 too: the training would go on to its end and learn nothing."""
    import in_process

    from hpctrain.training.not_finite import NotFiniteError

    built = in_process.trainer(in_process.options(monkeypatch, tmp_path, *tiny, max_length=32, max_steps=2))
    monkeypatch.setattr(type(built.accelerator), "optimizer_step_was_skipped", property(lambda _: True))
    built.args.fp16 = fp16  # the Trainer is built: this is what the watch reads, and nothing else
    if fp16:
        built.train()
        assert built.state.global_step == 2
        return
    with pytest.raises(NotFiniteError, match="the gradient norm of step 1 is nan"):
        built.train()
