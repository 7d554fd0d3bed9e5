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
