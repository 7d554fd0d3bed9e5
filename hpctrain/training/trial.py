"""Communication with the study of a trial: from the job script, on the job's first node, and from
the training.

    python -m hpctrain.training.trial ask runs/.studies/NAME-DIGEST.json
    python -m hpctrain.training.trial tell STATUS REASON

`ask` writes RUN_DIR/trial.json, and the trial's training arguments to RUN_DIR/trial.words, one per
line. It exits with 0, with 3 if the study has all of its trials, and with another code on errors.
`tell` leaves a trial open if it only stopped to continue. HPCTRAIN_RUN_DIR and HPCTRAIN_ATTEMPT
name the run. Nothing here imports torch.

A custom training that is not a transformers Trainer (for those: trial_callback.py) reports its
evaluations with:

    from hpctrain.training.trial import Reporter
    trial = Reporter()
    if trial.report(step, value):     # on one rank; notify the others
        trial.leave()
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from hpctrain.config import study as tune
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import layout
from hpctrain.training import study
from hpctrain.training.process import say
from hpctrain.training.survival import stop
from hpctrain.util import files
from hpctrain.util.text import is_number

TRIAL, WORDS = "trial.json", "trial.words"
VARIABLE = "HPCTRAIN_TRIAL"
#: Exit code of `ask`: the study has all its trials.
NONE_LEFT = 3


def ask(file: Path, run_dir: Path, attempt: str | None) -> int:
    """Request the trial of a run, and write its files; return the exit code."""
    definition = study.read_definition(file)
    found = study.ask(run_dir.parent, definition, run_dir.name, attempt=attempt)
    if found is None:
        say(
            f"hpctrain: the study {definition.study} has its {definition.trials} trials; nothing is"
            f" left for {run_dir.name}"
        )
        return NONE_LEFT
    files.write_text(run_dir / WORDS, "".join(f"{word}\n" for word in tune.words_of(found.params)))
    files.write_json(
        run_dir / TRIAL,
        {
            "schema": 1,
            "study": definition.study,
            "definition": file.name,
            "number": found.number,
            "params": dict(found.params),
            "metric": definition.metric,
            "direction": definition.direction,
            "pruner": definition.pruner.to_data(),
            "retry_of": found.retry_of,
            "at": time.time(),
        },
    )
    after = ""
    if found.retry_of is not None:
        after = f", with the values of trial {found.retry_of}, which failed"
    values = " ".join(f"{key}={tune.spoken(value)}" for key, value in found.params.items())
    say(f"hpctrain: trial {found.number} of the study {definition.study}{after}: {values}")
    return 0


def read(path: Path) -> dict[str, Any]:
    """Return the content of trial.json.

    Raises:
        UsageError: it is missing or not valid.
    """
    said = files.read_json(path) or {}
    if not isinstance(said.get("number"), int) or not isinstance(said.get("study"), str):
        raise UsageError(
            f"{path} does not say which trial this is",
            hint="run hpctrain tune, whose jobs write it",
        )
    return said


class Reporter:
    """Reports evaluations to the study of a trial; for one process of a training.

    If the journal cannot be written, a message is printed and the training continues; the job
    script reports to the study later.

    Args:
        path: of trial.json. Default: the environment's HPCTRAIN_TRIAL; without both, nothing is
            reported.

    Attributes:
        metric: the study's metric; None without a study.
        said: a message about the last report, or None.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        named = path if path is not None else os.environ.get(VARIABLE)
        self._path = Path(named) if named else None
        self._trial = read(self._path) if self._path is not None else {}
        self.metric: str | None = self._trial.get("metric")
        self.said: str | None = None
        self._study: Any = None

    def report(self, step: int, value: float) -> bool:
        """Report the value at a step, and return whether the study stops this trial."""
        self.said = None
        if self._path is None:
            return False
        number = self._trial["number"]
        try:
            if self._study is None:
                runs = self._path.parent.parent
                definition = study.read_definition(runs / tune.STUDIES / self._trial["definition"])
                self._study = study.open_study(runs, definition.study)
                self._study.pruner = study.pruner(definition)
            wanted = study.report(self._study, number, step, value)
        except (HpctrainError, OSError, ValueError, KeyError, RuntimeError) as error:
            self._study, text = None, " ".join(f"{type(error).__name__}: {error}".split())
            self.said = f"[train] notice: the study did not get the value of step {step}: {text}"
            return False
        if wanted is None:
            self.said = f"[train] notice: trial {number} has already ended; nothing is reported"
        elif wanted:
            self.said = (
                f"[train] the study prunes this trial at step {step}: {self.metric} {value:.6g}"
                " is not promising"
            )
        return bool(wanted)

    def leave(self) -> NoReturn:
        """End the process: the study has stopped this trial."""
        stop.write_exit(layout.DONE, study.PRUNED)
        sys.exit(layout.DONE)


def tell(run_dir: Path, attempt: str | None, status: int, reason: str) -> int:
    """Report to the study how the training of a run ended."""
    said = read(run_dir / TRIAL)
    definition = study.read_definition(run_dir.parent / tune.STUDIES / said["definition"])
    number = said["number"]
    was_told_to_end = attempt is not None and (run_dir / "attempts" / attempt / "stop").exists()
    ending: study.Ending = "failed"
    if status == layout.DONE:
        ending = "pruned" if reason == study.PRUNED else "completed"
    elif status in (layout.REQUEUE, layout.STOPPED) or was_told_to_end:
        say(f"hpctrain: trial {number} is not over: it continues with the run")
        return 0
    why = (reason or f"exit-{status}") if ending == "failed" else None
    state = study.tell(
        study.open_study(run_dir.parent, definition.study), definition, number, ending, why
    )
    say(f"hpctrain: trial {number} of the study {definition.study} is {state}")
    return 0


def main(argv: list[str]) -> NoReturn:
    """Run the command line, and exit."""
    where, attempt = (
        os.environ.get(name) for name in (layout.RUN_DIR_VARIABLE, layout.ATTEMPT_VARIABLE)
    )
    try:
        match argv:
            case ["ask", file] if where:
                sys.exit(ask(Path(file), Path(where), attempt))
            case ["tell", status, *reason] if where and is_number(status):
                sys.exit(tell(Path(where), attempt, int(status), " ".join(reason).strip()))
        failure: HpctrainError = UsageError(
            f"cannot use {' '.join(argv)!r}, or {layout.RUN_DIR_VARIABLE} is not set: this command"
            " belongs in a job script",
            fix="hpctrain tune",
        )
    except HpctrainError as error:
        failure = error
    except OSError as error:
        failure = HpctrainError(f"the study can write nothing: {error}", fix=f"df -h {layout.RUNS}")
    sys.stderr.write(failure.render() + "\n")
    sys.exit(failure.exit_code)


if __name__ == "__main__":
    main(sys.argv[1:])
