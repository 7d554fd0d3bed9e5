"""`hpctrain runs` on a real Slurm: what waits or runs is never removed, and what ended without a
word is known by Slurm's.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import Lab
from tests.lab.typist import HPCTRAIN, Typist
from tests.runs import make
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

#: What the job script does first (hpctrain.runs.layout), for each task of a sweep.
BODY = """
index=${SLURM_ARRAY_TASK_ID:-0}
attempt="runs/grid_$index/attempts/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"
mkdir -p "$attempt"
echo '{"schema": 1, "run_id": "grid_'$index'", "tag": "grid", "index": '$index'}' > "runs/grid_$index/run.json"
echo '{"job_id": "'${SLURM_ARRAY_JOB_ID}_$index'", "slurm_job_id": "'$SLURM_JOB_ID'", "at": '$(date +%s)'}' > "$attempt/start.json"
sleep 1200
"""


def states(lab: Lab, project: Path) -> dict[str, tuple[str, Any]]:
    done = Typist(project, lab.env).type(HPCTRAIN, "runs", "list", "--json")
    assert done.returncode == 0, done.stderr
    return {run["id"]: (run["state"], run["reason"]) for run in json.loads(done.stdout)["runs"]}


def test_an_array_of_which_some_run_and_some_wait_loses_nothing(lab: Lab, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make.attempt(make.run(runs, "done"), "999998", outcome="completed")
    for index in (2, 3):  # `hpctrain submit` may have made them before they start
        make.run(runs, f"grid_{index}", tag="grid", index=index)
    job = lab.submit(BODY, tmp_path, "--array=0-3%2", "--ntasks=1", "--mem=50", "--time=30")
    try:
        make.submission(runs, "grid", job, array="0-3%2", offset=0)
        wait_until(lambda: len(list(runs.glob("grid_[01]/attempts/*/start.json"))) == 2)
        found = states(lab, tmp_path)
        assert {found[f"grid_{index}"][0] for index in (0, 1)} == {"running"}
        assert {found[f"grid_{index}"][0] for index in (2, 3)} == {"pending"}
        before = {path: path.read_bytes() for path in runs.glob("grid_*/**/*") if path.is_file()}
        tries = (
            "* --dry-run",
            "* --yes",
            "grid --yes",
            "--state running --yes",
            "grid_0 --yes",
        )
        for words in map(str.split, tries):
            done = Typist(tmp_path, lab.env).type(HPCTRAIN, "runs", "delete", *words)
            assert done.returncode == (1 if words[0] == "grid_0" else 0), done.stderr
            assert "grid_0" in done.stderr
            assert {
                path: path.read_bytes() for path in runs.glob("grid_*/**/*") if path.is_file()
            } == before
        assert not (runs / "done").exists()
    finally:
        lab.run("scancel", job)
    # Killed without a last word: Slurm's counts.
    wait_until(lambda: {state for state, _ in states(lab, tmp_path).values()} == {"stopped"})
    assert states(lab, tmp_path)["grid_0"] == ("stopped", "CANCELLED")
    done = Typist(tmp_path, lab.env).type(HPCTRAIN, "runs", "delete", "grid", "--yes")
    assert done.returncode == 0, done.stderr
    assert list(runs.glob("grid_*")) == []


def test_a_controller_that_cannot_be_reached_keeps_what_may_run(lab: Lab, tmp_path: Path) -> None:
    make.attempt(make.run(tmp_path / "runs", "live"), "999999")
    nowhere = tmp_path / "slurm.conf"
    text = Path(lab.env["SLURM_CONF"]).read_text()
    nowhere.write_text(
        "\n".join(line for line in text.splitlines() if "SlurmctldPort" not in line)
        + "\nSlurmctldPort=1\n"
    )
    lost = replace(lab, env={**lab.env, "SLURM_CONF": str(nowhere), "HPCTRAIN_SLURM_TIMEOUT": "15"})
    assert states(lost, tmp_path)["live"][0] == "unknown"
    done = Typist(tmp_path, lost.env).type(HPCTRAIN, "runs", "delete", "*", "--yes")
    assert done.returncode == 3, done.stderr
    assert (tmp_path / "runs" / "live" / "run.json").exists()
