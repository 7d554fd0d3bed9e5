"""GPUs, cores and memory of the job against those of a node."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.fit import gpus
from hpctrain.jobs.check import limits, sizes
from hpctrain.jobs.check.case import Case, Fact, closest, confirm, likely_partition
from hpctrain.jobs.finding import Finding
from hpctrain.scheduler.parse import memory_size

_NODES = ("resources", "nodes")
_GPUS = ("resources", "gpus_per_node")
_CPUS = ("resources", "cpus_per_task")
_MEM = ("resources", "mem")
_SHARDING = ("sharding",)
_LORA = "or train a LoRA adapter: use_peft: true under training in config.yaml"
#: The model in the name of a GPU: a100, nvidia_h100_80gb_hbm3, AMD MI250X. Of Grace-Hopper, either half may be named.
_MODEL = re.compile(r"(?<![a-z0-9])((?:mi|[abhlpv])[0-9]{2,3})", re.IGNORECASE)
_DIALECT = ("resources", "gpu_directive")


def rules(case: Case) -> Iterator[Finding]:
    """Return where the job and the node do not fit."""
    for rule in (_dialect, _gpus, _gpu_type, _gpu_memory, _cores, _memory, _model_in_memory, _all_memory):
        yield from rule(case)


# -- GPUs ---------------------------------------------------------------------------------------------------------------


def _dialect(case: Case) -> Iterator[Finding]:
    asked = case.spec.gpu_directive
    request = case.profile.gpu_request if case.profile is not None else None
    forbidden = case.profile.directives.forbidden if case.profile is not None else {}
    if request is None or request.dialect is None or asked in (request.dialect, *request.also):
        return
    fact = case.fact(request.dialect, "gpu_request", "dialect")
    refused = forbidden.get(asked)
    if refused is not None:
        fact = case.fact(request.dialect, "directives", "forbidden", asked)
    if fact is None:
        return
    # A dialect that the site does not name may still work; one that it forbids does not.
    level = fact.severity if refused is not None or request.dialect == "none" or asked == "none" else "warning"
    said = "asks for no GPUs" if asked == "none" else f"asks for GPUs by --{asked}"
    wanted = "wants no GPU directive at all" if request.dialect == "none" else f"wants --{request.dialect}"
    yield case.finding(
        "gpu-dialect", level, f"the job {said}, and this site {wanted}",
        evidence=f"{case.said(*_DIALECT, value=asked)}; {fact.source}{f': {refused}' if refused else ''}"
        f"{confirm(fact, 'the documentation of the site')}",
        reason="the site refuses the job, or gives it no GPUs",
        fix=case.fix((_DIALECT, request.dialect)),
    )  # fmt: skip


def _gpus(case: Case) -> Iterator[Finding]:
    asked, there = case.spec.gpus_per_node, case.node("gpus")
    if there is None:
        return
    where = f"partition {case.partition_name}" if case.partition_name else f"{case.shape_name or 'this site'}"
    evidence = f"{case.said(*_GPUS, value=asked)}; {there.source}: {there.value} on a node{confirm(there, _sinfo(case))}"
    if asked > there.value:
        needed, most = (-(-case.spec.processes // there.value) if there.value else case.spec.nodes), limits.nodes_max(case)
        nodes = needed if most is None else min(needed, most)
        fix = case.fix((_NODES, nodes), (_GPUS, there.value)) if there.value else f"sinfo -o '%P %G', then: {_other(case)}"
        yield case.finding(
            "gpus-per-node", there.severity, f"{asked} GPUs of each node are asked for, and a node of {where} has {there.value}",
            evidence=evidence, reason="Slurm refuses the job: Requested node configuration is not available", fix=fix,
        )  # fmt: skip
        return
    whole = case.whole_nodes
    if asked < there.value and whole is not None and whole.value:
        paid, used = case.spec.nodes * there.value, case.spec.processes
        packed, rest = divmod(used, there.value)
        fewer = ((_NODES, packed), (_GPUS, there.value)) if packed and not rest else ((_GPUS, there.value),)
        yield case.finding(
            "gpus-unused", "warning", f"the job pays for {paid} GPUs and uses {used}: nodes come whole here",
            evidence=evidence if whole.source == there.source else f"{evidence}; {whole.source}",
            reason="the others idle, and are charged all the same", fix=case.fix(*fewer),
        )  # fmt: skip
    elif case.spec.nodes > 1 and case.spec.processes <= there.value:
        yield case.finding(
            "gpus-spread", "note", f"{case.spec.layout}, which fit on one node of {there.value} GPUs",
            evidence=evidence, reason="GPUs of one node talk to each other many times faster than GPUs of two",
            fix=case.fix((_NODES, 1), (_GPUS, case.spec.processes)),
        )  # fmt: skip
    elif case.spec.processes == 1 and there.value > 1:
        yield case.finding(
            "single-process", "note", f"one GPU of a node with {there.value}: one process, so nothing is distributed",
            evidence=evidence, reason="good for a first test; all GPUs of the node would train as many times faster, nearly",
            fix=case.fix((_GPUS, there.value)),
        )  # fmt: skip


def _other(case: Case) -> str:
    return case.fix((("resources", "partition"), likely_partition(case) or "NAME"))


def _gpu_type(case: Case) -> Iterator[Finding]:
    asked = case.spec.gpu_type
    if asked is not None and not any(group.gpus for group in case.live_nodes):
        yield from _gpu_type_of_profile(case, asked)
    types = tuple(dict.fromkeys(name for group in case.live_nodes for name, _ in group.gpus if name))
    if asked is None or not case.live_nodes or asked in types or not any(group.gpus for group in case.live_nodes):
        return
    path, where = ("resources", "gpu_type"), " or ".join(each.name for each in case.landing)
    yield case.finding(
        "gpu-type-unknown", "error", f"there are no GPUs of the type {asked!r} in partition {where}",
        evidence=f"{case.said(*path, value=asked)}; sinfo -o '%P %G' lists {', '.join(types) or 'GPUs without a type'}",
        reason="Slurm refuses the job: Requested node configuration is not available",
        fix=case.fix((path, closest(asked, types))) if types else "leave the type out",
    )  # fmt: skip


def _gpu_type_of_profile(case: Case, asked: str) -> Iterator[Finding]:
    """The type against the GPUs that the profile knows, whose names are the vendor's and not Slurm's: only the model is compared."""
    shape, request, path = case.shape, case.profile.gpu_request if case.profile is not None else None, ("resources", "gpu_type")
    fact = case.fact(shape.gpu, "nodes", case.shape_name or "", "gpu") if shape is not None else None
    if fact is None or request is None or asked == request.type:
        return
    wanted, there = _MODEL.search(asked), _MODEL.search(fact.value)
    if wanted is None or there is None or wanted[1].lower() == there[1].lower():
        return
    where = f"partition {case.partition_name}" if case.partition_name else f"{case.shape_name} nodes"
    yield case.finding(
        "gpu-type-unknown", "warning", f"GPUs of the type {asked!r} are asked for, and {where} has {fact.value}",
        evidence=f"{case.said(*path, value=asked)}; {fact.source}; confirm with: sinfo -o '%P %G'",
        reason="Slurm refuses the job: Requested node configuration is not available",
        fix=case.fix((path, request.type or there[1].lower())),
    )  # fmt: skip


def _gpu_memory(case: Case) -> Iterator[Finding]:
    fact, spec = gpu_bytes(case), case.spec
    if fact is None or case.around.model is None:
        return
    need = sizes.gpu_least(case)
    if need is None or need.size <= fact.value:
        yield from _gpu_peak(case, fact)
        return
    if spec.sharding == "ddp":
        advice = f"share them: {case.fix((_SHARDING, 'fsdp'))}; {_LORA}"
    elif spec.sharding == "zero2":
        advice = f"share the weights too: {case.fix((_SHARDING, 'zero3'))}; {_LORA}"
    else:
        advice = f"use more GPUs, at least {-(-need.size * spec.processes // fact.value)}, {_LORA}"
    yield case.finding(
        "gpu-memory", fact.severity, f"each GPU would hold {sizes.gib(need.size)} of model and optimizer, and has {sizes.gib(fact.value)}",
        evidence=f"{case.around.model.where.said}: {need.words}; {fact.source}",
        reason="the training ends with CUDA out of memory, activations not even counted",
        fix=advice,
    )  # fmt: skip


def gpu_bytes(case: Case) -> Fact[int] | None:
    """Return what a GPU of the job has for programs, as its type, the profile and the table of GPUs know it."""
    shape, part = case.shape, sizes.gpu_part(case)
    size = gpus.part_memory(part) if part is not None else None
    if size is not None:
        return Fact(size, "own", case.said("resources", "gpu_type", value=case.spec.gpu_type))
    fact = case.fact(shape.gpu_memory, "nodes", case.shape_name or "", "gpu_memory") if shape is not None else None
    if fact is None or shape is None:
        return None
    return Fact(gpus.usable(shape.gpu, fact.value) or fact.value, fact.level, fact.source)


def _gpu_peak(case: Case, fact: Fact[int]) -> Iterator[Finding]:
    """The formula's estimate, activations and all, against the GPU: it may be wrong by a few percent, so it only warns."""
    need, model = sizes.gpu_estimate(case, fact.value), case.around.model
    if need is None or need.size <= fact.value or model is None:
        return
    yield case.finding(
        "gpu-memory", "warning", f"each GPU would hold about {sizes.gib(need.size)} at the peak, and has {sizes.gib(fact.value)}",
        evidence=f"{model.where.said}: {need.words}; {fact.source}",
        reason="the training probably ends with CUDA out of memory",
        fix=f"{case.command(verb='fit')}, which shows the layouts that fit",
    )  # fmt: skip


