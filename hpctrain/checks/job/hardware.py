"""Rules about GPUs, cores and memory: what a node has, and what the training needs by the formula
of `hpctrain fit`, so that `check` and `fit` agree.

Memory has two figures: the certain part (weights, gradients and optimizer states; the model while
it is loaded), which can give an error, and the formula's estimate, which gives a warning.
Architectures that the formula does not support have neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpctrain.checks.job import limits
from hpctrain.checks.job.context import (
    Case,
    Fact,
    confirm,
    likely_partition,
    rule,
)
from hpctrain.config.arguments import Arguments
from hpctrain.errors import HpctrainError
from hpctrain.finding import Finding
from hpctrain.fit import gpus, memory, training_options
from hpctrain.fit.activations import WIDTH
from hpctrain.fit.layout import DataFacts, Layout
from hpctrain.fit.shape import ModelShape
from hpctrain.slurm.notations import units
from hpctrain.util import shell
from hpctrain.util.schema import KeyPath
from hpctrain.util.text import count, is_number, size

GIB = 1024**3
#: Memory in use at the optimizer step, regardless of the data.
_CERTAIN = {
    "weights": memory.weights_bytes,
    "gradients": memory.gradient_bytes,
    "optimizer": memory.optimizer_bytes,
}
#: Optimizers with two states per parameter, in the weights' dtype.
_ADAM = frozenset({"adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw"})
_NODES = ("resources", "nodes")
_GPUS = ("resources", "gpus_per_node")
_TYPE = ("resources", "gpu_type")
_CPUS = ("resources", "cpus_per_task")
_MEM = ("resources", "mem")
_MEM_PER_GPU = ("resources", "mem_per_gpu")
_MEM_PER_CPU = ("resources", "mem_per_cpu")
_SHARDING = ("sharding",)
_DIALECT = ("resources", "gpu_directive")
_LORA = "or train a LoRA adapter: use_peft: true under training in config.yaml"
_NOT_AVAILABLE = "Slurm refuses the job: Requested node configuration is not available"
# -- how much memory the training needs ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Need:
    """A number of bytes, and the sum that it comes from."""

    size: int
    words: str


def _prepared(case: Case) -> DataFacts | None:
    return case.around.dataset.prepared if case.around.dataset is not None else None


def shape(case: Case) -> ModelShape | None:
    """Return the shape of the model; None if config.json is missing or the architecture is not
    supported.
    """
    model = case.around.model
    if model is None or model.config is None or "quantization_config" in model.config:
        return None
    options = shell.options_of(case.spec.arguments)
    task = case.spec.task if case.spec.script is None else "sft"
    try:
        return training_options.shape_of(model.config, options, task=task, dataset=_prepared(case))
    except HpctrainError:
        return None


def layout(case: Case, *, gpu_bytes: int | None = None) -> Layout | None:
    """Return the layout that the job requests; None if its arguments are incomplete or for another
    training.

    Args:
        case: the job.
        gpu_bytes: memory of a GPU, which decides on checkpointing unless the options do.
    """
    arguments, known = Arguments(case.spec), shape(case)
    if not arguments.ours or arguments.incomplete or known is None:
        return None
    stored = (case.around.model.config or {}) if case.around.model is not None else {}
    named = case.shape.gpu if case.shape is not None else None
    gpu = gpus.find(named) if named is not None else None
    try:
        return training_options.layout_of(
            shell.options_of(case.spec.arguments),
            nodes=case.spec.nodes,
            gpus_per_node=case.spec.processes_per_node,
            sharding=case.spec.sharding,
            shape=known,
            cuda=not uses_cpu(case),
            bf16=gpu is None or gpu.bf16 is not None,  # an unknown GPU is assumed to be recent
            gpu_bytes=gpu_bytes,
            dataset=_prepared(case),
            stored=stored.get("dtype") or stored.get("torch_dtype"),
        )
    except (HpctrainError, ValueError):  # other rules report wrong arguments
        return None


def uses_cpu(case: Case) -> bool:
    """Whether the training will run on the CPU."""
    variables = {**case.around.variables, **dict(case.spec.env)}
    forced = variables.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    return bool(Arguments(case.spec).says("use_cpu")) or not case.spec.gpus_per_node or forced


def _shared_otherwise(case: Case) -> bool:
    own = case.around.accelerate
    return own is not None and own.distributed_type not in (None, "MULTI_GPU")


def gpu_least(case: Case) -> Need | None:
    """Return the minimum memory of each GPU: weights, gradients and optimizer, without activations;
    None if uncertain.
    """
    known, wanted = shape(case), layout(case)
    if known is None or wanted is None or wanted.quantization != "none" or _shared_otherwise(case):
        return None
    parts = {name: held(known, wanted) for name, held in _CERTAIN.items()}
    sums = " + ".join(f"{size(held)} of {name}" for name, held in parts.items())
    world = case.spec.processes
    shared = f", shared by {world} GPUs" if wanted.sharding != "ddp" and world > 1 else ""
    words = f"{memory.billions(known.parameters)} parameters in {wanted.weights}{shared}"
    return Need(sum(parts.values()), f"{words}: {sums}")


def gpu_estimate(case: Case, gpu_bytes: int) -> Need | None:
    """Return the formula's peak memory of each GPU, with activations; None if unknown."""
    known, wanted = shape(case), layout(case, gpu_bytes=gpu_bytes)
    if known is None or wanted is None or _shared_otherwise(case):
        return None
    words = (
        f"{memory.billions(known.parameters)} parameters in {wanted.weights}, {wanted.sharding},"
        f" {wanted.micro_batch} sequences of {wanted.length} tokens, checkpointing"
        f" {wanted.checkpointing}"
    )
    return Need(memory.gpu_memory(known, wanted).total, words)


