"""bench/train.py at toy size: every variant trains, and what is printed is what was measured."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch
BENCH = Path(__file__).parents[2] / "bench"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(1200)  # fifteen trainings
def test_every_variant_trains_on_the_same_text(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["--rows", "250", "--tokens", "4000", "--max-length", "256", "--warmup", "1", "--batch", "4", "--knobs"]
    with tempfile.TemporaryDirectory() as temporary:  # a short name: sockets are made in it
        done = subprocess.run(
            [sys.executable, BENCH / "train.py", *words, "--folder", tmp_path, "--json", out, "--tuned", "per_device_train_batch_size=4"],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": temporary},
        )
        left = [path.name for path in Path(temporary).iterdir() if not path.name.startswith("torchinductor_")]  # a cache
    assert out.exists(), done.stderr
    found = json.loads(out.read_text())
    rows: dict[str, Any] = {row["name"]: row for row in found["rows"]}
    compiled = {name for name in rows if "compile" in name}  # needs a C++ compiler, which a login node may lack
    assert {name for name, row in rows.items() if row["useful_tokens_per_s"] is None} <= compiled, done.stderr
    for name in rows.keys() - compiled:
        assert all(run["useful_tokens"] >= 4000 for run in rows[name]["runs"]), name
        assert rows[name]["peak_bytes"] > 50e6
        assert 0 < rows[name]["mfu"] < 2
        assert f"| {name} |" in done.stdout
    base, ours = rows["TRL's defaults"], rows["hpctrain's defaults"]
    assert base["padding_share"] > 0.3
    assert ours["padding_share"] < 0.1
    assert ours["ratio"] == pytest.approx(ours["useful_tokens_per_s"] / base["useful_tokens_per_s"])
    assert (done.returncode == 0) == (ours["ratio"] >= 1)
    assert list(tmp_path.glob("bench-train.*")) == [], "the models are removed"
    assert left == []
    assert "leaked" not in done.stderr


def test_padding_is_not_counted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    worker = load("worker")
    trainer = SimpleNamespace(training_step=lambda model, inputs: None, add_callback=lambda callback: None)
    meter = worker.Meter(budget=30, warmup=1)
    meter.attach(trainer)
    ended: list[int] = []
    monkeypatch.setattr(worker, "_leave", lambda: ended.append(0))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    for _ in range(6):  # of which the first is not counted
        trainer.training_step(None, {"input_ids": mask, "attention_mask": mask})
        meter.step_ended()
    assert ended == [0]
    result = json.loads(capsys.readouterr().out)
    assert (result["steps"], result["useful_tokens"], result["padding_share"]) == (5, 30, 0.25)


def test_rows_without_a_mask_are_all_useful() -> None:
    import torch

    worker = load("worker")
    trainer = SimpleNamespace(training_step=lambda model, inputs: None, add_callback=lambda callback: None)
    meter = worker.Meter(budget=10**9, warmup=1)
    meter.attach(trainer)
    trainer.training_step(None, {"input_ids": torch.zeros(1, 8)})
    assert (int(meter.useful), meter.slots) == (8, 8)
