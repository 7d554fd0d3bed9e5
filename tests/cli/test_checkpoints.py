"""`hpctrain checkpoints` and `hpctrain runs export|import`, as they are typed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hpctrain.runs import checkpoints

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
    home = desk.directory / "runs" / run
    desk.write(f"runs/{run}/run.json", json.dumps({"schema": 1, "run_id": run, "tag": run, "name": "sft", "created": time.time() - 900}))
    start = {"schema": 1, "job_id": job, "slurm_job_id": job, "restart": 0, "host": "n1", "at": time.time() - 800}
    desk.write(f"runs/{run}/attempts/{job}.0/start.json", json.dumps(start))
    if ended:
        end = {"schema": 1, "at": time.time() - 100, "status": 0, "reason": ended, "outcome": ended}
        desk.write(f"runs/{run}/attempts/{job}.0/end.json", json.dumps(end))
    for step in steps:
        save(home / "checkpoints", f"checkpoint-{step}", step, best)
    save(home, "model", max(steps, default=0), best)
    return home  # type: ignore[no-any-return]


def save(folder: Path, name: str, step: int, best: int) -> None:
    saving = folder / f".saving-{name}"
    saving.mkdir(parents=True)
    (saving / "model.safetensors").write_bytes(b"w" * 1000)
    (saving / "trainer_state.json").write_text(json.dumps({"global_step": step, "best_model_checkpoint": f"/elsewhere/checkpoint-{best}"}))
    checkpoints.write_manifest(saving, step=step, world_size=8, state=["model", "trainer"], began=time.monotonic())
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
        ("checkpoint-10", "10"), ("checkpoint-20", "20"), ("checkpoint-30", "30"), (".saving-40.17.0", "-"), ("model", "30"),
    ]  # fmt: skip
    assert "best" in rows[1]
    assert rows[1][-1] == "complete"
    assert "model.safetensors has 7 bytes, and 1000 were saved" in said.out
    assert said.lines[-1] == "next: hpctrain checkpoints drop --damaged sft-1"

    value = json.loads(desk.run("checkpoints", "list", "--json").out)
    assert value["schema"] == 1
    assert [(one["name"], one["complete"], one["best"]) for one in value["checkpoints"]][:2] == [
        ("checkpoint-10", True, True), ("checkpoint-20", False, False),
    ]  # fmt: skip
    assert value["checkpoints"][0]["world_size"] == 8
    assert value["checkpoints"][0]["bytes"] > 1000


def test_words_for_checkpoints(desk: Any) -> None:
    make_run(desk)
    make_run(desk, "sft-2", ended="failed")

    def listed(*words: str) -> list[str]:
        return [
            f"{one['run_id']}/{one['name']}" for one in json.loads(desk.run("checkpoints", "list", "--json", *words).out)["checkpoints"]
        ]

    assert listed("sft-1/checkpoint-10") == ["sft-1/checkpoint-10"]
    assert listed("runs/sft-1/checkpoints/checkpoint-10/") == ["sft-1/checkpoint-10"]
    assert listed("sft-*/checkpoint-10", "sft-2/model") == ["sft-1/checkpoint-10", "sft-2/checkpoint-10", "sft-2/model"]
    assert len(listed("--state", "failed")) == 4
    assert listed("sft-*/checkpoint-10", "--state", "failed") == ["sft-2/checkpoint-10"]
    assert listed("--older-than", "7d") == []
    assert "there is no sft-1/checkpoint-99" in desk.refused("checkpoints", "list", "sft-1/checkpoint-99").err
    assert "there is no run 'stf'" in desk.refused("checkpoints", "list", "stf/checkpoint-10").err


def test_no_runs_at_all(desk: Any) -> None:
    for words in (["list"], ["verify"], ["drop", "x"], ["export", "x", "-o", "y.tar"]):
        desk.refused("checkpoints", *words)


def test_verify_reads_the_files_and_ends_with_1_where_one_has_changed(desk: Any) -> None:
    home = make_run(desk)
    assert desk.run("checkpoints", "verify").code == 0
    path = home / "checkpoints/checkpoint-20/model.safetensors"
    path.write_bytes(b"W" + path.read_bytes()[1:])
    said = desk.run("checkpoints", "verify", "sft-1")
    assert said.code == 1
    assert "sft-1/checkpoint-20  damaged" in said.out
    assert "  model.safetensors has changed since it was saved (SHA-256)" in said.out.splitlines()
    assert said.lines[-2:] == ["error: 1 of 4 are not as they were saved", "fix: hpctrain checkpoints drop --damaged sft-1"]
    assert desk.run("checkpoints", "verify", "--no-digests").code == 0
    value = json.loads(desk.run("checkpoints", "verify", "--json").out)
    assert [one["name"] for one in value["checkpoints"] if not one["ok"]] == ["checkpoint-20"]
    (home / "checkpoints/checkpoint-30/notes").touch()
    assert "notes was not saved with it" in desk.run("checkpoints", "verify", "sft-1/checkpoint-30").out
    assert desk.run("checkpoints", "verify", "sft-1", "--newer-than", "1s").code == 1  # nothing to verify


def test_drop_keeps_the_newest_complete_the_best_and_the_weights(desk: Any) -> None:
    home = make_run(desk, steps=(10, 20, 30, 40, 50))
    os.truncate(home / "checkpoints/checkpoint-50/model.safetensors", 7)
    desk.refused("checkpoints", "drop")
    before = names(home)
    said = desk.run("checkpoints", "drop", "sft-1", "--dry-run")
    assert [line.split()[1] for line in said.out.splitlines()[1:-1]] == ["checkpoint-20", "checkpoint-30", "checkpoint-50"]
    assert "stays: sft-1/checkpoint-40 (the newest complete one; --even-last)" in said.lines
    assert "stays: sft-1/checkpoint-10 (the best one; to remove it, name it)" in said.lines
    assert names(home) == before
    assert "this would remove 3 checkpoints" in desk.refused("checkpoints", "drop", "sft-1").err

    assert desk.run("checkpoints", "drop", "sft-1", "--yes", "--keep-last", "2").code == 0
    assert names(home) == ["checkpoint-10", "checkpoint-30", "checkpoint-40"]
    said = desk.run("checkpoints", "drop", "sft-1/checkpoint-40", "--yes")
    assert (said.code, names(home)) == (1, ["checkpoint-10", "checkpoint-30", "checkpoint-40"])
    assert "sft-1/checkpoint-40: the newest complete one; --even-last" in said.err
    assert desk.run("checkpoints", "drop", "sft-1/checkpoint-10", "--yes").code == 0
    assert names(home) == ["checkpoint-30", "checkpoint-40"]
    assert desk.run("checkpoints", "drop", "sft-1", "--even-last", "--yes").code == 0
    assert names(home) == []
    assert (home / "model").exists()
    assert desk.run("checkpoints", "drop", "sft-1/model", "--yes").code == 0
    assert not (home / "model").exists()


def test_drop_damaged_takes_what_is_not_complete(desk: Any) -> None:
    home = make_run(desk)
    os.truncate(home / "checkpoints/checkpoint-30/model.safetensors", 7)
    (home / "checkpoints/.saving-40.17.0").mkdir()
    (home / "checkpoints/.removing-checkpoint-5.1").mkdir()
    value = json.loads(desk.run("checkpoints", "drop", "sft-1", "--damaged", "--yes", "--json").out)
    assert [one["name"] for one in value["dropped"]] == ["sft-1/checkpoint-30", "sft-1/.saving-40.17.0"]
    assert names(home) == ["checkpoint-10", "checkpoint-20"]


@pytest.mark.parametrize("squeue", ["RUNNING", "PENDING", "silent"])
def test_nothing_of_a_run_that_may_run_is_removed(desk: Any, squeue: str) -> None:
    from hpctrain.scheduler.parse import records

    home = make_run(desk, ended=None)
    other = make_run(desk, "sft-2", job="18")
    desk.program("sbatch", "exit 9")
    fields = records.SQUEUE_FORMAT.split(records.SEPARATOR)
    if squeue == "silent":
        desk.program("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    else:
        values = {"%i": "17", "%T": squeue, "%j": "sft"}
        desk.program("squeue", f"echo '{records.SEPARATOR.join(values.get(each, '') for each in fields)}'")
    desk.program("sacct", "exit 0")
    before = names(home)
    said = desk.run("checkpoints", "drop", "sft-*", "--yes")
    assert names(home) == before
    assert names(other) == ["checkpoint-10", "checkpoint-30"]
    assert "stays: sft-1/checkpoint-20" in said.err
    assert said.code == (3 if squeue == "silent" else 0)
    desk.run("checkpoints", "drop", "sft-1/checkpoint-20", "--yes", "--even-last", "--damaged", "--forgotten")
    assert names(home) == before
    said = desk.run("checkpoints", "drop", "sft-1/checkpoint-20", "--yes", "--even-last")
    assert (said.code, names(home)) == (3 if squeue == "silent" else 1, before)


def test_a_run_goes_to_another_machine(desk: Any) -> None:
    home = make_run(desk)
    said = desk.run("runs", "export", "sft-1", "-o", "sft.tar.gz")
    assert (said.code, said.out) == (0, "sft.tar.gz\n")
    assert said.lines[-1] == "next, on the other machine: hpctrain runs import sft.tar.gz"
    assert "exists" in desk.refused("runs", "export", "sft-1", "-o", "sft.tar.gz").err
    assert "run sft-1 exists" in desk.refused("runs", "import", "sft.tar.gz").err
    desk.refused("runs", "export", "-o", "x.tar")
    desk.refused("runs", "import", "nowhere.tar")

    said = desk.run("runs", "import", "sft.tar.gz", "--runs-dir", "../other/runs", "--json")
    assert json.loads(said.out)["runs"] == ["sft-1"]
    assert desk.run("checkpoints", "verify", "--runs-dir", "../other/runs").code == 0
    rows = json.loads(desk.run("runs", "list", "--json", "--runs-dir", "../other/runs").out)["runs"]
    assert [(row["id"], row["state"], row["checkpoints"]) for row in rows] == [("sft-1", "completed", 3)]
    assert desk.run("runs", "import", "sft.tar.gz", "--as", "sft-copy").out == "sft-copy\n"

    data = (desk.directory / "sft.tar.gz").read_bytes()
    desk.write("cut.tar.gz", data[: len(data) // 2])
    assert "cut.tar.gz is not taken" in desk.refused("runs", "import", "cut.tar.gz", "--as", "sft-3", code=1).err
    desk.write("other.tar.gz", b"no archive")
    desk.refused("checkpoints", "import", "other.tar.gz", code=1)

    os.truncate(home / "checkpoints/checkpoint-30/model.safetensors", 7)
    assert "checkpoint-30: model.safetensors has 7 bytes" in desk.refused("runs", "export", "sft-1", "-o", "b.tar", code=1).err
    assert desk.run("runs", "export", "sft-1", "-o", "b.tar", "--incomplete").code == 0


def test_a_running_run_arrives_as_stopped(desk: Any) -> None:
    make_run(desk, ended=None)
    assert desk.run("runs", "export", "sft-1", "-o", "sft.tar").code == 0
    assert desk.run("runs", "import", "sft.tar", "--as", "there").code == 0
    rows = {row["id"]: row for row in json.loads(desk.run("runs", "list", "--json").out)["runs"]}
    assert (rows["there"]["state"], rows["there"]["reason"]) == ("stopped", "imported")
    assert rows["sft-1"]["state"] == "unknown"


def test_a_checkpoint_goes_to_another_machine(desk: Any) -> None:
    make_run(desk)
    said = desk.run("checkpoints", "export", "sft-1", "-o", "c.tar")  # the newest complete one
    assert (said.code, said.out) == (0, "c.tar\n")
    said = desk.run("checkpoints", "import", "c.tar", "--runs-dir", "../other")
    assert (said.code, said.out) == (0, "../other/sft-1/checkpoints/checkpoint-30\n")
    assert "it was here already" in desk.run("checkpoints", "import", "c.tar").err
    assert desk.run("checkpoints", "verify", "--runs-dir", "../other").code == 0
    assert desk.run("checkpoints", "export", "sft-1/model", "-o", "m.tar").code == 0
    assert "holds a checkpoint, and no run" in desk.refused("runs", "import", "m.tar").err
    assert "there is no sft-1/checkpoint-99" in desk.refused("checkpoints", "export", "sft-1/checkpoint-99", "-o", "z.tar").err


def test_a_name_with_orders_to_the_terminal_is_shown_and_not_sent(desk: Any) -> None:
    home = make_run(desk)
    (home / "checkpoints/checkpoint-30/evil\x1b[2J").touch()
    said = desk.run("checkpoints", "verify")
    assert "\x1b" not in said.out + said.err
    assert "evil\\x1b[2J was not saved with it" in said.out
