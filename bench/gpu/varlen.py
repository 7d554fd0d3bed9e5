"""A candidate for the attention of packed examples: the FlashAttention-2 kernels inside PyTorch, which
need no further package and no compilation.

Not part of hpctrain before it has been measured on a GPU: right (`errors`), and faster than flex
attention (bench/gpu/run.py kernels).
"""

from __future__ import annotations

from typing import Any

NAME = "torch_varlen"


def register() -> None:
    """Make the name known to transformers, as an attention that needs no mask."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, forward)


def forward(
    module: Any,  # noqa: ARG001 - transformers calls it so
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    **named: Any,
) -> tuple[Any, None]:
    """Return the output of shape (1, tokens, heads, head dimension), and no weights.

    Args:
        module: the attention layer.
        query: of shape (1, heads, tokens, head dimension), as `key` and `value`.
        key: may have fewer heads.
        value: likewise.
        attention_mask: None.
        **named: what transformers passes; `cu_seq_lens_q` tells where each example begins.

    Raises:
        ValueError: the rows are padded, or the model needs what these kernels lack.
    """
    import torch

    ends, longest = named.get("cu_seq_lens_q"), named.get("max_length_q")
    if ends is None or attention_mask is not None:
        raise ValueError(f"{NAME} is for packed and padding-free batches")
    if named.get("softcap") is not None or named.get("s_aux") is not None:
        raise ValueError(f"{NAME} has no soft cap and no attention sinks")
    # Normalization with float32 weights leaves query and key in float32 under autocast.
    autocast = torch.is_autocast_enabled(query.device.type)
    half = torch.get_autocast_dtype(query.device.type) if autocast else value.dtype
    query, key, value = (each[0].transpose(0, 1).to(half) for each in (query, key, value))
    window = named.get("sliding_window")
    # What torch.nn.attention.varlen calls, whose own signature differs from torch 2.10 to 2.13.
    output = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        ends,
        ends,
        longest,
        longest,
        named.get("dropout", 0.0),
        True,
        return_debug_mask=False,
        scale=named.get("scaling"),
        window_size_left=None if window is None else window - 1,
        window_size_right=None if window is None else 0,
    )[0]
    return output[None], None


def errors() -> dict[str, float]:
    """Return relative errors of gradients against float32 and one example at a time: of packed
    examples with these kernels, and of the usual attention in bfloat16, which it is to match.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    register()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
    )
    apart = Qwen3ForCausalLM._from_config(config, attn_implementation="eager").cuda()
    packed = Qwen3ForCausalLM._from_config(config, attn_implementation=NAME).cuda()
    packed.load_state_dict(apart.state_dict())
    lengths = torch.tensor([400, 17, 230, 377])
    rows = [torch.randint(0, 512, (1, int(length)), device="cuda") for length in lengths]
    ends = torch.cat([torch.zeros(1), lengths.cumsum(0)]).to("cuda", torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths])[None].cuda()
    boundaries = {
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": int(lengths.max()),
        "max_length_k": int(lengths.max()),
    }

    def gradients(model: Any, batches: list[dict[str, Any]]) -> Any:
        model.zero_grad()
        for batch in batches:
            logits = model(**batch, use_cache=False).logits.float()
            logits.log_softmax(-1)[..., 3].sum().backward()
        return torch.cat([each.grad.flatten() for each in model.parameters()])

    singles = [{"input_ids": row} for row in rows]
    exact = gradients(apart, singles).clone()
    with torch.autocast("cuda", torch.bfloat16):
        usual = gradients(apart, singles).clone()
        together = {"input_ids": torch.cat(rows, 1), "position_ids": positions, **boundaries}
        found = gradients(packed, [together])
    return {
        "error": float((found - exact).norm() / exact.norm()),
        "error_of_bfloat16": float((usual - exact).norm() / exact.norm()),
    }
