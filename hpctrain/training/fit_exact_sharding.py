"""FSDP2 with fake tensors: one process of a group whose others are not there (torch's fake process group).

For hpctrain/training/fit_exact.py alone. DDP and DeepSpeed cannot be run so: their buckets are filled by code that needs real data.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from hpctrain.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpctrain.fit.layout import Layout


@contextlib.contextmanager
def group(layout: Layout) -> Iterator[Any]:
    """Give the mesh of all processes of the layout; None where there is one process.

    Raises:
        UsageError: this process belongs to a process group already.
    """
    if layout.processes == 1:
        yield None
        return
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if distributed.is_initialized():
        raise UsageError("this process is part of a training already", fix="hpctrain fit --exact, in a process of its own")
    distributed.init_process_group("fake", rank=0, world_size=layout.processes, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (layout.processes,))
    finally:
        distributed.destroy_process_group()


def shard(model: Any, layout: Layout, mesh: Any) -> None:
    """Divide the model as accelerate 1.15 does with FSDP2 (utils/fsdp_utils.py, fsdp2_prepare_model).

    Each decoder layer is a unit, and so is the table of embeddings; the last norm and the output layer are one that stays gathered until
    the backward pass. What is trained is kept in float32, and gathered and reduced in the compute dtype.
    """
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    compute = None if layout.compute is None else getattr(torch, layout.compute)
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=compute, output_dtype=compute)
    common: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    for each in model.parameters():
        if compute is not None and each.requires_grad:
            each.data = each.data.float()
    base = model.get_base_model() if layout.lora is not None else model
    table, head = base.get_input_embeddings(), base.get_output_embeddings()
    body = base.base_model
    for layer in body.layers:
        fully_shard(layer, reshard_after_forward=True, **common)
    tied = head is not None and table.weight is head.weight
    if not tied:
        fully_shard(table, reshard_after_forward=True, **common)
    tail = [body.norm, *([table] if tied else []), *([head] if head is not None else [])]
    fully_shard(tail, reshard_after_forward=False, **common)
    fully_shard(model, **common)
