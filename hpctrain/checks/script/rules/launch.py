"""Rules about ranks, launchers, and the rendezvous.

Slurm's rank variables are 0 in the batch shell, so the place of their expansion determines the
value in each task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from hpctrain.checks.script.calls import (
    CONTAINERS,
    RANK_VARIABLES,
    LauncherCall,
)
from hpctrain.checks.script.facts import LintFacts
from hpctrain.checks.script.model import OptionCall, ShellWord, SimpleCommand, WordPiece
from hpctrain.checks.script.rule import Hits, RuleHit, rule
from hpctrain.checks.script.rules.common import (
    TALKERS,
    TESTS,
    harmless,
    in_another_branch,
    sources,
    works,
)
from hpctrain.finding import Level

_RANK_OPTIONS = ("node_rank", "machine_rank")
_RUN = "torch/distributed/run.py"
_BOTH = "torch/distributed/run.py; accelerate/commands/launch.py"
_LITERAL_RANK = re.compile(rf"\$\{{?(?:{'|'.join(sorted(RANK_VARIABLES))})\}}?\Z")
_MPI = frozenset({"mpirun", "mpiexec", "ibrun", "mpirun_rsh", "aprun", "jsrun"})
_REMOTE = ("ssh", "pdsh", "mpirun", "mpiexec", "ibrun", "clush", "parallel-ssh")
_C10D = (
    'add: --nnodes "$SLURM_NNODES" --rdzv_backend c10d --rdzv_id "$SLURM_JOB_ID" --rdzv_endpoint'
    ' "$MASTER_ADDR:$MASTER_PORT"'
)
_PORT_NAMES = ("MASTER_PORT", "MAIN_PROCESS_PORT", "RDZV_PORT", "MAIN_PORT", "DIST_PORT")
#: Below 32768, where Linux's ephemeral ports begin.
_FORMULA = "$((20000 + SLURM_JOB_ID % 9000))"
_PORT = re.compile(r"(?:^|:)(\d{2,5})\Z", re.ASCII)
_HOST = re.compile(r"(?:\d+\.){3}\d+\b|[a-z][\w.-]*\d")
_LOCAL = re.compile(r"(?:localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|::1)(?::\S*)?\Z")
_CUTTERS = frozenset({"cut", "sed", "awk", "gawk", "tr", "grep", "head", "rev"})
_FIRST = 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'


# ---- ranks ---------------------------------------------------------------------------------------


@rule(
    "rank-expanded-early",
    "error",
    "SLURM_PROCID, SLURM_NODEID and SLURM_LOCALID are set in the batch shell too, "
    "all 0, so every node acts as the first.",
    "sbatch(1) OUTPUT ENVIRONMENT VARIABLES; accelerate#2816",
)
def rank_expanded_early(facts: LintFacts) -> Hits:
    if not facts.is_batch or not any(name in facts.text for name in RANK_VARIABLES):
        return
    for command in facts.commands:
        call = command.step
        if call is None or command.name in TALKERS | TESTS:
            continue
        for part in _ranks_of(facts, command, call):
            several = _several(facts, call, part.text)
            if several is not False and not _is_ignored(facts, command, part):
                yield _early(part, sure=bool(several))
    yield from _exported_early(facts)


def _ranks_of(facts: LintFacts, command: SimpleCommand, call: OptionCall) -> Iterator[WordPiece]:
    """Yield the rank variables that the batch shell expands in the tasks' command line."""
    for word in _consumed(facts, command, call):
        for part in facts.flatten(word.parts, command):
            for item in part.walk():
                place = facts.place_of(item, command)
                if item.kind == "var" and item.text in RANK_VARIABLES and place == "batch":
                    yield replace(item, place=place)


