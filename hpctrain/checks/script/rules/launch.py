"""Rules about ranks, launchers, the rendezvous, steps, and the variables that Slurm sets.

Slurm's rank variables are 0 in the batch shell, so the place of their expansion determines the
value in each task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest

from hpctrain.checks.script.calls import CONTAINERS, RANK_VARIABLES, LauncherCall
from hpctrain.checks.script.facts import LintFacts
from hpctrain.checks.script.model import OptionCall, ShellWord, SimpleCommand, WordPiece
from hpctrain.checks.script.rule import (
    HARMLESS,
    REST,
    TALKERS,
    TESTS,
    Hits,
    RuleHit,
    in_another_branch,
    is_ours,
    option_on,
    pattern,
    rule,
    sources,
    works,
)
from hpctrain.util.text import count as count_of

_RANK_OPTIONS = ("node_rank", "machine_rank")
_MACHINES = ("nnodes", "num_machines")
_LITERAL_RANK = re.compile(rf"\$\{{?(?:{'|'.join(sorted(RANK_VARIABLES))})\}}?\Z")
_REMOTE = ("ssh", "pdsh", "mpirun", "mpiexec", "ibrun", "clush", "parallel-ssh")
_C10D = (
    'add: --nnodes "$SLURM_NNODES" --rdzv_backend c10d --rdzv_id "$SLURM_JOB_ID" --rdzv_endpoint'
    ' "$MASTER_ADDR:$MASTER_PORT"'
)
_HOST = re.compile(r"(?:\d+\.){3}\d+\b|[a-z][\w.-]*\d")
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
    # The c10d rendezvous gives out ranks, and ignores these options.
    ignored = {
        part.start
        for launch in facts.launches
        if launch.text("rdzv_backend") not in (None, "static")
        for word in filter(None, map(launch.options.get, _RANK_OPTIONS))
        for part in word.expansions()
    }
    for command in facts.commands if facts.is_batch else ():
        step = command.step
        if step is None or command.name in TALKERS | TESTS:
            continue
        for part in _early_ranks(facts, command, step):
            several = _several(facts, step, part.text)
            if several is not False and part.start not in ignored:
                yield RuleHit(
                    part.start,
                    f"${part.text} is expanded in the batch shell, where it is 0, and not in each"
                    " task",
                    f"write \\${part.text} inside double quotes or a heredoc, or"
                    f" srun … bash -c '… ${part.text} …' with single quotes",
                    "error" if several else "warning",
                )
    yield from _exported_early(facts)


def _early_ranks(facts: LintFacts, command: SimpleCommand, step: OptionCall) -> Iterator[WordPiece]:
    """Yield the rank variables that the batch shell expands in the tasks' command line."""
    words = [*command.argv, *command.all_words()]
    if command.call is not None:
        printed = step.starts in TALKERS | TESTS
        export = step.option("export")
        # The text after `bash -c` is read as a separate shell.
        inner = " \n;" if command in facts.started_by else ""
        words = [word for word in step.rest if not printed and not set(inner) & set(word.text)]
        words += [export] if export is not None and not printed else []
    for word in words:
        for part in command.shell.variables.flatten(word.parts):
            for item in part.walk():
                is_rank = item.kind == "var" and item.text in RANK_VARIABLES
                if is_rank and (item.place or command.place) == "batch":
                    yield item


def _several(facts: LintFacts, step: OptionCall, name: str) -> bool | None:
    """Return whether the variable differs between the tasks of the step; None if unknown."""
    count = {"SLURM_NODEID": facts.step_nodes, "SLURM_LOCALID": facts.step_tasks_per_node}
    known = count.get(name, facts.step_tasks)(step)
    counted = {"nodes", "ntasks"} & set(facts.options) or step.has("nodes", "ntasks")
    if known is not None or (name == "SLURM_LOCALID" and not counted):
        return (known or 1) > 1
    local = name == "SLURM_LOCALID" or step.has("nodes")
    return True if facts.least_nodes > 1 and not local else None


def _exported_early(facts: LintFacts) -> Hits:
    """RANK and the like set in the batch shell for all tasks at once."""
    assigned = list(facts.assigned("RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES"))
    own = {one.name for one, command in assigned if command.place != "batch"}
    exports = {word.text for one in facts.named("export") for word in one.words[1:]}
    launched = {launch.command.step for launch in facts.launches}  # these set the ranks
    for assignment, command in assigned:
        name = assignment.name
        exported = command.declares or name in exports
        later = [
            step
            for step in facts.steps
            if step not in launched and step.command.place == "batch"
            if step.command.start >= command.start and (exported or step is command.call)
        ]
        for part in assignment.word.expansions() if name not in own else ():
            rank = part.text
            if rank in RANK_VARIABLES and any(_several(facts, step, rank) for step in later):
                yield RuleHit(
                    assignment.start,
                    f"{name} is set from ${rank} in the batch shell, and so is 0 in every task",
                    f"set it in each task: srun bash -c 'export {name}=${rank}; …'",
                )


@rule(
    "rank-not-expanded",
    "error",
    "srun starts programs without a shell, so the launcher gets the name of the variable and not"
    " its value.",
    "srun(1)",
)
def rank_not_expanded(facts: LintFacts) -> Hits:
    for launch in facts.launches:
        word = launch.option(*_RANK_OPTIONS) or launch.at
        if launch.command.step and word.is_literal and _LITERAL_RANK.match(word.text):
            yield RuleHit(
                word.start,
                f"{launch.kind} gets the characters {word.text}, which no shell expands",
                f"start it in a shell: srun … bash -c '{launch.kind} … {word.text} …'",
            )


# ---- launchers -----------------------------------------------------------------------------------


def _started(facts: LintFacts) -> Iterator[tuple[LauncherCall, OptionCall]]:
    """Yield the launchers of a job that srun starts, with their steps."""
    for launch in facts.launches if facts.is_batch else ():
        if launch.command.step is not None and not launch.remote:
            yield launch, launch.command.step


