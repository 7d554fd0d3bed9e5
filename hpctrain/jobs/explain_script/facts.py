"""The numbers of a script, as its directives say them: what a sentence about `$SLURM_CPUS_PER_TASK` can put in its place."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from hpctrain.jobs.explain_script.read_shell import Command, Statement
from hpctrain.scheduler.parse.directives import Directive

_GPU_COUNT = re.compile(r"(?:gres/)?gpu(?::[\w.-]+?)?:(\d{1,6})(?:\(|,|\Z)")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the whole script; None and empty where it does not say.

    Attributes:
        options: directive → value, the last one winning.
        last_line: directive → the line that wins.
        first_command: the line of the first command: behind it, #SBATCH lines are comments.
        functions: name → line.
        launcher: `accelerate`, `torchrun` or `python`: what starts the training processes.
    """

    options: dict[str, str | None] = field(default_factory=dict)
    last_line: dict[str, int] = field(default_factory=dict)
    first_command: int | None = None
    functions: dict[str, int] = field(default_factory=dict)
    launcher: str | None = None

    @property
    def nodes(self) -> int | None:
        """Nodes of the job, where it is one number."""
        return _number(self.options.get("nodes"))

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks on each node."""
        return _number(self.options.get("ntasks-per-node"))

    @property
    def cores(self) -> int | None:
        """Cores of each task."""
        return _number(self.options.get("cpus-per-task"))

    @property
    def gpus(self) -> int | None:
        """GPUs of each node."""
        per_node = self.options.get("gpus-per-node")
        if per_node:
            return _number(per_node.rpartition(":")[2])
        found = _GPU_COUNT.match(self.options.get("gres") or "")
        if found is not None:
            return int(found[1])
        total = _number((self.options.get("gpus") or "").rpartition(":")[2])
        return total // self.nodes if total and self.nodes and total % self.nodes == 0 else None

    def value_of(self, variable: str) -> int | None:
        """Return what one of Slurm's variables will be in this job, where the directives say so."""
        if variable in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
            return self.nodes
        return {"SLURM_CPUS_PER_TASK": self.cores, "SLURM_NTASKS_PER_NODE": self.tasks_per_node}.get(variable)

    def with_number(self, value: str) -> str:
        """Return `$SLURM_NNODES (here 2)` for a variable of Slurm's whose number is known, else `value` as it is."""
        variable = re.fullmatch(r"\$\{?(SLURM_\w+)\}?", value)
        number = self.value_of(variable[1]) if variable else None
        return value if number is None else f"{value} (here {number})"

    @property
    def product(self) -> str:
        """`: 2 nodes x 4 GPUs = 8`, or nothing where it is not known."""
        if not (self.nodes and self.gpus):
            return ""
        return f": {self.nodes} node{'s' * (self.nodes > 1)} x {self.gpus} GPU{'s' * (self.gpus > 1)} = {self.nodes * self.gpus}"

    @property
    def phrases(self) -> dict[str, str]:
        """What stands for `{nodes}`, `{gpus}`, `{cores}`, `{tasks}`, `{processes}` and `{product}` in a row's sentence."""
        processes = self.nodes * self.gpus if self.nodes and self.gpus else None
        return {
            "nodes": _phrase(self.nodes, "node", "the nodes of the job"),
            "gpus": _phrase(self.gpus, "GPU", "the GPUs of a node"),
            "cores": _phrase(self.cores, "core", "the cores of a task"),
            "tasks": _phrase(self.tasks_per_node, "task", "the tasks of a node"),
            "processes": "all processes" if processes is None else _phrase(processes, "process", "", "es"),
            "product": self.product,
        }


def gather(directives: list[Directive], statements: tuple[Statement, ...]) -> Facts:
    """Return the facts of a script."""
    commands = [command for statement in statements for command in every(statement)]
    in_order = [statement for statement in statements if not statement.comment]
    return Facts(
        options={directive.name: directive.value for directive in directives},
        last_line={directive.name: directive.line for directive in directives},
        first_command=in_order[0].first if in_order else None,
        functions=_functions(statements),
        launcher=_launcher(commands),
    )


def every(statement: Statement) -> list[Command]:
    """Return the commands of a statement and of the programs within it."""
    found: list[Command] = []
    for command in statement.commands:
        found.append(command)
        for word in command.words:
            for inner in word.program:
                found += every(inner)
    return found


def _functions(statements: tuple[Statement, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for statement in statements:
        match = re.match(r"(?:function\s+)?([\w-]+)\s*\(\s*\)", statement.text)
        if match is not None:
            found.setdefault(match[1], statement.first)
        for command in statement.commands:
            for word in command.words:
                found = {**_functions(word.program), **found} if word.program else found
    return found


def _launcher(commands: list[Command]) -> str | None:
    words = [word.text.rpartition("/")[2] for command in commands for word in command.words]
    # `accelerate launch`; the name alone is also what `command -v accelerate` looks for
    if ("accelerate", "launch") in pairwise(words):
        return "accelerate"
    if "torchrun" in words or "torch.distributed.run" in words:
        return "torchrun"
    return "python" if any(re.fullmatch(r"python[\d.]*", word) for word in words) else None


def _number(value: str | None) -> int | None:
    return int(value) if value and re.fullmatch(r"\d{1,9}", value) else None


def _phrase(number: int | None, noun: str, unknown: str, plural: str = "s") -> str:
    return unknown if number is None else f"{number} {noun}{'' if number == 1 else plural}"
