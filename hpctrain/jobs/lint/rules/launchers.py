"""torchrun and accelerate launch: how many, on which nodes, with which options."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.jobs.lint.facts import Facts
from hpctrain.jobs.lint.launch import RANK_VARIABLES, Launch
from hpctrain.jobs.lint.reader.model import Command
from hpctrain.jobs.lint.rules.common import Hit, assignments

_MANY_PROCESSES = ("gpu", "auto", "cuda")
_CHOSEN = ("config_file", "multi_gpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "tpu", "cpu", "use_parallelism_config")
_MPI = frozenset({"mpirun", "mpiexec", "ibrun", "mpirun_rsh", "aprun", "jsrun"})
_REMOTE = ("ssh", "pdsh", "mpirun", "mpiexec", "ibrun", "clush", "parallel-ssh")
_NAMES_OF = {
    "torchrun": re.compile(r"torchrun|torch\.distributed\.(?:run|launch)"),
    "accelerate": re.compile(r"accelerate"),
    "deepspeed": re.compile(r"deepspeed"),
}
_HARMLESS = frozenset(
    {"hostname", "echo", "date", "nvidia-smi", "rocm-smi", "mkdir", "rm", "cp", "ls", "env", "true", "lscpu", "free", "uname"}
)


def _steps(facts: Facts) -> Iterator[tuple[Launch, int | None, int | None]]:
    """Yield the launchers that srun starts, with the nodes and tasks of their step."""
    for launch in facts.launches:
        if launch.call is not None and facts.is_batch and not launch.remote:
            via = launch.command
            while via not in facts._call_of and via.shell.via is not None:
                via = via.shell.via
            yield launch, facts.call_nodes(via, launch.call), facts.call_tasks(via, launch.call)


def without_srun(facts: Facts) -> Iterator[Hit]:
    """Several nodes, and a launcher that runs on the first alone."""
    if not facts.many_nodes:
        return
    others = [command for command, call in facts.sruns if not _harmless(facts, command, call.command)]
    others += list(facts.named(*_REMOTE))
    for launch in facts.launches:
        if launch.call is not None or launch.remote or _own_remote(facts, launch) or facts.place(launch.command) != "batch":
            continue
        rank = launch.option("node_rank", "machine_rank")
        early = next((part.text for part in rank.expansions() if part.text in RANK_VARIABLES), "") if rank is not None else ""
        if others and not (_for_several(facts, launch) or early):  # what it does on the first node may be meant to
            continue
        if any(_may_belong(facts, launch, other) for other in others):
            continue
        what = f"{launch.kind} runs without srun, and so on the first of {facts.value('nodes')} nodes alone"
        if early:
            what += f", where ${early} is 0"
        yield Hit("launcher-without-srun", launch.at.start, what, f"srun --ntasks-per-node=1 bash -c '{launch.at.text} …'")


def _own_remote(facts: Facts, launch: Launch) -> bool:
    """Whether the launcher goes to the other nodes by itself, as deepspeed does with a list of hosts."""
    if launch.has("deepspeed_hostfile", "hostfile", "H", "mpirun_hostfile"):
        return True
    return launch.kind == "deepspeed" and (not launch.complete or launch.has("launcher") or "/job/hostfile" in facts.text)


def _for_several(facts: Facts, launch: Launch) -> bool:
    """Whether the launcher's own options say that it expects other nodes."""
    word = launch.option("nnodes", "num_machines", "num_nodes")
    low = word.text.partition(":")[0] if word is not None and word.is_literal else ""
    return ((int(low) if low.isdecimal() and len(low) < 7 else facts.number(word, launch.command)) or 0) > 1


def _may_belong(facts: Facts, launch: Launch, other: Command) -> bool:
    """Whether `other`, an srun or ssh, may start the same launch on the other nodes."""
    if other.is_background or launch.command.is_background:
        return True
    call = facts._call_of.get(other)
    if call is not None and {"nodelist", "exclude", "relative"} & set(call.given):
        return True
    words = [word.text for word in facts.argv(other).words]
    if call is None and ((other.name == "ssh" and "-f" in words) or any(word.startswith(("-w", "-x", "--nodelist")) for word in words)):
        return True
    if any(one.kind == launch.kind and (one.command is other or _inside(one.command, other)) for one in facts.launches):
        return True
    return any(_NAMES_OF[launch.kind].search(word) for word in words)


def _inside(command: Command, other: Command) -> bool:
    """Whether `command` stands in a shell that `other` starts."""
    via = command.shell.via
    while via is not None and via is not other:
        via = via.shell.via
    return via is other


def _harmless(facts: Facts, command: object, index: int) -> bool:
    argv = facts.argv(command).words  # type: ignore[arg-type]
    return index < len(argv) and argv[index].text.rpartition("/")[2] in _HARMLESS


