"""The layout of a training over GPUs: everything besides the model that determines memory and
speed.
"""

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
        targets: names of the adapted linear layers, such as `q_proj`; `all-linear` must already be
            expanded.
        dropout: whether dropout is used, which keeps one more copy of the inputs.
    """

    rank: int
    targets: tuple[str, ...]
    dropout: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to train a model.

    Attributes:
        nodes, gpus_per_node: with one process per GPU.
        micro_batch: rows of one process per forward pass (`per_device_train_batch_size`).
        length: tokens per row, padding included; for packed rows, of the whole row.
        accumulation: micro batches per step (`gradient_accumulation_steps`).
        sharding: what is sharded across the processes: nothing (ddp), everything (fsdp, zero3), or
            optimizer states and gradients (zero2).
        checkpointing: `full` keeps only the input of each decoder layer and recomputes the rest.
        weights: the dtype of the stored weights (`--dtype`).
        compute: the dtype of autocast (`--bf16`); None: compute in the weights' dtype.
        lora: the adapter, if the base is frozen.
        quantization: of the frozen base (bitsandbytes).
        attention: the kernel; only `eager` stores a matrix of length x length per head.
        loss: `fused` is the chunked loss (TRL's `nll`), `logits` stores the logits of all tokens,
            `classes` is a classifier's, with a few logits per row.
        optimizer: its name in transformers: `adamw_torch_fused`, `adamw_8bit`, `sgd`,
            `adafactor`...
        padding_free: the rows of a micro batch are concatenated without padding.
        evaluation: rows of one process per forward pass of an evaluation
            (`per_device_eval_batch_size`); 0: no evaluation.
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
    evaluation: int = 0

    @property
    def processes(self) -> int:
        """The world size."""
        return self.nodes * self.gpus_per_node

    @property
    def tokens_per_pass(self) -> int:
        """Tokens of one process per forward pass."""
        return self.micro_batch * self.length

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all processes per optimizer step."""
        return self.tokens_per_pass * self.accumulation * self.processes


class DataFacts(Protocol):
    """The required attributes of a prepared dataset (hpctrain.data.manifest.DatasetManifest)."""

    @property
    def packed(self) -> bool:
        """Whether rows contain several examples."""

    @property
    def max_length(self) -> int | None:
        """Maximum tokens per row."""

    @property
    def labels(self) -> Sequence[str]:
        """Class names; empty for a regression and for other data."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""

    @property
    def splits(self) -> Mapping[str, Any]:
        """The splits; `longest` is the number of tokens in a split's longest row."""
