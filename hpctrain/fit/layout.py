"""How a training is laid out over GPUs: what decides its memory and its speed, besides the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Sharding = Literal["ddp", "fsdp", "zero2", "zero3"]
Checkpointing = Literal["off", "full"]
Loss = Literal["fused", "logits", "classes"]
Attention = Literal["sdpa", "flash", "flex", "eager"]
Precision = Literal["float32", "bfloat16", "float16"]
Quantization = Literal["none", "8bit", "4bit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """A LoRA adapter.

    Attributes:
        rank: `lora_r`.
        targets: names of the linear layers that it is put on, such as `q_proj`; `all-linear` is written out by whoever reads the options.
        dropout: whether there is any: it keeps one more copy of the inputs.
    """

    rank: int
    targets: tuple[str, ...]
    dropout: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to train a model.

    Attributes:
        nodes, gpus_per_node: there is one process to a GPU.
        micro_batch: rows of one process in one forward pass (`per_device_train_batch_size`).
        length: tokens of a row, padding included; of packed rows, of the whole row.
        accumulation: micro batches of one step (`gradient_accumulation_steps`).
        sharding: what is divided among the processes: nothing (ddp), all of it (fsdp, zero3), or optimizer and gradients (zero2).
        checkpointing: `full` keeps the input of each decoder layer alone, and computes the rest of it again.
        weights: the dtype in which the weights are held (`--dtype`).
        compute: the dtype of autocast (`--bf16`); None where the weights' own dtype is computed in.
        lora: the adapter, if the base is frozen.
        quantization: of the frozen base (bitsandbytes).
        attention: the kernel; `eager` alone holds a matrix of length x length for each head.
        loss: `fused` computes the loss in pieces (TRL's `nll`), `logits` holds the logits of all tokens; `classes`: of a classifier, which
            has a few for each row.
        optimizer: as transformers names it: `adamw_torch_fused`, `adamw_8bit`, `sgd`, `adafactor`...
        padding_free: the rows of a micro batch are laid end to end, so that none is padded.
        sync_each_batch: gradients are reduced in each pass of a step that accumulates, not in its last one alone
            (accelerate's `sync_each_batch`); with fsdp no process then keeps the gradients of all weights.
        evaluation: rows of one process in one forward pass of an evaluation (`per_device_eval_batch_size`); 0: nothing is evaluated.
    """

    nodes: int = 1
    gpus_per_node: int = 1
    micro_batch: int = 8
    length: int = 1024
    accumulation: int = 1
    sharding: Sharding = "ddp"
    checkpointing: Checkpointing = "off"
    weights: Precision = "float32"
    compute: Precision | None = "bfloat16"
    lora: Lora | None = None
    quantization: Quantization = "none"
    attention: Attention = "sdpa"
    loss: Loss = "fused"
    optimizer: str = "adamw_torch_fused"
    padding_free: bool = False
    sync_each_batch: bool = False
    evaluation: int = 0

    @property
    def processes(self) -> int:
        """The total number of processes."""
        return self.nodes * self.gpus_per_node

    @property
    def tokens_per_pass(self) -> int:
        """Tokens of one process in one forward pass."""
        return self.micro_batch * self.length

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all processes in one optimizer step."""
        return self.tokens_per_pass * self.accumulation * self.processes


class SplitFacts(Protocol):
    """What is asked of one split of a prepared dataset (hpctrain.preparation.manifest.Split)."""

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""


class DataFacts(Protocol):
    """What is asked of a prepared dataset (hpctrain.preparation.manifest.Manifest)."""

    @property
    def packed(self) -> bool:
        """Whether rows hold several examples."""

    @property
    def max_length(self) -> int | None:
        """Tokens of a row at most."""

    @property
    def labels(self) -> Sequence[str]:
        """Of classes, their names; else, and of a regression, none."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""

    @property
    def splits(self) -> Mapping[str, Any]:
        """The splits, each a `SplitFacts`."""