def per_node(facts: Facts) -> Iterator[Hit]:
    """Several launchers on each node, which all start processes on the same GPUs."""
    for launch, nodes, tasks in _steps(facts):
        each = tasks // nodes if nodes and tasks and tasks % nodes == 0 else None
        if each is None or each < 2:
            continue
        word = launch.option("nproc_per_node", "num_processes", "num_gpus")
        count = facts.number(word, launch.command)
        if (count or 0) > 1 or launch.text("nproc_per_node") in _MANY_PROCESSES:
            what = f"{each} tasks on each node, and each starts {launch.kind} with {word.text if word else 'several'} processes"
            yield Hit("launchers-per-node", launch.at.start, what, "write: #SBATCH --ntasks-per-node=1, and take --ntasks away")


def ignored_per_node(facts: Facts) -> Iterator[Hit]:
    """`srun --ntasks-per-node` against the job's own number of tasks."""
    job = facts.integer("ntasks-per-node")
    for command, call in facts.sruns:
        mine = facts.number(call.given.get("ntasks-per-node"), command)
        if (
            job
            and mine
            and job != mine
            and "ntasks" not in call.given
            and facts.place(command) == "batch"
            and "SLURM_NTASKS" not in _unset(facts)
        ):
            what = f"srun --ntasks-per-node={mine} in a job of {job} tasks per node"
            word = call.words["ntasks-per-node"]
            yield Hit("srun-per-node-ignored", word.start, what, "give srun the number of tasks too: srun --ntasks=N --ntasks-per-node=1")


def _unset(facts: Facts) -> set[str]:
    return {word.text for command in facts.named("unset") for word in command.words[1:]}


def rendezvous_options(facts: Facts) -> Iterator[Hit]:
    """Options without which several nodes do not find each other."""
    if any(assignment.name.startswith(("PET_", "ACCELERATE_")) for assignment, _ in assignments(facts)):
        return
    for launch, nodes, _ in _steps(facts):
        if nodes is None or nodes < 2 or not launch.complete or (launch.has("config_file", "rdzv_conf") and launch.has("config_file")):
            continue
        if launch.kind == "torchrun":
            yield from _torchrun(facts, launch, nodes)
        elif launch.kind == "accelerate" and not launch.has("cpu", "tpu"):
            yield from _accelerate(facts, launch, nodes)


def _torchrun(facts: Facts, launch: Launch, nodes: int) -> Iterator[Hit]:
    if launch.has("standalone"):
        yield Hit("launcher-alone", launch.at.start, f"torchrun --standalone on each of {nodes} nodes", _C10D)
    elif not launch.has("nnodes"):
        yield Hit("launcher-alone", launch.at.start, f"torchrun without --nnodes on each of {nodes} nodes", _C10D)
    elif (facts.number(launch.option("nnodes"), launch.command) or 0) > 1:
        if not launch.has("rdzv_endpoint", "master_addr"):
            yield Hit("rendezvous-missing", launch.at.start, "torchrun for several nodes without an address where they meet", _C10D)
        elif not launch.has("rdzv_backend", "rdzv_endpoint", "node_rank"):
            yield Hit(
                "rank-missing",
                launch.at.start,
                "torchrun with --master_addr and without --node_rank",
                'add: --node_rank "$SLURM_NODEID", expanded in each task',
            )


_C10D = 'add: --nnodes "$SLURM_NNODES" --rdzv_backend c10d --rdzv_id "$SLURM_JOB_ID" --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT"'


def _accelerate(facts: Facts, launch: Launch, nodes: int) -> Iterator[Hit]:
    if not launch.has("num_machines"):
        yield Hit(
            "launcher-alone",
            launch.at.start,
            f"accelerate launch without --num_machines on each of {nodes} nodes",
            f"add: --num_machines {nodes}",
        )
        return
    if (facts.number(launch.option("num_machines"), launch.command) or 0) < 2:
        return
    backend_known = launch.option("rdzv_backend") is None or launch.text("rdzv_backend") == "static"
    if not launch.has("main_process_ip"):
        yield Hit(
            "rendezvous-missing",
            launch.at.start,
            "accelerate launch for several nodes without --main_process_ip",
            'add: --main_process_ip "$MASTER_ADDR"',
        )
    elif backend_known and not launch.has("machine_rank", "deepspeed_hostfile"):
        yield Hit(
            "rank-missing",
            launch.at.start,
            "accelerate launch without --machine_rank, and the rendezvous is static",
            'add: --machine_rank "$SLURM_NODEID", expanded in each task',
        )


