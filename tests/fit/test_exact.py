"""The exact mode: a step with fake tensors, its parts, and what it refuses."""

import json

import pytest

from hpctrain.errors import UsageError
from hpctrain.fit.layout import Layout
from hpctrain.training import fit_exact

CONFIG = {
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return tmp_path


@pytest.mark.torch
def test_the_parts_add_up_and_the_weights_are_those_of_the_model(folder):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    found = fit_exact.exact(folder, Layout(micro_batch=1, length=64))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**CONFIG))
    assert sum(found.parts.values()) == found.peak == max(found.moments.values())
    assert found.parts["Parameter"] == 4 * model.num_parameters()
    assert found.parts["Optstate"] == pytest.approx(8 * model.num_parameters(), rel=0.001)  # and a step counter for each parameter


@pytest.mark.torch
def test_the_attention_of_a_gpu_holds_no_scores(folder):
    """Twice the length is twice the activations with a fused kernel; eager's grow with the square."""

    def activations(length, attention):
        layout = Layout(micro_batch=1, length=length, attention=attention, optimizer="sgd")
        return fit_exact.exact(folder, layout).parts["Activation"]

    assert activations(2048, "sdpa") < 2.1 * activations(1024, "sdpa")
    assert activations(2048, "eager") > 3 * activations(1024, "eager")


@pytest.mark.torch
def test_the_stand_ins_are_taken_away_again(folder):
    import torch
    from trl.trainer import utils

    before = torch.nn.functional.dropout, utils._use_triton
    fit_exact.exact(folder, Layout(micro_batch=1, length=16))
    assert (torch.nn.functional.dropout, utils._use_triton) == before


@pytest.mark.torch
def test_prints_the_parts(folder, capsys):
    arguments = [str(folder), "--micro_batch", "1", "--length", "64", "--lora_r", "4", "--checkpointing", "full", "--weights", "bfloat16"]
    assert fit_exact.main(arguments) == 0
    text = capsys.readouterr().out
    assert text.startswith("peak ")
    assert all(len(line) <= 80 for line in text.splitlines())
    assert fit_exact.main([*arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == 1
    assert sum(shown["parts"].values()) == shown["peak"]


@pytest.mark.parametrize(
    ("layout", "what"),
    [
        (Layout(optimizer="adamw_8bit"), "the optimizer 'adamw_8bit' does not run with fake tensors"),
        (Layout(quantization="4bit"), "quantized weights do not run with fake tensors"),
        (Layout(gpus_per_node=2), "with several processes fsdp alone runs with fake tensors, not ddp"),
        (Layout(gpus_per_node=2, sharding="zero3"), "with several processes fsdp alone runs with fake tensors, not zero3"),
        (Layout(compute="float16"), "float16 with loss scaling is not run with fake tensors"),
        (Layout(gpus_per_node=2, quantization="4bit"), "2 parts of this layout cannot be run"),
    ],
)
def test_refuses_what_it_cannot_run(layout, what):
    with pytest.raises(UsageError) as caught:
        fit_exact.exact(CONFIG, layout)
    assert caught.value.what.startswith(what)


def test_bad_input_is_a_clear_error(tmp_path, capsys):
    assert fit_exact.main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("error: cannot read ")
    (tmp_path / "config.json").write_text("[]", encoding="utf-8")
    assert fit_exact.main([str(tmp_path)]) == 2
    assert "holds no JSON object" in capsys.readouterr().err


@pytest.mark.torch
def test_a_model_that_transformers_does_not_know(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "nonesuch"}', encoding="utf-8")
    assert fit_exact.main([str(tmp_path)]) == 1
    assert "transformers cannot read this config.json of model_type 'nonesuch'" in capsys.readouterr().err
