"""A search, and short words for what is asked of its study."""

from pathlib import Path
from typing import Any

from hpctrain.config.study import Definition, Space
from hpctrain.training import study
from hpctrain.util import files

LOG = Space(low=1e-5, high=1e-3, log=True)
SPACE = {
    "learning_rate": LOG,
    "lora_r": Space(choices=(8, 16)),
    "steps": Space(low=0, high=20, step=5),
}
BASE = Definition(study="s", space=SPACE, trials=50)


def report(runs: Path, number: int, **values: float) -> None:
    for step, value in values.items():
        study.report(study.open_study(runs, "s"), number, int(step[1:]), value)


def tell(
    runs: Path,
    definition: Definition,
    number: int,
    ending: Any = "completed",
    reason: str | None = None,
) -> str:
    return study.tell(study.open_study(runs, "s"), definition, number, ending, reason)


def row(runs: Path, number: int) -> study.Row:
    return study.rows(study.open_study(runs, "s"))[number]


def ended(runs: Path, run: str, attempt: str = "7.0", **said: Any) -> None:
    place = runs / run / "attempts" / attempt
    place.mkdir(parents=True)
    files.write_json(place / "start.json", {"schema": 1, "job_id": "7", "at": 1})
    if said:
        files.write_json(place / "end.json", {"schema": 1, "at": 2, **said})


def asked(runs: Path, run: str, definition: Definition = BASE, **more: Any) -> study.Row:
    found = study.ask(runs, definition, run, **more)
    assert found is not None
    return found
