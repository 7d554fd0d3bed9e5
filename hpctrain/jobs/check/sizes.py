"""How much memory a training needs, by the formula of `hpctrain fit`, so that `check` and `fit` never say two things of one job.

Two figures: what is certain (weights, gradients and the optimizer's state; the model while it is loaded), on which a finding may be an
error, and the formula's estimate, on which it is a warning. Of a model whose architecture the formula does not know, only its number of
parameters counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.errors import HpctrainError
from hpctrain.fit import asked, correction, gpus, host, memory, memory_static
from hpctrain.fit.layout import Layout, Lora
from hpctrain.fit.shape import ModelShape
from hpctrain.jobs.arguments import Arguments
from hpctrain.jobs.check.case import Case

GIB = 1024**3
#: What is there when the optimizer steps, whatever is trained on.
_CERTAIN = {"weights": memory_static.weights, "gradients": memory_static.gradients, "optimizer": memory_static.optimizer}
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: Optimizers that keep two numbers of the weights' dtype for each parameter.
_ADAM = frozenset({"adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw"})


@dataclass(frozen=True, slots=True)
class Need:
    """So many bytes, and the sum that they come from."""

    size: int
    words: str


def shape(case: Case) -> ModelShape | None:
    """Return the shape of the model; None where config.json is missing or of an architecture that the formula does not know."""
    model = case.around.model
    if model is None or model.config is None or model.quantized:
        return None
    data = case.around.dataset.prepared if case.around.dataset is not None else None
    task = case.spec.task if case.spec.script is None else "sft"
    try:
        return asked.shape_of(model.config, asked.options_of(case.spec.arguments), task=task, dataset=data)
    except HpctrainError:
        return None


def layout(case: Case, *, gpu_bytes: int | None = None) -> Layout | None:
    """Return the layout that the job asks for; None where its arguments are not all known, or are another training's.

    Args:
        case: the job.
        gpu_bytes: what a GPU has, on which checkpointing depends where nobody asked for it.
    """
    arguments, known = Arguments(case.spec), shape(case)
    if not arguments.ours or arguments.incomplete or known is None:
        return None
    options = asked.options_of(case.spec.arguments)
    stored = (case.around.model.config or {}) if case.around.model is not None else {}
    try:
        return asked.layout_of(
            options, nodes=case.spec.nodes, gpus_per_node=case.spec.gpus_per_node, sharding=case.spec.sharding, shape=known,
            cuda=not uses_cpu(case), bf16=has_bf16(case), gpu_bytes=gpu_bytes,
            dataset=case.around.dataset.prepared if case.around.dataset is not None else None,
            stored=stored.get("dtype") or stored.get("torch_dtype"),
        )  # fmt: skip
    except HpctrainError:  # what is wrong with the arguments is said by others
        return None


def has_bf16(case: Case) -> bool:
    """Whether the GPUs of the job have bfloat16; those that nobody knows are taken to be recent."""
    named = case.shape.gpu if case.shape is not None else None
    gpu = gpus.find(named) if named is not None else None
    return gpu is None or gpu.bf16 is not None


def uses_cpu(case: Case) -> bool:
    """Whether the training is asked to run on the CPU."""
    said = Arguments(case.spec).says("use_cpu")
    words = (*dict(case.spec.env).items(), *case.around.variables.items())
    return bool(said) or any(name == "ACCELERATE_USE_CPU" and value.lower() in ("1", "true", "yes") for name, value in words)


def learnt(case: Case, gpu: str | None) -> correction.Correction:
    """Return what the user's own runs on this cluster say of predictions for a kind of GPU; `fit` and `check` both ask here.

    Args:
        case: the job; its runs may call the cluster by the profile's name, or as Slurm does.
        gpu: the name in the table of GPUs; None: it is in none.
    """
    names = {case.spec.cluster, case.live.cluster_name if case.live is not None else None}
    if case.profile is not None:
        names = {*names, case.profile.name, *case.profile.detect.cluster_names} - {None}
    return correction.correction(case.around.measured, clusters=names, gpu=gpu)


def gpu_least(case: Case) -> Need | None:
    """Return what each GPU must hold: weights, gradients and optimizer, no activations. None where it is not certain."""
    model, arguments = case.around.model, Arguments(case.spec)
    own = case.around.accelerate
    if model is None or model.quantized or (own is not None and own.distributed_type not in (None, "MULTI_GPU")):
        return None  # an accelerate config of the user's own says how to share
    known, wanted = shape(case), layout(case)
    if known is not None and wanted is not None and wanted.quantization == "none":
        parts = {name: held(known, wanted) for name, held in _CERTAIN.items()}
        share = f", shared by {case.spec.processes} GPUs" if wanted.sharding != "ddp" and case.spec.processes > 1 else ""
        sums = " + ".join(f"{gib(size)} of {name}" for name, size in parts.items())
        return Need(sum(parts.values()), f"{host.billions(known.parameters)} parameters in {wanted.weights}{share}: {sums}")
    return _of_parameters(case, arguments)


def _of_parameters(case: Case, arguments: Arguments) -> Need | None:
    """Return the least of a model of which nothing but its number of parameters is known."""
    model, per_weight = case.around.model, weight_bytes(case)
    if model is None or model.parameters is None or per_weight is None:
        return None
    if arguments.says("load_in_4bit") or arguments.says("load_in_8bit"):
        return None
    weights, world = model.parameters * per_weight, case.spec.processes
    adam = (arguments.get("optim") or asked.OPTIMIZER) in _ADAM
    states = 0 if arguments.says("use_peft") else weights * (3 if adam else 1)
    divided = {"ddp": (weights + states, 0), "zero2": (weights, states)}
    whole, split = divided.get(case.spec.sharding, (0, weights + states))
    words = f"{host.billions(model.parameters)} parameters x {(weights + states) // model.parameters} bytes"
    words += f", shared by {world} GPUs" if split and world > 1 else ""
    return Need(whole + split // world, f"{words} (weights, gradients, optimizer)")


def gpu_estimate(case: Case, gpu_bytes: int) -> Need | None:
    """Return the formula's peak of each GPU, activations and all; None where it cannot say."""
    own = case.around.accelerate
    known, wanted = shape(case), layout(case, gpu_bytes=gpu_bytes)
    if known is None or wanted is None or (own is not None and own.distributed_type not in (None, "MULTI_GPU")):
        return None
    needed, named = memory.gpu_memory(known, wanted), gpu_name(case)
    gpu = gpus.find(named, gpu_bytes) if named is not None else None
    factor = learnt(case, gpu.name if gpu is not None else None).of_memory(wanted)
    rows = f"{wanted.micro_batch} rows of {wanted.length} tokens, checkpointing {wanted.checkpointing}"
    words = f"{host.billions(known.parameters)} parameters in {wanted.weights}, {wanted.sharding}, {rows}"
    return Need(factor.of(needed), f"{words}; {factor.words}" if factor.runs else words)


