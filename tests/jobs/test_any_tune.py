"""The script of a study runs and asks the study, and what a trial tries reaches the training as
words and nothing else.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpctrain.config import layers
from hpctrain.config import study as tune
from hpctrain.config.spec import JobSpec
from hpctrain.config.study import definition
from hpctrain.config.to_spec import to_spec
from hpctrain.util import yaml12
from tests.jobs import any_job
from tests.jobs.stand_ins import RECORD, Machine

pytestmark = [pytest.mark.torch, pytest.mark.slow]  # optuna is in the same extra

#: What Machine sets.
HOME = "/nowhere"


class StudyMachine(Machine):
    """A machine whose python runs the trial's own module, and writes down all else."""

    def __init__(self, root: Path, name: str) -> None:
        super().__init__(root, name)
        real = f'if [ "$2" = hpctrain.training.trial ]; then exec "{sys.executable}" "$@"; fi\n'
        self._program("python", real + RECORD.format(name="python"))

    def strangers(self, spec: JobSpec) -> list[str]:
        """Return what has no business there; a study has its files."""
        assert spec.study is not None
        run = str(self.run_dir(spec).relative_to(self.directory))
        place = f"runs/.studies/{spec.study.name}"
        ours = {place, f"{place}/journal.log", f"{run}/trial.json", f"{run}/trial.words"}
        return [each for each in super().strangers(spec) if each not in ours]


def read(config: dict[str, Any], study: dict[str, Any]) -> Any:
    """Return the validated config; numbers are plain in the study, as a person writes them."""
    plain = re.sub(
        r'!!(?:int|float|bool|null) "([^"\n]*)"',
        r"\1",
        yaml.safe_dump({"tune": study}, default_style='"', width=10_000),
    )
    base = yaml.safe_dump(config, default_style='"', width=10_000).replace('!!null "null"', "null")
    text = base.replace("!!int ", "").replace("!!bool ", "") + plain
    return layers.resolve(
        [layers.from_document(yaml12.load(text, "config.yaml"), "config.yaml")]
    ).config


def job_of(machine: StudyMachine, config: dict[str, Any], study: dict[str, Any]) -> JobSpec:
    """Return the job of a study whose definition lies where its script looks for it."""
    known = read(config, study)
    spec = to_spec(known, directory=str(machine.directory), arguments=[])
    file = machine.directory / spec.study.file
    file.parent.mkdir(parents=True)
    file.write_text(definition(known).text)
    return spec


def check_the_study(config: dict[str, Any], study: dict[str, Any], root: Path, name: str) -> None:
    machine = StudyMachine(root, name)
    spec = job_of(machine, config, study)
    machine.run(any_job.script_of(spec, [], str(machine.directory)), spec)
    said = json.loads((machine.run_dir(spec) / "trial.json").read_text())
    assert set(said["params"]) == set(study["space"])
    for key, value in said["params"].items():
        held = study["space"][key].get("choices")
        assert (
            value in held
            if held
            else study["space"][key]["low"] <= value <= study["space"][key]["high"]
        )
    at_home = {
        key: re.sub(r"\A~(?=/|\Z)", HOME, value) if isinstance(value, str) else value
        for key, value in said["params"].items()
    }
    words = [*spec.arguments, *tune.words_of(at_home)]
    words += [] if spec.script else ["--trial", str(machine.run_dir(spec) / "trial.json")]
    calls = machine.calls("python" if spec.launcher == "srun" else spec.launcher)
    assert calls
    for call in calls:
        assert call.argv[len(call.argv) - len(words) :] == [
            each.encode("utf-8", "surrogateescape") for each in words
        ]
    assert machine.strangers(spec) == []


@pytest.mark.parametrize("launcher", ["accelerate", "torchrun", "srun"])
def test_a_study_of_nothing_but_canaries(launcher: str, tmp_path: Path) -> None:
    space = {
        f"v{number}": {"choices": [canary, f"{canary} "]}
        for number, canary in enumerate(any_job.CANARIES)
    }
    check_the_study(
        {"launcher": launcher},
        {"space": space},
        tmp_path,
        "$(touch CANARY); 'touch CANARY' \" # %j",
    )
