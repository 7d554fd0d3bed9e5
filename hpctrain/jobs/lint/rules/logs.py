"""Log files: patterns, requeues, and directories that must exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.jobs.lint.facts import Facts
from hpctrain.jobs.lint.rules.common import Hit

_PATTERN = re.compile(r"%(?:%|\d*([A-Za-z]))")
_OWN_FILE = re.compile(r"%\d*[ajJr]")


def arrays(facts: Facts) -> Iterator[Hit]:
    """All tasks of an array in one file."""
    if "array" not in facts.options:
        return
    for name in ("output", "error"):
        option = facts.options.get(name)
        if option and option.value and not _OWN_FILE.search(option.value) and option.value != "/dev/null" and "$" not in option.value:
            yield Hit(
                "array-output", option.start, f"every task of the array writes into {option.value}", f"write: --{name}=NAME_%A_%a.log"
            )


def requeues(facts: Facts) -> Iterator[Hit]:
    """A requeued job starts its log anew."""
    if facts.value("open-mode") in ("append", "a") or "%r" in (facts.value("output") or ""):
        return
    what, fix = "the log is emptied when the job is requeued", "add: #SBATCH --open-mode=append"
    last = [option for option in facts.block.options if option.name in ("requeue", "no-requeue")][-1:]
    if last and last[0].name == "requeue":
        yield Hit("requeue-truncates", last[0].start, what, fix)
        return
    for command in facts.named("scontrol"):
        if facts.is_batch and len(command.words) > 1 and command.words[1].text == "requeue":
            yield Hit("requeue-truncates", command.start, what, fix)
            return


def directories(facts: Facts) -> Iterator[Hit]:
    """A directory that the job makes for its own log."""
    wanted = {
        _clean((facts.value(name) or "").rpartition("/")[0]): name
        for name in ("output", "error")
        if "%" not in (facts.value(name) or "").rpartition("/")[0]
    }
    wanted.pop("", None)
    for command in facts.named("mkdir"):
        for word in command.words[1:]:
            name = wanted.get(_clean(word.text)) if word.is_literal and not word.text.startswith("-") else None
            if name and facts.place(command) == "batch":
                yield Hit(
                    "log-directory-too-late",
                    command.start,
                    f"{word.text} is made by the job whose --{name} needs it",
                    f"before sbatch: mkdir -p {word.text}",
                )
                return


def names(facts: Facts) -> Iterator[Hit]:
    """A job name that becomes a path."""
    option = facts.options.get("job-name")
    if option and "/" in (option.value or "") and any("%x" in (facts.value(name) or "") for name in ("output", "error")):
        yield Hit(
            "job-name-in-path",
            option.start,
            f"the / of {option.value!r} becomes a directory through %x",
            "write a job name of letters, digits, . _ and -",
        )


def patterns(facts: Facts) -> Iterator[Hit]:
    """Patterns that mean nothing in the log of a batch job, or in an older Slurm."""
    for name in ("output", "error"):
        option = facts.options.get(name)
        letters = [match[1] for match in _PATTERN.finditer(option.value or "")] if option else []
        if option and "r" in letters:
            yield Hit("output-pattern", option.start, "%r is known since Slurm 25.11 only", "write %j, and: #SBATCH --open-mode=append")
        elif option and {"t", "n", "N"} & set(letters):
            letter = next(letter for letter in letters if letter in "tnN")
            what = f"%{letter} in the job's own --{name} means the first {'task' if letter == 't' else 'node'} alone"
            yield Hit("output-pattern", option.start, what, f"srun --{name}=NAME_%t.log, and %j here")


def _clean(path: str) -> str:
    return path.removeprefix("./").rstrip("/")


RULES = (arrays, requeues, directories, names, patterns)
