"""The stand-in for `scancel` in a local job, which may cancel itself: asks, and does not wait, as the real one.

`--signal=NAME` reaches the tasks of the job's steps, and nothing that they have started; `--batch` the batch script's shell alone;
`--full` the shell and all that runs beside the steps too (tried on Slurm 22.05).
"""

from __future__ import annotations

import signal
import sys

import psutil

from hpctrain.scheduler.local import book, tree
from hpctrain.scheduler.local.job_directory import JobDirectory
from hpctrain.scheduler.local.scheduler import ask_to_end
from hpctrain.scheduler.local.scontrol import split_ids

_FLAGS = {"-b": "batch", "--batch": "batch", "-f": "full", "--full": "full"}
_TAKEN = {"-Q", "--quiet", "-v", "--verbose", "--ctld", "--me", "-H", "--hurry"}


def main() -> int:
    """Cancel or signal the jobs on the command line."""
    flags: set[str] = set()
    name: str | None = None
    ids: list[str] = []
    words = sys.argv[1:]
    while words:
        word = words.pop(0)
        if word in _FLAGS:
            flags.add(_FLAGS[word])
        elif word in ("-s", "--signal") and words:
            name = words.pop(0)
        elif word.startswith("--signal=") or (word.startswith("-s") and len(word) > 2):
            name = word.removeprefix("--signal=").removeprefix("-s")
        elif word[:1].isdigit():
            ids += split_ids(word)
        elif word not in _TAKEN:
            sys.stderr.write(f"scancel: error: the local scheduler does not know {word!r}\n")
            return 1
    if not ids:
        sys.stderr.write("scancel: error: No job identification provided\n")
        return 1
    number = None if name is None else _number(name)
    if name is not None and number is None:
        sys.stderr.write(f"Unknown job signal: {name}\n")
        return 1
    return max([_one(job_id, number, flags) for job_id in ids])


def _one(job_id: str, number: int | None, flags: set[str]) -> int:
    meant = book.find(job_id)
    if meant is None:
        sys.stderr.write(f"scancel: error: Kill job error on job id {job_id}: Invalid job id specified\n")
        return 1
    if number is None or (number == signal.SIGKILL and not flags):
        ask_to_end(meant)
        return 0
    for job in book.running(meant):
        _signal(job, number, flags)
    return 0


def _signal(job: JobDirectory, number: int, flags: set[str]) -> None:
    holder = job.holder()
    if holder is None:
        return
    shell = [process for process in tree.descendants(holder, recursive=False) if process.pid == job.state().get("batch")]
    if "batch" in flags:
        tree.send(shell, number)
        return
    tasks = tree.step_tasks(holder)
    if "full" in flags:
        below = [process for task in tasks for process in [task, *tree.descendants(task)]]
        everything = tree.descendants(holder)
        # Slurm signals the whole container of the batch script, in which srun is.
        tree.send([process for process in everything if process not in below], number)
    tree.send(tasks, number)


def _number(name: str) -> int | None:
    """Return the number of `TERM`, `SIGTERM` or `15`."""
    if name.isdigit():
        return int(name) if 0 < int(name) < signal.NSIG else None
    word = name.upper()
    found = getattr(signal, word if word.startswith("SIG") else f"SIG{word}", None)
    return int(found) if isinstance(found, signal.Signals) else None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except psutil.Error as error:
        sys.exit(f"scancel: error: {error}")
