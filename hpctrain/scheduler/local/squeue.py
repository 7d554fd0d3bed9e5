"""The stand-in for `squeue` in a local job: `squeue [-h] [-j ID] [-t STATES] [-n NAME] [-o FORMAT]`."""

from __future__ import annotations

import getpass
import sys
from typing import NoReturn

from hpctrain.scheduler.local import shown
from hpctrain.scheduler.local.scontrol import split_ids

_WITH_VALUE = {
    "-j": "jobs",
    "-o": "format",
    "-t": "states",
    "-u": "user",
    "-n": "name",
    "-p": "partition",
    "-S": "sort",
    "-M": "clusters",
}
_LONG = {*_WITH_VALUE.values(), "job"}
_FLAGS = {"-h": "noheader", "-r": "array", "-a": "all", "-l": "long", "-s": "steps"}


def main() -> int:
    """Print one line for each job."""
    options = _parse(sys.argv[1:])
    form = options.get("format", shown.DEFAULT_FORMAT)
    ids = split_ids(options["jobs"]) if "jobs" in options else None
    rows = [row for job_id in ids for row in shown.jobs(job_id)] if ids is not None else shown.jobs(None)
    if ids is not None and not rows:
        sys.stderr.write("slurm_load_jobs error: Invalid job id specified\n")
        return 1
    names = options["name"].split(",") if "name" in options else None
    try:
        if "noheader" not in options:
            sys.stdout.write(shown.heading(form) + "\n")
        for record, job, plan in rows:
            mine = plan.user in options.get("user", plan.user).split(",")
            if mine and shown.is_listed(record, options.get("states")) and (names is None or plan.name in names):
                sys.stdout.write(shown.line(form, record, job, plan) + "\n")
    except ValueError as error:
        _die(str(error))
    return 0


def _parse(words: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if word == "--me":
            options["user"] = getpass.getuser()
        elif word.startswith("--") and name in _LONG:
            options[name.replace("job", "jobs") if name == "job" else name] = value if equals else rest.pop(0) if rest else ""
        elif word.startswith("--") and name in _FLAGS.values():
            options[name] = ""
        elif word[:2] in _WITH_VALUE:
            options[_WITH_VALUE[word[:2]]] = word[2:] or (rest.pop(0) if rest else "")
        elif word.startswith("-") and not word.startswith("--") and all(f"-{letter}" in _FLAGS for letter in word[1:]):
            options |= {_FLAGS[f"-{letter}"]: "" for letter in word[1:]}
        else:
            _die(f"the local scheduler does not know {word!r}")
    return options


def _die(message: str) -> NoReturn:
    sys.stderr.write(f"squeue: error: {message}\n")
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