def gpu_name(case: Case) -> str | None:
    """Return the name of the job's GPU: the requested MIG slice, else from the profile, Slurm, or
    the requested type; None: unknown.
    """
    live = next((kind for group in case.live_nodes for kind, _ in group.gpus if kind), None)
    known = case.shape.gpu if case.shape is not None else None
    asked = case.spec.gpu_type
    return asked if asked and gpus.is_part(asked) else known or live or asked


def gpu_bytes(case: Case) -> Fact[int] | None:
    """Return the memory of a GPU available to programs, from its type, the profile and the table of
    GPUs.
    """
    fact = case.of_nodes("gpu_memory")
    of_part = gpus.part_memory(case.spec.gpu_type or "")
    if of_part is not None:
        return Fact(of_part, "own", case.said(*_TYPE, value=case.spec.gpu_type))
    if fact is None or case.shape is None:
        return None
    return Fact(gpus.usable(case.shape.gpu, fact.value) or fact.value, fact.level, fact.source)


def host_memory(case: Case) -> memory.HostMemory:
    """Return the host memory of the processes of one node."""
    spec, known, arguments = case.spec, shape(case), Arguments(case.spec)
    plain = Layout(nodes=spec.nodes, gpus_per_node=spec.processes_per_node, sharding=spec.sharding)
    workers = arguments.get("dataloader_num_workers") or "0"
    return memory.host_memory(
        known.parameters if known is not None else None,
        layout(case) or plain,
        workers=int(workers) if is_number(workers) and len(workers) < 6 else 0,
        cuda=not uses_cpu(case),
    )


def checkpoint_bytes(case: Case) -> Need | None:
    """Return the size of one checkpoint: the weights and, for full fine-tuning, the optimizer
    states; None if uncertain.
    """
    known, wanted = shape(case), layout(case)
    if known is None or wanted is None or wanted.lora is not None:
        return None
    width = WIDTH[wanted.weights]
    words = f"{memory.billions(known.parameters)} parameters x {width} bytes"
    if Arguments(case.spec).says("save_only_model") or wanted.optimizer not in _ADAM:
        return Need(known.parameters * width, words)
    return Need(3 * known.parameters * width, f"{words}, and twice that for the optimizer")


# -- GPUs ------------------------------------------------------------------------------------------


@rule("gpu-dialect", on="site")
def _dialect(case: Case) -> Iterator[Finding]:
    asked, request = case.spec.gpu_directive, case.profile.gpu_request
    wanted, refused = request.dialect, case.profile.directives.forbidden.get(asked)
    path = ("directives", "forbidden", asked) if refused else ("gpu_request", "dialect")
    fact = case.fact(wanted, *path)
    if not case.spec.gpus_per_node or fact is None or asked in (wanted, *request.also):
        return
    # Request syntax that the profile does not list may still work; forbidden syntax does not.
    sure = refused is not None or "none" in (wanted, asked)
    said = "requests no GPUs" if asked == "none" else f"requests GPUs by --{asked}"
    wants = "no GPU directive at all" if wanted == "none" else f"--{wanted}"
    why = f": {refused}" if refused else ""
    yield case.finding(
        "gpu-dialect",
        fact.severity if sure else "warning",
        f"the job {said}, and this site requires {wants}",
        evidence=(
            f"{case.said(*_DIALECT, value=asked)}; {fact.source}{why}"
            f"{confirm(fact, 'the documentation of the site')}"
        ),
        reason="the site refuses the job, or gives it no GPUs",
        fix=case.fix((_DIALECT, wanted)),
    )