@rule(
    "launcher-without-srun",
    "error",
    "the batch script runs on the first node only; the launcher never starts on the others.",
    "sbatch(1)",
)
def launcher_without_srun(facts: LintFacts) -> Hits:
    others = [step for step in facts.steps if step.starts not in HARMLESS]
    # A step in the background, or on selected nodes, may be the same launch on the other nodes.
    apart = any(
        step.command.is_background or step.has("nodelist", "exclude", "relative") for step in others
    )
    started = apart or any(one.command.step for one in facts.launches) or any(facts.named(*_REMOTE))
    for launch in facts.launches if facts.least_nodes > 1 and not started else ():
        rank = launch.option(*_RANK_OPTIONS)
        ranked = {part.text for part in (rank.expansions() if rank else ())} & RANK_VARIABLES
        several = ranked or (launch.number(*_MACHINES, "num_nodes") or 0) > 1
        # deepspeed starts itself on the other nodes, with a hostfile.
        goes = launch.has("deepspeed_hostfile", "hostfile", "H", "mpirun_hostfile")
        unknown = not launch.complete or launch.has("launcher") or "/job/hostfile" in facts.text
        goes = goes or (launch.kind == "deepspeed" and unknown) or launch.remote
        here = launch.command.place == "batch" and not launch.command.is_background
        # With another step, running only on the first node may be intended.
        if here and not goes and (several or not others):
            yield RuleHit(
                launch.at.start,
                f"{launch.kind} runs without srun, and so on the first of {facts.value('nodes')}"
                " nodes alone",
                f"srun --ntasks-per-node=1 bash -c '{launch.at.text} …'",
            )


@rule(
    "launchers-per-node",
    "error",
    "each launcher starts a process for every GPU of the node, so several "
    "processes use the same GPU and port.",
    "torchrun and accelerate documentation",
)
def launchers_per_node(facts: LintFacts) -> Hits:
    return [
        RuleHit(
            launch.at.start,
            f"{each} tasks on each node, and each starts {launch.kind} with several processes",
            "write: #SBATCH --ntasks-per-node=1, and remove --ntasks",
        )
        for launch, step in _started(facts)
        if (each := facts.step_tasks_per_node(step) or 0) > 1
        if (launch.number("nproc_per_node", "num_processes", "num_gpus") or 0) > 1
        or launch.text("nproc_per_node") in ("gpu", "auto", "cuda")
    ]


@rule(
    "rendezvous-missing",
    "error",
    "the launchers do not find each other, and wait until they time out.",
    "torch/distributed/run.py; accelerate/commands/launch.py",
)
def rendezvous_missing(facts: LintFacts) -> Hits:
    names = {assignment.name for assignment, _ in facts.assigned()} - {"PET_LOCAL_ADDR"}
    if any(name.startswith(("PET_", "ACCELERATE_")) for name in names):
        return
    for launch, step in _started(facts):
        nodes = facts.step_nodes(step)
        known = launch.complete and not launch.has("config_file", "cpu", "tpu")
        if launch.kind == "deepspeed" or not nodes or nodes == 1 or not known:
            continue
        count, address, rank = _MEETING[launch.kind]
        static = launch.text("rdzv_backend") in (None, "static")
        # torchrun's other backends read only --rdzv_endpoint, and default to localhost.
        addressed = launch.has(address) and (static or launch.kind == "accelerate")
        found = launch.has("rdzv_endpoint") or addressed
        ranked = launch.has(rank, "rdzv_endpoint", "deepspeed_hostfile") or not static
        missing = address if not found else None if ranked else rank
        if launch.has("standalone") or not launch.has(count):
            missing = count
        elif (launch.number(count) or 0) < 2:
            continue
        if missing is not None:
            yield RuleHit(
                launch.at.start,
                f"{launch.kind} on each of {nodes} nodes, without --{missing}",
                _C10D if launch.kind == "torchrun" else f"add: --{missing}={_VALUES[missing]}",
                "warning" if missing == count else "error",
                "each launcher starts a training of its own, all as rank 0 and into the same files."
                if missing == count
                else None,
            )


#: Options for the number of nodes, the address of the first, and the node's own number.
_MEETING = {
    "torchrun": ("nnodes", "master_addr", "node_rank"),
    "accelerate": ("num_machines", "main_process_ip", "machine_rank"),
}
_VALUES = {
    "num_machines": "$SLURM_NNODES",
    "main_process_ip": "$MASTER_ADDR",
    "machine_rank": "$SLURM_NODEID, expanded in each task",
}


@rule(
    "nnodes-mismatch",
    "error",
    "the rendezvous waits for the missing nodes until it times out, or rejects the surplus.",
    "torch/distributed/run.py",
)
def nnodes_mismatch(facts: LintFacts) -> Hits:
    return [
        RuleHit(
            next(launch.words[name].start for name in _MACHINES if launch.has(name)),
            f"{machines} nodes are expected, and srun starts {launch.kind} on {tasks}",
            "write: $SLURM_NNODES instead of the number",
        )
        for launch, step in _started(facts)
        if (machines := launch.number(*_MACHINES)) and (tasks := facts.step_tasks(step))
        if tasks == facts.step_nodes(step) and machines != tasks
    ]


_GPU_REQUESTS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
_COUNTS = {
    "torchrun": "nproc_per_node",
    "deepspeed": "num_gpus",
    "accelerate": "num_processes",
}
#: Options of programs that count the GPUs of a node.
_GPU_COUNT = re.compile(
    r"(?:\A|,)((?:--)?(?:num[-_]gpus?|n[-_]gpus?|ngpus?|gpus[-_]per[-_]node|tensor[-_]parallel[-_]size"
    r"|(?:\w+\.)*trainer\.(?:devices|gpus|n_gpus_per_node)))(?:=(\d+))?(?=,|\Z)"
)


