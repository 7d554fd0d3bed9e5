"""A job id that comes round again, for a run that a job of that id has worked on before: the
script's start is one of its own.
"""

import json
from pathlib import Path

import pytest

from hpctrain.runs import store
from tests.jobs import any_job
from tests.jobs.stand_ins import Machine


@pytest.mark.slow
def test_a_start_is_not_taken_for_that_of_an_earlier_job_of_its_id(tmp_path: Path) -> None:
    """What the earlier job was told, and how it ended, is neither heard nor written over."""
    machine = Machine(tmp_path, "project")
    spec = any_job.spec_of(
        {"launcher": "torchrun", "script": "train.py"}, [], str(machine.directory)
    )
    script = any_job.script_of(spec, [], str(machine.directory))
    machine.run(script, spec)
    attempts = machine.run_dir(spec) / "attempts"
    (attempts / "62.0" / "stop").touch()
    (attempts / "62.0" / "exit").write_text("85 signal\n")
    before = {path.name: path.read_bytes() for path in (attempts / "62.0").iterdir()}

    machine.run(script, spec)  # whose training ends with 0, and leaves no word

    new = next(path for path in attempts.iterdir() if path.name != "62.0")
    assert json.loads((new / "end.json").read_text())["outcome"] == "completed"
    assert {path.name: path.read_bytes() for path in (attempts / "62.0").iterdir()} == before
    run = store.read_run(machine.run_dir(spec).parent, machine.run_dir(spec).name)
    assert run is not None
    assert [(each.name, each.slurm_job_id, each.restart) for each in run.attempts] == [
        ("62.0", "62", 0),
        (new.name, "62", 0),
    ]
