"""From where a training starts: what its first lines say, what it refuses to go on from, and what
it goes on from all the same.
"""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import survival

from hpctrain.runs.manifest import write_manifest

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ALL = "(weights, optimizer, learning rate, data order, random numbers)"
Done = subprocess.CompletedProcess[str]
Train = Callable[..., Done]
SHORT = {
    **survival.BASE,
    "max_steps": 4,
    "save_steps": 2,
    "eval_strategy": "no",
    "logging_steps": 1,
}


@pytest.fixture(scope="module")
def finished(
    tiny: tuple[str, str], surroundings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run `r` that is done: checkpoints 2 and 4, and the model."""
    run = tmp_path_factory.mktemp("finished") / "runs" / "r"
    words = survival.words({"model_name_or_path": tiny[0], "dataset_name": tiny[1], **SHORT})
    variables = survival.run_environment(surroundings, run)
    first = subprocess.run(
        survival.argv(*words), env=variables, cwd=run.parent, capture_output=True, text=True
    )
    assert first.returncode == 0, first.stderr
    assert said(first) == [f"[train] starts from scratch with the weights of {tiny[0]}"]
    return run


@pytest.fixture
def train(
    tiny: tuple[str, str], environment: dict[str, str], finished: Path, tmp_path: Path
) -> Train:
    shutil.copytree(finished, tmp_path / "runs/r")

    def start(
        run: str,
        attempt: str,
        *more: str,
        ranks: int = 1,
        model: str | None = tiny[0],
        data: str = tiny[1],
        **options: object,
    ) -> Done:
        where = {"model_name_or_path": model} if model is not None else {}
        words = survival.words({**where, "dataset_name": data, **SHORT, **options})
        surroundings = survival.run_environment(environment, tmp_path / "runs" / run, attempt)
        command = survival.argv(*words, *more, ranks=ranks)
        return subprocess.run(
            command, env=surroundings, cwd=tmp_path, capture_output=True, text=True, timeout=600
        )

    return start


def said(done: Done) -> list[str]:
    found = []
    for line in done.stdout.splitlines():
        if line.startswith(
            ("[train] warning", "[train] model ", "[train] begin")
        ):  # traps and the table come after it
            break
        found.append(line)
    return found


def test_complete_then_more_steps(train: Train, tmp_path: Path) -> None:
    """A learning rate of the command line is not taken after a resume: that is said, and is so."""
    run = tmp_path / "runs" / "r"
    before = survival.digests(run / "model")
    again = train("r", "2.0")
    assert again.returncode == 0, again.stderr
    assert (
        again.stdout
        == f"[train] already complete: 4 of 4 steps, model in {run}/model; nothing is trained\n"
    )
    assert survival.exit_word(run, "2.0") == "0 completed\n"
    assert survival.digests(run / "model") == before
    more = train("r", "3.0", max_steps=6, learning_rate=1e-5)
    assert more.returncode == 0, more.stderr
    saved = f"{run}/checkpoints/checkpoint-4"
    assert said(more) == [
        f"[train] resumes run r at step 4 from {saved} {ALL}",
        "[train] changed since the checkpoint: learning_rate 0.01 -> 1e-05, max_steps 4 -> 6",
        "[train] notice: learning_rate: the checkpoint's own value is used (for new ones: --init_from"
        f" {saved})",
    ]
    assert "learning_rate=1e-05 " not in more.stdout
    assert "[train] finished: 6 of 6 steps" in more.stdout
    assert survival.digests(run / "model") != before
    assert json.loads((run / "model/hpctrain.json").read_text())["step"] == 6


def test_the_classifier_s_own_options_are_recorded(tmp_path: Path) -> None:
    from hpctrain.training.survival import resume

    training, own = (
        SimpleNamespace(seed=1, bf16=True),
        SimpleNamespace(max_events=5, seed=2),
    )
    found = resume.record([training, own], str(tmp_path), ["train"])["options"]
    assert found == {"seed": 1, "bf16": True, "max_events": 5}


def test_what_is_damaged_is_skipped_and_named(
    train: Train, tiny: tuple[str, str], tmp_path: Path
) -> None:
    """Also where the same data are in another place by then."""
    shutil.copytree(tiny[1], tmp_path / "copy")
    run = tmp_path / "runs" / "r"
    (run / "model/hpctrain.json").unlink()
    weights = run / "checkpoints/checkpoint-4/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (run / "checkpoints/.saving-6.1.0").mkdir()
    again = train("r", "2.0", data="copy")
    assert again.returncode == 0, again.stderr
    lines = said(again)
    assert lines[0] == "[train] skipped .saving-6.1.0: its save was not finished"
    assert lines[1].startswith("[train] skipped checkpoint-4: model.safetensors has ")
    assert lines[2].startswith(
        f"[train] resumes run r at step 2 from {run}/checkpoints/checkpoint-2 ("
    )


@pytest.mark.extended
def test_state_that_is_missing_another_world_and_other_data_are_refused_together(
    train: Train, tiny: tuple[str, str], tmp_path: Path
) -> None:
    import datasets

    run = tmp_path / "runs" / "r"
    shutil.rmtree(run / "model")
    saved = run / "checkpoints/checkpoint-4"
    for name in ("optimizer.pt", "rng_state.pth", "hpctrain.json"):
        (saved / name).unlink()
    write_manifest(
        saved,
        step=4,
        world_size=1,
        state=("model", "scheduler", "trainer"),
        run_id="r",
        attempt="1.0",
    )
    other = datasets.load_from_disk(tiny[1])
    other["train"] = other["train"].select(range(20))
    other.save_to_disk(str(tmp_path / "other"))
    refused = train("r", "2.0", ranks=2, data=str(tmp_path / "other"), max_steps=6)
    assert refused.returncode == 1, "torchrun's own"
    assert refused.stderr.count("error: ") == 1, refused.stderr
    message = refused.stderr[refused.stderr.index("error: ") :].splitlines()
    assert message[:4] == [
        "error: checkpoint-4 cannot be resumed as it is",
        str(saved),
        "it has no optimizer, no rng state: the training would go another way from there",
        "1 processes saved it, and there are 2 now: other batches, in another order",
    ]
    assert message[4].startswith("the train data is not what it was: ")
    accept = (
        "--resume_with_missing_state true --resume_with_other_world_size true"
        " --resume_with_other_data true"
    )
    anew = f"--init_from {saved} for its weights only"
    assert message[5] == f"hint: run the job as it was, use {accept}, or use {anew}"
    assert survival.exit_word(run, "2.0") == "2 error\n"
    accepted = train(
        "r",
        "3.0",
        *accept.split(),
        ranks=2,
        data=str(tmp_path / "other"),
        max_steps=6,
    )
    assert accepted.returncode == 0, accepted.stderr
    assert "[train] finished: 6 of 6 steps" in accepted.stdout


def test_an_explicit_checkpoint(train: Train, tmp_path: Path) -> None:
    saved = tmp_path / "runs/r/checkpoints/checkpoint-2"
    first = train("b", "2.0", resume_from_checkpoint=saved)
    assert first.returncode == 0, first.stderr
    assert said(first) == [
        f"[train] resumes run b at step 2 from {saved} (weights, optimizer, learning rate, data"
        " order, random numbers)"
    ]
    assert survival.digests(tmp_path / "runs/b/model") == survival.digests(
        tmp_path / "runs/r/model"
    )
    shutil.rmtree(tmp_path / "runs/b/model")
    requeued = train("b", "2.1", resume_from_checkpoint=saved)
    assert (
        said(requeued)[0]
        == f"[train] this run started at --resume_from_checkpoint {saved}; it has its own"
        " checkpoint since"
    )
    assert said(requeued)[1].startswith("[train] resumes run b at step 4 from ")
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    refused = train("c", "3.0", resume_from_checkpoint=saved)
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (
        2,
        f"hint: use another one, or its weights only: --init_from {saved}",
    )


@pytest.mark.extended
def test_weights_only_and_a_requeue_of_that(train: Train, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first = train("b", "3.0", init_from="r", model=None)
    assert first.returncode == 0, first.stderr
    weights = "(weights only: optimizer, learning rate and data start from scratch)"
    assert said(first) == [f"[train] starts from the weights of r: {runs}/r/model {weights}"]
    assert "[train] begin: step=0/4" in first.stdout
    shutil.rmtree(runs / "b/model")
    requeued = train("b", "3.1", init_from="r", model=None)
    assert said(requeued)[0].startswith(
        f"[train] resumes run b at step 4 from {runs}/b/checkpoints/checkpoint-4 ("
    )
    assert (
        said(requeued)[1]
        == "[train] --init_from r was for the first start; its weights are not used again"
    )


@pytest.mark.extended
def test_the_weights_of_an_adapter(train: Train, tmp_path: Path) -> None:
    lora = {"use_peft": "true", "lora_r": 2}
    assert train("a", "1.0", learning_rate=0.1, **lora).returncode == 0
    refused = train("b", "2.0", init_from="a")
    assert refused.returncode == 2
    assert "error: --init_from a is a LoRA adapter" in refused.stderr
    assert "hint: use --use_peft true --lora_r 2" in refused.stderr
    refused = train("c", "3.0", init_from="a", **{**lora, "lora_r": 4})
    assert refused.returncode == 1
    assert "is another one than this training's" in refused.stderr
    frozen = train("d", "4.0", init_from="a", learning_rate=0.0, **lora)
    assert frozen.returncode == 0, frozen.stderr
    assert survival.digests(tmp_path / "runs/d/model") == survival.digests(
        tmp_path / "runs/a/model"
    ), "it began with these weights"


@pytest.mark.extended
def test_the_best_checkpoint_is_found_where_the_run_was_moved_to(
    train: Train, tmp_path: Path
) -> None:
    best = {
        "load_best_model_at_end": "true",
        "eval_strategy": "steps",
        "eval_steps": 4,
        "save_steps": 4,
        "max_steps": 8,
    }
    best |= {
        "metric_for_best_model": "eval_loss",
        "greater_is_better": "true",
    }  # as if: so that the last one is not the best
    whole = train("a", "1.0", **best)
    assert whole.returncode == 0, whole.stderr
    run = tmp_path / "runs/a"
    state = json.loads((run / "checkpoints/checkpoint-8/trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == f"{run}/checkpoints/checkpoint-4", (
        "the last one would prove nothing"
    )
    record = json.loads((run / "model/hpctrain-training.json").read_text())
    best_of = next(
        entry for entry in state["log_history"] if entry["step"] == 4 and "eval_loss" in entry
    )
    assert record["best"] == {
        "checkpoint": "checkpoint-4",
        "step": 4,
        "metric": "eval_loss",
        "value": best_of["eval_loss"],
    }
    assert record["step"] == json.loads((run / "model/hpctrain.json").read_text())["step"] == 4
    assert whole.stdout.splitlines()[-1].endswith(f"model of step 4 saved in {run}/model")
    (tmp_path / "elsewhere").mkdir()
    moved = run.rename(tmp_path / "elsewhere/a")
    shutil.rmtree(moved / "model")
    again = train("../elsewhere/a", "2.0", **best)
    assert again.returncode == 0, again.stderr
    assert said(again)[0].startswith("[train] resumes run a at step 8 from ")
    assert survival.digests(moved / "model") == survival.digests(moved / "checkpoints/checkpoint-4")
    foreign = train("b", "3.0", output_dir=moved / "checkpoints")
    assert foreign.returncode == 2, "another run's checkpoints are not taken for one's own"
    assert f"error: {moved}/checkpoints holds checkpoints of another run, a\n" in foreign.stderr


@pytest.mark.extended
def test_early_stopping_is_a_success_and_is_complete(train: Train, tmp_path: Path) -> None:
    options = {
        "early_stopping_patience": 1,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "learning_rate": 0.5,
        "max_steps": 200,
    }
    first = train("a", "1.0", **options)
    assert first.returncode == 0, first.stderr
    assert survival.exit_word(tmp_path / "runs/a", "1.0") == "0 early-stopping\n"
    assert "[train] stopped early: " in first.stdout
    again = train("a", "2.0", **options)
    assert again.stdout.startswith("[train] already complete: "), again.stdout


def test_a_requeue_does_not_take_the_later_steps_of_an_earlier_job(
    train: Train, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "r"
    shutil.rmtree(run / "model")
    back = {"resume_from_checkpoint": run / "checkpoints/checkpoint-2"}
    (run / "stop").touch()  # it does one step, saves and stops, as at the end of a job's time
    assert train("r", "2.0", **back).returncode == 86
    assert survival.listed(run / "checkpoints")[-1] == "checkpoint-4"
    (run / "stop").touch()
    requeued = train("r", "2.1", **back)
    assert said(requeued)[1].startswith(
        f"[train] resumes run r at step 3 from {run}/checkpoints/checkpoint-3 ("
    )
    other_job = train("r", "3.0", **back)
    assert said(other_job)[0].startswith(
        f"[train] resumes run r at step 2 from {run}/checkpoints/checkpoint-2 ("
    )


@pytest.mark.extended
def test_the_checkpoint_of_a_stage(train: Train, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "r").rename(runs / "b_first")
    second = train("b", "2.0", resume_from_checkpoint="stage:first", max_steps=6)
    assert second.returncode == 0, second.stderr
    assert (
        said(second)[0]
        == f"[train] resumes run b at step 4 from {runs}/b_first/checkpoints/checkpoint-4 {ALL}"
    )
    assert "[train] begin: step=4/6" in second.stdout
    shutil.rmtree(runs / "b/model")
    shutil.rmtree(runs / "b_first")  # a requeued job does not need it any more
    requeued = train("b", "2.1", resume_from_checkpoint="stage:first", max_steps=6)
    assert requeued.returncode == 0, requeued.stderr
    assert (
        said(requeued)[0]
        == "[train] this run started at --resume_from_checkpoint stage:first; it has its own"
        " checkpoint since"
    )
    assert (
        said(requeued)[1]
        == f"[train] resumes run b at step 6 from {runs}/b/checkpoints/checkpoint-6 {ALL}"
    )