@rule(
    "more-processes-than-gpus",
    "error",
    "the surplus processes end with: invalid device ordinal; with fewer, GPUs stay idle.",
    "torch/distributed/run.py; accelerate/commands/launch.py",
)
def more_processes_than_gpus(facts: LintFacts) -> Hits:
    have = facts.gpus_per_node
    if not have or "gloo" in facts.text:
        return
    # Other processes, or a server, may use the rest.
    shared = re.search(r"CUDA_VISIBLE|vllm|sglang", facts.text) or len(facts.launches) != 1
    shared = shared or any(one.is_background for one in facts.commands)
    for launch in facts.launches:
        name, machines = _COUNTS[launch.kind], 1
        if name == "num_processes" and launch.has("num_machines"):
            machines = launch.number("num_machines") or 0
        count = launch.number(name)
        own = launch.command.step is not None and launch.command.step.has(*_GPU_REQUESTS)
        if not count or not machines or own or launch.has("cpu") or count == machines * have:
            continue
        # accelerate divides the total by the number of machines.
        fails = count > machines * have or count % machines or (machines > 1 and count == have)
        if fails or machines > 1 or (launch.kind == "torchrun" and not shared):
            yield RuleHit(
                launch.words[name].start,
                f"--{name} is {count}, and the job has {count_of(machines * have, 'GPU')}",
                f"write: --{name} {machines * have}",
                "error" if fails else "note" if machines == 1 else "warning",
            )
    launched = {launch.command for launch in facts.launches}
    for command in facts.commands if facts.nodes in (None, 1) else ():
        own = command.call is not None and command.call.has(*_GPU_REQUESTS)
        plain = works(command) and command not in launched and not own
        for word, following in zip_longest(command.argv, command.argv[1:]):
            option = _GPU_COUNT.search(word.text)
            value = option[2] if option else None
            count = int(value) if value else command.shell.variables.number(following)
            if plain and option is not None and have < (count or 0) < 99:
                yield RuleHit(
                    word.start,
                    f"{option[1]} is {count}, and the job has {count_of(have, 'GPU')}",
                    f"add: #SBATCH --gpus-per-node={count}",
                )


rule(
    "mpirun-in-srun",
    "error",
    "srun starts it once for each task, and each then starts all tasks again.",
    "srun(1)",
)(
    pattern(
        rf"srun\b(?!{REST}[ \t](?:-n[ \t]*|--ntasks[= ])1\b)(?:[ \t]+(?:-[^\s\\]*(?:[ \t]+\d+)?"
        r"|\\\n))*[ \t]+"
        r"(?:(?:apptainer|singularity|podman|podman-hpc|docker|shifter|sarus|enroot"
        rf"|ch-run)\b{REST}[ \t])?"
        r"(?P<at>(?:\S*/)?(mpirun|mpiexec|ibrun|mpirun_rsh|aprun|jsrun))[ \t]",
        r"srun starts \2 in every task",
        r"write srun or \2, not both",
        # One task.
        unless=r"\A(?![\s\S]*(?:--n?tasks(?:-per-node)?|--nodes|[ \t]-[nN])[= ]*[\"']?(?:[2-9]"
        r"|\d\d|\$))",
    )
)

# ---- where the ranks connect ---------------------------------------------------------------------


@rule(
    "fixed-port",
    "note",
    "another job, or a leftover process, may hold the port on a shared node: "
    "address already in use.",
    "torch/distributed/run.py",
)
def fixed_port(facts: LintFacts) -> Hits:
    # --standalone chooses a port itself.
    meeting = [launch for launch in facts.launches if not launch.has("standalone")]
    alone = (
        ("exclusive" in facts.options and facts.value("exclusive") is None)
        or facts.value("mem") == "0"
        # Few nodes have more than 8 GPUs; those of jobs on several nodes often have 4.
        or (facts.gpus_per_node or facts.count("gpus-per-task") or 0)
        >= (4 if facts.least_nodes > 1 else 8)
        # Sites that give GPUs without a request for them give whole nodes.
        or ((facts.least_nodes > 1 or "hsn0" in facts.text) and not facts.asks_gpus)
    )
    if not facts.is_batch or (facts.launches and not meeting) or alone:
        return ()
    # These read options only; others may pass on MASTER_PORT of the environment.
    ignored = bool(meeting) and all(one.kind in ("torchrun", "accelerate") for one in meeting)
    words = [
        (one.name, one.word)
        for one, _ in facts.assigned(
            *(
                "MASTER_PORT",
                "MAIN_PROCESS_PORT",
                "RDZV_PORT",
                "MAIN_PORT",
                "DIST_PORT",
                "PORT",
                "port",
            )
        )
        if not ignored or re.search(rf"(?m)^(?![ \t]*echo\b)[^\n]*\$\{{?{one.name}\b", facts.text)
    ]
    words += [
        (f"--{name}", word)
        for launch in meeting
        for name in ("master_port", "main_process_port", "rdzv_endpoint")
        if (word := launch.option(name)) is not None
    ]
    found = {
        port[1]: RuleHit(
            word.parts[-1].start,
            f"{name} {'defaults to' if ':-' in word.text else 'always has'} the port {port[1]}",
            # Below 32768, where Linux's ephemeral ports begin.
            f"write: {name}={word.text.replace(port[1], '$((20000 + SLURM_JOB_ID % 9000))')}",
        )
        for name, word in reversed(words)
        # The default of an argument is not fixed.
        if (port := re.search(r"(?:^|:|(?<!\$\{\d):-)(\d{4,5})\}?\Z", word.text, re.ASCII))
        if not re.match(r"\$\{\d", word.text)
        if word.parts[-1].kind != "arith"
    }
    opened = [
        RuleHit(
            one.at.start,
            "without --master_port the launcher opens the port 29500",
            "add: --master_port=$((20000 + SLURM_JOB_ID % 9000))",
        )
        for one in meeting
        if one.kind == "torchrun" and one.complete and facts.nodes in (None, 1)
        if not one.has("master_port", "rdzv_endpoint") and (one.number("nnodes") or 1) == 1
        if "PET_" not in facts.text and not one.remote
    ]
    return [*found.values(), *opened[:1]]


@rule(
    "rendezvous-address",
    "error",
    "every node waits on itself for the others, and the launchers time out.",
    "torch/distributed/run.py",
)
def rendezvous_address(facts: LintFacts) -> Hits:
    fixed = facts.is_batch and "nodelist" not in facts.options
    for start, word, command, nodes in _addresses(facts):
        own = _own_name(command, word)
        always = fixed and word.is_literal and _HOST.match(word.text)
        if (own and nodes != 1) or (always and not own):
            yield RuleHit(
                start,
                f"the address is {own or word.text} on each of {nodes or 'the'} nodes",
                f"above srun: {_FIRST}",
                "error" if own and nodes else "warning",
                None if own else "a job on other nodes connects to this one, and times out.",
            )


