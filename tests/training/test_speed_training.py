"""Real trainings say at the beginning what they are, every few steps how fast they are, and leave
both behind to be compared.
"""

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import survival

from hpctrain.runs import history, predicted, progress

pytestmark = [pytest.mark.torch, pytest.mark.slow]

OPTIONS = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "train_sampling_strategy": "sequential",
    "num_train_epochs": 1,
    "logging_steps": 100,
    "speed_every": 2,
    "save_strategy": "no",
    "memory_every": 0,
    "max_length": 32,
    "report_to": "none",
    "activation_checkpointing": "false",
}


def trained(
    tiny: tuple[str, str],
    environment: dict[str, str],
    run: Path,
    *,
    ranks: int = 1,
    attempt: str = "1.0",
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    words = survival.words(
        {"model_name_or_path": tiny[0], "dataset_name": tiny[1], **OPTIONS, **options}
    )
    variables = survival.run_environment(environment, run, attempt)
    return subprocess.run(
        survival.argv(*words, ranks=ranks),
        env=variables,
        cwd=run.parent,
        capture_output=True,
        text=True,
        timeout=600,
    )


def lengths(dataset: str) -> list[int]:
    import datasets

    return [len(row["input_ids"]) for row in datasets.load_from_disk(dataset)["train"]]


def table_of(log: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in ("[train] model  " + log.partition("[train] model  ")[2]).splitlines():
        if match := re.match(r"\[train\] (.{17})(.*)", line):
            if match[1].strip():
                found[label := match[1].strip()] = match[2]
            else:
                found[label] += f" {match[2]}"
        if "steps" in found:
            break
    return found


def rows(run: Path) -> list[progress.Speed]:
    return [
        found for row in history.read_rows(run) if (found := progress.from_row(row)) is not None
    ]


def test_the_lines_count_the_tokens_of_all_processes(
    tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    ranks = 2
    done = trained(tiny, environment, tmp_path / "run", ranks=ranks)
    assert done.returncode == 0, done.stderr
    batch, of = 2 * ranks, lengths(tiny[1])
    steps = -(-len(of) // batch)
    expected = [*range(2, steps + 1, 2), *([steps] if steps % 2 else [])]
    stored = rows(tmp_path / "run")
    assert [(line.step, line.max_steps) for line in stored] == [(step, steps) for step in expected]
    assert [progress.format_line(line) for line in stored] == [
        line for line in done.stdout.splitlines() if line.startswith(progress.MARK)
    ]
    # The first step is not measured; rows come in order, `batch` to a step, and the last step takes
    # rows of the beginning again.
    before = 1
    for line in stored[:-1]:
        mine = of[before * batch : line.step * batch]
        assert line.step_s is not None
        seconds = line.step_s * (line.step - before)
        assert line.useful_tokens_per_s == pytest.approx(sum(mine) / seconds, rel=1e-4)
        assert line.trained_tokens_per_s == pytest.approx(
            (sum(mine) - len(mine)) / seconds, rel=1e-4
        )
        pairs = [of[at : at + 2] for at in range(before * batch, line.step * batch, 2)]
        assert line.tokens_per_s == pytest.approx(
            sum(2 * max(pair) for pair in pairs) / seconds, rel=1e-4
        )
        assert line.data_wait is not None
        assert 0 < line.data_wait < 1
        assert (line.mfu, line.peak_mib, line.rank) == (None, None, None), "there is no GPU"
        assert line.host_mib is not None
        assert line.host_mib > 200 * ranks
        before = line.step
    assert stored[-1].eta_s == 0


def test_the_first_lines_are_a_table(
    tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    done = trained(
        tiny,
        environment,
        tmp_path / "run",
        gradient_accumulation_steps=2,
        use_peft="true",
        lora_r=2,
    )
    assert done.returncode == 0, done.stderr
    of, lines = lengths(tiny[1]), done.stdout.splitlines()
    table = table_of(done.stdout.partition("\n")[2])
    at = next(number for number, line in enumerate(lines) if line.startswith("[train] model  "))
    assert all(
        line.startswith("[train] ") and len(line) <= 80 for line in lines[at : at + len(table)]
    )
    assert not any(
        line.startswith(("[train] step=", "[memory]", "[speed]", "[train] begin"))
        for line in lines[:at]
    )
    assert re.fullmatch(
        r"\S+/model \(llama\), 0.0 million parameters, \d+ \(\d+\.\d\d%\) trained", table["model"]
    )
    assert (
        f"{len(of)} rows, {sum(of)} tokens, {sum(of) / len(of):.0f} a row, {max(of)} at most, not"
        " packed" in table["data"]
    )
    assert table["global batch"] == "4 rows = 2 micro x 2 accumulation x 1 process"
    assert table["precision"] == "weights float32, computed in the same"
    assert table["sharding"] == "none, 1 node x 1 CPU process"
    assert table["attention"].startswith("sdpa")
    assert table["checkpointing"] == "off"
    assert table["expected peak"] == "unknown (it trains on the CPU)"
    assert table["steps"] == "6, 1 epochs"  # the last of them has the three rows that are left
    record = predicted.read(tmp_path / "run")
    assert record["layout"]["lora"]["rank"] == 2
    assert (record["layout"]["micro_batch"], record["layout"]["length"]) == (2, max(of))
    assert record["predicted"] is None
    assert record["measured"]["ended"] == "completed"
    assert record["measured"]["steps"] == 5
    assert record["measured"]["host"] > 200 << 20


def test_a_resumed_training_counts_the_steps_that_are_done(
    tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "run"
    endless = {
        "num_train_epochs": 40_000,
        "max_steps": 300_000,
        "save_strategy": "no",
        "lr_scheduler_type": "constant",
    }
    words = survival.words(
        {"model_name_or_path": tiny[0], "dataset_name": tiny[1], **OPTIONS, **endless}
    )
    times = {"SLURM_JOB_END_TIME": str(int(time.time()) + 840)}
    process = survival.start(
        survival.argv(*words), {**survival.run_environment(environment, run), **times}, tmp_path
    )
    first = until(process, "[speed] step=22/")
    (run / "stop").touch()
    first += process.communicate(timeout=600)[0]
    assert process.returncode == 86, first
    assert survival.exit_word(run, "1.0") == "86 stop-file\n"
    assert "[train] the file stop is there: saving and stopping at step " in first
    assert not (run / "stop").exists(), "the next start must not stop at once"
    assert (run / "attempts/1.0/stopped-by").exists()
    told = re.findall(r"\[train\] time: (.*)", first)
    assert len(told) == 1, first
    assert re.fullmatch(r"done in about .+, after the time limit, which leaves 1\d min", told[0])
    record = predicted.read(run)
    assert record["measured"]["ended"] == "stopped"

    last = max(
        int(path.name.removeprefix("checkpoint-"))
        for path in (run / "checkpoints").glob("checkpoint-*")
    )
    done = trained(tiny, environment, run, attempt="2.0", **{**endless, "max_steps": last + 9})
    assert done.returncode == 0, done.stderr
    assert table_of(done.stdout)["steps"].endswith(f"; {last} of them done")
    assert done.stdout.count("no time limit is known") == 1
    lines = [line for line in rows(run) if line.step > last]
    assert lines[0].step in (last + 2, last + 3)
    assert all(line.eta_s is not None and line.eta_s < 600 for line in lines)
    assert predicted.read(run)["measured"]["ended"] == "completed"  # type: ignore[index]


def until(process: subprocess.Popen[str], start: str) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if line.startswith(start):
            return seen
    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError(seen + (process.stderr.read() if process.stderr else ""))


PROGRAM = """
import sys, time, torch, transformers
from hpctrain.training.process import Ranks
from hpctrain.training.survival import ResilienceContext
from hpctrain.training.monitoring.speed import SpeedCallback

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        time.sleep(float(sys.argv[1]))
        return {"input_ids": torch.tensor([index % 60] * 8), "attention_mask": torch.ones(8, dtype=torch.int64),
                "labels": torch.tensor([1] * 8)}

callback = SpeedCallback(every=5, survival=ResilienceContext(), ranks=Ranks(), run_files=None)
args = transformers.TrainingArguments("out", per_device_train_batch_size=2, max_steps=20, use_cpu=True, report_to="none",
                                      save_strategy="no", disable_tqdm=True, dataloader_num_workers=0)
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[2])
trainer = transformers.Trainer(model, args, train_dataset=Slow(), callbacks=[callback])
callback.attach(trainer)
trainer.train()
"""


def test_a_training_that_waits_for_its_data_is_told_once(
    tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    """In any Trainer; each step waits for its two rows, and computes for some milliseconds."""
    argv = [*survival.PYTHON, "-c", PROGRAM, "0.3", tiny[0]]
    done = subprocess.run(
        argv, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[train] warning: the training waits for its data ") == 1
    assert "--dataloader_num_workers " in done.stdout
    lines = re.findall(r"\[speed\] step=(\d+)/.* data_wait=([\d.]+)%", done.stdout)
    assert [int(step) for step, _ in lines] == [5, 10, 15, 20]
    assert all(float(wait) > 50 for _, wait in lines)
