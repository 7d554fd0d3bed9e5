"""The examples are jobs, and their stages train."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain.memory.sample import parse_line

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.torch
@pytest.mark.slow
def test_the_job_of_the_example_script(demo: Any, tmp_path: Path, hpctrain: str) -> None:
    for name in ("sft_train.py", "sft_train.yaml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MAX_STEPS": "6",
    }

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [hpctrain, *map(str, words)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    rendered = run("render", "--config", "sft_train.yaml", "--", demo.model, demo.dataset)
    assert rendered.stdout == "sft_train.sbatch\n", rendered.stderr
    done = run("submit", "--local", "--wait", "sft_train.sbatch")
    assert done.returncode == 0, done.stdout + done.stderr
    seen = [sample for sample in map(parse_line, done.stdout.splitlines()) if sample is not None]
    assert {(sample.rank, sample.world_size) for sample in seen} == {(0, 2), (1, 2)}
    assert {sample.event for sample in seen} == {"train_begin", "first_step", "train_end"}
    assert len(list(tmp_path.glob("runs/*/model.safetensors"))) == 1
    assert len((EXAMPLES / "sft_train.py").read_text().splitlines()) <= 60


# -- examples/stages: the evaluation finds the stages before it by their names, and tells their


EVALUATE = Path(__file__).parents[2] / "examples" / "stages" / "evaluate.py"


@pytest.mark.torch
@pytest.mark.slow
def test_the_evaluation_of_the_example(
    demo: Any, tmp_path: Path, environment: dict[str, str]
) -> None:
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
        model(
            input_ids=torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])
        ).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(runs["refine"] / "model")

    stages = {f"HPCTRAIN_STAGE_{name.upper()}": str(runs[name]) for name in ("warmup", "refine")}
    done = subprocess.run(
        [sys.executable, EVALUATE, "--dataset", demo.dataset, "--samples", "16"],
        env={
            **environment,
            **stages,
            "HPCTRAIN_RUN_DIR": str(runs["evaluate"]),
            "PATH": os.environ["PATH"],
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    written = json.loads((runs["evaluate"] / "evaluation.json").read_text())
    assert written["samples"] == 16
    assert written["loss"] == json.loads(done.stdout)["loss"]
    assert 0 < written["loss"]["refine"] < written["loss"]["warmup"] - 0.5
