"""What the record of a launch says (hpctrain.runs.launch reads and writes it)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpctrain.runs import layout

Kind = Literal["run", "sweep", "stages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One sbatch, or one start on this machine.

    Attributes:
        token: a word that no other submission has (hpctrain.scheduler.ledger makes one).
        argv: the words that were run.
        at: seconds since the epoch.
        scheduler: `slurm` or `local`.
        job_id: None until the scheduler has named one.
        cluster: of a federation, or None.
        script: file name in `scripts/`, and `config` in the record, that belong to it.
        array: the indices, in Slurm's form.
        offset: what is added to an index of the array to count points.
        dependency: in Slurm's form, such as `afterok:123`.
        stage: the stage that it runs.
        command: the words of hpctrain that asked for it.
        call: a word that the submissions of one command have in common, and of the commands that go on with it after an interruption.
    """

    token: str
    argv: tuple[str, ...]
    at: float
    scheduler: Literal["slurm", "local"]
    job_id: str | None = None
    cluster: str | None = None
    script: str | None = None
    config: str | None = None
    array: str | None = None
    offset: int = 0
    dependency: str | None = None
    stage: str | None = None
    command: tuple[str, ...] = ()
    call: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One script of a launch: what is to be submitted, whether a scheduler has taken it or not.

    Attributes:
        script: file name in `scripts/`, and `config` in the record, that belong to it.
        array: the indices, in Slurm's form; None for a script that is one job.
        offset: what is added to an index of the array to count points.
        stage: the stage that it runs.
        dependencies: stages that come before it, and how they must end, such as `("train", "afterok")`.
        links: of a chain, how many jobs follow the first.
        at: seconds since the epoch, when it was recorded first.
    """

    script: str
    config: str | None = None
    array: str | None = None
    offset: int = 0
    stage: str | None = None
    dependencies: tuple[tuple[str, str], ...] = ()
    links: int = 0
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch as it was recorded.

    Attributes:
        path: its directory.
        name: the job name.
        created: seconds since the epoch.
        cwd: the project's directory, where the jobs run.
        version: of hpctrain.
        argv: the hpctrain command that launched it first.
        runs: ids of its runs; of a sweep none, because its points are counted: see `run_ids`.
        stages: of kind `stages`, their names.
        points: of kind `sweep`, how many.
        table: of kind `sweep`, the file name of its points in `runs/.sweeps/`.
        code: the digest of the snapshot that its jobs run; None without a snapshot.
        submissions: the oldest first.
        parts: all that is to be submitted, the oldest first; none in a record that an older hpctrain wrote.
    """

    path: Path
    tag: str
    kind: Kind
    name: str
    created: float
    cwd: str
    version: str
    argv: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    points: int | None = None
    table: str | None = None
    code: str | None = None
    submissions: tuple[Submission, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def run_ids(self) -> list[str]:
        """The ids of all runs that it stands for, started or not."""
        if self.kind == "sweep":
            return [layout.run_id(self.tag, index=index) for index in range(self.points or 0)]
        return list(self.runs)