rule(
    "hostname-address",
    "note",
    "on a node with several networks, or IPv6, it prints several addresses, or 127.0.1.1, and the"
    " launchers do not connect.",
    "hostname(1) --ip-address",
    once=True,
)(
    pattern(
        r"(?:srun\b[^\n|)]*?[ \t])?hostname[ \t]+(-[iI]\b|--(?:all-)?ip-address(?:es)?\b)[ \t]*(?=[)`])",
        r"hostname \1 may print several addresses",
        f"write in its place: {_FIRST[14:-1]}",
        # Of several addresses, the script takes one; or there is one node.
        unless=r"\*[\"'] [\"']\*|\bread[ \t]+-r?a|addr\w*_array|\n#SBATCH[^\n]*\s(?:--nodes[= ]|-N[= ]?)1(?!\S)",
    )
)


rule(
    "ray-unchecked",
    "note",
    "a Ray node that does not join goes unnoticed, and the training waits for its GPUs until the time"
    " limit.",
    "Ray documentation, Slurm",
    once=True,
)(
    pattern(
        rf"srun\b{REST}\bray[ \t]+start\b{REST}--address\b",
        r"nothing tests whether all Ray nodes have joined",
        r"before the training: timeout 300 bash -c 'until [ \"$(ray status | grep -c node_)\" -ge"
        r" \"$SLURM_NNODES\" ]; do sleep 5; done' || exit 1",
        unless=r"(?m)\buntil\b|^[ \t]*while\b|ray (?:list|health-check)|ray[-_]symmetric|symmetric-run",
    )
)

rule(
    "tmp-on-first-node",
    "note",
    "the batch script runs on the first node only, and /tmp is a disk of each node.",
    "sbatch(1)",
    once=True,
)(
    pattern(
        r"mkdir[ \t]+(?:-p[ \t]+)?[\"']?(\$\{?(?:\w*TMP\w*|\w*CACHE_DIR|\w*DB_PATH)\}?"
        r"|/(?:tmp|dev/shm|mnt/bb)/[^\s\"']+)",
        r"mkdir makes \1 on the first node alone",
        r'write: srun --ntasks-per-node=1 mkdir -p "\1"',
        unless=r"\A(?!(?=[\s\S]*(?:\n#SBATCH[^\n]*\s(?:--nodes[= ]|-N[= ]?)(?:[2-9]|\d\d)"
        r"|\bsrun[ \t]+-(?:N[ \t]*|-nodes=)[\"']?\$))[\s\S]*[=\s\"']/(?:tmp|dev/shm|mnt/bb)\b)"
        r"|srun[^\n]*mkdir|standalone|\n#SBATCH[^\n]*\s(?:--nodes[= ]|-N[= ]?)1(?!\S)",
    )
)


def _addresses(facts: LintFacts) -> Iterator[tuple[int, ShellWord, SimpleCommand, int | None]]:
    """Yield the addresses of the rendezvous: offset, value, command, and the number of nodes that
    use it (None: unknown, maybe several).
    """
    for assignment, command in facts.assigned("MASTER_ADDR"):
        if command.place != "unknown":
            nodes = facts.least_nodes if facts.least_nodes > 1 and facts.steps else 1
            yield assignment.start, assignment.word, command, nodes
    for launch in facts.launches:
        several: int | None = 1
        if launch.command.step and facts.is_batch and launch.number(*_MACHINES) != 1:
            several = facts.step_nodes(launch.command.step)
            unsure = launch.has("nnodes") and "nodes" in facts.options
            several = 1 if several is None and not unsure else several
        for name in ("rdzv_endpoint", "master_addr", "main_process_ip"):
            word = launch.options.get(name)
            if word is not None:
                yield launch.words[name].start, word, launch.command, several


def _own_name(command: SimpleCommand, word: ShellWord) -> str | None:
    """Return the part of `word` that names the node on which it is evaluated."""
    shown = word.text if word.is_literal else word.parts[0].raw
    here = word.is_literal or (word.parts[0].place or command.place) == "task"
    return shown if here and _OWN.match(shown) else None


_OWN = re.compile(
    r"(?:localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|::1)(?::\S*)?\Z"
    r"|\$\{?(?:HOSTNAME|SLURMD_NODENAME)\}?\Z|(?:\$\(|`)\s*hostname\b[^|;&]*\Z"
)


