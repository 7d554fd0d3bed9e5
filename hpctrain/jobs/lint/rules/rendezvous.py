"""Where the ranks meet: the address and the port."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.jobs.lint.facts import Facts
from hpctrain.jobs.lint.launch import CONTAINERS, Launch
from hpctrain.jobs.lint.reader.model import Command, Part, Word
from hpctrain.jobs.lint.rules.common import Edit, Hit, assignments

_PORT_NAMES = frozenset({"MASTER_PORT", "MAIN_PROCESS_PORT", "RDZV_PORT", "MAIN_PORT", "DIST_PORT"})
_PORT_OPTIONS = ("master_port", "main_process_port")
_ADDRESS_OPTIONS = ("rdzv_endpoint", "master_addr", "main_process_ip")
_ENDPOINT_PORT = re.compile(r":(\d{2,5})\Z", re.ASCII)
_LOCAL = re.compile(r"(?:localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|::1)(?::\S*)?\Z")
_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_CUTTERS = frozenset({"cut", "sed", "awk", "gawk", "tr", "grep", "head", "rev"})
_SLURM_PROGRAMS = frozenset({"scontrol", "squeue", "sinfo", "sacct"})
_FORMULA = "$((20000 + SLURM_JOB_ID % 20000))"


def fixed_port(facts: Facts) -> Iterator[Hit]:
    """A port that every job on the node would take."""
    whole = facts.options.get("exclusive")
    if not facts.is_batch or (whole is not None and whole.value is None):
        return
    told: set[int] = set()
    for assignment, command in assignments(facts):
        port = _literal_port(assignment.word) if assignment.name in _PORT_NAMES and assignment.array is None else None
        if port is None:
            continue
        told.add(_last_start(assignment.word))
        edits = []
        alone = len(re.findall(rf"(?<!\d){port}(?!\d)", facts.text)) == 1  # else both must keep the same number
        if alone and command.shell.depth == 0 and not command.heredocs and facts.text[assignment.word.start : assignment.word.end] == port:
            edits = [Edit(assignment.word.start, assignment.word.end, _FORMULA)]
        fix = f"write: {assignment.name}={_FORMULA}"
        yield Hit("fixed-port", assignment.start, f"{assignment.name} is always {port}", fix, edits=edits)
    for launch in facts.launches:
        for name, word, port in _launch_ports(launch):
            if _last_start(word) not in told:  # else its variable was told about
                told.add(_last_start(word))
                yield Hit("fixed-port", _last_start(word), f"--{name} always has the port {port}", f"write: MASTER_PORT={_FORMULA}")


def _launch_ports(launch: Launch) -> Iterator[tuple[str, Word, str]]:
    """Yield the options of a launcher that hold a number for a port."""
    if launch.has("standalone"):
        return
    for name in _PORT_OPTIONS:
        word = launch.options.get(name)
        port = _literal_port(word) if word is not None else None
        if word is not None and port is not None:
            yield name, word, port
    endpoint = launch.options.get("rdzv_endpoint")
    match = _ENDPOINT_PORT.search(endpoint.text) if endpoint is not None and not _LOCAL.match(endpoint.text) else None
    if endpoint is not None and match is not None and (not endpoint.parts or endpoint.parts[-1].kind == "text"):
        yield "rdzv_endpoint", endpoint, match[1]


def _last_start(word: Word) -> int:
    return word.parts[-1].start if word.parts else word.start


def _literal_port(word: Word) -> str | None:
    return word.text if word.is_literal and word.text.isdecimal() and 1 < len(word.text) < 6 else None


def random_in_task(facts: Facts) -> Iterator[Hit]:
    """A number drawn in each task, where all must have the same."""
    for assignment, command in assignments(facts):
        if assignment.name in (*_PORT_NAMES, "RDZV_ID", "MASTER_ADDR"):
            yield from _random(facts, command, assignment.word, assignment.name)
    for launch in facts.launches:
        for name in (*_PORT_OPTIONS, "rdzv_endpoint", "rdzv_id"):
            word = launch.options.get(name)
            if word is not None:
                yield from _random(facts, launch.command, word, f"--{name}")


def _random(facts: Facts, command: Command, word: Word, name: str) -> Iterator[Hit]:
    call = facts.call_around(command)
    for part in word.expansions():
        if facts.place_of(part, command) == "task" and _is_random(part):
            tasks = facts.call_tasks(command, call) if call is not None else None
            if tasks != 1:
                what = f"{name} is drawn at random in each task"
                yield Hit(
                    "random-in-task",
                    part.start,
                    what,
                    "compute it once, above srun, from $SLURM_JOB_ID",
                    level=None if tasks else "warning",
                )
                return


def _is_random(part: Part) -> bool:
    return (part.kind == "var" and part.text == "RANDOM") or any(command.name in ("shuf", "uuidgen") for command in part.commands)


def array_port(facts: Facts) -> Iterator[Hit]:
    """A port that all tasks of an array share."""
    words = [(assignment.word, command) for assignment, command in assignments(facts) if assignment.name in _PORT_NAMES]
    words += [
        (word, launch.command)
        for launch in facts.launches
        for name in (*_PORT_OPTIONS, "rdzv_endpoint")
        if (word := launch.options.get(name))
    ]
    for word, _ in words:
        names = {part.text: part for part in word.expansions() if part.kind == "var"}
        if "SLURM_ARRAY_JOB_ID" in names and not {"SLURM_ARRAY_TASK_ID", "SLURM_JOB_ID"} & set(names):
            yield Hit(
                "array-port",
                names["SLURM_ARRAY_JOB_ID"].start,
                "a port made of SLURM_ARRAY_JOB_ID is the same in all tasks of the array",
                f"write: {_FORMULA}",
            )


def port_zero(facts: Facts) -> Iterator[Hit]:
    """A free port, which each machine would choose for itself."""
    for launch in facts.launches:
        if launch.text("main_process_port") == "0" and (facts.number(launch.option("num_machines"), launch.command) or 0) > 1:
            start = launch.words["main_process_port"].start
            yield Hit("port-zero", start, "--main_process_port 0 for several machines", f"write: --main_process_port {_FORMULA}")


def local_address(facts: Facts) -> Iterator[Hit]:
    """An address by which each node means itself."""
    for launch in facts.launches:
        nodes = _step_nodes(facts, launch)
        if nodes is None or nodes < 2:
            continue
        for name in _ADDRESS_OPTIONS:
            word = launch.options.get(name)
            own = _own_name(facts, launch.command, word) if word is not None else None
            if own and (facts.number(launch.option("nnodes", "num_machines"), launch.command) or 2) > 1:
                yield Hit("rendezvous-local", launch.words[name].start, f"--{name} is {own} on each of {nodes} nodes", _FIRST)
    for assignment, command in assignments(facts):
        if assignment.name == "MASTER_ADDR" and facts.many_nodes and facts.sruns:
            own = _own_name(facts, command, assignment.word)
            if own and (facts.place(command) in ("batch", "task")):
                yield Hit("rendezvous-local", assignment.start, f"MASTER_ADDR is {own} on every node", _FIRST)


_FIRST = 'above srun: MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'


def _step_nodes(facts: Facts, launch: Launch) -> int | None:
    if launch.call is None or not facts.is_batch:
        return None
    command = launch.command
    while command not in facts._call_of and command.shell.via is not None:
        command = command.shell.via
    return facts.call_nodes(command, launch.call)


def _own_name(facts: Facts, command: Command, word: Word) -> str | None:
    """Return what in `word` stands for the node that evaluates it."""
    if word.is_literal and _LOCAL.match(word.text):
        return word.text
    first = word.parts[0] if word.parts else None
    if first is None or facts.place_of(first, command) != "task":
        return None
    if first.kind == "var" and first.text in ("HOSTNAME", "SLURMD_NODENAME") and not first.operand:
        return f"${first.text}"
    if first.kind == "command" and len(first.commands) == 1 and first.commands[0].name == "hostname":
        return "$(hostname)"
    return None


def cut_list(facts: Facts) -> Iterator[Hit]:
    """The node list cut by text tools: it is compressed (node[01-04])."""
    if facts.nodes == 1:
        return
    level = None if facts.many_nodes else "warning"
    fix = 'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1'
    for command in facts.commands:
        for part in command.expansions():
            if part.kind != "var" or part.text not in _LISTS:
                continue
            how = ""
            if part.operand[:1] in ("%", "#", "/") or re.match(r":\d", part.operand):
                how = f"${{{part.text}{part.operand}}}"
            elif command.name in ("echo", "printf") and isinstance(command.pipe_next, Command) and command.pipe_next.name in _CUTTERS:
                how = command.pipe_next.name
            elif command.name in _CUTTERS and any(redirect.operator == "<<<" for redirect in command.redirects):
                how = command.name
            if how:
                yield Hit("nodelist-cut", part.start, f"the node list is cut with {how}", fix, level=level)  # type: ignore[arg-type]


def in_container(facts: Facts) -> Iterator[Hit]:
    """Slurm's programs inside a container."""
    for command in facts.commands:
        if command.name in _SLURM_PROGRAMS and command.shell.via is not None and _container(facts, command.shell.via):
            yield Hit(
                "scontrol-in-container", command.start, f"{command.name} runs inside a container", "compute it above srun, and export it"
            )


def _container(facts: Facts, via: Command) -> bool:
    call = facts._call_of.get(via)
    if call is not None and {"container-image", "container-name", "environment"} & set(call.given):
        return True
    words = [word.text.rpartition("/")[2] for word in via.words]
    return any(name in CONTAINERS for name in words) and any(word in ("exec", "run", "shell") for word in words)


def own_address(facts: Facts) -> Iterator[Hit]:
    """Hostname --ip-address."""
    flags = {"-i", "--ip-address", "-I", "--all-ip-addresses"}
    for command in facts.named("hostname", "srun"):
        words = [word.text for word in facts.argv(command).words]
        if "hostname" in words and flags & set(words[words.index("hostname") :]) and command.scope.inside("$("):
            yield Hit(
                "hostname-address",
                command.start,
                "the address comes from hostname",
                'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            )


RULES = (fixed_port, random_in_task, array_port, port_zero, local_address, cut_list, in_container, own_address)
