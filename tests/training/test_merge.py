"""Adapters of all kinds are merged, loaded anew, and give what base and adapter give; what cannot
be merged is refused whole.
"""

import json
import re
from pathlib import Path
from typing import Any

import adapters
import pytest

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import checkpoints
from hpctrain.runs.manifest import problems

pytestmark = pytest.mark.torch

#: The base, the adapter's options, a word of the notes.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "attention": ({}, {}, None),
    "all linear layers": ({}, {"target_modules": "all-linear"}, None),
    "bfloat16": ({"dtype": "bfloat16"}, {"target_modules": "all-linear", "scale": 0.1}, None),
    "DoRA": ({}, {"use_dora": True}, None),
    "rsLoRA": ({}, {"use_rslora": True}, None),
    "biases": ({}, {"bias": "lora_only"}, None),
    "the output layer saved whole": ({}, {"modules_to_save": ["lm_head"]}, None),
    "tied, the embedding saved whole": (
        {"tied": True},
        {"modules_to_save": ["embed_tokens"]},
        "two now",
    ),
    "tied, LoRA on the embedding": (
        {"tied": True},
        {"target_modules": ["embed_tokens", "q_proj"]},
        "two now",
    ),
    "tied, LoRA on the output layer": (
        {"tied": True},
        {"target_modules": ["lm_head", "q_proj"]},
        "two now",
    ),
    "tied, untouched": ({"tied": True}, {}, None),
    "GPT-2": ({}, {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}, None),
}


def merge(adapter: Path, to: Path, **more: Any) -> Any:
    from hpctrain.training import merge

    return merge.merge(adapter, to, **more)


