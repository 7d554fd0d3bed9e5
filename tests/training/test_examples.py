"""The examples are jobs, and their stages train."""

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