def _gpus_there(case: Case, there: Fact[int]) -> str:
    said = case.said(*_GPUS, value=case.spec.gpus_per_node)
    return f"{said}; {there.source}: {there.value} on a node{confirm(there, _sinfo(case))}"


@rule("gpus-per-node", on="site")
def _too_many_gpus(case: Case) -> Iterator[Finding]:
    asked, there = case.spec.gpus_per_node, case.node("gpus")
    if there is None or asked <= there.value:
        return
    where = f"partition {case.partition_name}" if case.partition_name else case.shape_name
    other = likely_partition(case) or "NAME"
    fix = f"sinfo -o '%P %G', then: {case.fix((('resources', 'partition'), other))}"
    if there.value:
        needed, most = -(-case.spec.processes // there.value), limits.nodes_max(case)
        nodes = needed if most is None else min(needed, most)
        fix = case.fix((_NODES, nodes), (_GPUS, there.value))
    yield case.finding(
        "gpus-per-node",
        there.severity,
        f"{asked} GPUs of each node are requested, and a node of {where or 'this site'} has"
        f" {there.value}",
        evidence=_gpus_there(case, there),
        reason=_NOT_AVAILABLE,
        fix=fix,
    )


@rule("gpus-unused", "gpus-spread", on="site")
def _idle_gpus(case: Case) -> Iterator[Finding]:
    spec, there, whole = case.spec, case.node("gpus"), case.whole_nodes
    if there is None or spec.gpus_per_node > there.value:
        return
    evidence, used = _gpus_there(case, there), spec.processes if spec.gpus_per_node else 0
    if spec.gpus_per_node < there.value and whole is not None and whole.value:
        paid, (packed, rest) = spec.nodes * there.value, divmod(used, there.value)
        more: tuple[tuple[KeyPath, int], ...] = ((_GPUS, there.value),)
        fewer = ((_NODES, packed), *more) if packed and not rest else more
        yield case.finding(
            "gpus-unused",
            "warning",
            f"the job is charged for {paid} GPUs and uses {used}: nodes are allocated whole here",
            evidence=evidence if whole.source == there.source else f"{evidence}; {whole.source}",
            reason="the remaining GPUs idle but are charged",
            fix=("a partition without GPUs, or: " if not used else "") + case.fix(*fewer),
        )
    elif used and spec.nodes > 1 and used <= there.value:
        yield case.finding(
            "gpus-spread",
            "note",
            f"{spec.layout}, which fit on one node of {there.value} GPUs",
            evidence=evidence,
            reason="communication within a node is many times faster than between nodes",
            fix=case.fix((_NODES, 1), (_GPUS, used)),
        )


@rule("gpu-memory", on="site")
def _gpu_memory(case: Case) -> Iterator[Finding]:
    fact, spec, model = gpu_bytes(case), case.spec, case.around.model
    if fact is None or model is None or not spec.gpus_per_node:
        return
    least, peak = gpu_least(case), gpu_estimate(case, fact.value)
    if least is not None and least.size > fact.value:
        gpus_needed = -(-least.size * spec.processes // fact.value)
        advice = {
            "ddp": f"share them: {case.fix((_SHARDING, 'fsdp'))}; {_LORA}",
            "zero2": f"share the weights too: {case.fix((_SHARDING, 'zero3'))}; {_LORA}",
        }.get(spec.sharding, f"use more GPUs, at least {gpus_needed}, {_LORA}")
        yield case.finding(
            "gpu-memory",
            fact.severity,
            f"each GPU would hold {size(least.size)} of model and optimizer, and has"
            f" {size(fact.value)}",
            evidence=f"{model.where.said}: {least.words}; {fact.source}",
            reason="the training fails with CUDA out of memory, even without activations",
            fix=advice,
        )
    elif peak is not None and peak.size > fact.value:  # the formula is off by a few percent
        yield case.finding(
            "gpu-memory",
            "warning",
            f"each GPU would hold about {size(peak.size)} at the peak, and has {size(fact.value)}",
            evidence=f"{model.where.said}: {peak.words}; {fact.source}",
            reason="the training probably fails with CUDA out of memory",
            fix=f"{case.command(verb='fit')}, which shows the layouts that fit",
        )


# -- cores -----------------------------------------------------------------------------------------


@rule("cores-limit", "cores-few", on="site")
def _cores(case: Case) -> Iterator[Finding]:
    spec, there, gpus_there = case.spec, case.node("cpus"), case.node("gpus")
    total, said = spec.cores_per_task * spec.tasks_per_node, limits.cores_said(case)
    too_many_gpus = gpus_there is not None and 0 < gpus_there.value < spec.gpus_per_node
    if spec.cpus_per_task is None and too_many_gpus:
        return  # caused by the number of GPUs: `gpus-per-node` reports it
    if there is not None and total > there.value:
        yield case.finding(
            "cores-limit",
            there.severity,
            f"{total} cores of each node are requested, and a job can have {there.value}",
            evidence=(
                f"{said}, {count(spec.tasks_per_node, 'task')} on each node; {there.source}:"
                f" {there.value} on a node{confirm(there, _sinfo(case))}"
            ),
            reason=(
                "Slurm refuses the job, or never starts it: sites keep some cores of a node for the"
                " system"
            ),
            fix=case.fix((_CPUS, max(1, there.value // spec.tasks_per_node))),
        )
        return
    wanted, required = case.of_nodes("cpus_per_gpu"), case.of_nodes("cpus_per_gpu_required")
    least = wanted.value * spec.gpus_per_node if wanted is not None else 0
    if wanted is not None and required is not None and required.value and total < least:
        yield case.finding(
            "cores-few",
            required.severity,
            f"{total} cores for {spec.gpus_per_node} GPUs of a node, and this site requires "
            f"{wanted.value} for each",
            evidence=f"{said}; {required.source}"
            f"{confirm(required, 'the documentation of the site')}",
            reason="the site refuses a job with fewer, or charges the GPU's share of the node all"
            " the same",
            fix=case.fix((_CPUS, -(-least // spec.tasks_per_node))),
        )
    elif spec.cores_per_task < spec.processes_per_task:
        enough = spec.processes_per_task * (spec.cpus_per_gpu or 8)
        if there is not None:
            enough = min(enough, there.value // spec.tasks_per_node)
        yield case.finding(
            "cores-few",
            "warning",
            f"{spec.processes_per_task} training processes share {spec.cores_per_task} cores on"
            " each node",
            evidence=f"{said}; {spec.layout}",
            reason="fewer than one core per process: data loading starves the GPUs",
            fix=case.fix((_CPUS, enough)),
        )


# -- memory ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _MemoryRequest:
    """The requested memory: bytes (None: not requested; 0: all of the node), the config key, how
    often it counts on a node, and its origin.
    """

    size: int | None
    path: KeyPath
    parts: int
    said: str


def _memory_request(case: Case) -> _MemoryRequest:
    spec = case.spec
    cores, total = spec.cores_per_task * spec.tasks_per_node, spec.mem_bytes
    path, parts, of = _MEM, 1, ""
    if _MEM_PER_GPU in case.origins:
        path, parts = _MEM_PER_GPU, spec.processes_per_node
        of = f" x {count(parts, 'GPU')}"
    elif spec.mem_per_cpu_bytes:
        path, parts, total = _MEM_PER_CPU, cores, spec.mem_per_cpu_bytes * cores
        of = f" x {cores} cores"
    value = units.format_memory(total // parts) if total else 0
    return _MemoryRequest(total, path, parts, case.said(*path, value=value) + of)


@rule("memory-limit", on="site")
def _memory(case: Case) -> Iterator[Finding]:
    asked, there, live = _memory_request(case), case.node("memory"), case.live_partition
    most = live.memory_max_per_node if live is not None else None
    if live is not None and most is not None and (there is None or most < there.value):
        there = Fact(most, "live", f"scontrol show partition {live.name}: MaxMemPerNode")
    if there is not None and (asked.size or 0) > there.value:
        fits = units.round_memory_down(there.value // asked.parts)
        yield case.finding(
            "memory-limit",
            there.severity,
            f"{size(asked.size or 0)} of memory on each node, and a job can have"
            f" {size(there.value)}",
            evidence=f"{asked.said}; {there.source}{confirm(there, _sinfo(case))}",
            reason=(
                "Slurm refuses the job: Memory specification can not be satisfied, or Requested"
                " node configuration is not available"
            ),
            fix=case.fix((asked.path, fits)),
        )


def memory_given(case: Case) -> Fact[int] | None:
    """Return the bytes per node that the job requests or gets by default; the node's memory if it
    requests all. None: unknown.
    """
    asked = _memory_request(case)
    if asked.size:
        return Fact(asked.size, "own", asked.said)
    return case.node("memory") if asked.size == 0 else _default_memory(case)


def _default_memory(case: Case) -> Fact[int] | None:
    cores = case.spec.cores_per_task * case.spec.tasks_per_node
    for source, each in (
        ("scontrol show partition", case.live_partition),
        ("scontrol show config", case.live),
    ):
        if each is not None and each.default_memory_per_node is not None:
            return Fact(each.default_memory_per_node, "live", f"{source}: DefMemPerNode")
        if each is not None and each.default_memory_per_cpu is not None:
            words = f"{source}: DefMemPerCPU {units.format_memory(each.default_memory_per_cpu)}"
            words += f" x {cores} cores"
            return Fact(cores * each.default_memory_per_cpu, "live", words)
    known = case.profile.memory
    per_node = case.fact(known.default_per_node, "memory", "default_per_node")
    per_cpu = case.fact(known.default_per_cpu, "memory", "default_per_cpu")
    if per_cpu is None or per_node is not None:
        return per_node
    words = f"{per_cpu.source}: {units.format_memory(per_cpu.value)} x {cores} cores"
    return Fact(per_cpu.value * cores, per_cpu.level, words)


@rule("memory-too-small", on="site")
def _model_in_memory(case: Case) -> Iterator[Finding]:
    given, need = memory_given(case), host_memory(case)
    asked, there = _memory_request(case).size, case.node("memory")
    if given is None or asked == 0 or need.total <= given.value:
        return
    certain, own_script = need.least > given.value, case.spec.script is not None
    if not certain and (own_script or shape(case) is None):
        return  # too uncertain to report
    wanted = max(1, -(-need.total * 5 // 4 // GIB))  # with a margin of 25 %
    parts = need.certain if certain else need.parts
    fix = case.fix((_MEM, f"{wanted}G"))
    if "mem" in case.profile.directives.forbidden:
        fix = case.command(("--cpus-per-task", str(case.spec.cores_per_task * 2)))
    elif there is not None and wanted * GIB > there.value:
        fix = f"let one process load the model: {case.fix((_SHARDING, 'fsdp'))}"
    yield case.finding(
        "memory-too-small",
        # A custom script may load its model in another way.
        given.severity if certain and not own_script else "warning",
        f"{'the job requests' if asked else 'the site gives'} {size(given.value)} of memory on each"
        f" node, and the processes need"
        f" {size(need.least) if certain else f'about {size(need.total)}'}",
        evidence=(
            f"{given.source}; needed {'at least' if certain else 'by estimate'}:"
            f" {' + '.join(f'{part.name} {memory.gib(part.bytes)}' for part in parts)}"
        ),
        reason="the kernel kills the training while it loads the model: OUT_OF_MEMORY",
        fix=fix,
    )


@rule("node-share", on="site")
def _share(case: Case) -> Iterator[Finding]:
    # More than the share of the job's GPUs, so that another GPU becomes unusable for other jobs.
    spec, whole, there = case.spec, case.whole_nodes, case.node("gpus")
    own, asked = spec.gpus_per_node, _memory_request(case)
    if whole is None or whole.value or "exclusive" in dict(spec.sbatch):
        return
    if there is None or not 0 < own < there.value:
        return
    node = case.node("memory")
    if asked.size is None or (asked.size and not _blocks_a_gpu(own, asked.size, node, there)):
        return
    share = node.value * own // there.value if node is not None else 64 * GIB
    yield case.finding(
        "node-share",
        "warning",
        f"{size(asked.size) if asked.size else 'all'} memory of the node for {own} of its"
        f" {there.value} GPUs",
        evidence=f"{asked.said}; {(node or whole).source}",
        reason="other jobs cannot use the GPUs that are left, and some sites charge for them",
        fix=case.fix((asked.path, units.round_memory_down(share // asked.parts))),
    )


def _blocks_a_gpu(own: int, asked: int, there: Fact[int] | None, gpus_there: Fact[int]) -> bool:
    """Whether a request takes at least half of the share of a further GPU; one that exceeds the
    node is another finding.
    """
    return (
        there is not None
        and asked <= there.value
        and asked * gpus_there.value >= there.value * (own + 0.5)
    )


def _sinfo(case: Case) -> str:
    name = f"-p {case.partition_name} " if case.partition_name else ""
    return f"sinfo {name}-o '%P %c %m %G'"
