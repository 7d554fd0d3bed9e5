"""Checkpoints and runs as the training leaves them, small."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpctrain.runs import checkpoints, manifest

#: Read when the tests are collected: a test without the slurm mark does not see the variable.
REQUIRED = bool(os.environ.get("HPCTRAIN_REQUIRE_LAB"))
STATE = ("model", "optimizer", "scheduler", "rng", "trainer")
FILES = {
    "model.safetensors": b"weights" * 40,
    "optimizer.pt": b"moments" * 80,
    "trainer_state.json": b'{"global_step": 1}',
    "nested/rng.pth": b"7",
}


def save(
    directory: Path, step: int, content: Mapping[str, bytes] = FILES, attempt: str = "11.0"
) -> Path:
    """Save and publish one checkpoint in `directory`."""
    saving = checkpoints.saving_path(directory, step, attempt)
    fill(saving, content)
    manifest.write_manifest(
        saving, step=step, world_size=2, state=STATE, run_id="sft-1", attempt=attempt
    )
    final = directory / f"checkpoint-{step}"
    checkpoints.publish(saving, final)
    return final


def fill(directory: Path, content: Mapping[str, bytes]) -> None:
    for name, data in content.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def make_run(
    runs: Path, run_id: str = "sft-1", steps: tuple[int, ...] = (10, 20), *, model: bool = True
) -> Path:
    """Make a run with two attempts, checkpoints, a model and a snapshot of its code."""
    run = runs / run_id
    for attempt, at in (("11.0", 100), ("11.1", 200)):
        fill(run / "attempts" / attempt, {"metrics.jsonl": b'{"step": 1}\n' * 30})
        (run / "attempts" / attempt / "start.json").write_text(
            json.dumps({"schema": 1, "job_id": "11", "at": at})
        )
    (run / "run.json").write_text(
        json.dumps({"schema": 1, "run_id": run_id, "tag": run_id, "name": "sft", "created": 90})
    )
    for step in steps:
        save(run / "checkpoints", step)
    if model:
        fill(run / ".model", {"model.safetensors": b"final", "config.json": b"{}"})
        manifest.write_manifest(
            run / ".model", step=max(steps, default=0), world_size=2, state=["model"]
        )
        checkpoints.publish(run / ".model", run / "model")
    snapshot = runs / ".code" / "5eed"
    fill(snapshot, {"train.py": b"print()\n", "lib/tools.py": b"x = 1\n"})
    if not (run / "code").is_symlink():
        (run / "code").symlink_to("../.code/5eed")
    return run


def tree(directory: Path) -> dict[str, bytes]:
    """Return every file below `directory` with its content, links followed."""
    found = {}
    for folder, _, names in os.walk(directory, followlinks=True):
        for name in names:
            path = Path(folder, name)
            found[str(path.relative_to(directory))] = path.read_bytes()
    return found


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """Mount a file system of `size` at `path`; skips where that is impossible, unless
    HPCTRAIN_REQUIRE_LAB says that nothing may be.
    """
    path.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        if REQUIRED:
            pytest.fail(f"no tmpfs: {done.stderr}")
        pytest.skip(f"no tmpfs: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)
