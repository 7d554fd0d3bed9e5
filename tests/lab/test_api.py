"""The Python API on a real Slurm."""

from pathlib import Path

import pytest

import hpctrain

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_a_job_from_submission_to_its_log(
    lab_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in lab_env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('it trains')\n")
    (tmp_path / "config.yaml").write_text("script: train.py\nlauncher: srun\n")
    job = hpctrain.Job.load(gpus=1, cpus_per_task=1, mem="200M", time="0:05:00")
    run = hpctrain.submit(job)
    assert run.wait(timeout_s=1500).word == "completed"
    assert "it trains" in run.logs()
    assert [each.id for each in hpctrain.list_runs(run.job_ids[-1])] == [run.id]