def _consumed(facts: LintFacts, command: SimpleCommand, call: OptionCall) -> Iterator[ShellWord]:
    if command.shell.place == "task":
        yield from command.argv
        for assignment in command.assignments if not command.words else ():
            yield from assignment.array if assignment.array is not None else [assignment.word]
    elif command.call is not None and call.starts not in TALKERS | TESTS:
        export = call.options.get("export")
        yield from [export] if export is not None else []
        for word in call.rest:
            # The text after `bash -c` is read as a separate shell.
            if command not in facts.starts_shell or not set(" \n;") & set(word.text):
                yield word


def _early(part: WordPiece, *, sure: bool) -> RuleHit:
    return RuleHit(
        part.start,
        f"${part.text} is expanded in the batch shell, where it is 0, and not in each task",
        f"write \\${part.text} inside double quotes or a heredoc, or"
        f" srun … bash -c '… ${part.text} …' with single quotes",
        "error" if sure else "warning",
    )


def _is_ignored(facts: LintFacts, command: SimpleCommand, part: WordPiece) -> bool:
    """Whether it is the node rank of a launcher with the c10d rendezvous, which gives out ranks."""
    launch = next((one for one in facts.launches if one.command is command), None)
    if launch is None or (launch.text("rdzv_backend") or "static") == "static":
        return False
    words = filter(None, map(launch.options.get, _RANK_OPTIONS))
    return any(item.start == part.start for word in words for item in word.expansions())


def _several(facts: LintFacts, call: OptionCall, name: str) -> bool | None:
    """Return whether the variable differs between the tasks of the step; None if unknown."""
    count = {"SLURM_NODEID": facts.step_nodes, "SLURM_LOCALID": facts.step_tasks_per_node}
    known = count.get(name, facts.step_tasks)(call)
    if known is not None:
        return known > 1
    if name != "SLURM_LOCALID":
        return True if facts.many_nodes and not call.has("nodes") else None
    counted = {"nodes", "ntasks"} & set(facts.options) or call.has("nodes", "ntasks")
    return None if counted else False


def _exported_early(facts: LintFacts) -> Hits:
    """RANK and LOCAL_RANK set in the batch shell for all tasks at once."""
    assigned = list(facts.assigned("RANK", "LOCAL_RANK"))
    own = {one.name for one, command in assigned if command.place != "batch"}
    launched = {launch.call for launch in facts.launches}  # these set the ranks
    for assignment, command in assigned:
        name = assignment.name
        if name in own or not _reaches_tasks(facts, name, command):
            continue
        ranks = {part.text for part in assignment.word.expansions()} & RANK_VARIABLES
        for rank in ranks:
            if any(
                _several(facts, call, rank)
                for call in facts.steps
                if call.command.start >= command.start and call.command.place == "batch"
                if call not in launched
            ):
                yield RuleHit(
                    assignment.start,
                    f"{name} is set from ${rank} in the batch shell, and so is 0 in every task",
                    f"set it in each task: srun bash -c 'export {name}=${rank}; …'",
                )


def _reaches_tasks(facts: LintFacts, name: str, command: SimpleCommand) -> bool:
    if command.words and command.words[0].text != "export":
        return command.step is not None
    return bool(command.words) or any(export.has(name) for export in facts.named("export"))


@rule(
    "rank-not-expanded",
    "error",
    "srun starts programs without a shell, so the launcher gets the name of the variable and not"
    " its value.",
    "srun(1)",
)
def rank_not_expanded(facts: LintFacts) -> Hits:
    for launch in facts.launches:
        for name in _RANK_OPTIONS if launch.call is not None else ():
            text = launch.text(name)
            word = launch.options.get(name)
            if word is not None and text is not None and _LITERAL_RANK.match(text):
                yield RuleHit(
                    word.start,
                    f"--{name} gets the characters {text}, which no shell expands",
                    f"start it in a shell: srun … bash -c '{launch.kind} … {text} …'",
                )


# ---- launchers -----------------------------------------------------------------------------------


def _steps(facts: LintFacts) -> Iterator[tuple[LauncherCall, int | None, int | None]]:
    for launch in facts.launches:
        if launch.call is not None and facts.is_batch and not launch.remote:
            yield launch, facts.step_nodes(launch.call), facts.step_tasks(launch.call)


