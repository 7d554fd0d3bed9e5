"""The shape of a model, from config.json alone: counts equal transformers' and peft's own, and what is not known is said."""

import dataclasses
import json

import pytest

from hpctrain.errors import HpctrainError
from hpctrain.fit.layout import Lora
from hpctrain.fit.parameters import lora_targets, trainable
from hpctrain.fit.shape import read_shape
from hpctrain.fit.shape_families import FAMILIES

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
GPT2 = {"model_type": "gpt2", "vocab_size": 512, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}
#: What differs between models of one architecture, and changes the number of parameters.
CASES = [
    {"model_type": "llama", **SMALL},
    {"model_type": "llama", **SMALL, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 32},
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
    {"model_type": "phi", **SMALL},
    {"model_type": "phi", **SMALL, "qk_layernorm": True},
    {"model_type": "olmo", **SMALL},
    {"model_type": "olmo2", **SMALL},
    {"model_type": "olmo3", **SMALL},
    {"model_type": "starcoder2", **SMALL},
    {"model_type": "starcoder2", **SMALL, "use_bias": False, "tie_word_embeddings": False},
    {"model_type": "stablelm", **SMALL, "use_qkv_bias": True},
    {"model_type": "stablelm", **SMALL, "qk_layernorm": True, "use_parallel_residual": True},
    GPT2,
    {**GPT2, "n_inner": 100, "tie_word_embeddings": False},
    {"model_type": "gpt_neox", **SMALL},
    {"model_type": "gpt_neox", **SMALL, "attention_bias": False, "tie_word_embeddings": True},
    {"model_type": "mixtral", **SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    {"model_type": "qwen3_moe", **SMALL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    {
        "model_type": "qwen3_moe",
        **SMALL,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "mlp_only_layers": [1],
        "decoder_sparse_step": 1,
    },
]
LORA = [("all-linear",), None]


def _name(case):
    return "-".join([case["model_type"], *(key for key in case if key not in {*SMALL, *GPT2})])


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
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_names_the_linear_layers_that_transformers_makes(case):
    import torch
    from transformers.pytorch_utils import Conv1D

    found = {}
    for name, module in _model({**case, "mlp_only_layers": []} if "mlp_only_layers" in case else case).named_modules():
        path = name.partition(".0.")[2]  # of the first decoder layer
        if path and isinstance(module, (torch.nn.Linear, Conv1D)):
            found[path] = tuple(module.weight.shape) if isinstance(module, Conv1D) else (module.in_features, module.out_features)
    assert dict(read_shape(case).linears) == found


@pytest.mark.torch
@pytest.mark.parametrize("words", LORA, ids=["all-linear", "default"])
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_counts_the_parameters_that_peft_trains(case, words):
    import peft
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULTS

    shape = read_shape(case)
    if words is None and (case["model_type"] not in DEFAULTS or case["model_type"] == "mixtral"):  # peft's names are those of old weights
        with pytest.raises(HpctrainError, match="--lora_target_modules"):
            lora_targets(shape, None)
        return
    config = peft.LoraConfig(r=8, task_type="CAUSAL_LM", target_modules=words[0] if words else None)
    wanted = peft.get_peft_model(_model(case), config).get_nb_trainable_parameters()[0]
    assert trainable(shape, Lora(rank=8, targets=lora_targets(shape, words))) == wanted


def test_all_parameters_are_trained_without_an_adapter():
    shape = read_shape(CASES[0])
    assert trainable(shape, None) == shape.parameters


def test_a_target_that_the_model_lacks_is_named():
    shape = read_shape(CASES[0])
    with pytest.raises(HpctrainError) as caught:
        lora_targets(shape, ("q_proj", "c_attn", "wq"))
    assert caught.value.what == "the model has no linear layers 'c_attn', 'wq' for LoRA"
    assert "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj" in caught.value.details[0]


def test_published_sizes():
    """Numbers of parameters as the model cards give them, of config.json as they were published."""
    llama = {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    }
    assert read_shape(llama).parameters == 8_030_261_248


def test_a_shape_goes_through_json():
    shape = read_shape(CASES[0])
    assert json.loads(json.dumps(dataclasses.asdict(shape)))["hidden"] == 64


def test_all_missing_sizes_are_named_at_once():
    with pytest.raises(HpctrainError) as caught:
        read_shape({"model_type": "llama", "hidden_size": "64", "num_hidden_layers": 2, "num_attention_heads": True})
    assert caught.value.details == (
        "vocab_size is missing",
        "hidden_size must be a whole number above 0, not '64'",
        "num_attention_heads must be a whole number above 0, not True",
        "intermediate_size is missing",
    )


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({}, "config.json has no model_type"),
        ({"model_type": "mamba"}, "the memory of architecture 'mamba' is not known"),
        ({"model_type": 3}, "the memory of architecture 3 is not known"),
        ({"model_type": "gemma3", "text_config": {}}, "the memory of architecture 'gemma3' is not known: it wraps a language model"),
    ],
)
def test_an_unknown_architecture_is_an_error_with_a_way_out(config, what):
    with pytest.raises(HpctrainError) as caught:
        read_shape(config)
    assert caught.value.what.startswith(what)
    if "model_type" not in config:
        assert "published with the model" in caught.value.fix
    else:
        assert caught.value.fix == "hpctrain submit --time 15 -- --max_steps 5"
        assert "hpctrain.training.fit_exact" in caught.value.render()


