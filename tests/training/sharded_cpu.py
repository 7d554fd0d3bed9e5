"""The SFT training sharded by FSDP2 on CPUs: what accelerate leaves out there is put in again, and
all else is the real thing.

accelerate takes FSDP only beside a GPU's backend. Here it is told that gloo is one, and the look
for GPUs is left out; the process group, FSDP2 itself, the Trainer, saving and resuming are those of
a GPU.
"""

import os
from typing import Any

os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"

import torch
from accelerate.state import DistributedType, PartialState

from hpctrain.training import preflight, sft


def _backend(*_: Any, **__: Any) -> tuple[str, DistributedType]:
    return "gloo", DistributedType.MULTI_GPU


PartialState._prepare_backend = _backend  # type: ignore[method-assign,assignment]
torch.cuda.is_bf16_supported = lambda *_, **__: False  # type: ignore[assignment]
preflight.check_gpus = lambda *_, **__: []  # type: ignore[assignment]
sft._gpu_bytes = lambda: 80 << 30

if __name__ == "__main__":
    sft.main()