@rule(
    "launcher-without-srun",
    "error",
    "the batch script runs on the first node only; the launcher never starts on the others.",
    "sbatch(1)",
)
def launcher_without_srun(facts: LintFacts) -> Hits:
    others = [call for call in facts.steps if not harmless(call)]
    # A step in the background, or on selected nodes, may be the same launch on the other nodes.
    apart = [
        call
        for call in others
        if call.command.is_background or call.has("nodelist", "exclude", "relative")
    ]
    started = apart or any(one.call for one in facts.launches) or any(facts.named(*_REMOTE))
    for launch in facts.launches if facts.many_nodes and not started else ():
        goes = launch.remote or launch.command.is_background or _goes_itself(facts, launch)
        rank = launch.option(*_RANK_OPTIONS)
        ranked = {part.text for part in (rank.expansions() if rank else ())} & RANK_VARIABLES
        machines = launch.option("nnodes", "num_machines", "num_nodes")
        several = ranked or (facts.number(machines, launch.command) or 0) > 1
        # With another step, running only on the first node may be intended.
        if not goes and launch.command.place == "batch" and (several or not others):
            yield RuleHit(
                launch.at.start,
                f"{launch.kind} runs without srun, and so on the first of {facts.value('nodes')}"
                " nodes alone",
                f"srun --ntasks-per-node=1 bash -c '{launch.at.text} …'",
            )


def _goes_itself(facts: LintFacts, launch: LauncherCall) -> bool:
    """Whether the launcher starts itself on the other nodes, as deepspeed does with a hostfile."""
    told = launch.has("deepspeed_hostfile", "hostfile", "H", "mpirun_hostfile")
    unknown = not launch.complete or launch.has("launcher") or "/job/hostfile" in facts.text
    return told or (launch.kind == "deepspeed" and unknown)


@rule(
    "launchers-per-node",
    "error",
    "each launcher starts a process for every GPU of the node, so several "
    "processes use the same GPU and port.",
    "torchrun and accelerate documentation",
)
def launchers_per_node(facts: LintFacts) -> Hits:
    for launch, nodes, tasks in _steps(facts):
        each = tasks // nodes if nodes and tasks and tasks % nodes == 0 else 0
        word = launch.option("nproc_per_node", "num_processes", "num_gpus")
        several = (facts.number(word, launch.command) or 0) > 1
        if each > 1 and (several or launch.text("nproc_per_node") in ("gpu", "auto", "cuda")):
            yield RuleHit(
                launch.at.start,
                f"{each} tasks on each node, and each starts {launch.kind} with"
                f" {word.text if word else 'several'} processes",
                "write: #SBATCH --ntasks-per-node=1, and remove --ntasks",
            )


def _on_several_nodes(facts: LintFacts) -> Iterator[tuple[LauncherCall, int, int]]:
    """Yield the launchers on several nodes whose options are all known, with the step's number of
    nodes and the number that they expect (0: unset).
    """
    names = {assignment.name for assignment, _ in facts.assigned()} - {"PET_LOCAL_ADDR"}
    if any(name.startswith(("PET_", "ACCELERATE_")) for name in names):
        return
    for launch, nodes, _ in _steps(facts):
        told = launch.complete and not launch.has("config_file", "cpu", "tpu")
        if launch.kind != "deepspeed" and nodes and nodes > 1 and told:
            expected = facts.number_of(launch, "nnodes", "num_machines")
            yield launch, nodes, expected or 0


