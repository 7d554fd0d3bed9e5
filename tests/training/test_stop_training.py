"""Real trainings, started as the job script starts them, that are told to stop: by a signal, by the
time limit, by a file.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import in_process
import psutil
import pytest
import survival

from hpctrain.errors import HpctrainError
from hpctrain.runs import checkpoints
from hpctrain.training.survival import ResilienceContext

pytestmark = [pytest.mark.torch, pytest.mark.slow]

#: Longer than any test waits.
ENDLESS = {
    **survival.BASE,
    "max_steps": 1_000_000,
    "eval_strategy": "no",
    "save_strategy": "no",
    "logging_steps": 20,
    "lr_scheduler_type": "constant",
}


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def words(tiny: tuple[str, str], **more: object) -> list[str]:
    return survival.words(
        {"model_name_or_path": tiny[0], "dataset_name": tiny[1], **ENDLESS, **more}
    )


def wait_for_step(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if re.match(r"\[train\] step=\d+", line):
            return seen
    raise AssertionError(seen + (process.stderr.read() if process.stderr else ""))


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        rank = child.environ().get("RANK")
        if rank is not None and survival.SFT in child.cmdline():
            found.setdefault(int(rank), child)
    return [found[rank] for rank in sorted(found)]


def saved_step(run: Path) -> int:
    found, skipped = checkpoints.newest_complete(run / "checkpoints", digests=True)
    assert found is not None
    assert skipped == ()
    return found.manifest.step


def test_a_signal_to_one_rank_stops_both_at_the_same_step(
    tiny: tuple[str, str],
    environment: dict[str, str],
    tmp_path: Path,
    started: list[subprocess.Popen[str]],
) -> None:
    run = tmp_path / "runs" / "r"
    process = survival.start(
        survival.argv(*words(tiny), ranks=2), survival.run_environment(environment, run), tmp_path
    )
    started.append(process)
    wait_for_step(process)
    ranks = ranks_of(process)
    assert len(ranks) == 2
    ranks[1].send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=600)
    assert survival.exit_word(run, "1.0") == "85 signal\n", err
    said = re.search(r"SIGTERM came: saving and stopping at step (\d+) of 1000000", out)
    assert said is not None, out
    assert int(said[1]) == saved_step(run)
    assert survival.listed(run / "checkpoints") == ["README.md", f"checkpoint-{said[1]}"]
    assert not (run / "model").exists()
    assert "error: " not in err.replace("ChildFailedError: ", ""), err


def test_a_signal_for_the_whole_job_step_does_not_kill_the_workers_that_load_data(
    tiny: tuple[str, str],
    environment: dict[str, str],
    tmp_path: Path,
    started: list[subprocess.Popen[str]],
) -> None:
    run = tmp_path / "runs" / "r"
    arguments = survival.argv(*words(tiny, dataloader_num_workers=2))
    process = survival.start(arguments, survival.run_environment(environment, run), tmp_path)
    started.append(process)
    wait_for_step(process)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2
    for member in [*family, psutil.Process(process.pid)]:
        if member.is_running():
            member.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 85, err
    assert survival.exit_word(run, "1.0") == "85 signal\n"
    assert saved_step(run) > 0
    _, alive = psutil.wait_procs(family, timeout=600)
    assert alive == [], "no worker stays behind"


def test_the_time_limit(tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path) -> None:
    run = tmp_path / "runs" / "r"
    end = int(time.time()) + 90
    surroundings = survival.run_environment(environment, run, SLURM_JOB_END_TIME=str(end))
    done = subprocess.run(
        survival.argv(*words(tiny)),
        env=surroundings,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 85, done.stderr
    assert time.time() < end
    assert survival.exit_word(run, "1.0") == "85 deadline\n"
    assert "[train] half of the time limit is over: saving at step " in done.stdout
    said = re.search(
        r"the time limit ends in (\d+|\d\.\d) s, a save takes [0-9.]+ s: saving and stopping at"
        r" step (\d+) of",
        done.stdout,
    )
    assert said is not None, done.stdout
    assert int(said[2]) == saved_step(run)
    assert len(checkpoints.all_of(run / "checkpoints")) == 2
    late = survival.run_environment(
        environment, run, "1.1", SLURM_JOB_END_TIME=str(int(time.time()))
    )
    done = subprocess.run(
        survival.argv(*words(tiny)),
        env=late,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1, "requeued again and again, it would do nothing"
    assert (
        "error: the job has no time for a single step: the time limit ends in 0.0 s, a step takes "
        in done.stderr
    )
    assert survival.exit_word(run, "1.1") == "1 error\n"


def test_an_evaluation_at_the_start_that_outlasts_the_job_is_not_requeued(
    tiny: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": "true"}
    options = in_process.options(monkeypatch, tmp_path, *tiny, **given)
    built = options.task.trainer(options, ResilienceContext(end=time.time() + 1), [])
    with pytest.raises(HpctrainError, match="no time for a single step"):
        built.train()


def test_without_a_run_directory_it_saves_too_and_exits_with_the_code(
    tiny: tuple[str, str],
    environment: dict[str, str],
    tmp_path: Path,
    started: list[subprocess.Popen[str]],
) -> None:
    process = survival.start(survival.argv(*words(tiny, output_dir="out")), environment, tmp_path)
    started.append(process)
    wait_for_step(process)
    psutil.Process(process.pid).send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 85, err
    found, _ = checkpoints.newest_complete(tmp_path / "out", digests=True)
    again = survival.argv(
        *words(
            tiny, output_dir="out", max_steps=found.manifest.step + 2, resume_from_checkpoint="true"
        )
    )
    done = subprocess.run(
        again, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert (
        f"[train] resumes at step {found.manifest.step} from out/checkpoint-{found.manifest.step}"
        in done.stdout
    )


def test_nan_ends_it_and_no_checkpoint_has_lost_weights(
    tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    import safetensors.torch
    import torch

    run = tmp_path / "runs" / "r"
    more = {
        "learning_rate": 1e18,
        "max_grad_norm": 1e30,
        "warmup_steps": 0,
        "save_strategy": "steps",
        "save_steps": 1,
    }
    done = subprocess.run(
        survival.argv(*words(tiny, **more), ranks=2),
        env=survival.run_environment(environment, run),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1
    said = re.search(r"error: the gradient norm of step (\d+) is (nan|inf)", done.stderr)
    assert said is not None, done.stderr
    assert done.stderr.count("error: the gradient norm") == 1
    assert survival.exit_word(run, "1.0") == "1 nan\n"
    assert saved_step(run) == int(said[1]) - 1
    for path in checkpoints.all_of(run / "checkpoints"):
        weights = safetensors.torch.load_file(path / "model.safetensors")
        assert all(bool(torch.isfinite(each).all()) for each in weights.values()), path


@pytest.mark.parametrize("fp16", [False, True])
def test_a_step_that_was_left_out_ends_the_training_unless_fp16_looks_for_its_scale(
    fp16: bool, tiny: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed leaves out each step with a NaN, in float32 and bfloat16 too: the training would go
    on to its end and learn nothing.
    """
    from hpctrain.training.survival.trainer import NotFiniteError

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
