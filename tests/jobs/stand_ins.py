"""A machine on which a rendered script can run: real executables that write down how they were
called, and a directory to run in.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hpctrain.config.spec import JobSpec
from hpctrain.jobs import header, script_files

#: Writes $0, a few variables and all arguments, each ended by a NUL, to a file of its own.
RECORD = """\
record=$(mktemp "$RECORDS/{name}.XXXXXX")
printf '%s\\0' "${{RANK-}}" "${{WORLD_SIZE-}}" "${{LOCAL_RANK-}}" "${{SLURM_NODEID-}}" "$@" > "$record"
while IFS= read -r -d "" line; do
    case $line in X_*) printf '%s\\0' "$line" ;; esac
done < <(env -0) > "${{record/records\\//records/variables-of-}}"
"""
SECRET = "hf_not_to_be_seen"
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_NODEID")
#: Runs the command on the first and the last node, and there as the first and the last task; the
#: others would do the same.
SRUN = """\
nodes=${1#--nodes=} tasks=${2#--ntasks}
tasks=${tasks#*=}
while [ "${1#-}" != "$1" ]; do shift; done
for node in $(printf '%s\\n' 0 $((nodes - 1)) | sort -un); do
    for task in $(printf '%s\\n' 0 $((tasks - 1)) | sort -un); do
        SLURM_NODEID=$node SLURM_LOCALID=$task SLURM_PROCID=$((node * tasks + task)) SLURMD_NODENAME=node$node "$@" || exit
    done
done
"""
SCONTROL = """\
case $2 in
    hostnames) echo localhost; echo node2 ;;
    job) echo "JobId=62 JobName=x JobState=RUNNING Restarts=0 Reason=None EndTime=2035-01-01T00:00:00 Deadline=N/A" ;;
esac
"""
#: Runs the command behind its options and the image.
CONTAINER = """\
shift
while [ "${1#--}" != "$1" ]; do
    case $1 in --bind | --pwd) shift 2 ;; *) shift ;; esac
done
shift
exec "$@"
"""
#: What `pixi shell-hook` prints.
PIXI = """\
echo 'export IN_PIXI=yes'
"""
CONDA_SH = 'conda() { "$BASE/bin/conda-function" "$@"; }\n'


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a stand-in."""

    argv: list[bytes]
    environment: dict[str, str]
    own: dict[str, bytes]  # the variables X_*


