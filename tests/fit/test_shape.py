"""The shape of a model, from config.json alone: counts equal transformers' and peft's own, and what
is not known is said.
"""

import pytest

from hpctrain.errors import HpctrainError
from hpctrain.fit.layout import Lora
from hpctrain.fit.shape import FAMILIES, lora_targets, read_shape, trainable

SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
#: What differs between models of one architecture, and changes the number of parameters.
CASES = [
    {"model_type": "llama", **SMALL},
    {
        "model_type": "llama",
        **SMALL,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 32,
    },
    {"model_type": "mistral", **SMALL, "head_dim": 24},
    {"model_type": "qwen2", **SMALL},
    {"model_type": "qwen2", **SMALL, "tie_word_embeddings": True},
    {"model_type": "qwen3", **SMALL, "tie_word_embeddings": True},
    {"model_type": "qwen3", **SMALL, "head_dim": 16, "attention_bias": True},
    {"model_type": "smollm3", **SMALL},
    {"model_type": "granite", **SMALL, "attention_bias": True},
    {"model_type": "gemma", **SMALL},
    {"model_type": "gemma", **SMALL, "tie_word_embeddings": False, "head_dim": 16},
    {"model_type": "gemma2", **SMALL, "head_dim": 16},
    {"model_type": "gemma3_text", **SMALL},
    {"model_type": "phi3", **SMALL},
    {"model_type": "mixtral", **SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    {
        "model_type": "qwen3_moe",
        **SMALL,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
]
LORA = [("all-linear",), None]


def _name(case):
    return "-".join([case["model_type"], *(key for key in case if key not in {*SMALL})])


def _model(case):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**case)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def test_every_architecture_is_counted_by_a_case():
    assert {case["model_type"] for case in CASES} == set(FAMILIES)


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_counts_the_parameters_that_transformers_makes(case):
    model = _model(case)
    assert read_shape(case).parameters == sum(each.numel() for each in model.parameters())


@pytest.mark.torch
@pytest.mark.parametrize("words", LORA, ids=["all-linear", "default"])
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_counts_the_parameters_that_peft_trains(case, words):
    import peft
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULTS

    shape = read_shape(case)
    if words is None and (
        case["model_type"] not in DEFAULTS or case["model_type"] == "mixtral"
    ):  # peft's names are those of old weights
        with pytest.raises(HpctrainError, match="--lora_target_modules"):
            lora_targets(shape, None)
        return
    config = peft.LoraConfig(r=8, task_type="CAUSAL_LM", target_modules=words[0] if words else None)
    wanted = peft.get_peft_model(_model(case), config).get_nb_trainable_parameters()[0]
    assert trainable(shape, Lora(rank=8, targets=lora_targets(shape, words))) == wanted


def test_a_target_that_the_model_lacks_is_named():
    shape = read_shape(CASES[0])
    with pytest.raises(HpctrainError) as caught:
        lora_targets(shape, ("q_proj", "c_attn", "wq"))
    assert caught.value.what == "the model has no linear layers 'c_attn', 'wq' for LoRA"
    assert (
        "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj" in caught.value.details[0]
    )


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({}, "the architecture 'None' is unknown"),
        ({"model_type": "mamba"}, "the architecture 'mamba' is unknown"),
        ({"model_type": 3}, "the architecture '3' is unknown"),
    ],
)
def test_an_unknown_architecture_is_an_error_with_a_way_out(config, what):
    with pytest.raises(HpctrainError) as caught:
        read_shape(config)
    assert caught.value.what.startswith(what)
    assert caught.value.fix == "hpctrain submit --time 15 -- --max_steps 5"


def test_the_experts_have_two_names():
    """Published configs say num_experts; transformers 5 writes num_local_experts."""
    case = dict(CASES[-1])
    old = read_shape(case)
    case["num_local_experts"] = case.pop("num_experts")
    assert read_shape(case) == old


def test_the_language_model_of_one_that_wraps_it_can_be_worked_out_alone():
    config = {"model_type": "llava", "text_config": {"model_type": "llama"}, "vision_config": {}}
    with pytest.raises(HpctrainError, match=r"it wraps a language model \(llama\)") as caught:
        read_shape(config)
    assert "jq .text_config" in caught.value.hint
