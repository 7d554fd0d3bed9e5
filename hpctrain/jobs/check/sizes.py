"""How much memory a training needs at the very least. Lower bounds only: a finding must be certain, an estimate is `memory`'s matter.

Sources: TRL loads a model from a path as float32 unless `--dtype` says otherwise (trl 1.16); AdamW keeps two numbers for each parameter;
gradients have the dtype of the weights. A process of a tiny model holds 0.44 GiB of host memory (torch 2.13, transformers 5.23).
"""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.jobs.arguments import Arguments
from hpctrain.jobs.check.case import Case

GIB = 1024**3
#: Host memory of a training process, its model not counted.
PROCESS_BYTES = GIB // 2
_BYTES = {"float32": 4, "fp32": 4, "bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "half": 2}
#: Optimizers that keep two numbers of the weights' dtype for each parameter.
_ADAM = {"adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw"}


@dataclass(frozen=True, slots=True)
class Need:
    """At least so many bytes, and the sum that they come from."""

    size: int
    words: str


def weight_bytes(case: Case) -> int | None:
    """Return the bytes of each parameter as the shipped training loads it; None where that is unknown."""
    arguments = Arguments(case.spec)
    if not arguments.ours or arguments.incomplete:
        return None
    dtype = arguments.get("dtype", "torch_dtype")
    if dtype is None:
        return 2 if arguments.says("use_peft") else 4
    return _BYTES.get(dtype)


def gpu_need(case: Case) -> Need | None:
    """Return what each GPU must hold: weights, gradients and optimizer, no activations. None where it is not certain."""
    model, per_weight, arguments = case.around.model, weight_bytes(case), Arguments(case.spec)
    if model is None or model.parameters is None or model.quantized or per_weight is None or arguments.says("load_in_4bit"):
        return None
    own = case.around.accelerate
    if arguments.says("load_in_8bit") or (own is not None and own.distributed_type not in (None, "MULTI_GPU")):
        return None  # an accelerate config of the user's own says how to share
    world = case.spec.processes
    weights = model.parameters * per_weight
    states = 0
    if not arguments.says("use_peft"):
        states = weights
        if (arguments.get("optim") or "adamw_torch_fused") in _ADAM:
            states += 2 * weights
    whole, split = (0, weights + states) if case.spec.sharding in ("fsdp", "zero3") else (weights, states)
    if case.spec.sharding == "ddp":
        whole, split = weights + states, 0
    words = f"{_billions(model.parameters)} parameters x {(weights + states) // model.parameters} bytes"
    words += f", shared by {world} GPUs" if split and world > 1 else ""
    return Need(whole + split // world, words)


def host_need(case: Case) -> Need | None:
    """Return what the processes of one node hold in host memory while they load the model; None where nothing is certain."""
    model, per_node = case.around.model, case.spec.gpus_per_node
    size, words = per_node * PROCESS_BYTES, f"{per_node} processes x 0.5 GiB"
    per_weight = weight_bytes(case)
    if model is not None and model.parameters is not None and not model.quantized and per_weight is not None:
        # With FSDP one rank of a node may load for all, and ZeRO-3 loads in parts.
        loading = per_node if case.spec.sharding in ("ddp", "zero2") else 1 if case.spec.sharding == "fsdp" else 0
        if loading:
            size += loading * model.parameters * per_weight
            words += f" + {loading} x {gib(model.parameters * per_weight)} of weights ({_billions(model.parameters)} x {per_weight} bytes)"
    return Need(size, words)


def checkpoint_bytes(case: Case) -> Need | None:
    """Return the size of one checkpoint: weights and, for full fine-tuning, the optimizer's state. None where it is not certain."""
    model, per_weight, arguments = case.around.model, weight_bytes(case), Arguments(case.spec)
    if model is None or model.parameters is None or per_weight is None or arguments.says("use_peft"):
        return None
    size, words = model.parameters * per_weight, f"{_billions(model.parameters)} parameters x {per_weight} bytes"
    if not arguments.says("save_only_model") and (arguments.get("optim") or "adamw_torch_fused") in _ADAM:
        size, words = 3 * size, f"{words}, and twice that for the optimizer"
    return Need(size, words)


def gib(size: int) -> str:
    """Return bytes as people say them: `39.6 GiB`, `500 MiB`."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 1024**2:.0f} MiB"


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} billion" if count >= 1e8 else f"{count / 1e6:.1f} million"
