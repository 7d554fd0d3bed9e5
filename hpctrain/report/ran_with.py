"""The config that a run's jobs really had: the one that its newest submission names, with the words behind `--` laid over it.

Options of the training that were typed behind `--` stand in the job script only, behind those of the config, and win over them. The run's
own copy of its script says them in its header (hpctrain.jobs.render), whoever submitted it: the first launch, a resubmission, or a fix.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError
from hpctrain.jobs import render
from hpctrain.runs import launch, layout, store
from hpctrain.runs.launch import Launch, Submission
from hpctrain.runs.store import Run
from hpctrain.scheduler.parse import array as arrays

BEHIND = "typed behind --"
_SCRIPT = "script.sbatch"
_LONGEST_SCRIPT = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RanWith:
    """What is known of it.

    Attributes:
        config: as resolved, the words laid over it; None where none was kept.
        origins: path of a value, such as `training.max_steps` → where somebody wrote it.
    """

    config: Mapping[str, Any] | None
    origins: Mapping[str, str]


def read(run: Run, runs_dir: Path) -> RanWith:
    """Return what a run was launched with; what cannot be read is left out."""
    whole = launch.load(runs_dir, run.tag)
    newest = _newest(run, whole)
    directory = runs_dir / layout.LAUNCHES / run.tag
    names = [newest.config if newest else None, f"config.{run.stage}.json" if run.stage else None, "config.json"]
    paths = [runs_dir / run.id / "config.json", *(directory / name for name in names if name)]
    kept = next((value for path in paths if (value := store.read_object(str(path)))), {})
    config, origins = kept.get("config"), kept.get("origins")
    if not isinstance(config, dict):
        return RanWith(config=None, origins={})
    where = {str(path): str(said) for path, said in origins.items()} if isinstance(origins, dict) else {}
    scripts = [runs_dir / run.id / _SCRIPT, *([directory / "scripts" / newest.script] if newest and newest.script else [])]
    typed = {} if config.get("script") else options(_behind(*scripts))
    if not typed:
        return RanWith(config=config, origins=where)
    training = config.get("training")
    laid = {**config, "training": {**(training if isinstance(training, dict) else {}), **typed}}
    return RanWith(config=laid, origins=where | {f"training.{name}": BEHIND for name in typed})


def options(words: Sequence[str]) -> dict[str, Any]:
    """Return options of a training by their names, as Python's argument parser takes them: the last counts, and no value is true."""
    found: dict[str, Any] = {}
    name: str | None = None
    values: list[str] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = value if equals else "true"
            values = [value] if equals else []
        elif name is not None:
            values.append(word)
            found[name] = values[0] if len(values) == 1 else list(values)
    return found


def _behind(*scripts: Path) -> tuple[str, ...]:
    """Return the words behind `--` of the command that makes the first script again that is there."""
    for script in scripts:
        try:
            with store.opened(str(script)) as file:
                text = os.read(file.fd, _LONGEST_SCRIPT).decode("utf-8", "replace")
        except OSError:
            continue
        made = render.read_header(text)
        words = made.arguments if made is not None else ()
        return words[words.index("--") + 1 :] if "--" in words else ()
    return ()


def _newest(run: Run, whole: Launch | None) -> Submission | None:
    """Return the submission that the run's newest job came from; of a run that waits, the newest that holds it."""
    mine = [each for each in whole.submissions if each.stage == run.stage] if whole is not None else []
    jobs = [(attempt.job or "").partition("_")[0] for attempt in reversed(run.attempts)]
    started = next((each for job in jobs for each in reversed(mine) if each.job_id == job), None)
    return started or next((each for each in reversed(mine) if run.index is None or _holds(each, run.index)), None)


def _holds(each: Submission, index: int) -> bool:
    try:
        return each.array is None or index - each.offset in arrays.parse(each.array).indices
    except HpctrainError:
        return False