@rule(
    "rendezvous-missing",
    "error",
    "the launchers do not find each other, and wait until they time out.",
    _BOTH,
)
def rendezvous_missing(facts: LintFacts) -> Hits:
    for launch, nodes, expected in _on_several_nodes(facts):
        is_torchrun, backend = launch.kind == "torchrun", launch.text("rdzv_backend") or "static"
        count, address, rank = _MEETING[launch.kind]
        # torchrun's other backends read only --rdzv_endpoint, and default to localhost.
        found = launch.has("rdzv_endpoint", *([address] if backend == "static" else []))
        found = found if is_torchrun else launch.has(address)
        ranked = launch.has(rank, "rdzv_endpoint", "deepspeed_hostfile") or backend != "static"
        if launch.has("standalone") or not launch.has(count):
            yield RuleHit(
                launch.at.start,
                f"{launch.kind} on each of {nodes} nodes, and without their number",
                _C10D if is_torchrun else f"add: --{count} {nodes}",
                "warning",
                "each launcher starts a training of its own, all as rank 0 and into the same files.",
            )
        elif expected > 1 and not found:
            what = f"{launch.kind} for several nodes without the address of the first"
            yield RuleHit(
                launch.at.start, what, _C10D if is_torchrun else f'add: --{address} "$MASTER_ADDR"'
            )
        elif expected > 1 and not ranked:
            what = (
                f"{launch.kind} with --{address} and without --{rank}: every node acts as the first"
            )
            fix = f'add: --{rank} "$SLURM_NODEID", expanded in each task'
            yield RuleHit(launch.at.start, what, fix)


#: Options for the number of nodes, the address of the first, and the node's own number.
_MEETING = {
    "torchrun": ("nnodes", "master_addr", "node_rank"),
    "accelerate": ("num_machines", "main_process_ip", "machine_rank"),
}


@rule(
    "nnodes-mismatch",
    "error",
    "the rendezvous waits for the missing nodes until it times out, or rejects the surplus.",
    _RUN,
)
def nnodes_mismatch(facts: LintFacts) -> Hits:
    for launch, nodes, tasks in _steps(facts):
        machines = facts.number_of(launch, "nnodes", "num_machines")
        if machines and tasks and nodes and tasks == nodes and machines != tasks:
            word = launch.words["nnodes" if launch.has("nnodes") else "num_machines"]
            yield RuleHit(
                word.start,
                f"{machines} nodes are expected, and srun starts {launch.kind} on {tasks}",
                "write: $SLURM_NNODES instead of the number",
            )


_GPU_REQUESTS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
_COUNTS = {
    "torchrun": "nproc_per_node",
    "deepspeed": "num_gpus",
    "accelerate": "num_processes",
}
#: Options of programs that count the GPUs of a node.
_GPU_COUNT = re.compile(
    r"(?:--)?(?:num[-_]gpus?|n[-_]gpus?|ngpus?|gpus[-_]per[-_]node|tensor[-_]parallel[-_]size"
    r"|(?:\w+\.)*trainer\.(?:devices|gpus|n_gpus_per_node))\Z"
)


@rule(
    "more-processes-than-gpus",
    "error",
    "the surplus processes end with: invalid device ordinal; with fewer, GPUs stay idle.",
    _BOTH,
)
def more_processes_than_gpus(facts: LintFacts) -> Hits:
    have = facts.gpus_per_node if "gloo" not in facts.text else None
    if not have:
        return
    gpus = f"{have} GPU{'s' if have != 1 else ''}"
    # Other processes, or a server, may use the rest.
    shared = re.search(r"CUDA_VISIBLE|vllm|sglang", facts.text) or len(facts.launches) != 1
    shared = shared or any(one.is_background for one in facts.commands)
    for launch in facts.launches:
        name = _COUNTS[launch.kind]
        count = facts.number_of(launch, name)
        machines: int | None = 1
        if name == "num_processes" and launch.has("num_machines"):
            machines = facts.number_of(launch, "num_machines")
        own = launch.call is not None and launch.call.has(*_GPU_REQUESTS)
        if not count or not machines or own or launch.has("cpu") or count == machines * have:
            continue
        # accelerate divides the total by the number of machines.
        fails = count > machines * have or count % machines or (machines > 1 and count == have)
        if fails or machines > 1 or (launch.kind == "torchrun" and not shared):
            nodes = f"{machines} nodes x " if machines > 1 else ""
            yield RuleHit(
                launch.words[name].start,
                f"--{name} is {count}, and the job has {nodes}{gpus}",
                f"write: --{name} {machines * have}",
                "error" if fails else "note" if machines == 1 else "warning",
            )
    launched = {launch.command for launch in facts.launches}
    for command in facts.commands if facts.nodes in (None, 1) else ():
        plain = works(command) and command not in launched
        words = command.argv if plain else []
        for word, following in zip_longest(words, words[1:]):
            option, equals, value = word.text.partition("=")
            counted = int(value) if value.isdecimal() else None
            count = counted if equals else facts.number(following, command)
            call = command.call
            elsewhere = call is not None and call.has(*_GPU_REQUESTS)
            if _GPU_COUNT.match(option) and have < (count or 0) < 99 and not elsewhere:
                yield RuleHit(
                    word.start,
                    f"{option} is {count}, and the job has {gpus}",
                    f"add: #SBATCH --gpus-per-node={count}",
                )


