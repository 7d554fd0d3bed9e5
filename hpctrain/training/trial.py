"""What a job script says to the study of its trial, on the job's first node, and what a training says to it.

    python -m hpctrain.training.trial ask runs/.studies/NAME-DIGEST.json
    python -m hpctrain.training.trial tell STATUS REASON

`ask` writes RUN_DIR/trial.json, and the arguments of the training that the trial tries into RUN_DIR/trial.words, one to a line. It exits
with 0, with 3 where the study has all its trials, and with another code on errors. `tell` leaves a trial open that only stops to go on.
HPCTRAIN_RUN_DIR and HPCTRAIN_ATTEMPT say whose trial it is. Nothing here imports torch.

A training of one's own that is no transformers Trainer (for those: trial_callback.py) tells its evaluations by:

    from hpctrain.training.trial import Reporter
    trial = Reporter()
    if trial.report(step, value):     # on one rank; the others have to hear of it
        trial.leave()
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell, tune
from hpctrain.jobs.tune import Scalar
from hpctrain.runs import files, layout
from hpctrain.training import stop, study, study_sampling
from hpctrain.training.study import Ending

TRIAL, WORDS = "trial.json", "trial.words"
VARIABLE = "HPCTRAIN_TRIAL"
#: Exit code of `ask`: the study has all its trials.
NONE_LEFT = 3


def ask(file: Path, run_dir: Path, attempt: str | None) -> int:
    """Ask for the trial of a run, and write it down; return the exit code."""
    definition = study.read_definition(file)
    found = study.ask(run_dir.parent, definition, run_dir.name, attempt=attempt)
    if found is None:
        _say(f"hpctrain: the study {definition.study} has its {definition.trials} trials; nothing is left for {run_dir.name}")
        return NONE_LEFT
    files.write_text(run_dir / WORDS, "".join(f"{word}\n" for word in _words(found.params)))
    files.write_json(
        run_dir / TRIAL,
        {
            "schema": 1, "study": definition.study, "definition": file.name, "number": found.number, "params": dict(found.params),
            "metric": definition.metric, "direction": definition.direction, "pruner": asdict(definition.pruner),
            "retry_of": found.retry_of, "at": time.time(),
        },
    )  # fmt: skip
    after = " again" if found.again else f", with the values of trial {found.retry_of}, which failed" if found.retry_of is not None else ""
    values = " ".join(f"{key}={tune.spoken(value)}" for key, value in found.params.items())
    _say(f"hpctrain: trial {found.number} of the study {definition.study}{after}: {values}")
    return 0


def _words(params: Mapping[str, Scalar]) -> list[str]:
    home = str(Path.home())
    values = {
        key: home + value[1:] if isinstance(value, str) and (value == "~" or value.startswith("~/")) else value
        for key, value in params.items()
    }
    return tune.words_of(values)


def read(path: Path) -> dict[str, object]:
    """Return what trial.json says.

    Raises:
        UsageError: it is not there, or says something else.
    """
    said = files.read_json(path)
    if said is None or not isinstance(said.get("number"), int) or not isinstance(said.get("study"), str):
        raise UsageError(f"{path} does not say which trial this is", fix="hpctrain tune, whose jobs write it")
    return said


class Reporter:
    """Tells the study of a trial what evaluations found; for one process of a training.

    A journal that cannot be written is said, and the training goes on: the job script tells the study later what is known then.

    Args:
        path: of trial.json. Default: the environment's HPCTRAIN_TRIAL; without both, nothing is told.

    Attributes:
        metric: what the study looks at; None without a study.
        said: what there is to say of the last report; None for nothing.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        named = path if path is not None else os.environ.get(VARIABLE)
        self._path = Path(named) if named else None
        self._trial = read(self._path) if self._path is not None else {}
        self.metric = str(self._trial["metric"]) if self._trial else None
        self.said: str | None = None
        self._study: Any = None

    def report(self, step: int, value: float) -> bool:
        """Tell the study the value at a step, and return whether it wants this trial to stop."""
        self.said = None
        if self._path is None:
            return False
        number = int(str(self._trial["number"]))
        try:
            if self._study is None:
                self._study = self._open(self._path)
            wanted = study.report(self._study, number, step, value)
        except (HpctrainError, OSError, ValueError, KeyError, RuntimeError) as error:
            self._study = None
            text = error.what if isinstance(error, HpctrainError) else f"{type(error).__name__}: {error}"
            self.said = f"[train] notice: the study was not told of step {step}: {' '.join(text.split())}"
            return False
        if wanted is None:
            self.said = f"[train] notice: trial {number} is over already; what this training finds is not told"
        elif wanted:
            self.said = f"[train] the study stops this trial at step {step}: {self.metric} {value:.6g} promises no good result"
        return bool(wanted)

    def leave(self) -> NoReturn:
        """End the process: the study has stopped this trial."""
        stop.write_exit(layout.DONE, study.PRUNED)
        sys.exit(layout.DONE)

    def _open(self, path: Path) -> Any:
        runs = path.parent.parent
        definition = study.read_definition(runs / tune.STUDIES / str(self._trial["definition"]))
        found = study.open_study(runs, definition.study)
        found.pruner = study_sampling.pruner(definition)
        return found


