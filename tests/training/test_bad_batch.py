"""When a gradient is not finite, the batch that made it is saved, once."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import datasets
import in_process
import pytest
import survival

torch: Any = None
pytestmark = pytest.mark.torch
OPTIONS = {
    **survival.BASE,
    "gradient_accumulation_steps": 3,
    "max_steps": 6,
    "eval_strategy": "no",
    "save_steps": 2,
    "logging_steps": 1,
    "output_dir": "out",
}


@pytest.fixture(scope="module", autouse=True)
def _torch() -> None:
    """Import torch when the first test begins: every worker collects this file, and none waits for
    it then.
    """
    globals()["torch"] = pytest.importorskip("torch")


def train(
    tiny: tuple[str, str],
    environment: dict[str, str],
    folder: Path,
    *more: str,
    ranks: int = 1,
    **variables: str,
) -> Any:
    words = survival.words({"model_name_or_path": tiny[0], "dataset_name": tiny[1], **OPTIONS})
    launch = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
        if ranks > 1
        else []
    )
    command = [*survival.PYTHON, *launch, str(Path(__file__).parent / "bad_rank.py"), *words, *more]
    env = survival.run_environment(environment, folder / "run") | variables
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_every_rank_saves_the_batch_of_a_nan(
    tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    done = train(tiny, environment, tmp_path, ranks=2, BAD_RANK="1")
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("error: the gradient norm of step 3 is nan") == 1
    assert survival.exit_word(tmp_path / "run", "1.0") == "1 nan\n"
    folder = tmp_path / "run" / "bad-batch" / "step-3"
    assert f"the batch of that step is in {folder}\n" in done.stderr
    assert [path.name for path in folder.parent.iterdir()] == ["step-3"]
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0.json", "rank-1.json"]
    good, bad = (json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert (bad["step"], bad["rank"], bad["world_size"], bad["micro_batches"]) == (3, 1, 2, 3)
    assert not any(isinstance(loss, str) for loss in good["losses"])
    assert [loss == "nan" for loss in bad["losses"]] == [False, True, False]
    rows = datasets.load_from_disk(tiny[1])["train"]["input_ids"]
    first = bad["examples"][0]
    assert (first["micro_batch"], first["input_ids"] in list(rows)) == (1, True)
    assert len(first["labels"]) == len(first["input_ids"])
    assert first["text"].split()[0] == f"w{first['input_ids'][0]}"


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_hides_no_nan(
    tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "bad-batch").write_text("a file where the folder should be")
    done = train(tiny, environment, tmp_path)
    assert done.returncode == 1
    assert "[train] notice: the batch of step 3 could not be saved: " in done.stdout
    assert "error: the gradient norm of step 3 is nan" in done.stderr
    assert "look at the data of that step" in done.stderr


@pytest.mark.slow
def test_nobody_who_goes_on_regardless_keeps_batches(
    tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    done = train(tiny, environment, tmp_path, "--stop_on_nan", "false")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run" / "bad-batch").exists()


def batch(*rows: list[int], **more: Any) -> dict[str, Any]:
    return {"input_ids": torch.tensor(rows), "labels": torch.tensor(rows), **more}


@pytest.mark.parametrize(
    ("losses", "first"), [((1.0, 2.0, math.inf), 2), ((1.0, math.nan), 1), ((1.0, 2.0), 2)]
)
def test_bad_micro_batches_come_first_also_one_that_failed_before_its_loss(
    losses: tuple[float, ...], first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpctrain.training import bad_batch

    monkeypatch.setattr(bad_batch, "MAX_EXAMPLES", 1)
    rows = [torch.tensor([ids]) for ids in ([1, 2, 3], [4, 5, 6], [7, 8, 9])]
    mask = torch.tensor([[1, 1, 0]])
    batches = [{"input_ids": ids, "labels": ids, "attention_mask": mask} for ids in rows]
    held = bad_batch.Step(7, batches, [torch.tensor(loss) for loss in losses], math.nan)
    bad_batch.write_batch(tmp_path, held, rank=2, world=4)
    found = json.loads((tmp_path / "rank-2.json").read_text())
    assert found["losses"] == [str(each) if not math.isfinite(each) else each for each in losses]
    (example,) = found["examples"]
    assert example["micro_batch"] == first
    assert example["input_ids"] == example["labels"] == [3 * first + 1, 3 * first + 2]


@pytest.mark.parametrize("fp16", [False, True])
def test_a_step_that_was_left_out_ends_the_training_unless_fp16_looks_for_its_scale(
    fp16: bool, tiny: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed leaves out each step with a NaN, in float32 and bfloat16 too: the training would go
    on to its end and learn nothing.
    """
    from hpctrain.training.bad_batch import NotFiniteError

    built = in_process.trainer(
        in_process.options(monkeypatch, tmp_path, *tiny, max_length=32, max_steps=2)
    )
    monkeypatch.setattr(
        type(built.accelerator), "optimizer_step_was_skipped", property(lambda _: True)
    )
    built.args.fp16 = fp16  # the Trainer is built: this is what the watch reads, and nothing else
    if fp16:
        built.train()
        assert built.state.global_step == 2
        return
    with pytest.raises(NotFiniteError, match="the gradient norm of step 1 is nan"):
        built.train()