MOE = {
    "model_type": "qwen3_moe", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip


def test_the_experts_have_two_names():
    """Published configs say num_experts; transformers 5 writes num_local_experts."""
    assert read_shape({**MOE, "num_experts": 8}) == read_shape({**MOE, "num_local_experts": 8})


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"num_hidden_layers": 10**6}, "num_hidden_layers must be 2000 at most, not 1000000"),
        ({"num_key_value_heads": 3}, "num_attention_heads, 4, must be a multiple of num_key_value_heads, 3"),
        ({"mlp_only_layers": "all"}, "mlp_only_layers must be a list of layers, not 'all'"),
        ({"decoder_sparse_step": "x"}, "decoder_sparse_step must be a whole number above 0, not 'x'"),
        ({"vocab_size": "9" * 5000}, f"vocab_size must be a whole number above 0, not '{'9' * 30}"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(wrong, what):
    with pytest.raises(HpctrainError) as caught:
        read_shape({**MOE, "num_experts": 8, **wrong})
    assert what in caught.value.render()
    assert max(map(len, caught.value.render().splitlines())) < 140


def test_of_a_size_that_is_missing_nothing_else_is_said():
    with pytest.raises(HpctrainError) as caught:
        read_shape({**{key: value for key, value in MOE.items() if key != "num_attention_heads"}, "num_experts": 8})
    assert "num_attention_heads is missing" in caught.value.render()
    assert "multiple" not in caught.value.render()


def test_the_language_model_of_one_that_wraps_it_can_be_worked_out_alone():
    config = {"model_type": "llava", "text_config": {"model_type": "llama"}, "vision_config": {}}
    with pytest.raises(HpctrainError) as caught:
        read_shape(config)
    said = caught.value.render()
    assert "its language model (llama) is known; what the images' part and their tokens take is not" in said
    assert said.splitlines()[-1] == "fix: jq .text_config FOLDER/config.json > text.json && hpctrain fit --model text.json"


def test_a_flag_may_be_a_word():
    config = {key: value for key, value in MOE.items() if key != "moe_intermediate_size"} | {"model_type": "llama"}
    assert not read_shape({**config, "tie_word_embeddings": "false"}).tied
    assert read_shape({**config, "tie_word_embeddings": "true"}).tied


@pytest.mark.torch
def test_no_config_of_transformers_is_a_traceback():
    """Each of some hundred architectures is known, or refused with a way out."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    known = set()
    for name in list(CONFIG_MAPPING_NAMES)[::4]:
        try:
            config = CONFIG_MAPPING[name]().to_dict()
        except Exception:  # noqa: S112 - some want arguments, or packages
            continue
        try:
            shape = read_shape(config)
            known.add(name)
            assert shape.parameters > 10**6
        except HpctrainError as error:
            lines = error.render().splitlines()
            assert "is not known" in lines[0], lines[0]
            assert lines[-1].startswith("fix: ")
    assert known