def reference(base: Path, adapter: Path, dtype: str) -> Any:
    """The logits of base and adapter, by peft alone."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype))
    with torch.no_grad():
        return PeftModel.from_pretrained(model, adapter).eval()(input_ids=tokens()).logits.float()


def plain(base: Path, dtype: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype)).eval()
    with torch.no_grad():
        return model(input_ids=tokens()).logits.float()


def tokens() -> Any:
    import torch

    return torch.tensor([[5, 9, 33, 2, 60, 17]])


@pytest.mark.parametrize("case", CASES)
def test_a_merged_folder_gives_what_base_and_adapter_give(case: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    shape, lora, note = CASES[case]
    make = adapters.gpt2 if case == "GPT-2" else adapters.llama
    base = make(tmp_path / "base", **shape)
    adapter = adapters.adapter(base, tmp_path / "adapter", **lora)
    made = merge(adapter, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    dtype = shape.get("dtype", "float32")
    assert model.dtype == getattr(torch, dtype)
    with torch.no_grad():
        found = model.eval()(input_ids=tokens()).logits.float()
    wanted = reference(base, adapter, dtype)
    assert float((found - wanted).abs().max()) <= (1e-4 if dtype == "float32" else 0.1) * float(
        wanted.abs().max()
    )
    assert float((found - plain(base, dtype)).abs().max()) > 0.02 * float(wanted.abs().max())
    assert (note is None and not made.notes) or (
        note is not None and any(note in each for each in made.notes)
    ), made.notes
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template is not None
    assert model.generation_config.temperature == 0.5
    assert problems(tmp_path / "out", digests=True) == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter",
        "base",
        "out",
    ], "no draft is left"


def test_a_tied_model_stays_tied(tmp_path: Path) -> None:
    base = adapters.llama(tmp_path / "base", tied=True)
    merge(adapters.adapter(base, tmp_path / "adapter"), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is True
    assert (tmp_path / "out" / "model.safetensors").stat().st_size <= (
        base / "model.safetensors"
    ).stat().st_size + 1000


def test_a_classifier_keeps_its_head_and_its_classes(tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    base = adapters.llama(tmp_path / "base")
    adapter = adapters.adapter(base, tmp_path / "adapter", task="SEQ_CLS", labels=4)
    names = {
        "id2label": {"0": "a", "1": "b", "2": "c", "3": "d"},
        "problem_type": "single_label_classification",
        "pad_token_id": 7,
    }
    (adapter / "classifier_config.json").write_text(json.dumps(names))
    merge(adapter, tmp_path / "out")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert model.config.id2label == {0: "a", 1: "b", 2: "c", 3: "d"}
    assert model.config.label2id == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert model.config.pad_token_id == 7
    whole = PeftModel.from_pretrained(
        AutoModelForSequenceClassification.from_pretrained(base, num_labels=4), adapter
    ).eval()
    with torch.no_grad():
        assert torch.allclose(
            model(input_ids=tokens()).logits, whole(input_ids=tokens()).logits, atol=1e-5
        )


def test_init_from_takes_it(tmp_path: Path) -> None:
    adapter = adapters.adapter(adapters.llama(tmp_path / "base"), tmp_path / "adapter")
    assert merge(adapter, tmp_path / "out", dtype="bfloat16").dtype == "bfloat16"
    assert (tmp_path / "out" / "model.safetensors").is_file()
    found = checkpoints.weights_of(str(tmp_path / "out"), runs=tmp_path / "runs", tag=None)
    assert found == tmp_path / "out"


def test_a_base_that_was_moved_is_named(tmp_path: Path) -> None:
    base = adapters.llama(tmp_path / "base")
    adapter = adapters.adapter(base, tmp_path / "adapter")
    base.rename(tmp_path / "moved")
    with pytest.raises(UsageError, match="that the adapter names is not there") as caught:
        merge(adapter, tmp_path / "out")
    assert caught.value.hint == "give its current directory: --base DIR"
    made = merge(adapter, tmp_path / "out", base=tmp_path / "moved")
    assert any("was trained on" in note for note in made.notes)


def test_another_base_is_refused(tmp_path: Path) -> None:
    adapter = adapters.adapter(adapters.llama(tmp_path / "base"), tmp_path / "adapter")
    wide, other = adapters.llama(tmp_path / "wide", hidden=64), adapters.gpt2(tmp_path / "other")
    for folder, said in (
        (wide, "size mismatch"),
        (other, "not found in the base model"),
    ):
        with pytest.raises(UsageError, match="is not one of") as caught:
            merge(adapter, tmp_path / "out", base=folder)
        assert any(re.search(said, line) for line in caught.value.details), caught.value.details
        assert caught.value.hint == f"use --base {tmp_path / 'base'}"
    assert not (tmp_path / "out").exists()


def broken(kind: str, base: Path, adapter: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    config = json.loads((adapter / "adapter_config.json").read_text())
    if kind == "whole model":
        (adapter / "adapter_config.json").unlink()
        (adapter / "config.json").write_text("{}")
    elif kind == "nothing":
        (adapter / "adapter_config.json").unlink()
    elif kind == "other kind":
        (adapter / "adapter_config.json").write_text(
            json.dumps({**config, "peft_type": "PREFIX_TUNING"})
        )
    elif kind == "no weights":
        (adapter / "adapter_model.safetensors").unlink()
    elif kind == "cut off":
        (adapter / "adapter_model.safetensors").write_bytes(
            (adapter / "adapter_model.safetensors").read_bytes()[:200]
        )
    elif kind == "quantised base":
        said = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(
            json.dumps({**said, "quantization_config": {"quant_method": "bitsandbytes"}})
        )
    elif kind == "NaN":
        tensors = load_file(adapter / "adapter_model.safetensors")
        tensors[next(iter(tensors))].view(-1)[0] = torch.nan
        save_file(tensors, adapter / "adapter_model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("whole model", "nothing to merge"),
        ("nothing", "has no readable adapter_config.json"),
        ("other kind", "of kind PREFIX_TUNING"),
        ("no weights", "has no adapter_model.safetensors"),
        ("cut off", "cannot be read"),
        ("quantised base", "is stored quantized"),
        ("NaN", "the adapter cannot be merged"),
    ],
)
def test_what_cannot_be_merged_is_refused_and_nothing_is_left(
    kind: str, said: str, tmp_path: Path
) -> None:
    base = adapters.llama(tmp_path / "base")
    adapter = adapters.adapter(base, tmp_path / "adapter")
    broken(kind, base, adapter)
    with pytest.raises(HpctrainError, match=said) as caught:
        merge(adapter, tmp_path / "out")
    assert caught.value.fix or caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


def test_a_damaged_base_and_a_place_that_cannot_be_are_said(tmp_path: Path) -> None:
    base = adapters.llama(tmp_path / "base")
    adapter = adapters.adapter(base, tmp_path / "adapter")
    (tmp_path / "file").write_text("")
    with pytest.raises(HpctrainError, match="cannot be made: Not a directory"):
        merge(adapter, tmp_path / "file/out")
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UsageError, match=r"the weights of .* cannot be read"):
        merge(adapter, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base", "file"]
