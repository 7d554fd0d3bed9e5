"""Buffers and gradients that FSDP2 and DeepSpeed's ZeRO hold during a step.

FSDP2 as in torch 2.13 (torch/distributed/fsdp/_fully_shard), with accelerate 1.15's units: the
embeddings, each decoder layer, and the last norm with the output layer, which stays gathered until
its backward pass; tied embeddings belong to the last unit. A gathered unit coexists with its
all-gather buffer; in the backward pass the next unit is prefetched, and the gradients of the last
one are in the reduce-scatter buffer.

ZeRO as in DeepSpeed 0.19.8 with accelerate's config (runtime/zero), measured with real trainings
(tests/fit/test_zero.py). Stage 2: gradients go through a bucket, regardless of the model's size,
and a communication buffer. Stage 3: the bucket and the process's own gradient shard always exist;
weights are prefetched, and stay gathered up to the reuse distance. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """DeepSpeed's defaults, in elements (runtime/zero/config.py), which accelerate does not change.

    Attributes:
        bucket: `reduce_bucket_size`.
        prefetch: `stage3_prefetch_bucket_size`.
        reuse: `stage3_max_reuse_distance`; `stage3_max_live_parameters` has the same value.
        persistent: `stage3_param_persistence_threshold`: smaller parameters are never sharded.
        group: `sub_group_size`: stage 3's optimizer processes its parameters in groups of this
            size.
    """

    bucket: int = 500_000_000
    prefetch: int = 50_000_000
    reuse: int = 1_000_000_000
    persistent: int = 100_000
    group: int = 1_000_000_000


SETTINGS = Settings()


class Unit(NamedTuple):
    """Parameters that are gathered together: bytes of all weights, and of the gradients of trained
    ones.
    """

    weights: float
    gradients: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharder:
    """The memory of one process without sharding, and the base of the others; DDP's buckets are
    counted elsewhere.

    Positions count from the end of the forward pass: `layers + 1` is the loss, `layers` to 1 are
    the layers, 0 is the embeddings.

    Attributes:
        processes: number of processes that share weights or gradients.
        width: bytes of a parameter in the compute dtype.
        widens: width of the optimizer's gradients relative to `width`.
        layers: number of layers.
        layer, head, table: the units; tied embeddings belong to the head.
        tied: whether the embeddings are tied.
        accumulates: gradients of earlier passes exist.
    """

    processes: int
    width: int
    widens: float
    layers: int
    layer: Unit
    head: Unit
    table: Unit
    tied: bool
    accumulates: bool

    @property
    def gathers(self) -> bool:
        """Whether a layer's gradients exist together before they are reduced or accumulated."""
        return not self.accumulates

    @property
    def total(self) -> float:
        """Bytes of all gradients."""
        return self.head.gradients + self.layers * self.layer.gradients + self.table.gradients

    def after(self, position: int) -> float:
        """Return the bytes of the gradients of all units after a position."""
        if position > self.layers:
            return 0
        return self.head.gradients + (self.layers - max(position, 0)) * self.layer.gradients

    def gradients(self, position: int) -> float:
        """Return the bytes of the gradients when the backward pass reaches `position`."""
        return self.total if self.accumulates else self.after(position)

    def forward(self) -> float:
        """Return the bytes of the buffers during the forward pass of the loss."""
        return 0

    def gathering(self) -> list[tuple[int, float]]:
        """Return moments of the forward pass, as pairs of finished layers and bytes of buffers."""
        return [(0, 0)]

    def backward(self, position: int) -> float:
        """Return the bytes of the buffers when the backward pass reaches `position`."""
        del position
        return 0


class FsdpSharder(Sharder):
    """FSDP2."""

    __slots__ = ()

    def gradients(self, position: int) -> float:
        """Return the bytes of the gradients: the own shard of reduced ones, all of the others."""
        kept = self.head.gradients if self.tied and position <= self.layers else 0
        sent = self.after(position) - kept
        share = self.widens / self.processes
        if not self.accumulates:
            return kept + share * sent
        return self.total - sent * (1 - share)

    def forward(self) -> float:
        """Return the bytes of the last unit and of the all-gather buffer of the previous one."""
        return self.head.weights + (self.layer if self.tied else self.head).weights

    def gathering(self) -> list[tuple[int, float]]:
        """Return the moments at which a unit's weights are copied out of its buffer while the
        previous unit's still exists.
        """
        layer, head, table = self.layer.weights, self.head.weights, self.table.weights
        if self.tied:
            return [(0, 2 * head + 2 * layer), (self.layers - 1, 3 * layer + head)]
        return [
            (0, max(2 * table, table + 2 * layer)),
            (self.layers - 1, 3 * layer),
            (self.layers, layer + 2 * head),
        ]

    def backward(self, position: int) -> float:
        """Return the bytes of a unit, of the next one, and of the gradients being reduced."""
        layer, stays = self.layer, self.head.weights * self.tied
        if position > self.layers:
            return self.head.weights + layer.weights
        if position == 0:
            last = self.head if self.tied else self.table
            shares = last.gradients * (1 + self.widens) / self.processes
            if self.tied:
                return max(stays, shares)
            return max(last.weights + layer.gradients, last.gradients + shares)
        ahead = layer.weights if position > 1 else self.table.weights
        sent = layer if position < self.layers else self.head
        return stays + layer.weights + ahead + sent.gradients * (sent is layer or not self.tied)


class ZeroSharder(Sharder):
    """ZeRO stage 2."""

    __slots__ = ()
    gathers = False

    def gradients(self, position: int) -> float:
        """Return the bytes of the own gradient shard."""
        several = self.after(position) > SETTINGS.bucket * self.width
        return self.total / self.processes * (self.accumulates + several)

    def backward(self, position: int) -> float:
        """Return the bytes of the bucket and of its communication buffer."""
        return SETTINGS.bucket * self.width * (position <= self.layers) + self._sending(position)

    def _sending(self, position: int) -> float:
        bucket = SETTINGS.bucket * self.width
        sent = self.total if position == 0 else self.after(position)
        return min(sent, bucket) if sent > bucket or position == 0 else 0


class ZeroThreeSharder(ZeroSharder):
    """ZeRO stage 3; its bucket is counted among the permanent buffers."""

    __slots__ = ()

    def gradients(self, position: int) -> float:
        """Return the bytes of the own gradient shard."""
        del position
        return self.total / self.processes

    def forward(self) -> float:
        """Return the bytes of gathered and of prefetched weights."""
        whole = self._weights(0)
        arriving = max(self.head.weights, self.table.weights) + SETTINGS.prefetch * self.width
        return min(whole, SETTINGS.reuse * self.width) + min(whole, arriving)

    def gathering(self) -> list[tuple[int, float]]:
        """Return the moment of the first all-gather."""
        return [(0, self.forward())]

    def backward(self, position: int) -> float:
        """Return the bytes of the weights still gathered, and of the communication buffer of the
        gradients.
        """
        passed = self.head.weights * (position <= self.layers and not self.tied)
        left = self._weights(max(0, self.layers - position)) - passed
        gathered = self.forward() if left > SETTINGS.reuse * self.width else left
        return gathered + self._sending(position)

    def _weights(self, passed: int) -> float:
        """Return the bytes of the weights, but for those of some layers."""
        return self.head.weights + (self.layers - passed) * self.layer.weights + self.table.weights
