"""A project with runs, launches and local jobs, and a Slurm of recorded answers; and every command
that can be typed there.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hpctrain.cli import VERBS, cli
from tests.report import made_runs
from tests.runs import checkpoint_maker, make

RECORDED = Path(__file__).parents[1] / "scheduler" / "recorded" / "slurm-24.11"
#: Runs, jobs and studies that are there; the first of each has the most records.
RUNS, JOBS, LOCAL, STUDY = (
    ("pretrain-1", "sft-1", "asked", "line", "line_0"),
    ("1004", "1003", "1003_1"),
    ("job", "array"),
    "line",
)
CONFIG = """\
job_name: line
script: train.py
launcher: srun
training: {x: 0.5}
tune: {space: {x: {low: 0.0, high: 10.0}}, trials: 4, parallel: 2, pruner: none}
"""
#: Plays every program of Slurm: the answer is a file, chosen by what is asked.
PROGRAM = """\
#!/bin/bash
answers=${0%/*}/../answers
name=${0##*/}
said=" $* "
case "$name$said" in
squeue*" -j "*) file=squeue-accounts.txt;;
squeue*) file=squeue.txt;;
sacct*--helpformat*) file=sacct-helpformat.txt;;
sacct\\ *) file=sacct.txt;;
scontrol*" show config "*) file=config.txt;;
scontrol*" show partition "*) file=partitions.txt;;
scontrol*" show job "*) file=scontrol-jobs.txt;;
scontrol*) exit 1;;
sinfo*--version*) file=version.txt;;
sinfo*) file=nodes.txt;;
sacctmgr*" user "*) file=users.txt;;
sacctmgr*" qos "*) file=qos.txt;;
sbatch*--test-only*) cat "$answers/test-only.txt" >&2; exit 0;;
sbatch*) file=sbatch.txt;;
*) exit 0;;
esac
cat "$answers/stderr.txt" >&2
cat "$answers/$file" || exit 1
exit "$(cat "$answers/exit.txt")"
"""
#: Options that keep a command from asking, waiting or following; those of `--json` are tried
#: beside.
_SHORT = ("--once", "--dry-run", "--yes", "--force")
#: What talks to other machines, or loads a model.
LEFT_OUT = {"sync", "prepare", "merge"}


class World:
    """Everything lies below one directory, at the same place whenever it is made anew: the names of
    programs are part of what is kept.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.project, self.state, self.answers, self.programs = (
            place / name for name in ("project", "state", "answers", "programs")
        )

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a command there."""
        kept = {
            name: os.environ[name] for name in ("LANG", "LC_ALL", "TMPDIR") if name in os.environ
        }
        return {
            **kept,
            "PATH": f"{self.programs}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.place / "home"),
            "HPCTRAIN_STATE_DIR": str(self.state),
            "XDG_CONFIG_HOME": str(self.place / "none"),
            "HPCTRAIN_SLURM_TIMEOUT": "15",
        }

    def type(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Type a command."""
        argv = [sys.executable, "-P", "-m", "hpctrain", *words]
        done = subprocess.run(
            argv,
            cwd=self.project,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=600,
        )
        assert code is None or done.returncode == code, (words, done.stdout, done.stderr)
        return done

    def make(self) -> list[str]:
        """Make it all; returns the ids of the local jobs."""
        for path in (
            self.project / "logs",
            self.state,
            self.answers,
            self.programs,
            self.place / "home",
        ):
            path.mkdir(parents=True)
        for name in RECORDED.glob("*.txt"):
            shutil.copy(name, self.answers)
        for name, text in (
            ("stderr", ""),
            ("exit", "0"),
            ("version", "slurm 24.11.5\n"),
            ("sbatch", "1004\n"),
        ):
            (self.answers / f"{name}.txt").write_text(text)
        for name in (
            "squeue",
            "sacct",
            "scontrol",
            "sinfo",
            "sacctmgr",
            "sbatch",
            "scancel",
            "srun",
            "sprio",
        ):
            (self.programs / name).write_text(PROGRAM)
            (self.programs / name).chmod(0o755)
        (self.project / "train.py").write_text("print(1)\n")
        (self.project / "config.yaml").write_text(CONFIG)
        (self.project / "own.sh").write_text(
            "#!/bin/bash\n#SBATCH --job-name=own\necho $SLURM_JOB_ID; exit 1\n"
        )
        (self.project / "array.sh").write_text(
            "#!/bin/bash\n#SBATCH --array=0-2\necho $SLURM_JOB_ID\n"
        )
        runs = self.project / "runs"
        self.type("render", "--to", "line.sbatch")
        self.type("submit", "--no-check", "--run-id", "asked")
        (self.answers / "sbatch.txt").write_text("1003\n")
        self.type("tune", "--no-check", "--run-id", STUDY, code=None)
        local = [
            self.type("submit", "--local", "--parsable", script).stdout.strip()
            for script in ("own.sh", "array.sh")
        ]
        self.type("submit", "--local", "--wait", "own.sh", code=None)
        made_runs.gpu_run(runs, RUNS[0], ranks=2, steps=300, restarts=1)
        checkpoint_maker.make_run(runs, RUNS[1])
        for run, job in (("asked", "1004"), (f"{STUDY}_0", "1003_0"), (f"{STUDY}_1", "1003_1")):
            directory = (
                make.run(runs, run, tag=run.partition("_")[0])
                if not (runs / run).exists()
                else runs / run
            )
            attempt = make.attempt(
                directory,
                job,
                slurm_job_id=job.replace("_", "0"),
                outcome="failed",
                status=1,
                reason="oom",
                said="1 oom",
            )
            make.metrics(attempt, {"step": 10, "loss": 2.5}, {"step": 20, "loss": 2.4})
            make.write(directory / "trial.json", {"schema": 1, "number": 0, "params": {"x": 0.5}})
        for job in ("1003_0", "1003_1", "1004"):
            log = (
                'Traceback (most recent call last):\n  File "train.py", line'
                " 1\ntorch.OutOfMemoryError: CUDA out of memory.\n"
            )
            (self.project / "logs" / f"output_line_{job}.log").write_text(log)
        return local

    def records(self) -> list[Path]:
        """Return the files that hpctrain wrote and reads again."""
        roots = (self.project / "runs", self.state, self.project / "logs")
        found = [
            path
            for root in roots
            for path in root.rglob("*")
            if path.is_file() and not path.is_symlink()
        ]
        return sorted(
            path
            for path in found
            if path.suffix in (".json", ".jsonl", ".log")
            or path.name in ("exit", "script", "index")
        ) + [self.project / name for name in ("config.yaml", "line.sbatch")]


def leaves() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that there is: a verb, or what is below it."""
    for verb in VERBS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        if isinstance(command, click.Group):
            below = [
                (name, command.get_command(click.Context(command), name))
                for name in command.list_commands(click.Context(command))
            ]
            yield from (((verb, name), each) for name, each in below if each is not None)
            if command.invoke_without_command:
                yield (verb,), command
        else:
            yield (verb,), command


def lines(words: tuple[str, ...], only: tuple[str, ...] | None = None) -> Iterator[list[str]]:
    """Yield every command, or one, with nothing behind it and with each of `words`; as text, and as
    JSON where it can.
    """
    for path, command in leaves():
        if path[0] in LEFT_OUT if only is None else path != only:
            continue
        options = {option for each in command.params for option in each.opts}
        takes = any(isinstance(each, click.Argument) for each in command.params)
        short = [option for option in _SHORT if option in options]
        into = ["--to", "out.tmp"] if "--to" in options and path[-1] == "best" else []
        for word in ((), *((word,) for word in words)) if takes else ((),):
            yield [*path, *short, *into, *word]
            if "--json" in options:
                yield [*path, *short, *word, "--json"]
