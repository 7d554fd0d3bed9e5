"""`hpctrain checkpoints`, as it is typed."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hpctrain.runs import checkpoints, manifest
from tests.runs import make

pytestmark = pytest.mark.usefixtures("no_slurm")


def make_run(
    desk: Any,
    run: str = "sft-1",
    steps: tuple[int, ...] = (10, 20, 30),
    *,
    ended: str | None = "completed",
    best: int = 10,
    job: str = "17",
) -> Path:
    now = time.time()
    home = make.run(desk.directory / "runs", run, created=now - 900)
    make.attempt(home, job, at=now - 800, outcome=ended, reason=ended or "", ended=now - 100)
    for step in steps:
        save(home / "checkpoints", f"checkpoint-{step}", step, best)
    save(home, "model", max(steps, default=0), best)
    return home


def save(folder: Path, name: str, step: int, best: int) -> None:
    saving = folder / f".saving-{name}"
    saving.mkdir(parents=True)
    (saving / "model.safetensors").write_bytes(b"w" * 1000)
    (saving / "trainer_state.json").write_text(
        json.dumps({"global_step": step, "best_model_checkpoint": f"/elsewhere/checkpoint-{best}"})
    )
    manifest.write_manifest(
        saving, step=step, world_size=8, state=["model", "trainer"], began=time.monotonic()
    )
    checkpoints.publish(saving, folder / name)


def names(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "checkpoints").iterdir())


def test_list_says_what_is_complete_and_what_is_best(desk: Any) -> None:
    home = make_run(desk)
    os.truncate(home / "checkpoints/checkpoint-20/model.safetensors", 7)
    (home / "checkpoints/.saving-40.17.0").mkdir()
    said = desk.run("checkpoints", "list", "sft-1")
    rows = [line.split() for line in said.out.splitlines()]
    assert (said.code, rows[0][:3]) == (0, ["RUN", "CHECKPOINT", "STEP"])
    assert [(row[1], row[2]) for row in rows[1:]] == [
        ("checkpoint-10", "10"),
        ("checkpoint-20", "20"),
        ("checkpoint-30", "30"),
        (".saving-40.17.0", "-"),
        ("model", "30"),
    ]
    assert "best" in rows[1]
    assert rows[1][-1] == "complete"
    assert "model.safetensors has 7 bytes, and 1000 were saved" in said.out
    assert said.lines[-1] == "next: hpctrain checkpoints delete --damaged sft-1/checkpoint-20"

    value = json.loads(desk.run("checkpoints", "list", "--json").out)
    assert [(one["name"], one["complete"], one["best"]) for one in value["checkpoints"]][:2] == [
        ("checkpoint-10", True, True),
        ("checkpoint-20", False, False),
    ]
    assert value["checkpoints"][0]["world_size"] == 8
    assert value["checkpoints"][0]["bytes"] > 1000


def test_words_for_checkpoints(desk: Any) -> None:
    make_run(desk)
    make_run(desk, "sft-2", ended="failed")

    def listed(*words: str) -> list[str]:
        return [
            f"{one['run_id']}/{one['name']}"
            for one in json.loads(desk.run("checkpoints", "list", "--json", *words).out)[
                "checkpoints"
            ]
        ]

    assert listed("sft-1/checkpoint-10") == ["sft-1/checkpoint-10"]
    assert listed("runs/sft-1/checkpoints/checkpoint-10/") == ["sft-1/checkpoint-10"]
    assert listed("sft-*/checkpoint-10", "sft-2/model") == [
        "sft-1/checkpoint-10",
        "sft-2/checkpoint-10",
        "sft-2/model",
    ]
    assert len(listed("--state", "failed")) == 4
    assert listed("sft-*/checkpoint-10", "--state", "failed") == ["sft-2/checkpoint-10"]
    assert listed("--older-than", "7d") == []
    assert (
        "there is no sft-1/checkpoint-99"
        in desk.refused("checkpoints", "list", "sft-1/checkpoint-99").err
    )
    assert "there is no run 'stf'" in desk.refused("checkpoints", "list", "stf/checkpoint-10").err


def test_verify_reads_the_files_and_ends_with_1_where_one_has_changed(desk: Any) -> None:
    home = make_run(desk)
    assert desk.run("checkpoints", "verify").code == 0
    path = home / "checkpoints/checkpoint-20/model.safetensors"
    path.write_bytes(b"W" + path.read_bytes()[1:])
    said = desk.run("checkpoints", "verify", "sft-1")
    assert said.code == 1
    assert "sft-1/checkpoint-20  damaged" in said.out
    assert "  model.safetensors has changed since it was saved (SHA-256)" in said.out.splitlines()
    assert said.lines[-1] == "fix: hpctrain checkpoints delete --damaged sft-1/checkpoint-20"
    value = json.loads(desk.run("checkpoints", "verify", "--json").out)
    assert [one["name"] for one in value["checkpoints"] if not one["ok"]] == ["checkpoint-20"]
    (home / "checkpoints/checkpoint-30/notes").touch()
    said = desk.run("checkpoints", "verify", "sft-1/checkpoint-30")
    assert said.code == 0, "a file that was added harms nothing that was saved"
    assert (
        desk.run("checkpoints", "verify", "sft-1", "--older-than", "900w").code == 1
    )  # nothing to verify


def test_drop_keeps_the_newest_complete_the_best_and_the_weights(desk: Any) -> None:
    home = make_run(desk, steps=(10, 20, 30, 40, 50))
    os.truncate(home / "checkpoints/checkpoint-50/model.safetensors", 7)
    desk.refused("checkpoints", "delete")
    before = names(home)
    said = desk.run("checkpoints", "delete", "sft-1", "--dry-run")
    assert [line.split()[1] for line in said.out.splitlines()[1:-1]] == [
        "checkpoint-20",
        "checkpoint-30",
        "checkpoint-50",
    ]
    assert (
        "stays: sft-1/checkpoint-40 (the newest complete one, from which the run would resume)"
        in said.lines
    )
    assert "stays: sft-1/checkpoint-10 (the best one; to remove it, name it)" in said.lines
    assert names(home) == before
    assert "this would remove 3 checkpoints" in desk.refused("checkpoints", "delete", "sft-1").err

    assert desk.run("checkpoints", "delete", "sft-1", "--yes", "--keep-last", "2").code == 0
    assert names(home) == ["checkpoint-10", "checkpoint-30", "checkpoint-40"]
    said = desk.run("checkpoints", "delete", "sft-1/checkpoint-40", "--yes")
    assert (said.code, names(home)) == (1, ["checkpoint-10", "checkpoint-30", "checkpoint-40"])
    assert "sft-1/checkpoint-40 stays: the newest complete one" in said.err
    assert desk.run("checkpoints", "delete", "sft-1/checkpoint-10", "--yes").code == 0
    assert names(home) == ["checkpoint-30", "checkpoint-40"]
    assert desk.run("checkpoints", "delete", "sft-1", "--yes").code == 0
    assert names(home) == ["checkpoint-40"]
    assert (home / "model").exists()
    assert desk.run("checkpoints", "delete", "sft-1/model", "--yes").code == 0
    assert not (home / "model").exists()


def test_drop_damaged_takes_what_is_not_complete(desk: Any) -> None:
    home = make_run(desk)
    os.truncate(home / "checkpoints/checkpoint-30/model.safetensors", 7)
    (home / "checkpoints/.saving-40.17.0").mkdir()
    (home / "checkpoints/.removing-checkpoint-5.1").mkdir()
    value = json.loads(
        desk.run("checkpoints", "delete", "sft-1", "--damaged", "--yes", "--json").out
    )
    assert [one["name"] for one in value["dropped"]] == [
        "sft-1/checkpoint-30",
        "sft-1/.saving-40.17.0",
    ]
    assert names(home) == ["checkpoint-10", "checkpoint-20"]


def spoil(file: Path) -> None:
    """Change one byte, and neither the size nor the time."""
    before = file.stat()
    file.write_bytes(b"W" + file.read_bytes()[1:])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    "first",
    [
        ["checkpoints", "verify"],
        ["checkpoints", "delete"],
    ],
)
def test_what_is_damaged_is_so_for_every_verb(desk: Any, first: list[str]) -> None:
    """Whoever reads the files first, and meets one byte that is another: all others know, until the
    file is another one.
    """
    home = make_run(desk, steps=(10, 20, 30))
    whole = (home / "checkpoints/checkpoint-30/model.safetensors").read_bytes()
    spoil(home / "checkpoints/checkpoint-30/model.safetensors")
    if first[-1] == "delete":
        found = desk.run("checkpoints", "delete", "sft-*", "--damaged", "--dry-run", "--json")
        assert [one["name"] for one in json.loads(found.out)["dropped"]] == ["sft-1/checkpoint-30"]
    else:
        said = desk.run(*first)
        assert (said.code, said.lines[-1]) == (
            1,
            "fix: hpctrain checkpoints delete --damaged sft-1/checkpoint-30",
        )
    rows = {
        one["name"]: one
        for one in json.loads(desk.run("checkpoints", "list", "--json").out)["checkpoints"]
    }
    assert [name for name, one in rows.items() if not one["complete"]] == ["checkpoint-30"]
    assert [
        one["problem"] is None
        for one in json.loads(desk.run("runs", "show", "sft-1", "--json").out)["saved"]
    ] == [True, True, False]
    kept = desk.run("checkpoints", "delete", "sft-1", "--dry-run").err
    assert "sft-1/checkpoint-20" in kept, "the newest good one"

    fix = ["checkpoints", "delete", "--damaged", "sft-1/checkpoint-30"]
    assert [
        one["name"] for one in json.loads(desk.run(*fix, "--dry-run", "--json").out)["dropped"]
    ] == ["sft-1/checkpoint-30"]
    (home / "checkpoints/checkpoint-30/model.safetensors").write_bytes(
        whole
    )  # brought back from a backup
    assert json.loads(desk.run(*fix, "--yes", "--json").out)["dropped"] == []
    assert desk.run("checkpoints", "verify").code == 0
    spoil(home / "checkpoints/checkpoint-30/model.safetensors")
    assert desk.run("checkpoints", "verify").code == 1
    assert desk.run(*fix, "--yes").code == 0
    assert names(home) == ["checkpoint-10", "checkpoint-20"]
    assert desk.run("checkpoints", "verify").code == 0


def test_the_final_weights_are_removed_by_their_name_alone(desk: Any) -> None:
    home = make_run(desk)
    spoil(home / "model/model.safetensors")
    said = desk.run("checkpoints", "verify", "--runs-dir", "./runs")
    assert said.code == 1
    assert desk.run("checkpoints", "delete", "sft-1", "--damaged", "--yes").code == 0
    assert (home / "model").is_dir()
    assert desk.run(*said.lines[-1].removeprefix("fix: hpctrain ").split(), "--yes").code == 0
    assert not (home / "model").exists()
    assert names(home) == ["checkpoint-10", "checkpoint-20", "checkpoint-30"]


@pytest.mark.parametrize("squeue", ["RUNNING", "PENDING", "silent"])
def test_nothing_of_a_run_that_may_run_is_removed(desk: Any, squeue: str) -> None:
    from hpctrain.slurm.notations import records

    home = make_run(desk, ended=None)
    other = make_run(desk, "sft-2", job="18")
    desk.program("sbatch", "exit 9")
    fields = records.SQUEUE_FORMAT.split(records.SEPARATOR)
    if squeue == "silent":
        desk.program(
            "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
        )
    else:
        values = {"%i": "17", "%T": squeue, "%j": "sft"}
        desk.program(
            "squeue", f"echo '{records.SEPARATOR.join(values.get(each, '') for each in fields)}'"
        )
    desk.program("sacct", "exit 0")
    before = names(home)
    said = desk.run("checkpoints", "delete", "sft-*", "--yes")
    assert names(home) == before
    assert names(other) == ["checkpoint-10", "checkpoint-30"]
    assert "stays: sft-1/checkpoint-20" in said.err
    assert said.code == (3 if squeue == "silent" else 0)
    desk.run(
        "checkpoints",
        "delete",
        "sft-1/checkpoint-20",
        "--yes",
        "--damaged",
    )
    assert names(home) == before
    said = desk.run("checkpoints", "delete", "sft-1/checkpoint-20", "--yes")
    assert (said.code, names(home)) == (3 if squeue == "silent" else 1, before)
