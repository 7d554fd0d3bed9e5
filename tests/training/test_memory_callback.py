"""The callback in a plain transformers Trainer, and what happens to the training when sensors and
disks fail.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain.memory import from_json, host, parse_line

pytestmark = pytest.mark.torch


def trainer(tmp_path: Path, callback: Any, steps: int = 6) -> Any:
    """A Trainer of a model with one weight."""
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: Any) -> dict[str, Any]:
            return {"loss": ((self.weight - x.float()) ** 2).mean()}

    args = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=steps,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    return Trainer(Model(), args, train_dataset=[{"x": n} for n in range(50)], callbacks=[callback])


def test_lines_and_file_in_anyones_trainer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HPCTRAIN_RUN_DIR", raising=False)
    trainer(tmp_path, hpctrain.MemoryCallback(every=2)).train()
    again = trainer(
        tmp_path, hpctrain.MemoryCallback(every=2)
    )  # a requeued job goes on in the same file
    again.train()
    again.evaluate([{"x": 1}])
    seen = [sample for line in capfd.readouterr().out.splitlines() if (sample := parse_line(line))]
    assert [(s.step, s.event) for s in seen[:-1]] == 2 * [
        (0, "train_begin"),
        (1, "first_step"),
        (2, "step"),
        (4, "step"),
        (6, "step"),
        (6, "train_end"),
    ]
    assert (seen[-1].step, seen[-1].event) == (6, "evaluate")
    file = tmp_path / "out" / "memory" / "rank-0.jsonl"
    assert [from_json(line) for line in file.read_text().splitlines()] == seen


def test_sensors_and_disk_that_fail_do_not_stop_the_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> tuple[int, int]:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(host, "node_mib", broken)
    (tmp_path / "run").write_text("a file where the run directory should be")
    own = trainer(tmp_path, hpctrain.MemoryCallback(every=1, run_dir=tmp_path / "run"))
    own.train()
    assert own.state.global_step == 6
    output = capfd.readouterr()
    lines = [line for line in output.out.splitlines() if line.startswith("[memory]")]
    assert len(lines) == 8
    assert all(" | node - | " in line and parse_line(line) for line in lines)
    notices = [line for line in output.err.splitlines() if line.startswith("[memory] notice: ")]
    assert len(notices) == 2
    assert any("NotADirectoryError" in line for line in notices)
    assert "[memory] notice: cannot read node: RuntimeError: first line second line" in notices


def test_a_standard_output_that_is_gone_does_not_stop_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = trainer(tmp_path, hpctrain.MemoryCallback(every=1))
    monkeypatch.setattr(sys, "stdout", (tmp_path / "closed").open("w"))
    sys.stdout.close()
    own.remove_callback(
        type(next(c for c in own.callback_handler.callbacks if "Printer" in type(c).__name__))
    )
    own.train()
    assert own.state.global_step == 6


def test_the_warning_comes_once_and_is_no_sample(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpctrain.memory import host

    monkeypatch.setattr(host, "find_limit", lambda: None)
    monkeypatch.setattr(host, "node_mib", lambda: (960, 1000))
    trainer(tmp_path, hpctrain.MemoryCallback(every=1)).train()
    warnings = [
        line
        for line in capfd.readouterr().out.splitlines()
        if line.startswith("[memory] warning: ")
    ]
    assert len(warnings) == 1
    assert warnings[0].endswith(", step 0: the node uses 960M, 96.0% of its 1000M")
    assert parse_line(warnings[0]) is None