def tell(run_dir: Path, attempt: str | None, status: int, reason: str) -> int:
    """Tell the study how the training of a run ended."""
    said = read(run_dir / TRIAL)
    definition = study.read_definition(run_dir.parent / tune.STUDIES / str(said["definition"]))
    number = int(str(said["number"]))
    ending = _ending(status, reason, told_to_end=attempt is not None and (run_dir / "attempts" / attempt / "stop").exists())
    if ending is None:
        _say(f"hpctrain: trial {number} is not over: it goes on where the run does")
        return 0
    state = study.tell(
        study.open_study(run_dir.parent, definition.study),
        definition,
        number,
        ending,
        (reason or f"exit-{status}") if ending == "failed" else None,
    )
    _say(f"hpctrain: trial {number} of the study {definition.study} is {state}")
    return 0


def _ending(status: int, reason: str, *, told_to_end: bool) -> Ending | None:
    if status == layout.DONE:
        return "pruned" if reason == study.PRUNED else "completed"
    if status in (layout.REQUEUE, layout.STOPPED) or told_to_end:
        return None
    return "failed"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(argv: list[str]) -> NoReturn:
    """Do what the words say, and exit."""
    try:
        sys.exit(_main(argv))
    except HpctrainError as error:
        sys.stderr.write(error.render() + "\n")
        sys.exit(error.exit_code)
    except OSError as error:
        place = Path(error.filename).parent if isinstance(error.filename, str) else Path(layout.RUNS)
        what = f"the study can write nothing: {(error.strerror or str(error)).lower()}"
        refused = HpctrainError(what, details=(str(place),), fix=f"df -h {shell.quote(place)}; ls -ld {shell.quote(place)}")
        sys.stderr.write(refused.render() + "\n")
        sys.exit(refused.exit_code)


def _main(argv: list[str]) -> int:
    where = os.environ.get(layout.RUN_DIR_VARIABLE)
    if not where:
        raise UsageError(f"{layout.RUN_DIR_VARIABLE} is not set: this belongs into a job script", fix="hpctrain tune")
    run_dir, attempt = Path(where), os.environ.get(layout.ATTEMPT_VARIABLE)
    match argv:
        case ["ask", file]:
            return ask(Path(file), run_dir, attempt)
        case ["tell", status, *reason] if status.isdecimal():
            return tell(run_dir, attempt, int(status), " ".join(reason).strip())
    raise UsageError(f"what is {' '.join(argv)!r}?", fix="python -m hpctrain.training.trial ask FILE, or: tell STATUS REASON")


if __name__ == "__main__":
    main(sys.argv[1:])
