"""The model that is run with fake tensors: its adapter, and fake tensors in the place of its weights.

For hpctrain/training/fit_exact.py alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.fit.layout import Layout


def with_adapter(model: Any, layout: Layout) -> Any:
    """Return the model frozen, with its adapter; a classifier's output layer is trained beside it, all of it in float32."""
    from peft import LoraConfig, get_peft_model

    lora, task = layout.lora, "SEQ_CLS" if layout.loss == "classes" else "CAUSAL_LM"
    assert lora is not None  # noqa: S101 - for mypy
    asked = LoraConfig(r=lora.rank, target_modules=list(lora.targets), lora_dropout=0.05 if lora.dropout else 0.0, task_type=task)
    made = get_peft_model(model, asked)
    for each in made.parameters():
        if task == "SEQ_CLS" and each.requires_grad:
            each.data = each.data.float()
    return made


def as_fake(model: Any) -> None:
    """Replace what lies on the meta device by fake tensors of the CPU; what is tied stays tied."""
    import torch

    done: dict[int, Any] = {}
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for name, tensor in store.items():
                if tensor is None:
                    continue
                if id(tensor) not in done:
                    new: Any = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                    if isinstance(tensor, torch.nn.Parameter):
                        new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
                    done[id(tensor)] = (new, tensor)  # the old one is held, so that its id is not given again
                store[name] = done[id(tensor)][0]