# -- cores --------------------------------------------------------------------------------------------------------------


def _cores(case: Case) -> Iterator[Finding]:
    spec, there = case.spec, case.node("cpus")
    total = spec.cores_per_task * spec.tasks_per_node
    said, gpus = limits.cores_said(case), case.node("gpus")
    if spec.cpus_per_task is None and gpus is not None and gpus.value and spec.gpus_per_node > gpus.value:
        return  # so many cores only because of so many GPUs: `gpus-per-node` says it
    if there is not None and total > there.value:
        fits = max(1, there.value // spec.tasks_per_node)
        yield case.finding(
            "cores-limit", there.severity, f"{total} cores of each node are asked for, and a job can have {there.value}",
            evidence=f"{said}, {spec.tasks_per_node} task{'s' * (spec.tasks_per_node > 1)} on each node; "
            f"{there.source}: {there.value} on a node{confirm(there, _sinfo(case))}",
            reason="Slurm refuses the job, or never starts it: sites keep some cores of a node for the system",
            fix=case.fix((_CPUS, fits)),
        )  # fmt: skip
        return
    few = list(_cores_of_gpus(case, total))
    yield from few
    if not few and spec.cores_per_task < spec.processes_per_task:
        enough = spec.processes_per_task * (spec.cpus_per_gpu or 8)
        if there is not None:
            enough = min(enough, there.value // spec.tasks_per_node)
        yield case.finding(
            "cores-few", "warning", f"{spec.processes_per_task} training processes share {spec.cores_per_task} cores on each node",
            evidence=f"{said}; {spec.layout}", reason="less than a core for each process: the GPUs wait for their data",
            fix=case.fix((_CPUS, enough)),
        )  # fmt: skip


def _cores_of_gpus(case: Case, asked: int) -> Iterator[Finding]:
    """The cores that the site wants a job to take with its GPUs."""
    shape, name, spec = case.shape, case.shape_name or "", case.spec
    wanted = case.fact(shape.cpus_per_gpu, "nodes", name, "cpus_per_gpu") if shape is not None else None
    fact = case.fact(shape.cpus_per_gpu_required, "nodes", name, "cpus_per_gpu_required") if shape is not None else None
    if wanted is None or fact is None or not fact.value or asked >= wanted.value * spec.gpus_per_node:
        return
    least = -(-wanted.value * spec.gpus_per_node // spec.tasks_per_node)
    yield case.finding(
        "cores-few", fact.severity, f"{asked} cores for {spec.gpus_per_node} GPUs of a node, and this site wants {wanted.value} for each",
        evidence=f"{limits.cores_said(case)}; {fact.source}{confirm(fact, 'the documentation of the site')}",
        reason="the site refuses a job with fewer, or charges the GPU's share of the node all the same",
        fix=case.fix((_CPUS, least)),
    )  # fmt: skip


# -- memory -------------------------------------------------------------------------------------------------------------


def _memory_of_node(case: Case) -> tuple[int, str] | None:
    """Return the bytes that the job asks for on each node, and where that is written; None without a request, or with all of it."""
    spec = case.spec
    if spec.mem_bytes:
        return spec.mem_bytes, case.said(*_MEM, value=memory_size.format(spec.mem_bytes))
    if spec.mem_per_cpu_bytes:
        total = spec.mem_per_cpu_bytes * spec.cores_per_task * spec.tasks_per_node
        said = case.said("resources", "mem_per_cpu", value=memory_size.format(spec.mem_per_cpu_bytes))
        return total, f"{said} x {spec.cores_per_task * spec.tasks_per_node} cores"
    return None


def _memory(case: Case) -> Iterator[Finding]:
    asked, there = _memory_of_node(case), case.node("memory")
    live = case.live_partition
    if live is not None and live.memory_max_per_node is not None and (there is None or live.memory_max_per_node < there.value):
        there = Fact(live.memory_max_per_node, "live", f"scontrol show partition {live.name}: MaxMemPerNode")
    if asked is None or there is None or asked[0] <= there.value:
        return
    fits = memory_size.format(there.value // 1024**3 * 1024**3 or there.value)
    path = _MEM if case.spec.mem_bytes else ("resources", "mem_per_cpu")
    cores = case.spec.cores_per_task * case.spec.tasks_per_node
    yield case.finding(
        "memory-limit", there.severity, f"{sizes.gib(asked[0])} of memory on each node, and a job can have {sizes.gib(there.value)}",
        evidence=f"{asked[1]}; {there.source}{confirm(there, _sinfo(case))}",
        reason="Slurm refuses the job: Memory specification can not be satisfied, or Requested node configuration is not available",
        fix=case.fix((path, fits if path == _MEM else memory_size.format(there.value // cores // 1024**2 * 1024**2))),
    )  # fmt: skip


def memory_given(case: Case) -> Fact[int] | None:
    """Return the bytes of each node that the job asks for, or gets by default; of all memory, the node's. None where nobody knows."""
    asked = _memory_of_node(case)
    if asked is not None:
        return Fact(asked[0], "own", asked[1])
    return case.node("memory") if case.spec.mem_bytes == 0 else _default_memory(case)


def _default_memory(case: Case) -> Fact[int] | None:
    """Return the bytes that each node of a job gets that asks for none."""
    cores, live = case.spec.cores_per_task * case.spec.tasks_per_node, case.live_partition
    for source, each in (("scontrol show partition", live), ("scontrol show config", case.live)):
        if each is not None and each.default_memory_per_node is not None:
            return Fact(each.default_memory_per_node, "live", f"{source}: DefMemPerNode")
        if each is not None and each.default_memory_per_cpu is not None:
            words = f"{source}: DefMemPerCPU {sizes.gib(each.default_memory_per_cpu)} x {cores} cores"
            return Fact(cores * each.default_memory_per_cpu, "live", words)
    memory = case.profile.memory if case.profile is not None else None
    per_node = case.fact(memory.default_per_node, "memory", "default_per_node") if memory is not None else None
    per_cpu = case.fact(memory.default_per_cpu, "memory", "default_per_cpu") if memory is not None else None
    if per_cpu is not None and per_node is None:
        return Fact(per_cpu.value * cores, per_cpu.level, f"{per_cpu.source}: {sizes.gib(per_cpu.value)} x {cores} cores")
    return per_node


def _model_in_memory(case: Case) -> Iterator[Finding]:
    given, need = memory_given(case), sizes.host_memory(case)
    if given is None or case.spec.mem_bytes == 0 or need.total <= given.value:
        return
    certain, asked, model = need.least > given.value, _memory_of_node(case), case.around.model
    if not certain and (case.spec.script is not None or model is None or model.parameters is None):
        return  # an estimate of what nobody knows is a guess
    size = need.least if certain else need.total
    shown = max(1, -(-need.total * 5 // 4 // sizes.GIB))  # with a quarter to spare
    there = case.node("memory")
    fits = there is None or shown * sizes.GIB <= there.value
    refuses = case.profile is not None and "mem" in case.profile.directives.forbidden
    ask = case.fix((_MEM, f"{shown}G")) if fits else f"let one process load the model: {case.fix((_SHARDING, 'fsdp'))}"
    yield case.finding(
        # A script of the user's own may load its model in another way.
        "memory-too-small", given.severity if certain and case.spec.script is None else "warning",
        f"{'the site gives' if asked is None else 'the job asks for'} {sizes.gib(given.value)} of memory on each node, "
        f"and the processes need {'' if certain else 'about '}{sizes.gib(size)}",
        evidence=f"{given.source}; needed {'at least' if certain else 'by estimate'}: {need.least_words if certain else need.words}",
        reason="the kernel kills the training while it loads the model: OUT_OF_MEMORY",
        fix=case.command(("--cpus-per-task", str(case.spec.cores_per_task * 2))) if refuses else ask,
    )  # fmt: skip


def _all_memory(case: Case) -> Iterator[Finding]:
    whole, there = case.whole_nodes, case.node("gpus")
    exclusive = "exclusive" in dict(case.spec.sbatch)
    if case.spec.mem_bytes != 0 or whole is None or whole.value or exclusive or there is None:
        return
    if case.spec.gpus_per_node >= there.value:
        return
    memory = case.node("memory")
    share = f"{memory.value * case.spec.gpus_per_node // there.value // sizes.GIB}G" if memory is not None else "64G"
    yield case.finding(
        "memory-all", "warning", f"all memory of the node for {case.spec.gpus_per_node} of its {there.value} GPUs",
        evidence=f"{case.said(*_MEM, value=0)}; {whole.source}",
        reason="the job waits until a node is empty, nobody can use the other GPUs, and some sites charge for them",
        fix=case.fix((_MEM, share)),
    )  # fmt: skip


def _sinfo(case: Case) -> str:
    return f"sinfo -p {case.partition_name} -o '%P %c %m %G'" if case.partition_name else "sinfo -o '%P %c %m %G'"
