"""Which words make a line worth reading; all other plain lines are skipped (see `reader.boring`)."""

from __future__ import annotations

import re

_ALWAYS = frozenset(
    re.findall(
        r"\w+",
        """
    srun torchrun accelerate distributed deepspeed mpirun mpiexec ibrun torchrun_jsc commands python python3
    conda mamba micromamba module ml source activate set shopt wait trap kill scontrol squeue sacct sbatch scancel salloc
    unset tee env printenv exec eval command bash sh zsh dash ksh ssh pdsh xargs mkdir cat chmod hostname shuf export declare typeset
    local readonly read singularity apptainer podman shifter requeue watch pkill pgrep sinfo
    PYTHONBUFFERED MASTER_PORT MASTER_ADDR RANK LOCAL_RANK NODE_RANK
    SLURM_PROCID SLURM_NODEID SLURM_LOCALID SLURM_JOB_NODELIST SLURM_NODELIST SLURM_RESTART_COUNT SLURM_GPUS_PER_NODE
    SLURM_CPUS_PER_TASK SLURM_NTASKS SLURM_NTASKS_PER_NODE SLURM_NPROCS SLURM_GPUS SLURM_GPUS_PER_TASK SLURM_MEM_PER_NODE
    SLURM_MEM_PER_CPU SLURM_ARRAY_JOB_ID SLURM_EXPORT_ENV RANDOM BASH_SOURCE
    """,
    )
)
#: Variables of libraries: their names begin so, and the lines that hold them are few.
_PREFIXED = re.compile(r"\b(?:PET|NCCL|TORCH|GLOO|TRITON|TORCHINDUCTOR|PYTORCH|SRUN|[A-Z]*PORT|[A-Z]*RANK)\w*")
_EXPANDED = re.compile(r"\$\{?([A-Za-z_]\w*+)|\$\(\(([^()\n]{1,200}+)\)\)", re.ASCII)
_FUNCTIONS = re.compile(r"(?<![\w-])([\w-]++)[ \t]*+\(\)|\bfunction[ \t]++([\w-]++)")
_WORDS = re.compile(r"[A-Za-z_]\w*+", re.ASCII)
_FILES = re.compile(r">[ \t]*+[\"']?([^\s\"';&|<>()]++)[\"']?[ \t]*+<<|<<-?[ \t]*+['\"]?\w++['\"]?[ \t]*+>[ \t]*+[\"']?([^\s\"';&|<>()]++)")


def interesting_words(text: str) -> frozenset[str]:
    """Return the words that matter in `text`: the rules', its functions, the files that it writes."""
    found = set(_ALWAYS)
    if "squeue" in text or "sacct" in text or "scontrol" in text:
        found.add("sleep")
    if "trap" in text:
        found.add("exit")
    found.update(_PREFIXED.findall(text))
    if "()" in text or "function" in text:
        for one, other in set(_FUNCTIONS.findall(text)):
            found.update(_WORDS.findall(one or other))
    if "<<" in text:
        for one, other in set(_FILES.findall(text)):
            found.update(_WORDS.findall((one or other).rpartition("/")[2]))
    return frozenset(found)


def expanded_names(text: str) -> frozenset[str]:
    """Return the variables that `text` expands; what is assigned to others tells a rule nothing."""
    found: set[str] = set()
    for name, arithmetic in set(_EXPANDED.findall(text)):
        found.update([name] if name else _WORDS.findall(arithmetic))
    return frozenset(found)
