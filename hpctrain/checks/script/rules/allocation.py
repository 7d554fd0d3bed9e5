"""Rules that compare what the commands use with what the job has: nodes, tasks, GPUs, cores."""

from __future__ import annotations

import re
from itertools import pairwise

from hpctrain.checks.script.facts import LintFacts
from hpctrain.checks.script.rule import Hits, RuleHit, rule
from hpctrain.slurm.notations import array

_OTHER_SLOTS = re.compile(r"oversubscribe|--?host|machinefile|I_MPI|intel|mpich|impi", re.I)
_DEBUGGING = {
    "CUDA_LAUNCH_BLOCKING": ("1", "1."),
    "HIP_LAUNCH_BLOCKING": ("1",),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL",),
}
_TASK_INDEX = re.compile(
    r"\[(?:\$?\{?SLURM_ARRAY_TASK_ID\}?|\$\(\(\s*\$?\{?SLURM_ARRAY_TASK_ID\}?"
    r"\s*(?P<less>-\s*1)?\s*\)\))\]\Z"
)


@rule(
    "mpirun-slots",
    "warning",
    "Open MPI starts no more processes than the job has tasks: not enough slots available.",
    "mpirun(1) of Open MPI",
)
def mpirun_slots(facts: LintFacts) -> Hits:
    tasks = facts.count("ntasks")
    if tasks is None and facts.nodes:
        tasks = facts.nodes * (facts.count("ntasks-per-node") or 1)
    other = {"ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core", "exclusive"}
    if not tasks or other & set(facts.options) or _OTHER_SLOTS.search(facts.text):
        return
    for command in facts.named("mpirun", "mpiexec"):
        for flag, value in pairwise(facts.argv(command).words):
            count = facts.number(value, command) if flag.text in ("-n", "-np", "--np") else None
            if count and count > tasks and facts.place(command) == "batch":
                yield RuleHit(
                    flag.start,
                    f"{command.name} starts {count} processes, and the job has {tasks} tasks",
                    f"write: #SBATCH --ntasks={count}",
                )


@rule(
    "threads-oversubscribed",
    "note",
    "the threads of all processes then compete for the same cores.",
    "OpenMP specification, OMP_NUM_THREADS",
    once=True,
)
def threads_oversubscribed(facts: LintFacts) -> Hits:
    cores, tasks = facts.count("cpus-per-task"), facts.count("ntasks-per-node") or 1
    for assignment, command in facts.assigned("OMP_NUM_THREADS"):
        names = {part.text for part in assignment.word.expansions()}
        threads = facts.number(assignment.word, command) or 0
        what = ""
        if tasks > 1 and names & {"SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"}:
            what = f"each of {tasks} tasks on a node starts threads for all cores of the job there"
        elif cores and tasks * cores < threads and "exclusive" not in facts.options:
            what = f"{threads} threads, and the job has {tasks * cores} cores on each node"
        if what:
            fix = 'write: OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"'
            yield RuleHit(assignment.start, what, fix)


@rule(
    "debug-setting",
    "warning",
    "it is for finding an error: the CPU waits for each kernel, or each collective is checked, and"
    " the training is slower.",
    "CUDA C++ programming guide; PyTorch documentation, torch.distributed",
)
def debug_setting(facts: LintFacts) -> Hits:
    for assignment, _ in facts.assigned(*_DEBUGGING) if facts.asks_gpus else ():
        if assignment.word.text in _DEBUGGING[assignment.name]:
            setting = f"{assignment.name}={assignment.word.text}"
            yield RuleHit(assignment.start, f"{setting} slows the training", "remove it")


@rule(
    "array-index",
    "warning",
    "bash counts from 0, and an element that does not exist is an empty text.",
    "bash(1) Arrays",
    once=True,
)
def array_index(facts: LintFacts) -> Hits:
    indices = array.known(facts.value("array"))
    lists = {
        assignment.name: assignment.array
        for assignment, command in facts.assigned()
        if assignment.array and not assignment.append and command.scope.kind == "file"
        if all(word.is_literal and not set("*?{") & set(word.text) for word in assignment.array)
    }
    for part, _ in facts.variables(*lists) if indices else ():
        match = _TASK_INDEX.match(part.operand)
        if match is None:
            continue
        size, less = len(lists[part.text]), 1 if match["less"] else 0
        missing = [index for index in indices if not 0 <= index - less < size]
        if missing or (min(indices) - less == 1 and max(indices) - less == size - 1):
            whole = f"--array={less}-{size - 1 + less}"
            if missing:
                what = f"{part.text} has {size} elements, and none for the task {missing[0]}"
            else:
                what = f"no task uses the first element of {part.text}"
            yield RuleHit(part.start, what, f"write: #SBATCH {whole}")
