"""A log begins with what was found and with its table."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import survival

pytestmark = pytest.mark.torch


def test_a_note_has_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    from hpctrain.training.process import note

    note("warning: " + "word " * 30)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("[train] ") and len(line) <= 80 for line in lines)
    assert lines[0].startswith("[train] warning: word")
    assert lines[1].startswith("[train]   word")
    assert sum(line.count("word") for line in lines) == 30


@pytest.mark.slow
def test_the_table_comes_before_everything_of_every_rank(
    tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    values: dict[str, Any] = {
        **survival.BASE,
        "max_steps": 2,
        "eval_strategy": "no",
        "memory_every": 1,
        "dtype": "bfloat16",
    }
    del values["ddp_find_unused_parameters"]
    words = survival.words({"model_name_or_path": tiny[0], "dataset_name": tiny[1], **values})
    surroundings = survival.run_environment(
        environment,
        tmp_path / "runs/r",
        SLURM_JOB_END_TIME=str(int(time.time()) + 900),
    )
    done = subprocess.run(
        survival.argv(*words, ranks=2),
        env=surroundings,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("[train] starts from scratch with the weights of ")
    table = max(number for number, line in enumerate(lines) if line.startswith("[train] steps   "))
    assert table < min(
        number
        for number, line in enumerate(lines)
        if line.startswith(("[memory]", "[train] begin"))
    )
    assert len([line for line in lines if "event=train_begin" in line]) == 2
    assert any(line.startswith("[train] warning: all weights are trained in") for line in lines)
    assert any(
        line.startswith("[train] the time limit ends in 15 min; stops while") for line in lines
    )
    # Every weight of a dense model is used.
    assert "find_unused_parameters" not in done.stderr


def test_whether_each_step_uses_every_weight() -> None:
    from hpctrain.training.sft import every_weight_is_used

    assert every_weight_is_used({"model_type": "llama", "quantization_config": {}})
    assert every_weight_is_used({"num_experts": 0})
    assert not every_weight_is_used({"num_local_experts": 8})
    assert not every_weight_is_used({"text_config": {"n_routed_experts": 64}})
    assert not every_weight_is_used({"text_config": {}, "vision_config": {}})
    assert not every_weight_is_used({})
