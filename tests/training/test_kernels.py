"""The attention implementation is chosen by what is installed and what GPU and model can."""

from dataclasses import replace

import pytest

from hpctrain.training.preflight.kernels import Machine, choose

A100 = Machine(gpu=True, capability=(8, 0), flash=True)
BARE = Machine(gpu=True, capability=(9, 0))
LLAMA = {"architectures": ["LlamaForCausalLM"], "head_dim": 128}
GEMMA2 = {
    "architectures": ["Gemma2ForCausalLM"],
    "attn_logit_softcapping": 50.0,
    "head_dim": 256,
}
GPT2 = {"architectures": ["GPT2LMHeadModel"]}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("here", "config", "how", "attention"),
    [
        (A100, LLAMA, (True, True), "flash_attention_2"),
        (Machine(gpu=True, flash=True), LLAMA, (True, True), "flash_attention_2"),
        (replace(A100, capability=(7, 0)), LLAMA, (False, True), None),
        (A100, LLAMA, (False, False), None),
        (A100, {**LLAMA, "head_dim": 512}, (False, True), None),
        (BARE, LLAMA, (False, True), None),
        (BARE, LLAMA, (True, True), "flex_attention"),
        (BARE, GPT2, (True, True), None),
        (A100, GEMMA2, (False, True), "flash_attention_2"),
        (BARE, GEMMA2, (False, True), "flex_attention"),
        (BARE, {"architectures": ["NobodysModel"]}, (True, True), None),
        (Machine(gpu=False), LLAMA, (True, False), None),
    ],
)
def test_choice(
    here: Machine, config: dict[str, object], how: tuple[bool, bool], attention: str | None
) -> None:
    """How: whether examples must be kept apart, and whether in 16 bits."""
    pytest.importorskip("transformers")
    assert choose(here, config, apart=how[0], half=how[1]) == attention


@pytest.mark.torch
@pytest.mark.parametrize(
    "attention",
    [
        "sdpa",
        "eager",
        pytest.param("flex_attention", marks=(pytest.mark.slow, pytest.mark.extended)),
    ],
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
