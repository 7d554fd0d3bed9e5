"""A classifier: its shape, what its options ask for, and its memory against torch's MemTracker."""

from dataclasses import dataclass, replace

import pytest
from fit_models import config, shape

from hpctrain.fit import asked
from hpctrain.fit.flops import model_flops_per_token
from hpctrain.fit.layout import Layout, Lora
from hpctrain.fit.memory import gpu_memory
from hpctrain.fit.memory_static import CUBLAS
from hpctrain.fit.parameters import trainable
from hpctrain.fit.shape import labels_of, read_shape

LLAMA = {
    "model_type": "llama", "vocab_size": 2000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 4,
    "num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 8192,
}  # fmt: skip
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 128, "tie_word_embeddings": True, "num_hidden_layers": 3}
GPT2 = {"model_type": "gpt2", "vocab_size": 2000, "n_embd": 512, "n_layer": 3, "n_head": 8, "n_positions": 1024}
LORA = Lora(rank=16, targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), dropout=True)
QV = Lora(rank=8, targets=("q_proj", "v_proj"))
CLASSES = Layout(loss="classes", micro_batch=8, length=512)
ADAPTED = replace(CLASSES, weights="bfloat16", lora=LORA)
TRACKED = {
    "full": (LLAMA, CLASSES),
    "one row": (QWEN3, replace(CLASSES, micro_batch=1, length=2048)),
    "checkpointing": (QWEN3, replace(CLASSES, length=1024, checkpointing="full")),
    "bf16 weights": (LLAMA, replace(CLASSES, weights="bfloat16", compute=None)),
    "lora": (LLAMA, ADAPTED),
    "lora, checkpointing": (QWEN3, replace(ADAPTED, lora=QV, length=1024, checkpointing="full")),
    "an evaluation of larger batches": (LLAMA, replace(CLASSES, micro_batch=1, evaluation=64)),
    "an evaluation with an adapter": (LLAMA, replace(ADAPTED, micro_batch=1, checkpointing="full", evaluation=16)),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", TRACKED)
def test_within_5_percent_of_the_tracker(name: str) -> None:
    from hpctrain.training.fit_exact import exact

    described, layout = TRACKED[name]
    tracked = exact(described, layout, labels=5).peak
    found = gpu_memory(read_shape(described, labels=5), layout)
    assert abs((found.allocated - CUBLAS) / tracked - 1) <= 0.05, f"predicted {found.allocated - CUBLAS:,}, tracked {tracked:,}"
    assert (found.moment == "an evaluation") == ("evaluation" in name)


@pytest.mark.torch
@pytest.mark.parametrize("described", [LLAMA, QWEN3, GPT2], ids=["llama", "qwen3", "gpt2"])
def test_it_counts_the_parameters_that_transformers_and_peft_make(described: dict[str, object]) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForSequenceClassification

    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(**described, num_labels=7))
    known = read_shape(described, labels=7)
    assert known.parameters == model.num_parameters()
    names = ["c_attn"] if described is GPT2 else ["q_proj", "v_proj"]
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules=names, task_type="SEQ_CLS", fan_in_fan_out=described is GPT2))
    trained = sum(each.numel() for each in adapted.parameters() if each.requires_grad)
    assert trainable(known, Lora(rank=8, targets=tuple(names))) == trained


def test_its_output_layer_is_small_and_tied_to_nothing() -> None:
    words, classes = shape("qwen3-0.6b"), read_shape(config("qwen3-0.6b"), labels=3)
    assert words.tied
    assert not classes.tied
    assert classes.parameters == words.parameters + 3 * words.hidden
    assert model_flops_per_token(classes, CLASSES) < model_flops_per_token(words, CLASSES)
    loss = {part.name: part.bytes for part in gpu_memory(classes, CLASSES).parts}["loss"]
    assert loss < CLASSES.tokens_per_pass * words.hidden * 4


# -- what is asked -----------------------------------------------------------------------------------------------------


@dataclass
class Split:
    longest: int


@dataclass
class Data:
    labels: tuple[str, ...] = ("no", "yes", "unknown")
    vocabulary: int = 300
    packed: bool = False
    max_length: int | None = None

    @property
    def splits(self) -> dict[str, Split]:
        return {"train": Split(700), "test": Split(900)}


def layout(*words: str, data: Data | None = None, **where: object) -> Layout:
    options = asked.options_of(words)
    known = asked.shape_of(config("qwen3-0.6b"), options, task="classify", dataset=data)
    return asked.layout_of(options, nodes=1, gpus_per_node=1, sharding="ddp", shape=known, dataset=data, **where)


def test_nothing_asked_is_what_the_training_takes() -> None:
    assert layout() == Layout(micro_batch=8, length=1024, loss="classes", evaluation=8)
    assert layout(data=Data()).length == 900  # held-out rows are evaluated
    assert layout("--max_events", "300", data=Data()).length == 300
    assert layout("--max_events", "3000", data=Data()).length == 900
    assert layout("--max_length", "50", "--packing", "true", "--loss_type", "dft").padding_free is False


def test_rows_that_are_cut_at_random_are_no_longer_than_the_others() -> None:
    assert layout("--random_truncation", "0.9", "--min_events", "2", data=Data()) == layout(data=Data())


def test_what_is_evaluated_counts() -> None:
    assert layout("--eval_strategy", "no").evaluation == 0
    assert layout("--per_device_eval_batch_size", "64").evaluation == 64
    words = asked.layout_of({}, nodes=1, gpus_per_node=1, sharding="ddp", shape=shape("qwen3-0.6b"))
    assert words.evaluation == 0


def test_checkpointing_is_off_where_nobody_asks_as_in_the_training() -> None:
    """The SFT training switches it on where memory does not suffice; the classifier's leaves it to transformers, which does not."""
    assert layout(gpu_bytes=1).checkpointing == "off"
    assert layout("--gradient_checkpointing", "true").checkpointing == "full"


def test_the_labels_are_those_that_are_named_or_the_datas_or_the_models() -> None:
    def labels(*words: str, data: Data | None = None, **changes: object) -> int:
        return asked.shape_of({**QWEN3, **changes}, asked.options_of(words), task="classify", dataset=data).labels

    assert labels() == 2
    assert labels(id2label={"0": "a", "1": "b", "2": "c"}) == 3
    assert labels(num_labels=6) == 6
    assert labels(data=Data()) == 3
    assert labels(data=Data(labels=())) == 1
    assert labels("--class_names", "a", "b", data=Data()) == 2
    assert labels_of({"id2label": [], "num_labels": True}) == 2
    assert asked.shape_of(QWEN3, {"from_scratch": "true"}, task="classify", dataset=Data()).vocab == 300
    assert asked.shape_of(QWEN3, {}, task="sft", dataset=Data()).labels == 0
