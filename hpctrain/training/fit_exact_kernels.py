"""What CUDA's kernels hold, played with fake tensors on a CPU: attention, the fused loss, and the choice of the trained tokens.

Each stand-in allocates what the kernel allocates, keeps what it keeps for the backward pass, and computes nothing. Where a figure comes
from is said at each. For hpctrain/training/fit_exact.py alone.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "hpctrain_fit"
#: The efficient kernel's log-sum-exp has rows of whole warps (ATen/native/transformers/cuda/attention.cu: kAlignLSE).
_LSE_ROW = 32


class _Attention(torch.autograd.Function):  # type: ignore[misc]  # torch has no types on the login node
    """Flash attention (ATen/native/transformers/cuda/flash_attn/flash_api.cpp) or, with a mask, the efficient kernel.

    Kept: q, k, v, the output, and log-sum-exp in float32. Backward: the gradients; flash also the gradient of the queries in float32
    and one float32 a query; with grouped queries the gradients of keys and values for each head of queries, before they are summed.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
        batch, heads, length, head_dim = query.shape
        # Laid out as (batch, length, heads, head_dim), which the model's transpose makes contiguous again without a copy.
        output = query.new_empty(batch, length, heads, head_dim).transpose(1, 2)
        rows = -(-length // _LSE_ROW) * _LSE_ROW if mask is not None else length
        ctx.save_for_backward(query, key, value, output, query.new_empty(batch, heads, rows, dtype=torch.float32), mask)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        query, key, value, output, _, mask = ctx.saved_tensors
        batch, heads, length, head_dim = query.shape
        like = gradient.new_empty
        work = [like(batch, heads, length, dtype=torch.float32)]
        shape = (batch, length, heads, head_dim)
        if mask is None:
            rounded = -(-length // 128) * 128
            work.append(like(batch, rounded, heads, -(-head_dim // 32) * 32, dtype=torch.float32))
        of_query = like(shape, dtype=query.dtype).transpose(1, 2)
        of_key, of_value = (like(batch, each.shape[2], each.shape[1], head_dim, dtype=each.dtype).transpose(1, 2) for each in (key, value))
        if key.shape[1] != heads:
            work += [like(shape, dtype=key.dtype), like(shape, dtype=key.dtype)]
        del work, output
        return of_query, of_key, of_value, None


def attention(*tensors: Any, **_: Any) -> tuple[Any, None]:
    """Play transformers' sdpa_attention_forward on CUDA: flash without a mask, the efficient kernel with one.

    With a mask keys and values are repeated for each head of queries, and the mask becomes one of the queries' dtype, which each layer
    keeps (convert_boolean_attn_mask in ATen/native/transformers/attention.cpp).
    """
    _module, query, key, value, attention_mask = tensors
    groups = query.shape[1] // key.shape[1]
    if attention_mask is not None and groups > 1:
        key, value = (torch.repeat_interleave(each, groups, dim=1) for each in (key, value))
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (each.to(torch.get_autocast_dtype("cpu")) for each in (query, key, value))
    mask = None if attention_mask is None else torch.empty_like(attention_mask, dtype=query.dtype)
    output = _Attention.apply(query, key, value, mask)
    return output.transpose(1, 2).contiguous(), None


class _AllTokens(TorchFunctionMode):  # type: ignore[misc]
    """Plays `tensor[mask]`, which fake tensors cannot: every token is trained on, which is the most that there can be."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and isinstance(args[1], torch.Tensor) and args[1].dtype is torch.bool:
            tensor, mask = args
            rows = tensor.flatten(0, mask.dim() - 1)
            return rows.index_select(0, torch.zeros(rows.shape[0], dtype=torch.int64))
        return func(*args, **(kwargs or {}))


class _Grouped(torch.autograd.Function):  # type: ignore[misc]
    """The product of a mixture of experts: each row with its expert's matrix. Kept: both; the gradient is as large as all experts."""

    @staticmethod
    def forward(ctx: Any, rows: Any, weight: Any) -> Any:
        wanted = ctx.needs_input_grad
        ctx.save_for_backward(rows if wanted[1] else None, weight if wanted[0] else None)
        ctx.like = rows.shape, weight.shape, weight.stride()
        return rows.new_empty(rows.shape[0], weight.shape[-1])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (rows, weight, stride), wanted = ctx.like, ctx.needs_input_grad
        of_rows = gradient.new_empty(rows) if wanted[0] else None
        return of_rows, torch.empty_strided(weight, stride, dtype=gradient.dtype) if wanted[1] else None


def grouped(rows: Any, weight: Any, *, offs: Any = None) -> Any:
    """Play torch's grouped_mm on CUDA."""
    del offs
    return _Grouped.apply(rows, weight)


def _nothing(*_: Any, **__: Any) -> None:
    """A Triton kernel that works in place, or a product that is added in place: no memory of its own."""


def _dropout(tensor: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """CUDA's dropout keeps one byte of each element; the CPU's keeps a tensor of the input's dtype."""
    del inplace
    return torch.native_dropout(tensor, p, training)[0] if training and p > 0 else tensor


@contextlib.contextmanager
def on_cuda() -> Iterator[None]:
    """Let transformers and TRL take the ways that they take on a CUDA GPU, with kernels that hold memory and compute nothing.

    TRL 1.16's fused loss (trl/kernels/chunked_logprob.py): its Triton kernels fold each tile of logits in place, and `torch.addmm`
    with `out_dtype` adds in float32 without a copy. Layer norm and powers are computed and given out in float32 under CUDA's autocast.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
    layer_norm, power = torch.nn.functional.layer_norm, torch.pow

    def in_float32(tensor: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        if torch.is_autocast_enabled("cpu"):
            tensor, weight, bias = (None if each is None else each.float() for each in (tensor, weight, bias))
        return layer_norm(tensor, shape, weight, bias, eps)

    def power_in_float32(tensor: Any, exponent: Any) -> Any:
        cast = torch.is_autocast_enabled("cpu") and torch.is_tensor(tensor) and tensor.is_floating_point()  # a base may be a number
        return power(tensor.float() if cast else tensor, exponent)

    with (
        mock.patch.object(chunked_logprob, "_forward_tile", _nothing),
        mock.patch.object(chunked_logprob, "_backward_tile", _nothing),
        mock.patch.object(chunked_logprob, "_addmm_fp32", _nothing),
        mock.patch.object(utils, "_use_triton", return_value=True),
        mock.patch.object(torch.nn.functional, "layer_norm", in_float32),
        mock.patch.object(torch.nn.functional, "dropout", _dropout),
        mock.patch.object(torch.nn.functional, "grouped_mm", grouped, create=True),  # torch has it since 2.10
        mock.patch.object(torch, "pow", power_in_float32),
        _AllTokens(),
    ):
        yield