def counts(facts: Facts) -> Iterator[Hit]:
    """Numbers of nodes and processes that contradict the directives."""
    for launch, nodes, tasks in _steps(facts):
        machines = facts.number(launch.option("nnodes", "num_machines"), launch.command)
        if machines and tasks and nodes and tasks == nodes and machines != tasks:
            word = launch.words["nnodes" if launch.has("nnodes") else "num_machines"]
            yield Hit(
                "nnodes-mismatch",
                word.start,
                f"{machines} nodes are expected, and srun starts {launch.kind} on {tasks}",
                "write: $SLURM_NNODES in place of the number",
            )
    for launch in facts.launches:
        if launch.kind == "accelerate":
            yield from _num_processes(facts, launch)
        elif launch.kind == "torchrun":
            yield from _nproc(facts, launch)


def _own_gpus(launch: Launch) -> bool:
    return launch.call is not None and any(name in launch.call.given for name in ("gres", "gpus", "gpus-per-node", "gpus-per-task"))


def _nproc(facts: Facts, launch: Launch) -> Iterator[Hit]:
    count, have = facts.number(launch.option("nproc_per_node"), launch.command), facts.gpus_per_node
    if count and have and count > have and not _own_gpus(launch) and "gloo" not in facts.text:
        word = launch.words["nproc_per_node"]
        yield Hit(
            "more-processes-than-gpus",
            word.start,
            f"{count} processes on a node with {have} GPU{'s' if have > 1 else ''}",
            f"write: --nproc_per_node {have}",
        )


def _num_processes(facts: Facts, launch: Launch) -> Iterator[Hit]:
    total, have = facts.number(launch.option("num_processes"), launch.command), facts.gpus_per_node
    machines = facts.number(launch.option("num_machines"), launch.command) if launch.has("num_machines") else 1
    if not total or not machines or not have or _own_gpus(launch) or launch.has("cpu") or total == machines * have:
        return
    word = launch.words["num_processes"]
    product = f"{machines} nodes x {have} GPUs = {machines * have}"
    if total > machines * have or total % machines or (machines > 1 and total == have):
        yield Hit(
            "num-processes",
            word.start,
            f"--num_processes {total} is the total of all nodes, and {product}",
            f"write: --num_processes {machines * have}",
        )
    elif machines > 1:
        yield Hit(
            "num-processes",
            word.start,
            f"--num_processes {total} leaves GPUs idle: {product}",
            f"write: --num_processes {machines * have}",
            level="warning",
        )


def one_process(facts: Facts) -> Iterator[Hit]:
    """Accelerate launch that starts one process and says nothing."""
    for launch in facts.launches:
        if launch.kind != "accelerate" or not launch.complete:
            continue
        total = facts.number(launch.option("num_processes"), launch.command) or 0
        if launch.has("cpu") and total > 1 and not launch.has("mpirun_hostfile", "multi_gpu"):
            yield Hit(
                "accelerate-one-process",
                launch.at.start,
                f"accelerate launch --cpu starts one process, not {total}",
                "write --multi_gpu, and ACCELERATE_USE_CPU=true in the environment",
            )
        elif not launch.has(*_CHOSEN) and facts.gpus_per_node == 1 and total > 1:
            yield Hit(
                "accelerate-one-process",
                launch.at.start,
                f"one GPU per node, --num_processes {total}, and no --multi_gpu",
                "add: --multi_gpu",
                level="warning",
            )


def rendezvous_backend(facts: Facts) -> Iterator[Hit]:
    """A backend named where nobody reads it."""
    for launch in facts.launches:
        word = launch.option("rdzv_conf")
        if word is not None and "rdzv_backend=" in word.text and not launch.has("rdzv_backend"):
            backend = word.text.partition("rdzv_backend=")[2].partition(",")[0].strip("\"'") or "c10d"
            yield Hit(
                "rdzv-conf-backend",
                launch.words["rdzv_conf"].start,
                f"--rdzv_conf does not choose the backend {backend}",
                f"write: --rdzv_backend {backend}",
            )


def mpirun(facts: Facts) -> Iterator[Hit]:
    """An MPI launcher inside srun: one for each task."""
    for command, call in facts.sruns:
        argv = facts.argv(command).words
        if call.command < len(argv) and argv[call.command].text.rpartition("/")[2] in _MPI:
            tasks = facts.call_tasks(command, call)
            if tasks != 1:
                name = argv[call.command].text
                yield Hit(
                    "mpirun-in-srun",
                    argv[call.command].start,
                    f"srun starts {name} in every task",
                    f"write srun or {name}, not both",
                    level=None if tasks else "warning",
                )


RULES = (without_srun, per_node, ignored_per_node, rendezvous_options, counts, one_process, rendezvous_backend, mpirun)
