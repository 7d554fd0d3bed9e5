"""The examples of docs/api.md run, on the local scheduler."""

import re
from pathlib import Path

import pytest

import hpctrain
from hpctrain.errors import UsageError

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
CONFIG = "script: train.py\nlauncher: srun\nresources: {time: '0:09:00'}\n"
pytestmark = [pytest.mark.slow]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(
        "import os, sys\nprint('it trains')\nsys.exit(os.environ['HPCTRAIN_RUN_ID'] == 'first-1')\n"
    )
    (tmp_path / "config.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("no_slurm", "project")
def test_the_examples(capfd: pytest.CaptureFixture[str]) -> None:
    first = hpctrain.submit(hpctrain.Job.load(), local=True, run_id="first-1")
    assert first.wait(timeout_s=1500).word == "failed"
    assert capfd.readouterr() == ("", "")  # nothing is printed
    for example in EXAMPLES:
        exec(compile(example, str(PAGE), "exec"), {})  # noqa: S102 - our own page
    assert {run.id for run in hpctrain.list_runs()} > {"first-1"}


@pytest.mark.usefixtures("no_slurm", "project")
def test_a_run_is_cancelled_and_found_by_its_job(project: Path) -> None:
    (project / "train.py").write_text("import time\ntime.sleep(300)\n")
    run = hpctrain.submit(hpctrain.Job.load(job_name="long"), local=True)
    assert [each.id for each in hpctrain.list_runs(run.job_ids[-1])] == [run.id]
    with pytest.raises(TimeoutError):
        run.wait(timeout_s=0)
    run.cancel()
    assert run.wait(timeout_s=1500).word in ("stopped", "failed")


@pytest.mark.usefixtures("no_slurm", "project")
def test_what_is_wrong_is_an_exception_with_a_fix() -> None:
    with pytest.raises(UsageError, match="there is no option nodez"):
        hpctrain.Job.load(nodez=2)
    with pytest.raises(UsageError, match="no such directory"):
        hpctrain.list_runs("x")
    for missing in (
        {"script": "no.py"},
        {"launcher": "accelerate", "accelerate_config": "no.yaml"},
    ):
        with pytest.raises(UsageError, match="does not exist in"):
            hpctrain.submit(hpctrain.Job.load(**missing), local=True)
    assert not any(Path().glob("*.sbatch"))
