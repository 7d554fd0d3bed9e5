"""bench/train.py at toy size: every variant trains, and what is printed is what was measured."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.torch
BENCH = Path(__file__).parents[2] / "bench"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.extended
@pytest.mark.slow
def test_the_variants_train_on_the_same_text(tmp_path: Path) -> None:
    """Without --knobs: bench/gpu's rehearsal trains with hpctrain's, and TRL's are trainings of TRL."""
    out = tmp_path / "out.json"
    words = ["--rows", "100", "--tokens", "1200", "--max-length", "256"]
    words += ["--warmup", "1", "--batch", "4", "--tuned", "per_device_train_batch_size=4"]
    with tempfile.TemporaryDirectory() as temporary:  # a short name: sockets are made in it
        done = subprocess.run(
            [sys.executable, BENCH / "train.py", *words, "--folder", tmp_path, "--json", out],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": temporary},
        )
        left = [path.name for path in Path(temporary).iterdir()]
    assert out.exists(), done.stderr
    found = json.loads(out.read_text())
    rows: dict[str, Any] = {row["name"]: row for row in found["rows"]}
    assert list(rows) == ["TRL's defaults", "hpctrain's defaults", "tuned by hand"]
    for name in rows:
        assert all(run["useful_tokens"] >= 1200 for run in rows[name]["runs"]), name
        assert rows[name]["peak_bytes"] > 50e6
        assert 0 < rows[name]["mfu"] < 2
        assert f"| {name} |" in done.stdout
    base, ours = rows["TRL's defaults"], rows["hpctrain's defaults"]
    assert base["padding_share"] > 0.2
    assert ours["padding_share"] < 0.1
    assert ours["ratio"] == pytest.approx(ours["useful_tokens_per_s"] / base["useful_tokens_per_s"])
    assert (done.returncode == 0) == (ours["ratio"] >= 1)
    assert list(tmp_path.glob("bench-train.*")) == [], "the models are removed"
    assert left == []
    assert "leaked" not in done.stderr
