"""One run in the campaign: how it is submitted, what its files say, and how it is carried to its
end.
"""

import hashlib
import itertools
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rough_lab import RoughLab

#: Names of things that are on their way to become something else; nothing of the kind may stay.
UNFINISHED = re.compile(r"^\.|\.lock$|\.tmp$|\.writing$|lock$|\.\d+\.\d+$")
#: A job that starts again at once on a node whose slurmd has just come back may fail to launch;
#: Slurm then holds it.
HELD = ("launch failed requeued held", "JobHeldUser")


class GaveUpError(Exception):
    """Something did not happen in time."""


@dataclass
class Attempt:
    """What one start of the job left.

    Attributes:
        name: JOB_ID.RESTART.
        started: seconds since the epoch.
        begun_at: the step it went on from; None: it never began to train.
        reached: the last step that it logged.
        exit: what the training says of its end: `85 signal`.
        outcome: what the job script says of its end.
    """

    name: str
    started: float
    begun_at: int | None
    reached: int | None
    exit: str | None
    outcome: str | None


@dataclass
class Run:
    """A run of the training under one tag.

    Attributes:
        lab: where.
        project: the working directory.
        name: of the job.
        tag: the run id.
        deadline: time.monotonic() at which everything about it is given up.
        nodes: of the job; one process on each.
        options: of `hpctrain submit`.
        pace_s: seconds that each step sleeps.
        jobs: ids of the jobs that were submitted for it.
        links: those of the last submission: several for a chain.
        humans: how often somebody had to submit it again.
        notes: what else happened.
    """

    lab: RoughLab
    project: Path
    name: str
    tag: str
    deadline: float
    nodes: int = 1
    options: tuple[str, ...] = ()
    pace_s: float = 0.2
    jobs: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    humans: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        return self.project / "runs" / self.tag

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def submit(self) -> None:
        """Render and submit the run under its tag."""
        self._hpctrain(
            "submit",
            "--job-name",
            self.name,
            "--nodes",
            str(self.nodes),
            *self.options,
            "--run-id",
            self.tag,
        )

    def resubmit(self) -> None:
        """Do what a person does whose run has ended too early."""
        self._hpctrain("resubmit", self.tag)

    def _hpctrain(self, *words: str) -> None:
        said = self.lab.run(
            "hpctrain", *words, "--parsable", cwd=self.project, CHAOS_STEP_SECONDS=str(self.pace_s)
        )
        self.links = [line.partition(";")[0] for line in said.split()]
        self.jobs += self.links

    def now(self) -> tuple[str, str] | None:
        """Return (job id, `STATE REASON`) of the job that works on the run or is the next to do so;
        None: Slurm has none left.
        """
        for job in self.links:
            state = self.lab.queued(job)
            if state is not None:
                return job, state
        return None

    def state(self) -> str:
        """Return `STATE REASON` of that job; empty: there is none."""
        found = self.now()
        return found[1] if found else ""

    @property
    def job(self) -> str:
        found = self.now()
        return found[0] if found else self.links[-1]

    def attempts(self) -> list[Attempt]:
        found = []
        for folder in (self.directory / "attempts").glob("*"):
            start, end = read(folder / "start.json"), read(folder / "end.json")
            steps = metrics(folder / "metrics.jsonl")
            begun = next((line["step"] for line in steps if line["event"] == "begin"), None)
            reached = max(
                (line["step"] for line in steps if line["event"] in ("log", "save", "begin")),
                default=None,
            )
            word = (folder / "exit").read_text().strip() if (folder / "exit").exists() else None
            found.append(
                Attempt(folder.name, start.get("at", 0), begun, reached, word, end.get("outcome"))
            )
        return sorted(
            found,
            key=lambda attempt: (attempt.started, [int(part) for part in attempt.name.split(".")]),
        )

    def step(self) -> int:
        """Return the last step that the newest attempt has logged; 0 before."""
        attempts = self.attempts()
        return (attempts[-1].reached or 0) if attempts else 0

    def wait(self, look: Callable[[], Any], what: str, every_s: float = 0.1) -> Any:
        """Call `look` until it returns something true, and return that.

        Raises:
            GaveUpError: it never did.
        """
        while not (found := look()):
            if time.monotonic() > self.deadline:
                raise GaveUpError(f"never: {what}")
            time.sleep(every_s)
        return found

    def reach(self, step: int) -> None:
        """Wait until a step is done.

        Raises:
            GaveUpError: the job ended before, or it took too long.
        """

        def there() -> bool:
            if self.step() >= step:
                return True
            if not self.state():
                raise GaveUpError(f"job {self.job} ended before step {step}{self.last_words()}")
            return False

        self.wait(there, f"step {step}", 0.2)

    def completed(self) -> bool:
        attempts = self.attempts()
        return (
            bool(attempts)
            and attempts[-1].outcome == "completed"
            and (self.directory / "model").is_dir()
        )

    def carry(self, most: int = 3) -> None:
        """Carry the run to its end: wait while Slurm has the job, and be the human where it has
        not.

        Raises:
            GaveUpError: it does not end, or `most` new submissions were not enough.
        """
        while True:
            state = self.state()
            if not state:
                if self.completed():
                    return
                if self.humans == most:
                    raise GaveUpError(
                        f"not completed after {most} new submissions{self.last_words()}"
                    )
                self.humans += 1
                self.resubmit()
            elif any(word in state for word in HELD):
                self.notes.append("held by Slurm after a failed launch, released")
                self.lab.run("scontrol", "release", self.job, check=False)
            if time.monotonic() > self.deadline:
                raise GaveUpError(f"job {self.job} is still {state}")
            time.sleep(0.4)

    def steps_lost(self) -> int:
        trained = [attempt for attempt in self.attempts() if attempt.begun_at is not None]
        return sum(
            max(0, (before.reached or 0) - (after.begun_at or 0))
            for before, after in itertools.pairwise(trained)
        )

    def weights(self) -> str:
        files = sorted((self.directory / "model").glob("*.safetensors"))
        return (
            hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
            if files
            else "none"
        )

    def leftovers(self) -> list[str]:
        """Return what the run left that nobody should find: processes, cgroups, locks and temporary
        files.
        """
        jobs = {*self.jobs, *(attempt.name.partition(".")[0] for attempt in self.attempts())}
        until = time.monotonic() + 240
        while (
            self.lab.processes_of(jobs) or self.lab.cgroups_of(jobs)
        ) and time.monotonic() < until:
            time.sleep(0.3)
        found = [
            f"process {' '.join(process.cmdline())[:60]}" for process in self.lab.processes_of(jobs)
        ]
        found += [f"cgroup {path}" for path in self.lab.cgroups_of(jobs)]
        for path in self.directory.rglob("*"):
            within = path.relative_to(self.directory)
            # A directory of an attempt is named after the job and its restart.
            if UNFINISHED.search(path.name) and within.parts[:-1] != ("attempts",):
                found.append(str(within))
        return sorted(found)

    def last_words(self) -> str:
        """Return the end of the job's error log, for a report."""
        logs = sorted((self.project / "logs").glob(f"error_*_{self.job}.log"))
        return (
            "".join(
                f"\n    {line}" for line in logs[-1].read_text(errors="replace").splitlines()[-6:]
            )
            if logs
            else ""
        )


def read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def metrics(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
