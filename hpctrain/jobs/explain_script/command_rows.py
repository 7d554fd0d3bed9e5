"""What commands do, by their name: `module load`, `source`, `srun`; and what the words of the shell mean.

To add one: a line here. The key is the command, or the command and its first word; `{args}` are the words behind it, and `{where}` says
on which machine and how often. A statement that needs words of its own has its row in statement_rows.py.
"""

from __future__ import annotations

from hpctrain.jobs.explain_script.rows import END, ENVIRONMENT, LAUNCH, Row

_BASH = "bash(1)"
_MODULES = "module(1)"
_COREUTILS = "GNU coreutils manual"
_CONDA = "conda documentation"


def _env(why: str, source: str) -> Row:
    return Row(why, source, ENVIRONMENT)


COMMANDS: dict[str, Row] = {
    # the environment
    "module load": _env("makes the software `{args}` available to this job. Without it: another version, or none.", _MODULES),
    "module add": _env("makes the software `{args}` available to this job. Without it: another version, or none.", _MODULES),
    "module purge": _env("unloads all modules, so that what your shell had loaded when you typed sbatch changes nothing here.", _MODULES),
    "module reset": _env("back to the site's own set of modules, so that what your shell had loaded changes nothing here.", _MODULES),
    "module use": _env("looks for modules in `{args}` too.", _MODULES),
    "module swap": _env("takes one module in place of another: {args}.", _MODULES),
    "module switch": _env("takes one module in place of another: {args}.", _MODULES),
    "module unload": _env("takes the module `{args}` away.", _MODULES),
    "module list": _env("writes into the log which modules are loaded: useful when something worked yesterday.", _MODULES),
    "module restore": _env("loads the set of modules that was saved as `{args}`.", _MODULES),
    "ml": _env("short for module: `{args}`.", "Lmod documentation"),
    "conda activate": _env("the Python and the packages of the conda environment `{args}` come first from here on.", _CONDA),
    "conda deactivate": _env("leaves the conda environment.", _CONDA),
    "mamba activate": _env("the Python and the packages of the environment `{args}` come first from here on.", "mamba documentation"),
    "micromamba activate": _env("the Python and the packages of the environment `{args}` come first from here on.", "mamba documentation"),
    "source": _env("runs the lines of `{args}` in this shell, so that the variables they set stay.", _BASH),
    ".": _env("runs the lines of `{args}` in this shell, so that the variables they set stay.", _BASH),
    "eval": _env("runs what this prints as lines of this script: `{args}`.", _BASH),
    "shopt": _env("switches an option of bash: {args}.", _BASH),
    "ulimit": _env("changes a limit of this shell and all it starts: {args}.", _BASH),
    "umask": _env("which rights new files do not get: {args}.", _BASH),
    "pip install": _env("installs packages, {where}. In a job it costs time, and needs internet: better done before.", "pip documentation"),
    "pip": _env("manages Python packages: {args}.", "pip documentation"),
    "uv": _env("manages Python environments: {args}.", "uv documentation"),
    "proxychains": _env("runs a command through a proxy: {args}.", "proxychains documentation"),
    # files
    "cd": Row("goes to the directory `{args}`; what follows runs there.", _BASH),
    "pushd": Row("goes to the directory `{args}`; popd comes back.", _BASH),
    "popd": Row("back to the directory before pushd.", _BASH),
    "mkdir -p": Row("makes the directory `{args}` and those above it; one that is there is no error.", _COREUTILS),
    "mkdir": Row("makes a directory: {args}.", _COREUTILS),
    "cp": Row("copies, {where}: {args}.", _COREUTILS),
    "mv": Row("moves or renames: {args}.", _COREUTILS),
    "rm": Row("deletes: {args}.", _COREUTILS),
    "ln": Row("makes a link: {args}.", _COREUTILS),
    "touch": Row("makes an empty file, or sets its time to now: {args}.", _COREUTILS),
    "chmod": Row("changes the rights of files: {args}.", _COREUTILS),
    "rsync": Row("copies what differs, {where}: {args}.", "rsync(1)"),
    "scp": Row("copies over the network: {args}.", "scp(1)"),
    "tar": Row("packs or unpacks an archive, {where}: {args}.", "tar(1)"),
    "unzip": Row("unpacks an archive: {args}.", "unzip(1)"),
    "sbcast": Row("copies a file to the local disk of every node: {args}.", "sbcast(1)"),
    "mktemp": Row("makes a temporary file or directory with a name of its own: {args}.", _COREUTILS),
    # words in the log
    "echo": Row("writes a line into the {stream} log.", _BASH),
    "printf": Row("writes text into the {stream} log.", _BASH),
    "cat": Row("writes a file or the following text to its output.", _COREUTILS),
    "date": Row("writes the time into the log: when this point was reached.", _COREUTILS),
    "hostname": Row("writes the node's name into the log.", "hostname(1)"),
    "pwd": Row("writes the current directory into the log.", _BASH),
    "whoami": Row("writes your user name into the log.", _COREUTILS),
    "env": Row("writes all variables into the log, secrets among them.", _COREUTILS),
    "printenv": Row("writes variables into the log, secrets among them.", _COREUTILS),
    "ls": Row("lists files: {args}.", _COREUTILS),
    "which": Row("writes into the log which program is meant by `{args}`.", "which(1)"),
    "type": Row("says what `{args}` is.", _BASH),
    "nvidia-smi": Row("lists the node's GPUs and their memory, {where}: useful in a log.", "nvidia-smi(1)"),
    "rocm-smi": Row("lists the node's AMD GPUs, {where}: useful in a log.", "ROCm documentation"),
    "nvcc": Row("the CUDA compiler: {args}.", "CUDA documentation"),
    "free": Row("writes into the log how much memory the node has.", "free(1)"),
    "df": Row("writes into the log how full the disks are.", _COREUTILS),
    "tee": Row("writes what it reads into a file too: {args}.", _COREUTILS),
    "head": Row("takes the first lines.", _COREUTILS),
    "tail": Row("takes the last lines.", _COREUTILS),
    "grep": Row("takes the lines that match: {args}.", "grep(1)"),
    "sed": Row("edits text line by line: {args}.", "sed(1)"),
    "awk": Row("takes parts of lines: {args}.", "awk(1)"),
    "cut": Row("takes columns: {args}.", _COREUTILS),
    "sort": Row("sorts lines.", _COREUTILS),
    "wc": Row("counts.", _COREUTILS),
    "tr": Row("exchanges characters: {args}.", _COREUTILS),
    "read": Row("reads a line into variables: {args}.", _BASH),
    # the shell
    "set": _env("changes how this shell works:", _BASH),
    "trap": Row("{trap}", _BASH),
    "wait": Row("waits until what runs in the background has ended.", _BASH),
    "sleep": Row("waits for {args} (seconds, where no unit is given).", _COREUTILS),
    "exit": Row("{whole} ends here{code}.", "bash(1), sbatch(1)"),
    "return": Row("the function ends here.", _BASH),
    "break": Row("leaves the loop.", _BASH),
    "continue": Row("on to the next round of the loop.", _BASH),
    "shift": Row("drops the first argument.", _BASH),
    "true": Row("does nothing, successfully.", _BASH),
    "false": Row("fails, on purpose.", _BASH),
    ":": Row("does nothing, successfully.", _BASH),
    "kill": Row("sends a signal to a process: {args}.", _BASH),
    "command -v": _env("asks whether the program `{args}` can be found.", _BASH),
    "command": Row("runs a program past functions of the same name: {args}.", _BASH),
    "[": Row("a test: {args}", _BASH),
    "[[": Row("a test: {args}", _BASH),
    "test": Row("a test: {args}", _BASH),
    "let": Row("computes: {args}.", _BASH),
    "bc": Row("computes.", "bc(1)"),
    "getent": Row("asks whether a name is known: {args}.", "getent(1)"),
    "stat": Row("asks about a file: {args}.", _COREUTILS),
    "expr": Row("computes.", _COREUTILS),
    "seq": Row("counts: {args}.", _COREUTILS),
    "timeout": Row("ends a command after a time: {args}.", _COREUTILS),
    "local": Row("a variable of this function alone: {args}.", _BASH),
    # Slurm
    "scontrol show": Row("asks Slurm: {args}.", "scontrol(1)"),
    "scontrol requeue": Row("puts the job back into the queue, under the same number; it starts again from the top.", "scontrol(1)", END),
    "scontrol": Row("asks Slurm, or tells it: {args}.", "scontrol(1)"),
    "sbatch": Row("submits another job: {args}. This job's SLURM_* variables go along, and can disturb it.", "sbatch(1)"),
    "squeue": Row("asks Slurm for jobs: {args}. Not in a loop: it slows Slurm down for all.", "squeue(1)"),
    "sacct": Row("asks Slurm's accounting: {args}.", "sacct(1)"),
    "sstat": Row("asks Slurm what the job uses: {args}.", "sstat(1)"),
    "scancel": Row("cancels jobs, or sends them signals: {args}.", "scancel(1)"),
    "seff": Row("shows how well the job used what it got: {args}.", "seff, in Slurm's contribs"),
    # other launchers
    "mpirun": Row("MPI's own launcher, with {args}; under Slurm srun knows the nodes better.", "mpirun(1)", LAUNCH),
    "mpiexec": Row("MPI's own launcher, with {args}; under Slurm srun knows the nodes better.", "mpiexec(1)", LAUNCH),
    "deepspeed": Row(
        "DeepSpeed's launcher, {where}. On several nodes it starts the others over ssh, which many sites forbid.",
        "DeepSpeed documentation, launcher", LAUNCH,
    ),
    "ray": Row("starts or asks Ray: {args}.", "Ray documentation"),
    "wandb": Row("Weights & Biases: {args}. Needs internet.", "Weights & Biases documentation"),
    "huggingface-cli": Row("Hugging Face Hub: {args}. Needs internet.", "Hugging Face Hub documentation"),
    "hf": Row("Hugging Face Hub: {args}. Needs internet.", "Hugging Face Hub documentation"),
    "git": Row("git: {args}.", "git(1)"),
    "hpctrain": Row("hpctrain: {args}.", "hpctrain --help"),
}  # fmt: skip

