"""Facts about the job in a script's text: directives, commands and where they run, numbers of
nodes, tasks and GPUs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from hpctrain.checks.script.calls import launcher_call, read_shells
from hpctrain.checks.script.model import (
    Assignment,
    OptionCall,
    Scope,
    Shell,
    SimpleCommand,
    WordPiece,
)
from hpctrain.checks.script.reader import SourceText, read_shell
from hpctrain.slurm.notations import directives, signals
from hpctrain.util.text import integer

_SHELL_LINE = re.compile(
    r"#!\s*(?:\S*/)?(?:env\s+(?:-S\s+)?)?(?:\S*/)?(bash|sh|dash|zsh|ksh|ash)\b(.*)"
)
_GPU_COUNT = re.compile(r"(?:[A-Za-z][\w.-]*:)?(\d{1,4})\Z", re.ASCII)
_GRES_GPU = re.compile(
    r"(?:^|,)(?:gres[:/])?gpu(?::[A-Za-z_][\w.-]*)?(?:[:=](\d{1,4}))?(?:\([^)]*\))?(?=,|$)",
    re.ASCII,
)
#: Options that request GPUs, besides --gres.
GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "tres-per-task")


class LintFacts:
    """All facts that the rules need, computed once per script; never raises."""

    def __init__(self, text: str, file: str, slurm: str | None = None) -> None:
        self.text, self.file = text, file
        #: The version of the Slurm that will run it, as numbers; empty if unknown.
        self.slurm = tuple(int(part) for part in re.findall(r"\d+", slurm or "")[:2])
        self.block = directives.read_block(text)
        self.options = {option.name: option for option in self.block.options}
        self.is_batch = self.block.lines > 0
        shell = _SHELL_LINE.match(text)
        #: bash, sh, …; None for another language, of which only the directives are checked.
        self.shell_name = shell[1] if shell else (None if text.startswith("#!") else "bash")
        self.shell_flags = shell[2] if shell else ""
        self._read_directives()
        self._read_commands()

    def _read_directives(self) -> None:
        low, _, high = (self.value("nodes") or "").partition("-")
        #: The minimum number of nodes that the directives allow; 0 if unknown.
        self.least_nodes = 0 if self.block.hetjobs else integer(low) or 0
        fixed = not self.value("nodelist") and high in ("", low)
        #: The number of nodes, if the directives determine it.
        self.nodes = (self.least_nodes or None) if fixed else None
        found = _GRES_GPU.findall(self.value("gres") or "")
        #: The GPUs that --gres requests; None if it requests none.
        self.gres_gpus = sum(int(count or 1) for count in found) or None
        counts = {self.gres_gpus, _gpu_count(self.value("gpus-per-node"))} - {None}
        total = _gpu_count(self.value("gpus"))
        if not counts and total and self.nodes and total % self.nodes == 0:
            counts = {total // self.nodes}
        #: The GPUs per node, if the directives determine them.
        self.gpus_per_node = counts.pop() if len(counts) == 1 else None
        #: Whether a directive requests GPUs.
        self.asks_gpus = self.gres_gpus is not None or any(
            self.value(name) not in (None, "0") for name in GPU_OPTIONS
        )
        #: The signal that --signal requests.
        self.signal = signals.parse(self.value("signal") or "")

    def _read_commands(self) -> None:
        per_node = self.count("ntasks-per-node")
        numbers = {
            "SLURM_NNODES": self.nodes,
            "SLURM_JOB_NUM_NODES": self.nodes,
            "SLURM_GPUS_ON_NODE": self.gpus_per_node,
            "SLURM_CPUS_PER_TASK": self.count("cpus-per-task"),
            "SLURM_NTASKS_PER_NODE": per_node,
            "SLURM_NTASKS": self.count("ntasks") or (self.nodes or 0) * (per_node or 0) or None,
            "SLURM_GPUS_PER_NODE": _gpu_count(self.value("gpus-per-node")),
            "SLURM_GPUS": _gpu_count(self.value("gpus")),
        }
        #: The shell that runs the file.
        self.batch = Shell("batch" if self.is_batch else "unknown")
        if self.shell_name is not None and "\r\n" not in self.text:  # bash cannot read CRLF either
            read_shell(SourceText(self.text), self.batch)
        #: The commands of the file, and of the shells inside it.
        self.commands = sorted(
            (each for one in read_shells(self.batch, numbers) for each in one.commands),
            key=lambda command: command.start,
        )
        self._index_commands()
        # Where srun starts this same script again, all of it also runs in tasks.
        itself = any(
            part.kind == "var" and part.text in ("0", "BASH_SOURCE")
            for command in self.named("srun")
            for word in command.words
            for part in word.parts
        )
        for command in self.commands:
            function = command.scope.inside("function")
            callers = self.named(function.name) if function is not None else (command,)
            places = {caller.shell.place for caller in callers}
            command.place = places.pop() if len(places) == 1 else "unknown"
            if itself and command.shell.place == "batch":
                command.place = "unknown"
        #: The srun calls.
        self.steps = [command.call for command in self.commands if command.call is not None]
        calls = (
            launcher_call(one)
            for one in self.commands
            if one.name not in ("echo", "export", "set", "module", "cd")
        )
        #: The calls of launchers.
        self.launches = [call for call in calls if call is not None]

    def _index_commands(self) -> None:
        #: Wrappers (time, exec) count as themselves.
        self._by_name: dict[str, list[SimpleCommand]] = defaultdict(list)
        #: The commands of the shells that a command starts.
        self.started_by: dict[SimpleCommand | None, list[SimpleCommand]] = defaultdict(list)
        #: The commands in each scope and in those inside it.
        self.inside: dict[Scope, list[SimpleCommand]] = defaultdict(list)
        #: Where `set` turns an option on or off, by option and shell: filled by `option_on`.
        self.switches: dict[tuple[str, Shell], list[tuple[int, bool]]] = {}
        for command in self.commands:
            self._by_name[command.name].append(command)
            self.started_by[command.shell.via].append(command)
            for scope in command.scope.chain():
                self.inside[scope].append(command)

    # Directives

    def value(self, name: str) -> str | None:
        """Return the value of the directive that applies, or None."""
        return self.options[name].value if name in self.options else None

    def count(self, name: str) -> int | None:
        """Return a directive's value if it is an integer."""
        return integer(self.value(name) or "")

    # Commands

    def line(self, start: int) -> int:
        """Return the number of the line with the offset `start`, counted from 1."""
        return self.text.count("\n", 0, start) + 1

    def shown(self, command: SimpleCommand) -> str:
        """Return a command as written."""
        return self.text[command.start : command.end]

    def named(self, *names: str) -> Iterator[SimpleCommand]:
        """Yield the commands with these names, in text order for each name."""
        for name in names:
            yield from self._by_name.get(name, ())

    def assigned(self, *names: str) -> Iterator[tuple[Assignment, SimpleCommand]]:
        """Yield the assignments to `names` (all without names), including those before a command
        and after `export`.
        """
        for command in self.commands:
            for assignment in command.assignments:
                if not names or assignment.name in names:
                    yield assignment, command

    def variables(self, *names: str) -> Iterator[tuple[WordPiece, SimpleCommand]]:
        """Yield the expansions of the variables `names`, each with its command."""
        if any(name in self.text for name in names):
            for command in self.commands:
                for part in command.expansions():
                    if part.kind == "var" and part.text in names:
                        yield part, command

    # Steps

    def step_nodes(self, step: OptionCall) -> int | None:
        """Return the number of nodes of a step, if known."""
        if step.has("nodes"):
            return step.number("nodes")
        return None if step.has("nodelist", "relative", "het-group") else self.nodes

    def step_tasks(self, step: OptionCall) -> int | None:
        """Return the number of tasks of a step, if known."""
        if step.has("ntasks"):
            return step.number("ntasks")
        nodes, per_node = self.step_nodes(step), self.count("ntasks-per-node")
        if step.has("ntasks-per-node"):
            own = step.number("ntasks-per-node")
            capped = {"ntasks", "ntasks-per-node"} & set(self.options) and per_node != own
            return None if capped else nodes and own and nodes * own
        if "ntasks" in self.options:
            return self.count("ntasks")
        if any(
            name in self.options
            for name in ("ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core", "gpus-per-task")
        ):
            return None
        return nodes and nodes * (per_node if per_node is not None else 1)

    def step_tasks_per_node(self, step: OptionCall) -> int | None:
        """Return the tasks per node of a step, if known and even."""
        nodes, tasks = self.step_nodes(step), self.step_tasks(step)
        return tasks // nodes if nodes and tasks and tasks % nodes == 0 else None


def _gpu_count(value: str | None) -> int | None:
    match = _GPU_COUNT.match(value) if value else None
    return int(match[1]) if match else None
