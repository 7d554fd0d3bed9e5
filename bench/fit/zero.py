"""What DeepSpeed's ZeRO really holds: bytes of all tensors of one process, at the peak of each part
of a step of a real training.

    torchrun --standalone --nproc_per_node 2 bench/fit/zero.py --stage 3              # a
    minute or two; one row torchrun --standalone --nproc_per_node 4 bench/fit/zero.py
    --stage 2 --few torchrun --standalone --nproc_per_node 2 bench/fit/zero.py --stage 3
    --few --lora # or --checkpointing, --float32...

Needs deepspeed beside the training's packages (pip install deepspeed), two cores and some GB, no
GPU. Only run by hand: the figures stand in tests/fit/test_zero.py, which compares the formula
(hpctrain/fit/sharding.py) with them, and in docs/fit-accuracy.md.

Prints the row of MEASURED, and what stays between two steps. The config is the one that accelerate
makes; processes talk by gloo. torch's dispatcher tells of each new storage, and a weak reference of
its end; the third step is what counts, when all states are there.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import traceback
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import deepspeed
import peft
import torch
import torch.distributed as dist
from accelerate.utils import DeepSpeedPlugin
from deepspeed.utils import logger
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

#: The model, and the buckets of `few`, of tests/fit/test_zero.py.
MODEL: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}
FEW = {
    "reduce_bucket_size": 2_000_000,
    "allgather_bucket_size": 2_000_000,
    "stage3_prefetch_bucket_size": 400_000,
    "stage3_max_live_parameters": 4_000_000,
    "stage3_max_reuse_distance": 4_000_000,
    "sub_group_size": 3_000_000,
}
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LENGTH, STEPS = 8, 3
PARTS = ("forward", "backward", "step")
#: Frames in which gloo's own copy of what it reduces is made.
_NEAR = slice(-9, -2)


class Alive(TorchDispatchMode):
    """Counts the bytes of all storages that live, and the most of them.

    Attributes:
        now: bytes that live.
        peak: the most since it was set to `now` last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count what it gives out."""
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, torch.Tensor) and each.device.type == "cpu":
                self._add(each.untyped_storage(), str(func))
        return out

    def _add(self, storage: torch.UntypedStorage, made_by: str) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._sizes or not size:
            return
        if "split" in made_by and any(
            frame.name.startswith("reduce_scatter") for frame in traceback.extract_stack()[_NEAR]
        ):
            size = 0  # gloo's copy, which NCCL does not make
        self._sizes[key] = size
        weakref.finalize(storage, self._drop, key).atexit = False
        self.now += size
        self.peak = max(self.peak, self.now)

    def _drop(self, key: int) -> None:
        self.now -= self._sizes.pop(key)

    @contextlib.contextmanager
    def highest(self, peaks: dict[str, int], part: str) -> Iterator[None]:
        """Keep the most that lived within, where it is more than was there."""
        self.peak = self.now
        yield
        peaks[part] = max(peaks.get(part, 0), self.peak)


def config_of(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the DeepSpeed config as accelerate makes it, with the numbers that Trainer fills in."""
    stage3 = {
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
    }
    os.environ.update(
        {
            "ACCELERATE_DEEPSPEED_ZERO_STAGE": str(asked.stage),
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(asked.accumulation),
            "ACCELERATE_GRADIENT_CLIPPING": "1.0",
            "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none",
            "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
        }
        | (stage3 if asked.stage == 3 else {})
    )
    config = dict(DeepSpeedPlugin().deepspeed_config)
    config.pop("fp16", None)
    config |= {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": asked.accumulation,
        "train_batch_size": asked.accumulation * int(os.environ["WORLD_SIZE"]),
        "gradient_clipping": 1.0,
        "bf16": {"enabled": not asked.float32},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    config["zero_optimization"] = config["zero_optimization"] | (FEW if asked.few else {})
    return config


def engine_of(asked: argparse.Namespace, config: dict[str, Any]) -> Any:
    """Return DeepSpeed's engine around a new model."""
    with (
        deepspeed.zero.Init(config_dict_or_path=config)
        if asked.stage == 3
        else contextlib.nullcontext()
    ):
        model = LlamaForCausalLM(LlamaConfig(**MODEL))
    if asked.lora:
        model = model if asked.stage == 3 else model.to(torch.bfloat16)
        model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=ALL))
    if asked.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if asked.lora:
            model.enable_input_require_grads()
    optimizer = torch.optim.AdamW(
        [each for each in model.parameters() if each.requires_grad], lr=1e-4, fused=True
    )
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def measure(asked: argparse.Namespace) -> tuple[dict[str, int], int]:
    """Return the peak of each part of the last step, and what stays behind it, in bytes."""
    peaks: dict[str, int] = {}
    with Alive() as alive:
        engine = engine_of(asked, config_of(asked))
        ids = torch.randint(0, 100, (1, LENGTH))
        for _ in range(STEPS):
            peaks.clear()
            for _ in range(asked.accumulation):
                with alive.highest(peaks, "forward"):
                    loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
                with alive.highest(peaks, "backward"):
                    engine.backward(loss)
                    del loss
                with alive.highest(peaks, "step"):
                    engine.step()
        return peaks, alive.now


def row(asked: argparse.Namespace, peaks: dict[str, int]) -> str:
    """Return the row as it stands in tests/fit/test_zero.py."""
    processes, how = int(os.environ["WORLD_SIZE"]), f'"sharding": "zero{asked.stage}"'
    words = [
        f"stage {asked.stage}",
        "few" * asked.few,
        "accumulated" * (asked.accumulation > 1),
        "LoRA" * asked.lora,
    ]
    words += [
        "float32" * asked.float32,
        "checkpointing" * asked.checkpointing,
        f"{processes} processes" * (processes != 2),
    ]
    how += (
        f', "accumulation": {asked.accumulation}' * (asked.accumulation > 1)
        + ", **LORA" * asked.lora
    )
    how += ', "compute": None' * asked.float32 + ', "checkpointing": "full"' * asked.checkpointing
    how += f', "gpus_per_node": {processes}' * (processes != 2)
    name, figures = (
        ", ".join(word for word in words if word),
        ", ".join(f"{peaks[part]:_}" for part in PARTS),
    )
    return f'    "{name}": ({{{how}}}, {asked.few}, ({figures})),'


def main() -> None:
    """Train three steps, and print the row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", type=int, choices=(2, 3), required=True)
    parser.add_argument(
        "--few",
        action="store_true",
        help="DeepSpeed's buckets made small, so that the model is large beside them",
    )
    parser.add_argument(
        "--lora", action="store_true", help="an adapter of rank 16 on all linear layers"
    )
    parser.add_argument("--float32", action="store_true", help="without bf16")
    parser.add_argument("--checkpointing", action="store_true", help="activation checkpointing")
    parser.add_argument(
        "--accumulation", type=int, default=1, metavar="N", help="micro batches of one step"
    )
    asked = parser.parse_args()
    if "WORLD_SIZE" not in os.environ:
        parser.error("start it with torchrun --nproc_per_node 2")
    warnings.simplefilter("ignore")
    logger.setLevel(logging.ERROR)
    deepspeed.init_distributed("gloo")
    peaks, stays = measure(asked)
    if dist.get_rank() == 0:
        print(row(asked, peaks), f"    # between two steps: {stays:_}", sep="\n", flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may wait for the other process


if __name__ == "__main__":
    main()
