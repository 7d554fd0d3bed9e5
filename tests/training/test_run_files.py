"""environment.json and metrics.jsonl of a real training, and a training whose run files cannot be
written.
"""

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain.runs import history, metrics

pytestmark = pytest.mark.torch


def trainer(tmp_path: Path, *callbacks: Any, **given: Any) -> Any:
    """A Trainer of a model with one weight."""
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: Any) -> dict[str, Any]:
            return {"loss": ((self.weight - x.float()) ** 2).mean()}

    fixed = {
        "use_cpu": True,
        "report_to": "none",
        "logging_steps": 1,
        "save_steps": 3,
        "eval_steps": 3,
        "eval_strategy": "steps",
    }
    args = TrainingArguments(
        output_dir=str(tmp_path / "out"), disable_tqdm=True, **{**fixed, **given}
    )
    data = [{"x": n} for n in range(50)]
    return Trainer(
        Model(), args, train_dataset=data, eval_dataset=data[:8], callbacks=list(callbacks)
    )


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_event_is_a_line(tmp_path: Path) -> None:
    from hpctrain.training.monitoring.run_files import RunFiles

    own = trainer(tmp_path, RunFiles(tmp_path / "run", "127.0"), max_steps=6)
    own.train()
    found = rows(tmp_path / "run" / "attempts" / "127.0" / "metrics.jsonl")
    assert [(row["event"], row["step"]) for row in found] == [
        *[("begin", 0), ("log", 1), ("log", 2), ("log", 3), ("evaluate", 3), ("save", 3)],
        *[("log", 4), ("log", 5), ("log", 6), ("evaluate", 6), ("save", 6), ("log", 6), ("end", 6)],
    ]
    logged = [entry for entry in own.state.log_history if "loss" in entry]
    logs = [row for row in found if "loss" in row]
    assert [(row["step"], row["epoch"], row["loss"], row["learning_rate"]) for row in logs] == [
        (entry["step"], entry["epoch"], entry["loss"], entry["learning_rate"]) for entry in logged
    ]
    assert "eval_runtime" in found[4]
    assert [row["at"] for row in found] == sorted(row["at"] for row in found)
    assert list(history.read_rows(tmp_path / "run")) == found


def test_numbers_of_all_kinds_are_valid_json() -> None:
    import numpy
    import torch

    from hpctrain.training.monitoring.run_files import metrics_line

    logs = {
        "loss": math.nan,
        "grad_norm": torch.tensor(math.inf),
        "low": -math.inf,
        "tensor": torch.tensor(2.5),
        "array": numpy.float32(0.5),
        "whole": 7,
        "flag": True,
        "text": "no number",
        "many": torch.zeros(2),
        "event": 3.0,
    }
    written = metrics_line("log", 4, None, logs)
    assert written.endswith(b"}\n")
    row = json.loads(written, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert row.pop("at") > 1.7e9
    assert row == {
        "event": "log",
        "step": 4,
        "epoch": None,
        "loss": None,
        "grad_norm": None,
        "low": None,
        "tensor": 2.5,
        "array": 0.5,
        "whole": 7,
        "nonfinite": {"loss": "nan", "grad_norm": "inf", "low": "-inf"},
    }
    values = metrics.values(row)
    assert math.isnan(values.pop("loss"))
    assert values == {
        "grad_norm": math.inf,
        "low": -math.inf,
        "tensor": 2.5,
        "array": 0.5,
        "whole": 7,
    }


def test_a_line_is_one_write_and_half_a_line_is_ended_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpctrain.training.monitoring.run_files import RunFiles

    file = tmp_path / "run" / "attempts" / "1.0" / "metrics.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(
        '{"event": "log", "step": 1, "epoch": 0.1, "at": 1795232331.5, "loss": 2.0}\n{"event":'
        ' "log", "st'
    )
    writes: list[bytes] = []
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        writes.append(bytes(data))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    trainer(
        tmp_path,
        RunFiles(tmp_path / "run", "1.0"),
        max_steps=2,
        save_strategy="no",
        eval_strategy="no",
    ).train()
    monkeypatch.undo()
    mine = [data for data in writes if data == b"\n" or data.startswith(b'{"event"')]
    assert mine[0] == b"\n"
    assert all(data.count(b"\n") == 1 and data.endswith(b"\n") for data in mine)
    assert [row["event"] for row in history.read_rows(tmp_path / "run")] == [
        "begin",
        "log",
        "log",
        "log",
        "end",
    ]


def test_the_environment_is_written_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import transformers

    from hpctrain.training.monitoring.run_files import RunFiles

    secret = "hf_" + "Ab1" * 12
    for name in ("HF_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, secret)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    trainer(
        tmp_path,
        RunFiles(tmp_path / "run", "1.0"),
        max_steps=1,
        save_strategy="no",
        eval_strategy="no",
    ).train()
    file = tmp_path / "run" / "attempts" / "1.0" / "environment.json"
    found = json.loads(file.read_text())
    assert secret not in file.read_text()
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["transformers"] == transformers.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert (found["hosts"], found["world_size"], found["variables"]["OMP_NUM_THREADS"]) == (
        ["node1", "node2"],
        1,
        "3",
    )
    assert len(found["gpus"]) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