def gpu_name(case: Case) -> str | None:
    """Return what the job's GPU is called: by the part of one that it asks for, the profile, Slurm, or its type; None: nobody says."""
    live = next((kind for group in case.live_nodes for kind, _ in group.gpus if kind), None)
    return gpu_part(case) or (case.shape.gpu if case.shape is not None else None) or live or case.spec.gpu_type


def gpu_part(case: Case) -> str | None:
    """Return the name of the part of a GPU (MIG) that the job asks for, with the GPU of the profile before it; None: it asks for none."""
    said, shape = case.spec.gpu_type, case.shape
    if said is None or not gpus.is_part(said):
        return None
    whole = shape.gpu if shape is not None and not gpus.variants(said) else None
    return f"{whole} {said}" if whole is not None else said


def host_memory(case: Case) -> host.HostMemory:
    """Return what the processes of one node hold in host memory."""
    model, arguments = case.around.model, Arguments(case.spec)
    known = shape(case)
    wanted = layout(case) or _bare(case, arguments)
    count = model.parameters if model is not None and not model.quantized and weight_bytes(case) is not None else None
    workers = arguments.get("dataloader_num_workers") or "0"
    return host.host_memory(
        count or (known.parameters if known is not None else None), wanted,
        workers=int(workers) if workers.isdecimal() and len(workers) < 6 else 0, cuda=not uses_cpu(case),
    )  # fmt: skip


def _bare(case: Case, arguments: Arguments) -> Layout:
    """Return as much of a layout as host memory depends on, of a model whose shape nobody knows."""
    spec, per_weight = case.spec, weight_bytes(case)
    lora = Lora(rank=asked.LORA_RANK, targets=()) if arguments.says("use_peft") else None
    quantised = arguments.says("load_in_4bit") or arguments.says("load_in_8bit")
    return Layout(
        nodes=spec.nodes, gpus_per_node=spec.gpus_per_node, sharding=spec.sharding, lora=lora,
        weights="float32" if per_weight in (4, None) else "bfloat16", quantization="8bit" if quantised else "none",
    )  # fmt: skip


def weight_bytes(case: Case) -> int | None:
    """Return the bytes of each parameter as the shipped training loads it; None where that is unknown."""
    arguments = Arguments(case.spec)
    if not arguments.ours or arguments.incomplete:
        return None
    known = layout(case)
    if known is not None:
        return _BYTES[known.weights]
    dtype = arguments.get("dtype", "torch_dtype")
    if dtype is None:
        return 2 if arguments.says("use_peft") else 4
    return {"fp32": 4, "bf16": 2, "fp16": 2, "half": 2, **_BYTES}.get(dtype)


def checkpoint_bytes(case: Case) -> Need | None:
    """Return the size of one checkpoint: weights and, for full fine-tuning, the optimizer's state. None where it is not certain."""
    model, per_weight, arguments = case.around.model, weight_bytes(case), Arguments(case.spec)
    if model is None or model.parameters is None or per_weight is None or arguments.says("use_peft"):
        return None
    size, words = model.parameters * per_weight, f"{host.billions(model.parameters)} parameters x {per_weight} bytes"
    if not arguments.says("save_only_model") and (arguments.get("optim") or asked.OPTIMIZER) in _ADAM:
        size, words = 3 * size, f"{words}, and twice that for the optimizer"
    return Need(size, words)


def gib(size: int) -> str:
    """Return bytes as people say them: `39.6 GiB`, `500 MiB`."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 1024**2:.0f} MiB"
