"""Rules about GPUs, cores and memory: what a node has, and what the training needs by the formula
of `hpctrain fit`, so that `check` and `fit` agree.

Memory has two figures: the certain part (weights, gradients and optimizer states; the model while
it is loaded), which can give an error, and the formula's estimate, which gives a warning.
Architectures that the formula does not support have neither.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.checks.job import limits
from hpctrain.checks.job.context import Case, Fact, confirm, rule
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
#: Bytes, and the sum that they come from.
Need = tuple[int, str]
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
_SINFO = "sinfo -o '%P %c %m %G'"


# -- how much memory the training needs ------------------------------------------------------------


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


def _gpu_needs(case: Case, gpu_bytes: int) -> tuple[Need | None, Need] | None:
    """Return the bytes of each GPU, with their sum in words: the certain part (weights, gradients
    and optimizer; None with quantized weights), and the formula's peak, with activations.
    """
    known, wanted = shape(case), layout(case, gpu_bytes=gpu_bytes)
    own = case.around.accelerate
    otherwise = own is not None and own.distributed_type not in (None, "MULTI_GPU")
    if known is None or wanted is None or otherwise:
        return None
    parts = {name: held(known, wanted) for name, held in _CERTAIN.items()}
    words = f"{memory.billions(known.parameters)} parameters in {wanted.weights}, {wanted.sharding}"
    sums = " + ".join(f"{size(held)} of {name}" for name, held in parts.items())
    least = sum(parts.values()), f"{words}: {sums}"
    peak = (
        memory.gpu_memory(known, wanted).total,
        f"{words}, {wanted.micro_batch} sequences of {wanted.length} tokens, checkpointing"
        f" {wanted.checkpointing}",
    )
    return least if wanted.quantization == "none" else None, peak


def gpu_name(case: Case) -> str | None:
    """Return the name of the job's GPU: the requested MIG slice, else from the profile, Slurm, or
    the requested type; None: unknown.
    """
    kinds = [kind for group in case.live_nodes for kind, _ in group.gpus if kind]
    known, asked = case.of_nodes("gpu"), case.spec.gpu_type
    if asked and gpus.is_part(asked):
        return asked
    return known.value if known is not None else [*kinds, asked][0]


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
    """Return the bytes of one checkpoint, and the sum in words: the weights and, for full
    fine-tuning, the optimizer states; None if uncertain.
    """
    known, wanted = shape(case), layout(case)
    if known is None or wanted is None or wanted.lora is not None:
        return None
    width = WIDTH[wanted.weights]
    words = f"{memory.billions(known.parameters)} parameters x {width} bytes"
    if Arguments(case.spec).says("save_only_model") or wanted.optimizer not in _ADAM:
        return known.parameters * width, words
    return 3 * known.parameters * width, f"{words}, and twice that for the optimizer"


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


@rule("gpus-per-node", "gpus-unused", on="site")
def _gpus(case: Case) -> Iterator[Finding]:
    spec, there, whole = case.spec, case.node("gpus"), case.whole_nodes
    if there is None:
        return
    asked, most = spec.gpus_per_node, there.value
    said = case.said(*_GPUS, value=asked)
    evidence = f"{said}; {there.source}: {most} on a node{confirm(there, _SINFO)}"
    if asked > most:
        where = f"partition {case.partition_name}" if case.partition_name else case.shape_name
        fix = f"{_SINFO}, and choose another partition"
        if most:
            needed = -(-spec.processes // most)
            nodes = min(needed, limits.nodes_max(case) or needed)
            fix = case.fix((_NODES, nodes), (_GPUS, most))
        yield case.finding(
            "gpus-per-node",
            there.severity,
            f"{asked} GPUs of each node are requested, and a node of {where or 'this site'} has"
            f" {most}",
            evidence=evidence,
            reason="Slurm refuses the job: Requested node configuration is not available",
            fix=fix,
        )
    elif asked < most and whole is not None and whole.value:
        used = spec.nodes * asked
        packed = ((_NODES, used // most),) if used and used % most == 0 else ()
        yield case.finding(
            "gpus-unused",
            "warning",
            f"the job is charged for {spec.nodes * most} GPUs and uses {used}: nodes are allocated"
            " whole here",
            evidence=f"{evidence}; {whole.source}",
            reason="the remaining GPUs idle but are charged",
            fix=case.fix(*packed, (_GPUS, most)),
        )


@rule("gpu-memory", on="site")
def _gpu_memory(case: Case) -> Iterator[Finding]:
    fact, spec, model = gpu_bytes(case), case.spec, case.around.model
    needs = _gpu_needs(case, fact.value) if fact is not None and spec.gpus_per_node else None
    if fact is None or model is None or needs is None:
        return
    least, peak = needs
    if least is not None and least[0] > fact.value:
        advice = {
            "ddp": f"share them: {case.fix((_SHARDING, 'fsdp'))}; {_LORA}",
            "zero2": f"share the weights too: {case.fix((_SHARDING, 'zero3'))}; {_LORA}",
        }
        more = -(-least[0] * spec.processes // fact.value)
        yield case.finding(
            "gpu-memory",
            fact.severity,
            f"each GPU would hold {size(least[0])} of model and optimizer, and has"
            f" {size(fact.value)}",
            evidence=f"{model.where.said}: {least[1]}; {fact.source}",
            reason="the training fails with CUDA out of memory, even without activations",
            fix=advice.get(spec.sharding, f"use more GPUs, at least {more}, {_LORA}"),
        )
    elif peak[0] > fact.value:  # the formula is off by a few percent
        yield case.finding(
            "gpu-memory",
            "warning",
            f"each GPU would hold about {size(peak[0])} at the peak, and has {size(fact.value)}",
            evidence=f"{model.where.said}: {peak[1]}; {fact.source}",
            reason="the training probably fails with CUDA out of memory",
            fix=f"{case.command(verb='fit')}, which shows the layouts that fit",
        )


# -- cores -----------------------------------------------------------------------------------------


@rule("cores-limit", "cores-few", on="site")
def _cores(case: Case) -> Iterator[Finding]:
    spec, there, said = case.spec, case.node("cpus"), limits.cores_said(case)
    total, most = spec.cores_per_task * spec.tasks_per_node, there.value if there else None
    gpus_there, required = case.node("gpus"), case.of_nodes("cpus_per_gpu_required")
    required = required if required is not None and required.value else None
    if spec.cpus_per_task is None and gpus_there and 0 < gpus_there.value < spec.gpus_per_node:
        return  # caused by the number of GPUs: `gpus-per-node` reports it
    each = spec.cpus_per_gpu or 8
    if required is not None and case.shape is not None:
        each = case.shape.cpus_per_gpu or each
    least = each * spec.gpus_per_node if required is not None else 0
    if there is not None and most is not None and total > most:
        yield case.finding(
            "cores-limit",
            there.severity,
            f"{total} cores of each node are requested, and a job can have {most}",
            evidence=(
                f"{said}, {count(spec.tasks_per_node, 'task')} on each node; {there.source}:"
                f" {most} on a node{confirm(there, _SINFO)}"
            ),
            reason=(
                "Slurm refuses the job, or never starts it: sites keep some cores of a node for the"
                " system"
            ),
            fix=case.fix((_CPUS, max(1, most // spec.tasks_per_node))),
        )
    elif total < least or spec.cores_per_task < spec.processes_per_task:
        why = f"; this site requires {each} for each GPU: {required.source}" if required else ""
        enough = min(each * spec.processes_per_task, (most or total * 64) // spec.tasks_per_node)
        yield case.finding(
            "cores-few",
            required.severity if required is not None and total < least else "warning",
            f"{count(total, 'core')} for {count(spec.processes_per_node, 'process', 'processes')}"
            " on each node",
            evidence=f"{said}; {spec.layout}{why}",
            reason="data loading starves the GPUs; where a site sets a minimum, it refuses the job",
            fix=case.fix((_CPUS, enough)),
        )


# -- memory ----------------------------------------------------------------------------------------


def _memory_request(case: Case) -> tuple[int | None, KeyPath, int, str]:
    """Return the requested memory: bytes (None: not requested; 0: all of the node), the config key,
    how often it counts on a node, and its origin.
    """
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
    return total, path, parts, case.said(*path, value=value) + of


@rule("memory-limit", on="site")
def _memory(case: Case) -> Iterator[Finding]:
    asked, path, parts, said = _memory_request(case)
    there, live = case.node("memory"), case.live_partition
    most = live.memory_max_per_node if live is not None else None
    if most is not None and (there is None or most < there.value):
        there = Fact(most, "live", "scontrol show partition: MaxMemPerNode")
    if there is not None and asked is not None and asked > there.value:
        fits = units.round_memory_down(there.value // parts)
        yield case.finding(
            "memory-limit",
            there.severity,
            f"{size(asked)} of memory on each node, and a job can have {size(there.value)}",
            evidence=f"{said}; {there.source}{confirm(there, _SINFO)}",
            reason=(
                "Slurm refuses the job: Memory specification can not be satisfied, or Requested"
                " node configuration is not available"
            ),
            fix=case.fix((path, fits)),
        )


def memory_given(case: Case) -> Fact[int] | None:
    """Return the bytes per node that the job requests or gets by default; the node's memory if it
    requests all. None: unknown.
    """
    asked, _, _, said = _memory_request(case)
    if asked is not None:
        return Fact(asked, "own", said) if asked else case.node("memory")
    known, live, cores = case.profile.memory, case.live_partition, case.spec.cores_per_task
    if live is not None and (live.default_memory_per_node or live.default_memory_per_cpu):
        known = known.replace(
            default_per_cpu=live.default_memory_per_cpu,
            default_per_node=live.default_memory_per_node,
        )
    per_node = case.fact(known.default_per_node, "memory", "default_per_node")
    per_cpu = case.fact(known.default_per_cpu, "memory", "default_per_cpu")
    if per_cpu is None or per_node is not None:
        return per_node
    cores *= case.spec.tasks_per_node
    words = f"{per_cpu.source}: {units.format_memory(per_cpu.value)} x {cores} cores"
    return Fact(per_cpu.value * cores, per_cpu.level, words)


@rule("memory-too-small", on="site")
def _model_in_memory(case: Case) -> Iterator[Finding]:
    given, need = memory_given(case), host_memory(case)
    asked, there = _memory_request(case)[0], case.node("memory")
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
    asked, path, parts, said = _memory_request(case)
    node, there, whole = case.node("memory"), case.node("gpus"), case.whole_nodes
    own = case.spec.gpus_per_node
    if asked is None or whole is None or whole.value or "exclusive" in dict(case.spec.sbatch):
        return
    if node is None or there is None or not 0 < own < there.value or asked > node.value:
        return
    share = node.value * own // there.value
    # At least half of the share of a further GPU, which becomes unusable for other jobs.
    if asked == 0 or asked - share >= node.value / there.value / 2:
        yield case.finding(
            "node-share",
            "warning",
            f"{size(asked) if asked else 'all'} memory of the node for {own} of its {there.value}"
            " GPUs",
            evidence=f"{said}; {node.source}",
            reason="other jobs cannot use the GPUs that are left, and some sites charge for them",
            fix=case.fix((path, units.round_memory_down(share // parts))),
        )