@rule(
    "nodelist-cut",
    "error",
    "Slurm compresses the list, and node[01-04] is not a node name.",
    "scontrol(1) show hostnames",
)
def nodelist_cut(facts: LintFacts) -> Hits:
    for part, command in facts.variables("SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        line = facts.text[command.start :].partition("\n")[0]
        # Into the job's log alone.
        printed = command.name in TALKERS and ">" not in line
        printed = printed and command.scope.inside("$(", "function") is None
        if facts.nodes != 1 and not printed and _is_cut(command, part):
            yield RuleHit(
                part.start,
                "the node list is cut as text",
                'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1',
                "error" if facts.least_nodes > 1 else "warning",
            )
    for assignment, command in facts.assigned() if facts.least_nodes > 1 else ():
        words = assignment.array or []
        parts = command.shell.variables.flatten(words[0].parts) if len(words) == 1 else []
        if len(parts) == 1 and words[0].parts[0].quoted and "show hostname" in parts[0].raw:
            yield RuleHit(
                words[0].start,
                f"in quotes, all node names are one element of {assignment.name}",
                "without the quotes",
                reason="the nodes cannot be told apart.",
            )


def _is_cut(command: SimpleCommand, part: WordPiece) -> bool:
    following = command.pipe_next
    if command.name in ("echo", "printf") and isinstance(following, SimpleCommand):
        return following.name in _CUTTERS
    fed = any(operator == "<<<" for operator, _ in command.redirects)
    return bool(re.match(r"[%#/]|:\d", part.operand)) or (fed and command.name in _CUTTERS)


rule(
    "nodelist-as-address",
    "error",
    "with several nodes the list is compressed, such as node[01-04], which is no host name.",
    "scontrol(1) show hostnames",
)(
    pattern(
        rf"(?:(?:export[ \t]+)?MASTER_ADDR=|\S*(?:srun|torchrun|accelerate|python[\d.]*)\b{REST}"
        r"[-_](?:addr|ip|endpoint)[= ])[\"']?\$\{?(SLURM_(?:JOB_)?NODELIST)(?=\}?(?:[\"'\s:]|\Z))",
        r"the address is $\1, the list of all nodes",
        f"write: {_FIRST}",
        unless=r"\A(?![\s\S]*\n#SBATCH[^\n]*\s(?:--nodes[= ]|-N[= ]?)(?:[2-9]|\d\d))",
    )
)


@rule(
    "scontrol-in-container",
    "warning",
    "images rarely contain Slurm's commands, their configuration and munge.",
    "site documentation",
)
def scontrol_in_container(facts: LintFacts) -> Hits:
    # Options of a site's plugin are flaws.
    images = {"container-image", "container-name", "container", "environment"} & {
        *facts.options,
        *(flaw.text for flaw in facts.block.flaws),
    }
    steps = [one for one in facts.named("srun", "scontrol") if one.place == "batch"]
    inside = [
        one
        for one in facts.named("scontrol", "squeue", "sinfo", "sacct")
        if (words := {word.program for word in (one.shell.via.words if one.shell.via else ())})
        if words & CONTAINERS and words & {"exec", "run", "shell"}
    ]
    return [
        RuleHit(
            one.start,
            f"{one.name} runs inside a container",
            "give the container to srun, and compute above srun what needs scontrol",
        )
        for one in [*(sorted(steps, key=lambda one: one.start)[:1] if images else ()), *inside]
    ]


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
    gpus = facts.gpus_per_node or facts.count("gpus") or 0
    # A step of one task is one process, too.
    started = (
        any(
            several > 1 or facts.least_nodes > 1 or (facts.step_tasks(one) or 1) > 1
            for one in facts.steps
        )
        or any(not one.starts.startswith("python") for one in facts.steps)
        or facts.block.hetjobs
        or {"gpus-per-task", "ntasks-per-gpu"} & set(facts.options)
        or facts.launches
        or any(facts.named(*_REMOTE))
        or sources(facts)
    )
    working = [one for one in facts.commands if works(one)]
    here = [one for one in working if one.place == "batch"]
    lines = re.sub(r"(?m)^[ \t]*#.*", "", facts.text)
    if not facts.is_batch or started:
        return
    if facts.least_nodes > 1 and not _KNOWS_NODES.search(lines):
        # A script of the user in the background may have started something on the other nodes.
        scripts = [
            one.start
            for one in facts.commands
            if one.background and one.words
            if one.words[0].text.startswith(("./", "bash", "sh"))
        ]
        each = facts.count("ntasks-per-node") or several // facts.least_nodes
        cores = f" --cpus-per-task={each}" if each > 1 else ""
        yield from [
            RuleHit(
                one.start,
                f"{one.name} runs on the first of {facts.value('nodes')} nodes alone",
                f"write: #SBATCH --nodes=1 --ntasks=1{cores}; or, if the program is distributed, start"
                " it with srun",
            )
            for one in here
            if not one.scope.inside("$(")
            if not _PREPARES.match(" ".join(word.text for word in one.words[1:3]))
            if min(scripts, default=one.start) >= one.start
        ][:1]
        return
    names = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_PROCID", "SLURM_LOCALID")
    read = any(command.name not in TALKERS for _, command in facts.variables(*names))
    # A task for each GPU, and a rendezvous.
    read = read or (
        (facts.count("ntasks-per-node") or several) == facts.gpus_per_node
        and any(facts.assigned("MASTER_PORT", "MASTER_ADDR", "WORLD_SIZE"))
    )
    what = f"{several} tasks are requested, and one process starts, without srun"
    # A program that is told the number starts its own processes.
    told = re.search(rf"[-_](?:np?|n?procs?|n?tasks|ranks)[ =]{several}\b", lines)
    parallel = any(one.is_background or one.name in _PARALLEL for one in facts.commands)
    # On one node, the batch shell has the cores of all tasks: that is often meant.
    wide = (facts.count("cpus-per-task") or 1) > 1
    if several > 1 and read and here:
        yield RuleHit(here[0].start, what, f"srun {facts.shown(here[0])[:60]}")
    elif several > 1 and working and (facts.nodes != 1 or wide):
        option = facts.options.get("ntasks") or facts.options["ntasks-per-node"]
        why = "a task is a process; cores of one process are requested with --cpus-per-task."
        if not (parallel or told):
            yield RuleHit(
                option.start,
                what,
                f"write: --{option.name}=1" if wide else f"write: --cpus-per-task={several}",
                "note",
                why,
            )
    elif gpus > 1 and not (_USES_ALL.search(lines) or _TELLS_ALL.search(facts.text) or parallel):
        plain = [
            one
            for one in here
            if not _PREPARES.match(" ".join(word.text for word in one.words[1:3]))
            if one not in facts.started_by
        ]
        yield from [
            RuleHit(
                one.start,
                f"the job has {gpus} GPUs on a node, and {one.name} starts one process",
                "request one GPU; or, if the program uses torch.distributed: torchrun --standalone"
                f" --nproc_per_node={gpus} …",
                "note",
                "it uses one GPU, unless the program starts others or splits the model.",
            )
            for one in plain
            if len(plain) == 1
        ]


#: Arguments of a python that does not train.
_PREPARES = re.compile(r"-(?:c|V|-version)\b|-m (?:pip|venv)")
_PARALLEL = frozenset(
    {"parallel", "xargs", "make", "snakemake", "nextflow", "horovodrun", "bash", "sh"}
)
#: Signs of a program that starts other processes, or splits the model.
_USES_ALL = re.compile(
    r"\bRAY_|\b(?:ray|verl|vllm|sglang|lmdeploy|spawn|device_map|trl|composer|llamafactory\w*)\b|(?<!IZERS_)parallel"
    r"|lightning|llm|llama|multi|[-_]mp\b|[-_](?:gpus?|devices)\b|gpu_?ids?[= ][\"']?(?:\d+[ ,]\d|\$|all)"
    r"|\b(?:gpus?|devices|tp|world_size)=|CUDA_VISIBLE|NUM_GPUS",
    re.I,
)
#: What a comment or a directive says about that.
_TELLS_ALL = re.compile(
    r"(?i)data[ _-]?parallel|\bddp\b|multi-?gpu|\n#SBATCH[^\n]*\s(?:-C[ =]|--constraint[= ])[\"']?gpu\b"
)
#: Programs that find the other nodes of the job themselves.
_KNOWS_NODES = re.compile(
    r"\b(?:ray|dask|submitit|parsl|julia|hostfile|charmrun)\b|NODELIST|mpi"
    r"|\blauncher=[\"']?slurm|run_command=[\"']?srun",
    re.I,
)
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


rule(
    "lightning-tasks",
    "warning",
    "under Slurm, Lightning starts no processes: it takes each task for one, and waits for the others,"
    " or stops at the mismatch.",
    "lightning/fabric/plugins/environments/slurm.py",
    once=True,
)(
    pattern(
        rf"(?:srun\b{REST}(?<=\s))?(?:\S*/)?python[\d.]*[ \t](?:(?=\S*[\w/]*lightning\w*\.py\s)"
        rf"|(?={REST}[. -](?:devices|gpus)[= ](?:[2-9]|\d\d|-1))(?={REST}strategy[= ][\"']?(?:ddp|fsdp)))",
        r"a program with Lightning, several GPUs, and one task",
        r"request a task for each GPU with --ntasks-per-node, and start it with: srun python …",
        unless=r"\A(?![\s\S]*\n#SBATCH[^\n]*(?:--n?tasks(?:-per-node)?[= ]|\s-n[ ]?)1\s)"
        r"|\A(?![\s\S]*\n#SBATCH[^\n]*gpu[^\s,]*[=:](?:[2-9]|\d\d))"
        r"|\n#SBATCH[^\n]*(?:--n?tasks(?:-per-node)?[= ]|\s-n[ ]?)(?:[2-9]|\d\d)"
        r"|unset[ \t]+SLURM|SLURM_\w+=|srun[^\n]*\s(?:-n|--ntasks)|devices[= ]1\b",
    )
)


@rule(
    "step-waits",
    "warning",
    "a step in the background holds all cores and GPUs of its nodes, so the next srun waits for its"
    " end: step creation temporarily disabled.",
    "srun(1) --overlap, --exact",
    since=(20, 11),
    once=True,
)
def step_waits(facts: LintFacts) -> Hits:
    held: SimpleCommand | None = None
    steps = [*(step.command for step in facts.steps), *facts.named("wait", "kill")]
    here = [one for one in steps if one.place == "batch" and not one.shell.via]
    for command in sorted(here, key=lambda one: one.start):
        step = command.call
        if step is None or (held is not None and in_another_branch(facts, held, command)):
            held = None
        elif held is not None and not step.has("overlap", "jobid", "het-group", "relative"):
            yield RuleHit(
                command.start,
                f"srun waits for the step of line {facts.line(held.start)}, which runs in the"
                " background",
                "write --overlap after both srun",
            )
        elif command.is_background and not step.has(*_SHARES):
            held = command


@rule(
    "gpus-hidden",
    "warning",
    "Slurm sets it to what the job got; a list of fewer leaves GPUs idle, and one of more names"
    " devices that do not exist.",
    "sbatch(1) --gpus-per-node; CUDA documentation",
    once=True,
)
def gpus_hidden(facts: LintFacts) -> Hits:
    have = facts.gpus_per_node or 0
    assigned = list(facts.assigned("CUDA_VISIBLE_DEVICES"))
    # Then each part of the script has its own GPUs.
    changes = len(assigned) > 1 or "unset CUDA_VISIBLE_DEVICES" in facts.text
    for assignment, command in assigned if have else ():
        parts = command.shell.variables.flatten(assignment.word.parts)
        value = "".join(part.raw or part.text for part in parts)
        named = set(map(int, value.split(","))) if re.fullmatch(r"\d+(?:,\d+)*", value) else set()
        once = command.declares or not command.words  # else each process may get its own
        whole = once and not changes and not command.scope.inside("loop", "if", "case")
        missing = max(named, default=0) >= have and "exclusive" not in facts.options
        # Each step gets its own value, and hpctrain knows the site.
        equal = len(named) == have and not missing
        # So many GPUs are often those of a whole node.
        whole = whole and not (equal and (facts.steps or is_ours(facts) or have >= 4))
        if (
            named
            and command.place != "unknown"
            and (missing or (whole and command.place == "batch"))
        ):
            yield RuleHit(
                assignment.start,
                f"CUDA_VISIBLE_DEVICES is {value}, and the job has {count_of(have, 'GPU')} on each node, from 0",
                "remove the assignment",
                "note" if equal else None,
                "where the site does not limit devices, these are the GPUs of other jobs."
                if equal
                else None,
            )


rule(
    "container-without-gpus",
    "note",
    "without --nv the container sees no NVIDIA GPU, unless the site's settings add it.",
    "Apptainer user guide, GPU support",
    once=True,
)(
    pattern(
        # A variable of another name may contain --nv.
        rf"(?:srun\b{REST}(?<=\s))?(singularity|apptainer)\s+(exec|run)\s(?:\\\n|[^\\\n;|&$]"
        r"|\$\{?\w*(?i:img|image|sif|container|pwd|home|user|dir)\w*)*?"
        r"(?<=[\s/])(?:python3?|torchrun|accelerate|deepspeed)\s(?!-m pip )",
        r"\1 \2 has no --nv",
        r"write: \1 \2 --nv",
        # Another step with --nv: this one may be meant for the CPU. ROCm works without an option.
        unless=r"(?i)--nv|rocm|_NV\b|\A(?![\s\S]*#SBATCH[^\n]*gpu)",
    )
)

rule(
    "gpus-not-requested",
    "note",
    "a job gets the GPUs that it requests; without a request its programs see none, unless the site gives"
    " whole nodes.",
    "sbatch(1) --gpus; slurm.conf(5) GresTypes",
    once=True,
)(
    pattern(
        rf"(?:srun\b{REST}(?<=\s))?(?:\S*/)?(torchrun|accelerate launch|deepspeed|vllm serve"
        rf"|(?:singularity|apptainer) (?:exec|run)\b(?={REST}--nv\b{REST}"
        r"(?:[\s/]python|-c\s+[\"'][^\"'\n]*\bpython)))(?![\w-])",
        r"\1 runs, and nothing requests GPUs",
        r"add: #SBATCH --gpus-per-node=1",
        unless=r"(?i)#SBATCH[^\n]*(?:gpu|gres|tres|exclusive|[ahv]100|booster|cuda)|--gpus|--gres|--cpu\b|use_cpu"
        r"|gloo|\bxpu\b|\btpu\b",
    )
)

rule(
    "gpus-idle",
    "note",
    "the GPUs cost you and others time, and many sites end such jobs.",
    "site documentation",
)(
    pattern(
        r"((?:sleep[ \t]+(?:inf(?:inity)?|\d+d|[1-9]\d{4,})|tail[ \t]+-f[ \t]+(?:/dev/null|[^\s&|;]+(?=\s*\Z)))(?!\w))",
        r"\1 holds the GPUs of the job",
        r"remove it; to work interactively: srun --gpus=1 --time=01:00:00 --pty bash",
        # Those need a script that stays.
        unless=r"\bray[ \t]+start\b|\A(?![\s\S]*\n#SBATCH[^\n]*gpu)",
    )
)

rule(
    "world-size-by-hand",
    "note",
    "the number of processes is that of the tasks: with another number they wait for each other, or"
    " some get a rank that is too high.",
    "srun(1) OUTPUT ENVIRONMENT VARIABLES; torch.distributed",
)(
    pattern(
        r"(?:export[ \t]+)?WORLD_SIZE=[\"']?([2-9]|\d\d+|\$\{?SLURM_(?:NNODES|JOB_NUM_NODES)\}?)"
        r"(?=[\s\"';])",
        r"WORLD_SIZE is \1, whatever the number of tasks",
        r"srun bash -c 'export WORLD_SIZE=$SLURM_NTASKS; exec python train.py'",
        # Launchers set it themselves.
        unless=r"torchrun|torch\.distributed|accelerate|deepspeed|lightning"
        r"|\A(?![\s\S]*-per-node[ =]+[2-9])(?=[\s\S]*WORLD_SIZE=\S*NODES)"
        r"|\A(?![\s\S]*\bsrun\b)",
    )
)

rule(
    "port-without-address",
    "note",
    "torch needs both, unless the program sets the other one: MASTER_ADDR expected, but not set.",
    "torch/distributed/rendezvous.py",
    once=True,
)(
    pattern(
        r"(?:export[ \t]+)?MASTER_PORT=",
        r"MASTER_PORT is set, and MASTER_ADDR is not",
        f"add: export {_FIRST}",
        unless=r"(?im)^(?![ \t]*#)[^\n]*(?:master_?addr|torchrun|torch\.distributed|accelerate|"
        r"(?<!_)deepspeed\b|rdzv"
        r"|main_process|ray\b|--master|lightning)",
    )
)

rule(
    "transport-disabled",
    "note",
    "the GPUs then exchange their data through the memory of the node, or through a slower network.",
    "NCCL documentation, environment variables",
    once=True,
)(
    pattern(
        r"(?:export[ \t]+)?(?:\w+=\S*[ \t]+)*?(NCCL_(?:P2P|IB|SHM)_DISABLE=[\"']?1)\b",
        r"\1 turns off a fast connection",
        r"remove it, unless NCCL fails without it",
        # Those have no direct connection, or no other GPU; or it is for nodes without one.
        unless=r"(?i)\belse\b[^\n]*\n(?:[^\n]*\n){0,4}?[ \t]*(?:export[ \t]+)?NCCL_\w+_DISABLE="
        r"|rtx|[34]090|[34]080|\ba\d000|\bl40s?\b|2080|\A(?![\s\S]*\n#SBATCH[^\n]*"
        r"(?:gpu\S*[=:][ ]?(?:[2-9]|\d\d)\b|--nodes[= ][2-9]|\s-N[ =]?[2-9]))"
        r"|\A(?![\s\S]*(?:P2P|SHM)_DISABLE)(?![\s\S]*\n#SBATCH[^\n]*(?:--nodes[= ]|\s-N[ =]?)"
        r"(?:[2-9]|\d\d))",
    )
)

rule(
    "devices-unset",
    "note",
    "Slurm sets it to the GPUs of the job; where the site does not limit devices, programs then use"
    " those of other jobs.",
    "sbatch(1) --gpus-per-node",
    once=True,
)(
    pattern(
        r"unset[ \t]+(?:\w+[ \t]+)*CUDA_VISIBLE_DEVICES\b"
        r"|(?:export[ \t]+)?CUDA_VISIBLE_DEVICES=[\"']?(?:\$\(|`)[ \t]*(?:nvidia-smi|gpustat)\b",
        r"CUDA_VISIBLE_DEVICES is removed or overwritten",
        r"remove the line",
        unless=r"CUDA_VISIBLE_DEVICES=(?![\"']?(?:\$\(|`)[ \t]*(?:nvidia-smi|gpustat))",
    )
)

rule(
    "gpus-counted",
    "note",
    "nvidia-smi lists the GPUs of the node, also those of other jobs where the site does not limit"
    " devices.",
    "sbatch(1) OUTPUT ENVIRONMENT VARIABLES",
    once=True,
)(
    pattern(
        r"(?:export[ \t]+)?(\w+)=[\"']?(?:\$\(|`)nvidia-smi[^)`\n]*\|[ \t]*(?:wc[ \t]+-l"
        r"|grep[ \t]+-c)",
        r"\1 is the number of GPUs of the node",
        r"write: \1=$SLURM_GPUS_ON_NODE",
    )
)

rule(
    "ssh-without-command",
    "warning",
    "without a terminal it ends at once; the lines below run on the first node, and not on the other"
    " one.",
    "ssh(1)",
    once=True,
)(
    pattern(
        r"ssh[ \t]+(?:-[A-Za-z][ \t]+)*[\"']?(\$\{?\w+\}?)[\"']?[ \t]*(?=[\n;]|\Z)",
        r"ssh \1 has no command",
        r"write: ssh \1 'mkdir -p …; cp …'",
    )
)

rule(
    "step-per-node",
    "note",
    "when the launcher of one node ends, those of the others wait until they time out.",
    "srun(1) --kill-on-bad-exit",
    once=True,
)(
    pattern(
        rf"srun\b(?={REST}(?<=\s)(?:-w[= ]?|--nodelist[= ])[\"']?\$)"
        rf"{REST}\b(torchrun|accelerate[ \t]+launch|torch\.distributed\.(?:run|launch))\b{REST}&(?![&>])",
        r"each node has an srun of its own, which starts \1",
        f"one srun --ntasks-per-node=1 --kill-on-bad-exit=1 for all nodes: torchrun {_C10D[5:]}",
        unless=r"\bwait -n\b",
    )
)

rule(
    "loop-input-taken",
    "warning",
    "the program reads the rest of the list, and the loop ends after its first line.",
    "srun(1) --input; bash(1) REDIRECTION",
)(
    pattern(
        r"(?m)(?:IFS=\S*[ \t]+)?read\b(?![^\n]*[ \t]-u|[^\n]*<&)[^\n]*\n?[ \t]*do\b"
        r"(?:(?!^[ \t]*done\b)[\s\S])*?^[ \t]*"
        rf"(?P<at>srun\b(?!{REST}(?:<|--input|--pty))|ssh\b(?!{REST}(?:<|[ \t]-\w*n\w*[ \t])))"
        rf"(?!{REST}&[ \t]*$)",
        r"\1 in the loop reads the list of the loop",
        r"write: \1 … < /dev/null",
    )
)

# ---- Slurm's variables ---------------------------------------------------------------------------

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
    "SLURM_GPUS_ON_NODE": (*_GPU_REQUESTS, "gpus-per-socket", "tres-per-task", "exclusive"),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task",),
    "SLURM_MEM_PER_NODE": ("mem",),
    "SLURM_MEM_PER_CPU": ("mem-per-cpu",),
    "SLURM_ARRAY_TASK_ID": ("array",),
}
_GUARDED = re.compile(
    r"(?:-n|-v|-z(?!\s+[\"']?\$\{?SLURM_GPUS\b[^\n]*\n(?:[ \t]*echo[^\n]*\n)?[ \t]*exit\b))"
    r"\s+[\"']?\$?\{?(SLURM_\w+)|\$\{(SLURM_\w+)(?::?[-=?+])",
    re.ASCII,
)


