"""What the directives ask for: GPUs, memory, tasks, time; contradictions that can be seen without knowing the cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hpctrain.jobs.lint.directives import Option
from hpctrain.jobs.lint.facts import Facts
from hpctrain.jobs.lint.rules.common import Edit, Hit, assignments

_TIME = re.compile(r"(?:\d+(?:-\d*(?::\d+){0,2})?|\d+:\d+(?::\d+)?|infinite|unlimited|-1)\Z", re.IGNORECASE | re.ASCII)
_MEMORY = re.compile(r"\d+\s*(?:[KMGTP](?:i?B)?)?\Z", re.IGNORECASE | re.ASCII)
_SIGNAL = re.compile(r"(?:[RB]{1,2}:)?(?:SIG)?([A-Z0-9+]+)(?:@(\d+))?\Z", re.IGNORECASE | re.ASCII)
_SIGNAL_NAMES = frozenset(
    ["HUP", "INT", "QUIT", "ABRT", "KILL", "ALRM", "TERM", "USR1", "USR2", "URG", "CONT", "STOP", "TSTP", "TTIN", "TTOU"]
)
_INDEX = re.compile(r"\d+", re.ASCII)
_MEMORY_OPTIONS = ("mem", "mem-per-cpu", "mem-per-gpu")
_DEFAULT_MAX_INDEX = 1000


def gpus(facts: Facts) -> Iterator[Hit]:
    """How GPUs are asked for."""
    gres, per_node = facts.options.get("gres"), facts.options.get("gpus-per-node")
    if gres and per_node and facts.gres_gpu and not facts.block.hetjobs:
        edits = _drop_gres(facts, gres) if facts._gres_gpus() == facts.gpus_per_node and ":" not in (facts.gres_gpu[1] or "") else []
        typed = facts.gres_gpu[1] is not None and ":" not in (per_node.value or "")
        yield Hit(
            "two-gpu-dialects", gres.start, f"both --gres={gres.value} and --gpus-per-node={per_node.value}",
            "keep one of the two, best --gpus-per-node (it also sets SLURM_GPUS_PER_NODE)", edits=[] if typed else edits,
        )  # fmt: skip
    if gres and re.search(r"\bgpu=\d", gres.value or ""):
        good = (gres.value or "").replace("gpu=", "gpu:")
        yield Hit("gpu-value", gres.start, f"--gres={gres.value} has = where Slurm wants a colon", f"write: --gres={good}")
    for name in ("gpus", "gpus-per-node", "gpus-per-task"):
        value = facts.value(name) or ""
        if value.startswith("gpu:"):
            yield Hit(
                "gpu-value", facts.options[name].start, f"--{name}={value} asks for GPUs of the type 'gpu'", f"write: --{name}={value[4:]}"
            )
    yield from _totals(facts)


def _drop_gres(facts: Facts, gres: Option) -> list[Edit]:
    """Return the edit that takes the line away, where it holds nothing but the GPUs."""
    start = facts.text.rfind("\n", 0, gres.start) + 1
    end = facts.text.find("\n", start) + 1
    alone = re.fullmatch(r"#SBATCH\s+--gres[= ]gpu:\d+\s*(?:#.*)?\n", facts.text[start:end])
    return [Edit(start, end, "")] if alone else []


def _totals(facts: Facts) -> Iterator[Hit]:
    total = facts.options.get("gpus")
    others = {"gpus-per-node", "gpus-per-task", "gpus-per-socket", "ntasks-per-gpu"} & set(facts.options)
    if total and facts.many_nodes and not others and not facts.gres_gpu:
        nodes = facts.value("nodes")
        yield Hit(
            "gpus-is-total",
            total.start,
            f"--gpus={total.value} is the total of {nodes} nodes, spread as Slurm likes",
            "write: --gpus-per-node=N",
        )
    per_task = facts.options.get("gpus-per-task")
    tasks = {"ntasks", "ntasks-per-node", "ntasks-per-socket", "ntasks-per-gpu", "gpus"} & set(facts.options)
    exact = (facts.value("nodes") or "").isdecimal()  # tried: one number of nodes is a number of tasks too
    if per_task and not tasks and not exact and not facts.block.hetjobs:
        yield Hit(
            "gpus-per-task-without-tasks", per_task.start, "--gpus-per-task without a number of tasks", "add: #SBATCH --ntasks-per-node=N"
        )


def hidden_gpus(facts: Facts) -> Iterator[Hit]:
    """--gpus-per-task hides all other GPUs from a task."""
    option = facts.options.get("gpus-per-task")
    sharing = "none" in (facts.value("gpu-bind") or "") or "allow-task-sharing" in (facts.value("gres-flags") or "")
    sharing = sharing or "allow-task-sharing" in facts.text or re.search(r"--gpu-bind[= ]none", facts.text) is not None
    if option is None or sharing:
        return
    count = facts.integer("gpus-per-task")
    for launch in facts.launches:
        processes = facts.number(launch.option("nproc_per_node"), launch.command)
        if count and processes and processes > count:
            what = f"{processes} processes in a task that sees {count} of the GPUs"
            yield Hit("gpus-per-task-hides", launch.at.start, what, "ask with --gpus-per-node=N and --ntasks-per-node=1")
    per_node, tasks = facts.integer("ntasks-per-node"), facts.integer("ntasks")
    several = (per_node or 0) > 1 or (tasks is not None and facts.nodes is not None and tasks > facts.nodes)
    for assignment, command in assignments(facts):
        counts = assignment.name == "LOCAL_RANK" and any(part.text == "SLURM_LOCALID" for part in assignment.word.expansions())
        if counts and several and facts.place(command) == "task":
            yield Hit(
                "gpus-per-task-hides", assignment.start, "LOCAL_RANK counts GPUs that --gpus-per-task hides",
                "ask with --gpus-per-node=N, or set LOCAL_RANK=0", level="warning",
            )  # fmt: skip


def whole_nodes(facts: Facts) -> Iterator[Hit]:
    """--exclusive gives cores; GPUs and memory have to be asked for."""
    option = facts.options.get("exclusive")
    if option is None or option.value or facts.block.hetjobs:
        return
    # Some sites have no GPU directive at all; hpctrain writes none only where the profile says so.
    ours = "\n# made by hpctrain " in facts.text[: facts.block.ends]
    if not facts.gpu_options and not ours and any(launch.call and not _asks_gpus(launch.call.given) for launch in facts.launches):
        yield Hit(
            "exclusive-without-gpus",
            option.start,
            "--exclusive without a GPU directive, and srun starts a GPU launcher",
            "add: #SBATCH --gpus-per-node=N",
        )
    if not any(name in facts.options for name in _MEMORY_OPTIONS):
        yield Hit("exclusive-without-mem", option.start, "--exclusive without --mem", "add: #SBATCH --mem=0")


def _asks_gpus(given: Mapping[str, object]) -> bool:
    return any(name in given for name in ("gres", "gpus", "gpus-per-node", "gpus-per-task", "tres-per-task"))


def exclusions(facts: Facts) -> Iterator[Hit]:
    """Options that sbatch refuses together."""
    if facts.block.hetjobs:
        return
    memory = [facts.options[name] for name in _MEMORY_OPTIONS if name in facts.options]
    if len(memory) > 1:
        names = " and ".join(f"--{option.name}" for option in memory)
        yield Hit("mem-twice", max(option.start for option in memory), f"{names} exclude each other", "keep one of them")
    if "cpus-per-gpu" in facts.options and "cpus-per-task" in facts.options:
        start = max(facts.options["cpus-per-gpu"].start, facts.options["cpus-per-task"].start)
        yield Hit("cpus-per-gpu-and-task", start, "--cpus-per-gpu and --cpus-per-task exclude each other", "keep one of them")
    tasks, per_node, nodes = facts.integer("ntasks"), facts.integer("ntasks-per-node"), facts.nodes
    if tasks and per_node and nodes and tasks != nodes * per_node:
        yield Hit(
            "ntasks-and-per-node", facts.options["ntasks"].start,
            f"--ntasks={tasks}, but {nodes} nodes x {per_node} tasks are {nodes * per_node}",
            "take --ntasks away", level="error" if tasks > nodes * per_node else None,
        )  # fmt: skip


def values(facts: Facts) -> Iterator[Hit]:
    """Values that sbatch cannot read."""
    for option in facts.block.options:
        value = option.value or ""
        if not value or "$" in value or "`" in value or value.startswith("="):
            continue
        if option.name in ("time", "time-min") and not _TIME.match(value):
            yield Hit("invalid-time", option.start, f"{option.written} cannot be {value!r}", "write: --time=HH:MM:SS, or D-HH:MM:SS")
        elif option.name in _MEMORY_OPTIONS and not _MEMORY.match(value):
            yield Hit(
                "invalid-mem",
                option.start,
                f"{option.written} cannot be {value!r}",
                f"write a whole number with K, M, G or T: --{option.name}=64G",
            )
        elif option.name == "signal" and not _signal_ok(value):
            yield Hit("invalid-signal", option.start, f"{option.written} cannot be {value!r}", "write: --signal=B:USR1@120")
        elif option.name == "array":
            yield from _array(option, value)


def _signal_ok(value: str) -> bool:
    match = _SIGNAL.match(value)
    if match is None or int(match[2] or 0) > 65535:
        return False
    return match[1].upper() in _SIGNAL_NAMES or (match[1].isdecimal() and int(match[1]) < 65)


def _array(option: Option, value: str) -> Iterator[Hit]:
    indexes = [int(number) for number in _INDEX.findall(re.sub(r"[%:]\d+", "", value)) if len(number) < 12]
    if indexes and max(indexes) > _DEFAULT_MAX_INDEX:
        yield Hit("array-size", option.start, f"the highest index is {max(indexes)}", "scontrol show config | grep MaxArraySize")


def missing(facts: Facts) -> Iterator[Hit]:
    """What is not asked for."""
    if facts.block.options and "time" not in facts.options:
        yield Hit("missing-time", facts.block.options[0].start, "no --time", "add: #SBATCH --time=HH:MM:SS")
    user = facts.options.get("mail-user")
    if user is not None and "mail-type" not in facts.options:
        yield Hit("mail-user-without-type", user.start, "--mail-user without --mail-type", "add: #SBATCH --mail-type=END,FAIL")


def components(facts: Facts) -> Iterator[Hit]:
    """Heterogeneous jobs."""
    for offset in facts.block.hetjobs:
        at = facts.text.find("packjob", offset, offset + 30)
        if at >= 0:
            edits = [Edit(at, at + len("packjob"), "hetjob")]
            yield Hit("packjob", offset, "packjob is the old name of hetjob", "write: #SBATCH hetjob", edits=edits)
    if facts.block.hetjobs:
        calls = [(command, call) for command, call in facts.sruns if facts.place(command) == "batch"]
        if calls and not any({"het-group", "pack-group"} & set(call.given) for _, call in calls):
            yield Hit(
                "hetjob-first-component",
                calls[0][1].at.start,
                "srun without --het-group starts the first component alone",
                "srun --het-group=0-1 …",
            )


RULES = (gpus, hidden_gpus, whole_nodes, exclusions, values, missing, components)
