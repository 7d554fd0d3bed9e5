"""What a script's text says about the job: its directives, its commands, where they run, how many nodes, tasks and GPUs there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from hpctrain.jobs.lint import directives, launch, srun
from hpctrain.jobs.lint.inner import InnerShells
from hpctrain.jobs.lint.interesting import expanded_names, interesting_words
from hpctrain.jobs.lint.reader import commands as reader
from hpctrain.jobs.lint.reader.boring import BoringLines
from hpctrain.jobs.lint.reader.model import Command, Part, Place, Reading, Shell, Word
from hpctrain.jobs.lint.values import Argv, Values

_SHELL_LINE = re.compile(r"#!\s*(?:\S*/)?(?:env\s+(?:-S\s+)?)?(?:\S*/)?(bash|sh|dash|zsh|ksh|ash)\b(.*)")
_GPU_COUNT = re.compile(r"(?:[A-Za-z][\w.-]*:)?(\d{1,4})\Z", re.ASCII)
_GRES_GPU = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::([A-Za-z_][\w.-]*))?(?:[:=](\d{1,4}))?(?:\([^)]*\))?(?=,|$)", re.ASCII)


class Facts:
    """Everything that the rules ask. Computed once for each script; never raises."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.block = directives.read(text)
        shell = _SHELL_LINE.match(text)
        self.shebang = text.partition("\n")[0].rstrip("\r") if text.startswith("#!") else None
        #: bash, sh, …; None for a script in another language, whose directives alone are looked at.
        self.shell_name = shell[1] if shell else ("bash" if self.shebang is None else None)
        self.shell_flags = shell[2] if shell else ""
        self.options = {option.name: option for option in self.block.options}
        self.is_batch = self.block.lines > 0
        self._places: dict[str, Place] = {}
        self._reading = self._read()
        numbers = {name: value for name, value in self._slurm_numbers().items() if value is not None}
        self.inner = InnerShells(self._reading, numbers)
        self.commands = sorted((command for reading in self.inner.readings for command in reading.commands), key=lambda item: item.start)

    def _read(self) -> Reading:
        place: Place = "batch" if self.is_batch else "unknown"
        if self.shell_name is None or "\r\n" in self.text:  # bash cannot read the latter either
            return Reading(self.text, Shell(place))
        return reader.read(self.text, Shell(place), BoringLines(self.text, interesting_words(self.text), expanded_names(self.text)))

    @property
    def reading(self) -> Reading:
        """The reading of the file itself, without the shells inside it."""
        return self._reading

    # Directives

    def value(self, name: str) -> str | None:
        """Return the value of the directive that wins, or None."""
        option = self.options.get(name)
        return option.value if option is not None else None

    def integer(self, name: str) -> int | None:
        """Return a directive's value where it is a whole number."""
        value = self.value(name)
        return int(value) if value is not None and value.isdecimal() and len(value) < 10 else None

    @cached_property
    def nodes(self) -> int | None:
        """The number of nodes, where the directives say it: a number, or nothing at all (then Slurm gives one for one task)."""
        if self.block.hetjobs or self.value("nodelist"):
            return None
        value = self.value("nodes")
        if value is not None:
            low, _, high = value.partition("-")
            return int(low) if low.isdecimal() and len(low) < 7 and (not high or low == high) else None
        return None

    @property
    def many_nodes(self) -> bool:
        """Whether the job has several nodes for sure."""
        value = self.value("nodes") or ""
        low = value.partition("-")[0]
        return not self.block.hetjobs and low.isdecimal() and len(low) < 7 and int(low) > 1

    @cached_property
    def gpus_per_node(self) -> int | None:
        """The GPUs of each node, where one directive says it."""
        counts = {self._gres_gpus(), _gpu_count(self.value("gpus-per-node"))} - {None}
        if len(counts) == 1:
            return counts.pop()
        total = _gpu_count(self.value("gpus"))
        if not counts and total is not None and self.nodes and total % self.nodes == 0:
            return total // self.nodes
        return None

    def _gres_gpus(self) -> int | None:
        found = _GRES_GPU.findall(self.value("gres") or "")
        return sum(int(count or 1) for _, count in found) if found else None

    @property
    def gres_gpu(self) -> re.Match[str] | None:
        """The GPU item of --gres."""
        return _GRES_GPU.search(self.value("gres") or "")

    @property
    def gpu_options(self) -> list[str]:
        """The directives that ask for GPUs."""
        names = [name for name in ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "tres-per-task") if name in self.options]
        return [*(["gres"] if self.gres_gpu else []), *names]

    def _slurm_numbers(self) -> dict[str, int | None]:
        per_node = self.integer("ntasks-per-node")
        return {
            "SLURM_NNODES": self.nodes, "SLURM_JOB_NUM_NODES": self.nodes, "SLURM_GPUS_ON_NODE": self.gpus_per_node,
            "SLURM_CPUS_PER_TASK": self.integer("cpus-per-task"), "SLURM_NTASKS_PER_NODE": per_node,
            "SLURM_NTASKS": self.integer("ntasks") or (self.nodes * per_node if self.nodes and per_node else None),
            "SLURM_GPUS_PER_NODE": _gpu_count(self.value("gpus-per-node")), "SLURM_GPUS": _gpu_count(self.value("gpus")),
        }  # fmt: skip

    # Commands

    def argv(self, command: Command) -> Argv:
        """Return the words of `command` with known variables put in."""
        return self.inner.argv(command)

    def values(self, command: Command) -> Values:
        """Return the variables of the shell that runs `command`."""
        return self.inner.values[command.shell]

    @cached_property
    def by_name(self) -> dict[str, list[Command]]:
        """Commands by the name of their program; wrappers (time, exec) count as themselves."""
        found: dict[str, list[Command]] = {}
        for command in self.commands:
            if command.words:
                found.setdefault(command.name, []).append(command)
        return found

    def named(self, *names: str) -> Iterator[Command]:
        """Yield the commands of these names, in the order of the text for each name."""
        for name in names:
            yield from self.by_name.get(name, ())

    def place(self, command: Command) -> Place:
        """Return where `command` runs; one in a function runs where the function is called."""
        if self.runs_itself and command.shell.place == "batch":
            return "unknown"
        function = command.scope.inside("function")
        return command.shell.place if function is None else self._function_place(function.name, ())

    def _function_place(self, name: str, asked: tuple[str, ...]) -> Place:
        if name in self._places:
            return self._places[name]
        if name in asked or len(asked) > 8:
            return "unknown"
        places: set[Place] = set()
        for caller in self.by_name.get(name, ()):
            outer = caller.scope.inside("function")
            places.add(caller.shell.place if outer is None else self._function_place(outer.name, (*asked, name)))
        place: Place = places.pop() if len(places) == 1 else "unknown"
        self._places[name] = place
        return place

    def place_of(self, part: Part, command: Command) -> Place:
        """Return where `part`, a piece of `command`, is expanded."""
        return part.place or self.place(command)

    @cached_property
    def runs_itself(self) -> bool:
        """Whether srun starts this very script again, so that all of it also runs in tasks."""
        for command in self.by_name.get("srun", ()):
            for word in command.words:
                if any(part.kind == "var" and part.text in ("0", "BASH_SOURCE") for part in word.parts):
                    return True
        return False

    @cached_property
    def sruns(self) -> list[tuple[Command, srun.Srun]]:
        """The srun calls."""
        found = []
        for command in self.commands:
            if command.words and (command.name == "srun" or command.name in srun.WRAPPERS or command.words[0].parts):
                call = srun.parse(self.argv(command).words)
                if call is not None:
                    found.append((command, call))
        return found

    @cached_property
    def _call_of(self) -> dict[Command, srun.Srun]:
        return dict(self.sruns)

    @cached_property
    def starts_shell(self) -> frozenset[Command]:
        """The commands whose arguments another shell reads."""
        return frozenset(reading.shell.via for reading in self.inner.readings if reading.shell.via is not None)

    def call_around(self, command: Command) -> srun.Srun | None:
        """Return the srun call that `command` is, or in whose shell it runs."""
        current: Command | None = command
        while current is not None:
            if current in self._call_of:
                return self._call_of[current]
            current = current.shell.via
        return None

    @cached_property
    def launches(self) -> list[launch.Launch]:
        """The calls of launchers."""
        found = []
        if not re.search(r"torchrun|accelerate|deepspeed|torch\.distributed", self.text):
            return []
        for command in self.commands:
            if command.words and command.name not in ("echo", "export", "set", "module", "cd"):
                one = launch.find(command, self.argv(command), self._call_of.get(command))
                if one is not None:
                    one.call = one.call or self.call_around(command)
                    found.append(one)
        return found

    def call_nodes(self, command: Command, call: srun.Srun | None) -> int | None:
        """Return the number of nodes of a step, where known."""
        if call is None:
            return 1
        if "nodes" in call.given:
            return self.values(command).number(call.given["nodes"])
        if "nodelist" in call.given or "relative" in call.given or "het-group" in call.given:
            return None
        return self.nodes

    def call_tasks(self, command: Command, call: srun.Srun) -> int | None:
        """Return the number of tasks of a step, where known."""
        values = self.values(command)
        if "ntasks" in call.given:
            return values.number(call.given["ntasks"])
        nodes = self.call_nodes(command, call)
        if "ntasks-per-node" in call.given:
            per_node = values.number(call.given["ntasks-per-node"])
            inherits = {"ntasks", "ntasks-per-node"} & set(self.options)
            return None if inherits and self.integer("ntasks-per-node") != per_node else nodes and per_node and nodes * per_node
        if "nodes" in call.given and "ntasks" not in self.options and "ntasks-per-node" not in self.options:
            return nodes
        if self.integer("ntasks") is not None:
            return self.integer("ntasks")
        per_node = self.integer("ntasks-per-node")
        if any(name in self.options for name in ("ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core", "gpus-per-task")):
            return None
        return nodes and nodes * (per_node if per_node is not None else 1)

    def call_tasks_per_node(self, command: Command, call: srun.Srun) -> int | None:
        """Return the tasks on each node of a step, where known and even."""
        nodes, tasks = self.call_nodes(command, call), self.call_tasks(command, call)
        return tasks // nodes if nodes and tasks and tasks % nodes == 0 else None

    def number(self, word: Word | None, command: Command) -> int | None:
        """Return the whole number that `word` of `command` is, where known."""
        return self.values(command).number(word)


def _gpu_count(value: str | None) -> int | None:
    match = _GPU_COUNT.match(value) if value else None
    return int(match[1]) if match else None