@rule(
    "srun-cpus-per-task",
    "note",
    "srun of Slurm 22.05 and 23.02 does not inherit it, so the task gets one core; "
    "passing it is right on every version.",
    "srun(1) of 22.05; Slurm commit 9807bafa0f",
    since=(22, 5),
    until=(23, 11),
    once=True,
)
def srun_cpus_per_task(facts: LintFacts) -> Hits:
    asked = facts.value("cpus-per-task") not in (None, "", "1")
    for step in facts.steps if asked and not any(facts.assigned("SRUN_CPUS_PER_TASK")) else ():
        if not step.has("cpus-per-task", "overlap", "pty") and step.starts not in HARMLESS:
            yield RuleHit(
                step.at.start,
                "srun does not inherit --cpus-per-task in Slurm 22.05 and 23.02",
                'above it: export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"',
            )


rule(
    "slurm-variable-misspelt",
    "warning",
    "bash puts an empty text in its place, without an error.",
    "sbatch(1) OUTPUT ENVIRONMENT VARIABLES",
    once=True,
)(
    pattern(
        r"[^\n;|&]{0,400}?\$\{?(SLURM_(?:ARRAY_?(?:TASKID|TASK|ID|INDEX)|TASK_ID|NODE_LIST|JOB_NODE_LIST|JOB_NODES|NTASK"
        r"|N_TASKS|NUM_TASKS|NNODE|NUM_NODES|N_NODES|CPU_PER_TASK|CPUS_PER_TASKS|NCPUS|NUM_CPUS|GPU_PER_NODE"
        r"|GPUS_PER_NODES|NUM_GPUS|NGPUS|GPU_ON_NODE|PROC_ID|LOCAL_ID|NODE_ID|SUBMIT_DIRECTORY|JOBNAME"
        r"|JOBNODELIST|RANK|WORLD_SIZE|STDOUT|STDERR"
        r"|(?:JOB_?ID|JOB_NAME|CPUS_PER_TASK|NTASKS|NNODES|PROCID|LOCALID|NODEID|ARRAY_TASK_ID"
        r"|ARRAY_JOB_ID|SUBMIT_DIR"
        r"|GPUS_ON_NODE)[A-Za-z]+))(?!\w|:?[-+?=])",
        r"Slurm sets no $\1",
        r"see: man sbatch, OUTPUT ENVIRONMENT VARIABLES",
        unless=r"\bSLURM_\w+=",
    )
)

