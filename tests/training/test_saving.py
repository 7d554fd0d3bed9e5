"""A save that fails: the disk is full, the directory cannot be written.

What was saved before is whole, and all processes end.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import survival

from hpctrain.runs import checkpoints

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system"),
]

Mount = Callable[[Path, int], None]


@pytest.fixture
def mount() -> Iterator[Mount]:
    mounted: list[Path] = []

    def tmpfs(where: Path, kib: int) -> None:
        where.mkdir(parents=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "hpctrain-test", str(where)], check=True
        )
        mounted.append(where)

    yield tmpfs
    for where in mounted:
        subprocess.run(["umount", "-l", str(where)], check=True)


def arguments(tiny: tuple[str, str], **more: object) -> list[str]:
    more = {
        "model_name_or_path": tiny[0],
        "dataset_name": tiny[1],
        **survival.BASE,
        "eval_strategy": "no",
        **more,
    }
    return survival.words(more)


def test_a_full_disk(
    tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path, mount: Mount
) -> None:
    run = tmp_path / "runs" / "r"
    mount(run / "checkpoints", 560)  # a checkpoint has 170 KiB
    done = subprocess.run(
        survival.argv(*arguments(tiny, save_steps=2), ranks=2),
        env=survival.run_environment(environment, run),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1
    message = [line for line in done.stderr.splitlines() if line.startswith(("error: ", "fix: "))]
    assert len(message) == 2, done.stderr
    assert message[0].endswith("could not be saved: the disk is full")
    assert message[1] == f"fix: df -h {run}/checkpoints"
    assert "\n  rank 0 on " in done.stderr
    assert "Traceback" not in done.stderr.partition("fix: ")[0]
    assert survival.exit_word(run, "1.0") == "1 error\n"
    found, skipped = checkpoints.newest_complete(run / "checkpoints", digests=True)
    assert found is not None
    assert skipped == ()
    assert f"error: checkpoint-{found.manifest.step + 2} could not" in message[0]
    assert not [path for path in (run / "checkpoints").iterdir() if path.name.startswith(".")], (
        "nothing of the save is left"
    )


@pytest.mark.extended
def test_a_full_disk_at_the_final_weights(
    tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path, mount: Mount
) -> None:
    run = tmp_path / "runs" / "r"
    mount(run, 236)  # the checkpoint fits in, the model beside it does not
    done = subprocess.run(
        survival.argv(*arguments(tiny, save_steps=100)),
        env=survival.run_environment(environment, run),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1
    assert "error: model could not be saved: the disk is full" in done.stderr, done.stderr
    assert not (run / "model").exists()
    assert survival.listed(run) == ["attempts", "checkpoints", "fit.json"]
    found, _ = checkpoints.newest_complete(run / "checkpoints", digests=True)
    assert found.manifest.step == survival.BASE["max_steps"]
    subprocess.run(["mount", "-o", "remount,size=2m", str(run)], check=True)
    done = subprocess.run(
        survival.argv(*arguments(tiny, save_steps=100)),
        env=survival.run_environment(environment, run, "2.0"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "[train] finished: 14 of 14 steps" in done.stdout
    assert survival.digests(run / "model") == survival.digests(found.path)


def test_a_directory_that_cannot_be_written(tmp_path: Path, mount: Mount) -> None:
    from hpctrain.training.process import Ranks
    from hpctrain.training.survival.saving import Attempt, SaveError

    folder = tmp_path / "checkpoints"
    mount(folder, 4000)
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    attempt = Attempt(Ranks(), folder / "checkpoint-4", 4, "1.0")
    with pytest.raises(SaveError, match="checkpoint-4 could not be saved: the directory cannot be"):
        attempt.begin()
    assert survival.listed(folder) == []
