"""The options with which a run's job was requested, read from the header of its script: independent
of who submitted it, and from which directory; and the config that it had.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpctrain.jobs import header
from hpctrain.jobs.suggest import Asked
from hpctrain.runs import launch, layout
from hpctrain.runs.launch import Launch
from hpctrain.runs.store import Run
from hpctrain.slurm import job_ids
from hpctrain.slurm.ledger import Submission
from hpctrain.util import stored
from hpctrain.util.shell import options_of

_SCRIPT = "script.sbatch"
_MOST_COPIES = 20


def of_run(run: Run, runs_dir: Path) -> Asked | None:
    """Return the request of a run's newest job; None if its script no longer exists, or was not
    rendered by hpctrain.
    """
    newest = newest_of(run, launch.load(runs_dir, run.tag))
    named = (
        [runs_dir / layout.LAUNCHES / run.tag / "scripts" / newest.script]
        if newest and newest.script
        else []
    )
    return _asked((runs_dir / run.id / _SCRIPT, *named), run=run.id, tag=run.tag, index=run.index)


def of_launch(whole: Launch) -> Asked:
    """Return the latest request of a launch; without options if no rendered script is left."""
    parts = sorted(whole.parts, key=lambda part: part.at, reverse=True)
    runs = whole.path.parent.parent
    copies = [runs / run / _SCRIPT for run in whole.run_ids[:_MOST_COPIES]]
    found = _asked(
        (*(whole.path / "scripts" / part.script for part in parts), *copies),
        run=whole.tag,
        tag=whole.tag,
    )
    return found or Asked(run=whole.tag, tag=whole.tag)


@dataclass(frozen=True, slots=True, kw_only=True)
class RanWith:
    """The settings that a run was launched with.

    Attributes:
        config: as resolved, with the options after -- applied; None if none was kept.
        origins: path of a value, such as `training.max_steps` → where it was set.
        asked: the options of its submission, if hpctrain rendered its script.
    """

    config: Mapping[str, Any] | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    asked: Asked | None = None


def ran_with(run: Run, runs_dir: Path) -> RanWith:
    """Return what a run was launched with; unreadable files are skipped.

    Training options that were typed after -- are only in the job script, and override those of the
    config.
    """
    newest = newest_of(run, launch.load(runs_dir, run.tag))
    names = [newest.config if newest else None, f"config.{run.stage}.json" if run.stage else None]
    directory = runs_dir / layout.LAUNCHES / run.tag
    kept = first_object(*(directory / name for name in (*names, "config.json") if name))
    config, origins = kept.get("config"), kept.get("origins")
    if not isinstance(config, dict):
        return RanWith()
    known = origins if isinstance(origins, dict) else {}
    where = {str(key): str(place) for key, place in known.items()}
    asked = of_run(run, runs_dir)
    words = asked.words if asked is not None else ()
    typed = options_of(words[words.index("--") + 1 :]) if "--" in words else {}
    said = config.get("training") or {}
    training = dict(said) if isinstance(said, dict) else {}
    for name, value in typed.items():
        training[name] = (
            "true" if value is True else list(value) if isinstance(value, tuple) else value
        )
        where[f"training.{name}"] = "given after --"
    config = {**config, "training": training} if training != said else config
    return RanWith(config=config, origins=where, asked=asked)


def first_object(*paths: Path) -> dict[str, Any]:
    """Return the JSON object in the first of the files that contains one."""
    return next((value for path in paths if (value := stored.read_object(path))), {})


def newest_of(run: Run, whole: Launch | None) -> Submission | None:
    """Return the submission of the run's newest job; if the run has not started, the newest
    submission that covers it.
    """
    mine = (
        [each for each in whole.submissions if each.stage == run.stage] if whole is not None else []
    )
    jobs = [job_ids.array_of(attempt.job or "") for attempt in reversed(run.attempts)]
    started = next((each for job in jobs for each in reversed(mine) if each.job == job), None)
    return started or next((each for each in reversed(mine) if each.covers(run.index)), None)


def _asked(
    scripts: tuple[Path, ...], *, run: str, tag: str, index: int | None = None
) -> Asked | None:
    for script in scripts:
        try:
            text = stored.read_regular(script).decode("utf-8", "replace")
        except OSError:
            continue
        made = header.read_header(text)
        if made is None:
            continue
        elsewhere = (
            made.directory
            if made.directory != os.getcwd() and Path(made.directory).is_dir()  # noqa: PTH109
            else None
        )
        return Asked(words=made.arguments, directory=elsewhere, run=run, tag=tag, index=index)
    return None
