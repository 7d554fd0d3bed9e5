"""Rules about calls of srun and sbatch, Slurm's variables, and what the commands use of the tasks,
cores and array indices that the job has.
"""

from __future__ import annotations

import re

from hpctrain.checks.script.facts import LintFacts
from hpctrain.checks.script.rule import Hits, RuleHit, rule
from hpctrain.checks.script.rules.common import HARMLESS, TALKERS, option_on

_TASKS = (
    "ntasks",
    "ntasks-per-node",
    "ntasks-per-gpu",
    "ntasks-per-socket",
    "ntasks-per-core",
    "gpus-per-task",
)
#: Variables that Slurm sets only if one of the options is given; tested with 22.05.
_NEEDS = {
    "SLURM_GPUS_PER_NODE": ("gpus-per-node",),
    "SLURM_CPUS_PER_TASK": ("cpus-per-task",),
    "SLURM_NTASKS_PER_NODE": ("ntasks-per-node",),
    "SLURM_NTASKS": _TASKS,
    "SLURM_NPROCS": _TASKS,
    "SLURM_GPUS": ("gpus", "gpus-per-task", "gpus-per-socket"),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task",),
    "SLURM_MEM_PER_NODE": ("mem",),
    "SLURM_MEM_PER_CPU": ("mem-per-cpu",),
    "SLURM_ARRAY_TASK_ID": ("array",),
}
_GUARDED = re.compile(
    r"(?:-[zn]|-v)\s+[\"']?\$?\{?(SLURM_\w+)|\$\{(SLURM_\w+)(?::?[-=?+])", re.ASCII
)


@rule(
    "srun-cpus-per-task",
    "note",
    "srun of Slurm 22.05 and 23.02 does not inherit it, so the task gets one core; "
    "passing it is right on every version.",
    "srun(1) of 22.05; Slurm commit 9807bafa0f",
    since="22.05",
    until="23.11",
    once=True,
)
def srun_cpus_per_task(facts: LintFacts) -> Hits:
    asked = facts.slurm and facts.value("cpus-per-task") not in (None, "1")
    told = any(facts.assigned("SRUN_CPUS_PER_TASK"))
    for step in facts.steps if asked and not told else ():
        if not step.has("cpus-per-task", "overlap", "pty") and step.starts not in HARMLESS:
            yield RuleHit(
                step.at.start,
                "srun does not inherit --cpus-per-task in Slurm 22.05 and 23.02",
                'above it: export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"',
            )


@rule(
    "expanded-at-submission",
    "error",
    "the shell that writes the heredoc expands it, before there is a job; the script of the job gets"
    " an empty text.",
    "bash(1) Here Documents",
)
def expanded_at_submission(facts: LintFacts) -> Hits:
    for command in facts.commands if not facts.is_batch else ():
        for heredoc in command.heredocs:
            for part in heredoc.expansions() if "#SBATCH" in heredoc.text else ():
                own = re.match(r"SLURM_(?!SUBMIT|CONF)", part.text)
                if part.kind == "var" and own and not part.operand:
                    yield RuleHit(
                        part.start,
                        f"${part.text} is expanded at submission",
                        f"write: \\${part.text}",
                    )


@rule(
    "slurm-variable-unset",
    "warning",
    "Slurm sets it only when its option was given, in the script or on the command line.",
    "sbatch(1) OUTPUT ENVIRONMENT VARIABLES; tried on 22.05",
)
def slurm_variable_unset(facts: LintFacts) -> Hits:
    if not facts.options or facts.block.hetjobs:
        return
    lacking = {
        name
        for name, needs in _NEEDS.items()
        if name in facts.text and not any(option in facts.options for option in needs)
        if not re.search(rf"sbatch\b.*\s--(?:{'|'.join(needs)})\b", facts.text)  # in a usage
    }
    if re.search(r"%\d*a|%A", facts.value("output") or ""):
        lacking -= {"SLURM_ARRAY_TASK_ID"}  # --array is on the command line
    lacking -= {assignment.name for assignment, _ in facts.assigned(*lacking)}
    lacking -= {name for pair in _GUARDED.findall(facts.text) for name in pair}
    for part, command in facts.variables(*lacking):
        strict = option_on(facts, "nounset", command.shell, command.start)
        printed = command.name in TALKERS and not strict
        here = (part.place or command.place) == "batch" and part.text in lacking
        if here and not printed and not re.match(r":?[-=+?]", part.operand):
            option = _NEEDS[part.text][0]
            other = part.text == "SLURM_GPUS_PER_NODE" and facts.gres_gpus is not None
            yield RuleHit(
                part.start,
                f"${part.text} is empty: there is no --{option}",
                "write: $SLURM_GPUS_ON_NODE" if other else f"add: #SBATCH --{option}=N",
                "error" if other else "note" if option == "array" else "warning",
            )
            lacking -= {part.text} & {"SLURM_ARRAY_TASK_ID"}  # once