class Machine:
    """Stand-ins on PATH, and a project directory called `name`, as deep as the script may write."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.directory, self.records, self.programs = (
            root,
            root / "srv" / name,
            root / "records",
            root / "bin",
        )
        for path in (
            self.directory / "logs",
            self.records,
            self.programs,
            root / "tmp",
            root / "etc" / "profile.d",
        ):
            path.mkdir(parents=True)
        (root / "etc" / "profile.d" / "conda.sh").write_text(CONDA_SH)
        for program in (
            "accelerate",
            "torchrun",
            "python",
            "module",
            "conda-function",
            "venv",
            "hook",
            "told",
        ):
            self._program(program, RECORD.format(name=program))
        self._program("python", RECORD.format(name="python"))
        self._program("srun", SRUN)
        self._program("scontrol", SCONTROL)
        self._program("conda", f"echo '{root}'")
        self._program("pixi", RECORD.format(name="pixi") + PIXI)
        for engine in ("apptainer", "singularity"):
            self._program(engine, RECORD.format(name="container") + CONTAINER)

    def run(self, script: str, spec: JobSpec) -> None:
        """Run `script` as slurmstepd would: in its directory, with Slurm's variables; it must end
        well and say nothing of errors.
        """
        self._prepare(spec)
        file = self.root / "job.sbatch"
        file.write_text(script, encoding="utf-8", errors="surrogateescape")
        script_files.ensure_library(script)
        environment = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "RECORDS": str(self.records),
            "BASE": str(self.root),
            "HOME": "/nowhere",
            "TMPDIR": str(self.root / "tmp"),
            "SLURM_JOB_ID": "62",
            **(
                {
                    "SLURM_ARRAY_JOB_ID": "60",
                    "SLURM_ARRAY_TASK_ID": "3",
                    "SLURM_ARRAY_TASK_COUNT": "1",
                }
                if spec.array
                else {}
            ),
            "SLURM_CPUS_PER_TASK": "8",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_GPUS_ON_NODE": str(spec.gpus_per_node),
            "PET_NNODES": "7",
            "LC_ALL": "C.UTF-8",
            **{secret.name: "of the caller" for secret in spec.secrets if secret.file is None},
        }
        done = subprocess.run(
            ["bash", str(file)],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        assert (done.returncode, done.stderr) == (0, b""), (done.stdout + done.stderr).decode(
            "utf-8", "replace"
        )

    def _prepare(self, spec: JobSpec) -> None:
        """Make the files that the job's environment names."""
        for project, name in ((spec.venv, "bin/activate"), (spec.uv, ".venv/bin/activate")):
            if project is not None:
                activate = self.directory / project / name
                activate.parent.mkdir(parents=True)
                activate.write_text('"$BASE/bin/venv" "$PWD"\n')
        for hook in (*spec.before, *spec.after, *spec.before_each_node):
            (self.directory / hook).parent.mkdir(exist_ok=True)
            (self.directory / hook).write_text(
                '"$BASE/bin/hook" "${status-${SLURM_NODEID-before}}"\n'
            )
        if spec.notify is not None and spec.notify.command is not None:
            program = self.directory / spec.notify.command
            program.parent.mkdir(exist_ok=True)
            program.write_text('#!/bin/bash\nexec "$BASE/bin/told" "$@"\n')
            program.chmod(0o755)
        for secret in spec.secrets:
            if secret.file is not None:
                (self.directory / secret.file).parent.mkdir(exist_ok=True)
                (self.directory / secret.file).write_text(f"{SECRET}\n")
                (self.directory / secret.file).chmod(0o600)
        if spec.container is not None:
            (self.directory / spec.container.image).parent.mkdir(exist_ok=True)
            (self.directory / spec.container.image).touch()
        self.prepared = {
            str(path.relative_to(self.directory)) for path in self.directory.rglob("*")
        }

    def calls(self, program: str) -> list[Call]:
        """Return the calls of `program` in order."""
        files = sorted(self.records.glob(f"{program}.*"), key=lambda file: file.stat().st_mtime_ns)
        calls = []
        for file in files:
            row = file.read_bytes().split(b"\0")[:-1]
            own = [
                line.partition(b"=")
                for line in (
                    (file.parent / f"variables-of-{file.name}").read_bytes().split(b"\0")[:-1]
                )
            ]
            environment = {
                name: value.decode() for name, value in zip(VARIABLES, row, strict=False)
            }
            calls.append(
                Call(
                    row[len(VARIABLES) :],
                    environment,
                    {name.decode(): value for name, _, value in own},
                )
            )
        return calls

    def run_dir(self, spec: JobSpec) -> Path:
        """Return the run directory of the job."""
        return (
            self.directory
            / "runs"
            / (f"{spec.job_name}-60_3" if spec.array else f"{spec.job_name}-62")
        )

    def strangers(self, spec: JobSpec) -> list[str]:
        """Return what lies in the project and in the temporary directory that the script had no
        business to leave there.
        """
        expected = {
            "logs",
            "runs",
            f"logs/output_{spec.job_name}.log",
            f"logs/error_{spec.job_name}.log",
            header.LIBRARY_DIRECTORY,
        }
        library = self.directory / header.LIBRARY_DIRECTORY
        # A script of `render --standalone` has no file of functions, and copies them for the nodes.
        functions = next(library.iterdir()).name if library.is_dir() else "attempts/62.0/job.sh"
        run = str(self.run_dir(spec).relative_to(self.directory))
        expected |= {
            run,
            *(
                f"{run}/{name}"
                for name in ("run.json", "script.sbatch", functions, "attempts", "attempts/62.0")
            ),
            f"{header.LIBRARY_DIRECTORY}/{functions}",
        }
        expected |= {f"{run}/attempts/62.0/{name}.json" for name in ("start", "end")}
        if spec.restart == "chain":
            expected.add(f"{run}/over")
        if spec.before_each_node:
            expected |= {f"{run}/attempts/62.0/ready-{node}" for node in (0, spec.nodes - 1)}
        if spec.array:
            tag = f"{spec.job_name}-60"
            expected |= {
                "runs/.launches",
                f"runs/.launches/{tag}",
                f"runs/.launches/{tag}/{tag}_3.id",
            }
            ends = f"runs/.launches/{tag}/ends"
            told = spec.notify is not None and "completed" in spec.notify.on
            expected |= (
                {ends, f"{ends}/60", f"{ends}/60/3.completed"} if spec.notify is not None else set()
            )
            expected |= {f"{ends}/60/told-end-0"} if told else set()
        expected |= self.prepared
        if spec.launcher == "accelerate" and spec.sharding != "ddp":
            expected.add(f"{run}/accelerate.yaml")
        found = {
            str(path.relative_to(self.directory)) for path in self.directory.rglob("*")
        } - expected
        return sorted(
            found
            | {str(path) for path in (self.root / "tmp").iterdir()}
            | {str(path) for path in self.root.glob("CANARY")}
        )

    def _program(self, name: str, body: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/bash\n{body}")
        path.chmod(0o755)
