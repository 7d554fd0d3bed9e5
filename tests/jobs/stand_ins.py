"""A machine on which a rendered script can run: real executables that write down how they were called, and a directory to run in."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hpctrain.jobs.spec import JobSpec

#: Writes $0, a few variables and all arguments, each ended by a NUL, to a file of its own.
RECORD = """\
record=$(mktemp "$RECORDS/{name}.XXXXXX")
printf '%s\\0' "${{RANK-}}" "${{WORLD_SIZE-}}" "${{LOCAL_RANK-}}" "${{SLURM_NODEID-}}" "$@" > "$record"
"""
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_NODEID")
#: Runs the command on the first and the last node, and there as the first and the last task; the others would do the same.
SRUN = """\
nodes=${1#--nodes=} tasks=${2#--ntasks-per-node=}
while [ "${1#-}" != "$1" ]; do shift; done
for node in $(printf '%s\\n' 0 $((nodes - 1)) | sort -un); do
    for task in $(printf '%s\\n' 0 $((tasks - 1)) | sort -un); do
        SLURM_NODEID=$node SLURM_LOCALID=$task SLURM_PROCID=$((node * tasks + task)) SLURMD_NODENAME=node$node "$@" || exit
    done
done
"""
CONDA_SH = 'conda() { "$BASE/bin/conda-function" "$@"; }\n'


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a stand-in."""

    argv: list[bytes]
    environment: dict[str, str]


class Machine:
    """Stand-ins on PATH, and a project directory called `name`, as deep as the script may write."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.directory, self.records, self.programs = root, root / "srv" / name, root / "records", root / "bin"
        for path in (self.directory / "logs", self.records, self.programs, root / "tmp", root / "etc" / "profile.d"):
            path.mkdir(parents=True)
        (root / "etc" / "profile.d" / "conda.sh").write_text(CONDA_SH)
        for program in ("accelerate", "torchrun", "python", "module", "conda-function", "venv"):
            self._program(program, RECORD.format(name=program))
        self._program("srun", SRUN)
        self._program("scontrol", "echo localhost; echo node2")
        self._program("conda", f"echo '{root}'")

    def run(self, script: str, spec: JobSpec) -> None:
        """Run `script` as slurmstepd would: in its directory, with Slurm's variables; it must end well and say nothing of errors."""
        if spec.venv is not None:
            activate = self.directory / spec.venv / "bin" / "activate"
            activate.parent.mkdir(parents=True)
            activate.write_text('"$BASE/bin/venv" "$PWD"\n')
        file = self.root / "job.sbatch"
        file.write_text(script, encoding="utf-8", errors="surrogateescape")
        environment = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "RECORDS": str(self.records),
            "BASE": str(self.root),
            "HOME": "/nowhere",
            "TMPDIR": str(self.root / "tmp"),
            "SLURM_JOB_ID": "62",
            "SLURM_CPUS_PER_TASK": "8",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_GPUS_ON_NODE": str(spec.gpus_per_node),
            "PET_NNODES": "7",
            "LC_ALL": "C.UTF-8",
        }
        done = subprocess.run(["bash", str(file)], cwd=self.directory, env=environment, capture_output=True, stdin=subprocess.DEVNULL)
        assert (done.returncode, done.stderr) == (0, b""), done.stdout.decode("utf-8", "replace")

    def calls(self, program: str) -> list[Call]:
        """Return the calls of `program` in order."""
        files = sorted(self.records.glob(f"{program}.*"), key=lambda file: file.stat().st_mtime_ns)
        rows = [file.read_bytes().split(b"\0")[:-1] for file in files]
        return [Call(row[len(VARIABLES) :], {name: value.decode() for name, value in zip(VARIABLES, row, strict=False)}) for row in rows]

    def strangers(self, spec: JobSpec) -> list[str]:
        """Return what lies in the project and in the temporary directory that the script had no business to leave there."""
        expected = {"logs", "runs", f"runs/{spec.job_name}-62", f"logs/output_{spec.job_name}.log", f"logs/error_{spec.job_name}.log"}
        expected |= {spec.venv, f"{spec.venv}/bin", f"{spec.venv}/bin/activate"} if spec.venv else set()
        found = {str(path.relative_to(self.directory)) for path in self.directory.rglob("*")} - expected
        return sorted(found | {str(path) for path in (self.root / "tmp").iterdir()} | {str(path) for path in self.root.glob("CANARY")})

    def _program(self, name: str, body: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/bash\n{body}")
        path.chmod(0o755)