#: Programs that start a training or another program; their options are in option_rows.py.
PROGRAMS: dict[str, Row] = {
    "srun": Row(
        "starts a job step: the command behind the options, in every task, on every node. "
        "Without srun it runs once, on the first node only.",
        "srun(1)", LAUNCH,
    ),
    "torchrun": Row(
        "starts the training's processes on this node and tells each its rank. {alone}",
        "PyTorch documentation, torch.distributed.run", LAUNCH,
    ),
    "accelerate launch": Row(
        "starts the training's processes on this node and tells each its rank. {alone}", "accelerate documentation, launch", LAUNCH
    ),
    "python": Row("runs Python, {where}. {alone}", "python(1)", LAUNCH),
    "apptainer": Row("runs a command in a container. scontrol and srun are mostly missing in there.", "apptainer exec --help"),
    "singularity": Row("runs a command in a container. scontrol and srun are mostly missing in there.", "singularity exec --help"),
    "bash": Row("a shell of its own, {where}.", "bash(1)"),
}  # fmt: skip

#: What `set` switches.
SET: dict[str, str] = {
    "e": "a command that fails ends the script; without it, the script goes on and the job looks COMPLETED",
    "u": "a variable that is not set is an error; without it, a misspelt name is silently empty",
    "x": "each command is written to the log before it runs",
    "o pipefail": "a pipe fails if any part of it fails; without it, `train | tee log` never fails",
    "v": "each line is written to the log as it is read",
    "a": "every variable that is set from here on is exported",
    "f": "* and ? stand for themselves", "m": "background jobs get process groups of their own",
}  # fmt: skip

#: Words of the shell itself, at the beginning of a command.
KEYWORDS: dict[str, str] = {
    "if": "if this succeeds, the lines down to `else` or `fi` run.",
    "elif": "otherwise, if this succeeds:",
    "else": "otherwise:",
    "then": "in that case:",
    "do": "in each round:",
    "while": "repeats the lines down to `done`, as long as this succeeds.",
    "until": "repeats the lines down to `done`, until this succeeds.",
    "for": "repeats the lines down to `done`, with {args}.",
    "select": "asks which, {args}. In a job nobody answers.",
    "case": "goes to the line whose pattern fits {args}.",
    "{": "a group of commands, down to `}}`.",
    "function": "a function: the lines down to `}}` run when its name is called.",
}
CLOSERS: dict[str, tuple[str, ...]] = {
    "fi": ("if",), "done": ("for", "while", "until", "select"), "esac": ("case",), "}": ("{", "function"),
}  # fmt: skip