rule(
    "export-none",
    "warning",
    "sbatch then sets SLURM_EXPORT_ENV=NONE, and srun starts the tasks without PATH and the variables"
    " of the script.",
    "sbatch(1) --export; srun(1) SLURM_EXPORT_ENV",
)(
    pattern(
        r"--export[= ]NONE\b",
        r"--export=NONE also holds for srun",
        r"write above srun: unset SLURM_EXPORT_ENV",
        unless=r"SLURM_EXPORT_ENV|\bsrun\b[^\n]*--export|\A(?![\s\S]*\n[ \t]*(?:\w+=\S*[ \t]+)*srun\b)",
    )
)

rule(
    "array-from-zero",
    "error",
    "sed: invalid usage of line address 0. The first task ends there, or works on nothing.",
    "sed(1)",
)(
    pattern(
        r"sed[ \t]+-n[ \t]+[\"']?\$\{?SLURM_ARRAY_TASK_ID\}?\s*[\"']?p\b",
        r"sed counts lines from 1, and the array begins with 0",
        r"write: #SBATCH --array=1-N",
        unless=r"\A(?![\s\S]*\n#SBATCH[^\n]*\s(?:--array|-a)[= ]?[\"']?0\b)",
    )
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
            other = (
                part.text in ("SLURM_GPUS", "SLURM_GPUS_PER_NODE") and facts.gres_gpus is not None
            )
            yield RuleHit(
                part.start,
                f"${part.text} is empty: there is no --{option}",
                "write: $SLURM_GPUS_ON_NODE" if other else f"add: #SBATCH --{option}=N",
                "error" if other else "note" if option == "array" else "warning",
            )
            lacking -= {part.text} & {"SLURM_ARRAY_TASK_ID"}  # once
