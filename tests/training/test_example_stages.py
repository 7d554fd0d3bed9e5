"""examples/stages: the evaluation finds the stages before it by their names, and tells their models apart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EVALUATE = Path(__file__).parents[2] / "examples" / "stages" / "evaluate.py"


@pytest.mark.torch
@pytest.mark.slow
def test_the_evaluation_of_the_example(demo: Any, tmp_path: Path, environment: dict[str, str]) -> None:
    import datasets
    import torch
    from transformers import AutoModelForCausalLM

    runs = {name: tmp_path / "runs" / f"tag_{name}" for name in ("warmup", "refine", "evaluate")}
    for run in runs.values():
        run.mkdir(parents=True)
    shutil.copytree(demo.model, runs["warmup"] / "model")
    model = AutoModelForCausalLM.from_pretrained(demo.model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for row in datasets.load_from_disk(str(demo.dataset))["train"].select(range(30)):
        model(input_ids=torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(runs["refine"] / "model")

    stages = {f"HPCTRAIN_STAGE_{name.upper()}": str(runs[name]) for name in ("warmup", "refine")}
    done = subprocess.run(
        [sys.executable, EVALUATE, "--dataset", demo.dataset, "--samples", "16"],
        env={**environment, **stages, "HPCTRAIN_RUN_DIR": str(runs["evaluate"]), "PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = json.loads((runs["evaluate"] / "evaluation.json").read_text())
    assert written["samples"] == 16
    assert written["loss"] == json.loads(done.stdout)["loss"]
    assert 0 < written["loss"]["refine"] < written["loss"]["warmup"] - 0.5