@rule(
    "mpirun-in-srun",
    "error",
    "srun starts it once for each task, and each then starts all tasks again.",
    "srun(1)",
)
def mpirun_in_srun(facts: LintFacts) -> Hits:
    for call in facts.steps:
        tasks = facts.step_tasks(call)
        words = call.rest
        inside = words if call.starts in CONTAINERS else words[:1]
        word = next((one for one in inside if one.program in _MPI), None)
        if tasks != 1 and word is not None:
            what, fix = f"srun starts {word.text} in every task", f"write srun or {word.text}"
            yield RuleHit(word.start, what, f"{fix}, not both", "error" if tasks else "warning")


# ---- where the ranks connect ---------------------------------------------------------------------


@rule(
    "fixed-port",
    "note",
    "another job, or a leftover process, may hold the port on a shared node: "
    "address already in use.",
    _RUN,
)
def fixed_port(facts: LintFacts) -> Hits:
    # --standalone chooses a port itself.
    meeting = [launch for launch in facts.launches if not launch.has("standalone")]
    if not facts.is_batch or (facts.launches and not meeting) or _holds_nodes(facts):
        return
    # These read options only; others may pass on MASTER_PORT of the environment.
    ignored = bool(meeting) and all(one.kind in ("torchrun", "accelerate") for one in meeting)
    words = [
        (one.name, one.word)
        for one, _ in facts.assigned(*_PORT_NAMES)
        if not ignored or re.search(rf"\$\{{?{one.name}\b", facts.text)
    ]
    for launch in meeting:
        given = (
            (name, launch.option(name))
            for name in ("master_port", "main_process_port", "rdzv_endpoint")
        )
        words += [(f"--{name}", word) for name, word in given if word is not None]
    told: set[str] = set()
    for name, word in words:
        port = _PORT.search(word.text)
        if port is not None and word.parts[-1].kind == "text" and port[1] not in told:
            told.add(port[1])
            yield RuleHit(
                word.parts[-1].start,
                f"{name} always has the port {port[1]}",
                f"write: MASTER_PORT={_FORMULA}",
            )


def _holds_nodes(facts: LintFacts) -> bool:
    whole = facts.options.get("exclusive")
    per_task = (facts.count("gpus-per-task") or 0) * (facts.count("ntasks-per-node") or 1)
    gpus = max(facts.gpus_per_node or 0, per_task)
    # Most nodes have 4 or 8 GPUs; jobs with as many on each usually take whole nodes.
    every = gpus >= 4 and gpus % 2 == 0
    # Sites that give GPUs without a request for them give whole nodes.
    given = facts.least_nodes > 0 and not facts.asks_gpus
    return every or given or facts.value("mem") == "0" or bool(whole and whole.value is None)


