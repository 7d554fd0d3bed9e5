"""What is arithmetic in the memory formula, against the real thing on a CPU: optimizers' states,
and bitsandbytes' weights.
"""

from dataclasses import replace

import pytest

from hpctrain.fit import memory as static
from hpctrain.fit.layout import Layout, Lora
from hpctrain.fit.shape import read_shape, trainable

CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 2000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
LORA = Lora(rank=8, targets=("q_proj", "down_proj"))
ALL = Layout(micro_batch=1, length=64, compute=None)
#: Optimizers by the name that `--optim` has for them; those of bitsandbytes run on the CPU too.
OPTIMIZERS = (
    "adamw_torch_fused",
    "adamw_torch",
    "sgd",
    "rmsprop",
    "adagrad",
    "lion_32bit",
    "lion_8bit",
    "adamw_8bit",
    "ademamix",
    "ademamix_8bit",
    "rmsprop_bnb",
    "rmsprop_bnb_8bit",
)


def states(config: dict[str, object], layout: Layout, tmp_path: object) -> int:
    """Bytes of the states that Trainer's own optimizer makes in one step; a counter of each
    tensor's steps is left out.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**config), dtype=getattr(torch, layout.weights)
    )
    if layout.lora is not None:
        model = get_peft_model(
            model,
            LoraConfig(
                r=layout.lora.rank, target_modules=list(layout.lora.targets), task_type="CAUSAL_LM"
            ),
        )
    arguments = TrainingArguments(
        output_dir=str(tmp_path), optim=layout.optimizer, use_cpu=True, report_to=[]
    )
    optimizer = Trainer(model=model, args=arguments).create_optimizer()
    for each in model.parameters():
        each.grad = torch.ones_like(each) if each.requires_grad else None
    optimizer.step()
    tables = {"qmap1", "qmap2"}  # bitsandbytes has one for all of a kind
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for name, value in state.items()
        if torch.is_tensor(value) and value.numel() > 1 and name not in tables
    )


@pytest.mark.torch
@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_states_are_as_large_as_the_optimizers_own(
    name: str, lora: Lora | None, tmp_path: object
) -> None:
    layout = replace(ALL, optimizer=name, lora=lora)
    measured, worked_out = (
        states(CONFIG, layout, tmp_path),
        static.optimizer_bytes(read_shape(CONFIG), layout),
    )
    assert worked_out == pytest.approx(measured, rel=0.05, abs=4096)


@pytest.mark.torch
def test_an_untied_output_layer_has_states_of_eight_bits_and_the_table_of_embeddings_of_32(
    tmp_path: object,
) -> None:
    untied, layout = {**CONFIG, "tie_word_embeddings": False}, replace(ALL, optimizer="adamw_8bit")
    measured = states(untied, layout, tmp_path)
    assert measured > 8 * 2000 * 256
    assert static.optimizer_bytes(read_shape(untied), layout) == pytest.approx(measured, rel=0.05)


@pytest.mark.torch
@pytest.mark.parametrize("bits", ["4bit", "8bit"])
def test_quantized_weights_are_as_large_as_those_of_bitsandbytes(bits: str) -> None:
    import torch
    from bitsandbytes import nn

    shape, layout = (
        read_shape(CONFIG),
        replace(ALL, weights="bfloat16", compute="bfloat16", lora=LORA, quantization=bits),
    )
    held = 0
    for each in shape.projections:
        weight = torch.randn(each.outputs, each.inputs, dtype=torch.bfloat16)
        if bits == "4bit":
            packed = nn.Params4bit(
                weight, requires_grad=False, quant_type="nf4", compress_statistics=False
            ).to("cpu")
            held += packed.data.nbytes + packed.quant_state.absmax.nbytes
        else:
            packed = nn.Int8Params(weight.half(), requires_grad=False, has_fp16_weights=False).to(
                "cpu"
            )
            held += packed.CB.nbytes + packed.SCB.nbytes
    linears = sum(each.inputs * each.outputs for each in shape.projections)
    unquantized = 2 * (shape.parameters - shape.layers * linears)
    adapter = 2 * trainable(shape, LORA)  # in bfloat16, as TRL has those of quantized models
    assert static.weights_bytes(shape, layout) == shape.layers * held + unquantized + adapter
