"""The attention kernel is chosen by what is installed and what GPU and model can, and what was
asked for is never replaced.
"""

from dataclasses import replace

import pytest

from hpctrain.training.preflight.kernels import (
    NAMES,
    Machine,
    Model,
    attention_problems,
    choose,
    model,
)

FLASH2, FLASH3 = frozenset({"flash_attn"}), frozenset({"flash_attn", "flash_attn_interface"})
CPU = Machine(gpu=False, installed=FLASH3)
H100 = Machine(gpu=True, capability=(9, 0), installed=FLASH3)
A100 = Machine(gpu=True, capability=(8, 0), installed=FLASH3)
BLACKWELL = Machine(gpu=True, capability=(10, 0), installed=FLASH3)
V100 = Machine(gpu=True, capability=(7, 0), installed=FLASH3)
MI250 = Machine(gpu=True, installed=FLASH3)
BARE = Machine(gpu=True, capability=(9, 0))
LLAMA = Model(max_head=128)
GEMMA2 = Model(
    can=frozenset({"flash_attention_2", "flash_attention_3", "flex_attention", "eager"}),
    softcap=True,
    max_head=256,
)
GPT2 = Model(
    can=frozenset({"flash_attention_2", "flash_attention_3", "sdpa", "eager"}), max_head=64
)
OLD = Model(can=frozenset({"eager"}))


@pytest.mark.parametrize(
    ("here", "of", "how", "attention", "why"),
    [
        (H100, LLAMA, (False, True), "flash_attention_3", "installed"),
        (replace(H100, installed=FLASH2), LLAMA, (True, True), "flash_attention_2", "installed"),
        (A100, LLAMA, (True, True), "flash_attention_2", "installed"),
        (BLACKWELL, LLAMA, (True, True), "flash_attention_2", "installed"),
        (MI250, LLAMA, (True, True), "flash_attention_2", "installed"),
        (V100, LLAMA, (False, True), "sdpa", "no kernel for this GPU"),
        (H100, LLAMA, (False, False), "sdpa", "no float32"),
        (H100, replace(LLAMA, max_head=512), (False, True), "sdpa", "heads of 256"),
        (BARE, LLAMA, (False, True), "sdpa", "flash 2 is not installed"),
        (
            BARE,
            LLAMA,
            (True, True),
            "flex_attention",
            "flash 2 is not installed",
        ),
        (BARE, GPT2, (True, True), "sdpa", "not installed"),
        (H100, GEMMA2, (False, True), "flash_attention_2", "installed"),
        (BARE, GEMMA2, (False, True), "flex_attention", "has no sdpa"),
        (BARE, OLD, (False, True), "eager", "has no sdpa"),
        (CPU, LLAMA, (True, False), "sdpa", "on the CPU"),
        (CPU, GEMMA2, (False, False), "eager", "CPU"),
    ],
)
def test_choice(here: Machine, of: Model, how: tuple[bool, bool], attention: str, why: str) -> None:
    """How: whether examples must be kept apart, and whether in 16 bits."""
    chosen, reason = choose(here, of, apart=how[0], half=how[1])
    assert chosen == attention
    assert why in reason


@pytest.mark.parametrize(
    ("asked", "here", "of", "half", "what"),
    [
        (None, BARE, LLAMA, True, None),
        ("sdpa", BARE, LLAMA, True, None),
        ("eager", H100, LLAMA, True, None),
        ("flash_attention_2", A100, LLAMA, True, None),
        ("flex_attention", BARE, LLAMA, True, None),
        ("kernels-community/flash-attn2", H100, LLAMA, True, "a kernel of the hub"),
        ("flash_attention_4", H100, LLAMA, True, "is none of"),
        ("flash_attention_2", BARE, LLAMA, True, "flash 2 is not installed"),
        ("flash_attention_3", A100, LLAMA, True, "no kernel for this GPU"),
        ("flash_attention_2", H100, LLAMA, False, "no float32"),
        ("flash_attention_2", CPU, LLAMA, True, "there is no GPU"),
        ("flex_attention", CPU, LLAMA, True, "no backward pass on the CPU"),
        ("flex_attention", BARE, GPT2, True, "has no flex"),
        ("sdpa", BARE, replace(LLAMA, softcap=True), True, "sdpa does not cap scores"),
    ],
)
def test_what_was_asked_for_is_taken_or_refused(
    asked: str | None, here: Machine, of: Model, half: bool, what: str | None
) -> None:
    found = attention_problems(asked, here, of, half=half)
    assert [what in each.what for each in found] == [True] * (what is not None), found
    assert all(each.fix for each in found)


@pytest.mark.torch
def test_what_models_can_is_what_transformers_says() -> None:
    pytest.importorskip("transformers")

    llama = model(
        {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_attention_heads": 32}
    )
    assert llama == Model(
        can=frozenset(
            {"flash_attention_3", "flash_attention_2", "flex_attention", "sdpa", "eager"}
        ),
        max_head=128,
    )
    gemma = model(
        {"architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 50.0, "head_dim": 256}
    )
    assert (gemma.softcap, "sdpa" in gemma.can, gemma.max_head) == (True, False, 256)
    assert "flex_attention" not in model({"architectures": ["GPT2LMHeadModel"]}).can
    nested = model(
        {
            "architectures": ["NobodysModel"],
            "text_config": {"hidden_size": 64, "num_attention_heads": 2},
        }
    )
    assert (nested.can, nested.max_head) == (frozenset(NAMES), 32)
    odd = model(
        {"architectures": "Llama", "text_config": "x", "hidden_size": "y", "num_attention_heads": 0}
    )
    assert (odd.can, odd.max_head) == (frozenset(NAMES), None)


@pytest.mark.torch
@pytest.mark.parametrize(
    "attention", ["sdpa", "eager", pytest.param("flex_attention", marks=pytest.mark.slow)]
)
def test_packed_examples_do_not_see_each_other(attention: str) -> None:
    """Two examples in one row, told apart by their positions alone, against each of them alone.

    Flex has a forward pass on the CPU.
    """
    torch = pytest.importorskip("torch")
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    reference = Qwen2ForCausalLM(config)
    model = Qwen2ForCausalLM._from_config(config, attn_implementation=attention)
    model.load_state_dict(reference.state_dict())
    one, two = torch.randint(0, 64, (1, 40)), torch.randint(0, 64, (1, 24))
    packed, positions = (
        torch.cat([one, two], 1),
        torch.cat([torch.arange(40), torch.arange(24)])[None],
    )
    with torch.no_grad():
        alone = torch.cat(
            [reference(input_ids=each, use_cache=False).logits for each in (one, two)], 1
        )
        together = model(input_ids=packed, position_ids=positions, use_cache=False).logits
        seen = model(input_ids=packed, use_cache=False).logits
    assert (together - alone).abs().max() < 1e-5
    assert (seen - alone).abs().max() > 1e-2