@rule(
    "rendezvous-address",
    "error",
    "every node waits on itself for the others, and the launchers time out.",
    _RUN,
)
def rendezvous_address(facts: LintFacts) -> Hits:
    fixed = facts.is_batch and "nodelist" not in facts.options
    for start, name, word, command, nodes in _addresses(facts):
        own = _own_name(facts, command, word)
        if own and nodes != 1:
            what = f"{name} is {own} on each of {nodes or 'the'} nodes"
            yield RuleHit(start, what, f"above srun: {_FIRST}", None if nodes else "warning")
        elif fixed and not own and word.is_literal and _HOST.match(word.text):
            why = "a job on other nodes connects to this one, and waits until it times out."
            what = f"{name} is always {word.text}"
            yield RuleHit(start, what, f"above srun: {_FIRST}", "warning", why)


def _addresses(
    facts: LintFacts,
) -> Iterator[tuple[int, str, ShellWord, SimpleCommand, int | None]]:
    """Yield the addresses of the rendezvous: offset, name, value, command, and the number of nodes
    that use it (None: unknown, maybe several).
    """
    for assignment, command in facts.assigned("MASTER_ADDR"):
        several = facts.least_nodes if facts.many_nodes and facts.steps else 1
        if command.place != "unknown":
            yield assignment.start, "MASTER_ADDR", assignment.word, command, several
    for launch in facts.launches:
        nodes: int | None = 1
        expected = facts.number_of(launch, "nnodes", "num_machines")
        if launch.call and facts.is_batch and expected != 1:
            nodes = facts.step_nodes(launch.call)
            if nodes is None and not (launch.has("nnodes") and "nodes" in facts.options):
                nodes = 1
        for name in ("rdzv_endpoint", "master_addr", "main_process_ip"):
            word = launch.options.get(name)
            if word is not None:
                yield launch.words[name].start, f"--{name}", word, launch.command, nodes


def _own_name(facts: LintFacts, command: SimpleCommand, word: ShellWord) -> str | None:
    """Return the part of `word` that names the node on which it is evaluated."""
    if word.is_literal:
        return word.text if _LOCAL.match(word.text) else None
    first = word.parts[0]
    if facts.place_of(first, command) != "task":
        return None
    names = ("HOSTNAME", "SLURMD_NODENAME")
    if first.kind == "var" and first.text in names and not first.operand:
        return f"${first.text}"
    return "$(hostname)" if re.match(r"hostname\b[^|;&]*\Z", first.text) else None


@rule(
    "nodelist-cut",
    "error",
    "Slurm compresses the list, and node[01-04] is not a node name.",
    "scontrol(1) show hostnames",
)
def nodelist_cut(facts: LintFacts) -> Hits:
    for part, command in facts.variables("SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        how = "" if _is_printed(facts, command) else _cutter(command, part)
        if how and facts.nodes != 1:
            fix = 'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1'
            level: Level = "error" if facts.many_nodes else "warning"
            yield RuleHit(part.start, f"the node list is cut with {how}", fix, level)
    for assignment, command in facts.assigned() if facts.many_nodes else ():
        words = assignment.array or []
        parts = facts.flatten(words[0].parts, command) if len(words) == 1 else []
        if len(parts) == 1 and words[0].parts[0].quoted and "show hostname" in parts[0].raw:
            what = f"in quotes, all node names are one element of {assignment.name}"
            good = "without the quotes"
            yield RuleHit(words[0].start, what, good, None, "the nodes cannot be told apart.")


def _is_printed(facts: LintFacts, command: SimpleCommand) -> bool:
    """Whether what a pipe writes is only printed into the job's log."""
    line = facts.text[command.start :].partition("\n")[0]
    shown = command.name in TALKERS and ">" not in line
    return shown and command.scope.inside("$(", "function") is None


def _cutter(command: SimpleCommand, part: WordPiece) -> str:
    if part.operand[:1] in ("%", "#", "/") or re.match(r":\d", part.operand):
        return f"${{{part.text}{part.operand}}}"
    following = command.pipe_next
    if command.name in ("echo", "printf") and isinstance(following, SimpleCommand):
        return following.name if following.name in _CUTTERS else ""
    fed = any(redirect.operator == "<<<" for redirect in command.redirects)
    return command.name if fed and command.name in _CUTTERS else ""


@rule(
    "scontrol-in-container",
    "warning",
    "images rarely contain Slurm's commands, their configuration and munge.",
    "site documentation",
)
def scontrol_in_container(facts: LintFacts) -> Hits:
    given = {
        *facts.options,
        *(flaw.text for flaw in facts.block.flaws),
    }  # options of a site's plugin
    inside = next(
        (
            one
            for one in ("container-image", "container-name", "container", "environment")
            if one in given
        ),
        None,
    )
    steps = (one for one in facts.named("srun", "scontrol") if one.place == "batch")
    for command in sorted(steps, key=lambda one: one.start)[:1] if inside else ():
        yield RuleHit(
            command.start,
            f"--{inside} runs the whole script in a container, and so {command.name} too",
            f"give it to srun: srun --{inside}=… COMMAND",
        )
    for command in facts.named("scontrol", "squeue", "sinfo", "sacct"):
        words = {word.program for word in (command.shell.via.words if command.shell.via else ())}
        if words & CONTAINERS and words & {"exec", "run", "shell"}:
            yield RuleHit(
                command.start,
                f"{command.name} runs inside a container",
                "compute it above srun, and export it",
            )


# ---- steps and their GPUs ------------------------------------------------------------------------


@rule(
    "tasks-without-srun",
    "warning",
    "the batch shell starts one process, whatever the number of tasks; it waits "
    "for the others, or trains with world size 1.",
    "sbatch(1)",
)
def tasks_without_srun(facts: LintFacts) -> Hits:
    several = facts.count("ntasks") or facts.count("ntasks-per-node") or 1
    started = facts.steps or facts.launches or any(facts.named(*_REMOTE)) or sources(facts)
    names = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_PROCID", "SLURM_LOCALID")
    read = any(command.name not in TALKERS for _, command in facts.variables(*names))
    lines = re.sub(r"(?m)^[ \t]*#.*", "", facts.text)
    if facts.is_batch and facts.many_nodes and not started and not _KNOWS_NODES.search(lines):
        yield from _first_node_only(facts)
        return
    if not facts.is_batch or several == 1 or started:
        return
    per_node = facts.count("ntasks-per-node") or several
    # A task for each GPU, and a rendezvous.
    ranks = per_node == facts.gpus_per_node and any(
        facts.assigned("MASTER_PORT", "MASTER_ADDR", "WORLD_SIZE")
    )
    working = (one for one in facts.commands if works(one) and one.place == "batch")
    command = next(working, None) if read or ranks else None
    if command is not None:
        why = "the script reads SLURM_NTASKS" if read else f"{several} tasks are requested"
        yield RuleHit(
            command.start,
            f"{command.name} starts once, without srun, and {why}",
            f"srun {facts.shown(command)[:60]}",
        )
    elif not any(one.is_background or one.name in _PARALLEL for one in facts.commands):
        option = facts.options.get("ntasks") or facts.options["ntasks-per-node"]
        what = f"{several} tasks are requested, and one process starts, without srun"
        why = "a task is a process; cores of one process are requested with --cpus-per-task."
        if any(map(works, facts.commands)):
            yield RuleHit(option.start, what, f"write: --cpus-per-task={several}", "note", why)


_PARALLEL = frozenset(
    {"parallel", "xargs", "make", "snakemake", "nextflow", "horovodrun", "bash", "sh"}
)
#: Programs that find the other nodes of the job themselves.
_KNOWS_NODES = re.compile(
    r"\b(?:ray|dask|submitit|parsl|julia|hostfile|charmrun)\b|NODELIST|mpi"
    r"|\blauncher=[\"']?slurm|run_command=[\"']?srun",
    re.I,
)


def _first_node_only(facts: LintFacts) -> Hits:
    for command in facts.commands:
        if not works(command) or command.place != "batch" or command.scope.inside("$("):
            continue
        # A script of the user in the background may have started something on the other nodes.
        if any(
            one.background and one.words[0].text.startswith(("./", "bash", "sh"))
            for one in facts.commands
            if one.words and one.start < command.start
        ):
            return
        if not re.match(
            r"-(?:c|V|-version)\b|-m (?:pip|venv)",
            " ".join(word.text for word in command.words[1:3]),
        ):
            yield RuleHit(
                command.start,
                f"{command.name} runs on the first of {facts.value('nodes')} nodes alone",
                "start it with srun, or write: #SBATCH --nodes=1",
            )
            return


#: Options of srun that limit a step to a part of the allocation.
_SHARES = frozenset(
    [
        "overlap",
        "exact",
        "exclusive",
        "ntasks",
        "nodes",
        "cpus-per-task",
        "nodelist",
        "gres",
        "gpus",
        "relative",
        "jobid",
        "het-group",
        "mem",
        "oversubscribe",
    ]
)


@rule(
    "step-waits",
    "warning",
    "a step in the background holds all cores and GPUs of its nodes, so the next srun waits for its"
    " end: step creation temporarily disabled.",
    "srun(1) --overlap, --exact",
    since="20.11",
    once=True,
)
def step_waits(facts: LintFacts) -> Hits:
    held: SimpleCommand | None = None
    steps = [*(call.command for call in facts.steps), *facts.named("wait", "kill")]
    for command in sorted(steps, key=lambda one: one.start):
        call = command.call
        if command.place != "batch" or command.shell.depth:
            continue
        if call is None or (held is not None and in_another_branch(facts, held, command)):
            held = None
        elif held is not None and not call.has("overlap", "jobid", "het-group", "relative"):
            line = facts.text.count("\n", 0, held.start) + 1
            yield RuleHit(
                command.start,
                f"srun waits for the step of line {line}, which runs in the background",
                "write --overlap after both srun",
            )
        elif command.is_background and not call.has(*_SHARES):
            held = command


@rule(
    "gpus-hidden",
    "warning",
    "Slurm sets it to what the job got; a list of fewer leaves GPUs idle, and one of more names"
    " devices that do not exist.",
    "sbatch(1) --gpus-per-node; CUDA documentation",
)
def gpus_hidden(facts: LintFacts) -> Hits:
    have = facts.gpus_per_node
    assigned = list(facts.assigned("CUDA_VISIBLE_DEVICES"))
    # Then each part of the script has its own GPUs.
    changes = len(assigned) > 1 or "unset CUDA_VISIBLE_DEVICES" in facts.text
    for assignment, command in assigned:
        parts = facts.flatten(assignment.word.parts, command)
        value = "".join(part.raw or part.text for part in parts)
        place = command.place
        if not re.fullmatch(r"\d+(?:,\d+)*", value) or not have or place == "unknown":
            continue
        named = {int(number) for number in value.split(",")}
        once = command.declares or not command.words  # else each process may get its own
        whole = once and not changes and not command.scope.inside("loop", "if", "case")
        what = (
            f"CUDA_VISIBLE_DEVICES names {value}, and the job has {have} GPUs on each node, from 0"
        )
        missing = max(named) >= have and "exclusive" not in facts.options
        if missing or (whole and len(named) != have and place == "batch"):
            yield RuleHit(assignment.start, what, "remove the assignment")


@rule(
    "container-without-gpus",
    "warning",
    "without --nv the container sees no NVIDIA GPU, unless the site's settings add it.",
    "Apptainer user guide, GPU support",
    once=True,
)
def container_without_gpus(facts: LintFacts) -> Hits:
    # Another step with --nv: this one may be meant for the CPU. ROCm works without an option.
    if not facts.asks_gpus or re.search(r"--nv|rocm|_NV\b", facts.text, re.I):
        return
    for command in facts.commands:
        line = " ".join(word.program for word in command.argv)
        runs = re.search(
            r"\b(singularity|apptainer) exec .* (?:python3?|torchrun|accelerate|deepspeed) ", line
        )
        if runs and command.complete and " -m pip " not in line:
            yield RuleHit(
                command.start, f"{runs[1]} exec has no --nv", f"write: {runs[1]} exec --nv"
            )
