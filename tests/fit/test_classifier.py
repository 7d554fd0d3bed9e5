"""A classifier: its shape, what its options ask for, and its memory against torch's MemTracker."""

from dataclasses import replace

import pytest

from hpctrain.fit import training_options
from hpctrain.fit.layout import Layout, Lora
from hpctrain.fit.memory import CUBLAS, gpu_memory
from hpctrain.fit.shape import labels_of, read_shape, trainable
from hpctrain.util import shell
from tests.fit.fit_models import Data, Split, config, shape

LLAMA = {
    "model_type": "llama",
    "vocab_size": 2000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
QWEN3 = {
    **LLAMA,
    "model_type": "qwen3",
    "head_dim": 128,
    "tie_word_embeddings": True,
    "num_hidden_layers": 3,
}
LORA = Lora(
    rank=16,
    targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    dropout=True,
)
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
    "an evaluation with an adapter": (
        LLAMA,
        replace(ADAPTED, micro_batch=1, checkpointing="full", evaluation=16),
    ),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", TRACKED)
def test_within_5_percent_of_the_tracker(name: str) -> None:
    from fit_tracked import tracked

    described, layout = TRACKED[name]
    peak = tracked(described, layout, labels=5).peak
    found = gpu_memory(read_shape(described, labels=5), layout)
    assert abs((found.allocated - CUBLAS) / peak - 1) <= 0.05, (
        f"predicted {found.allocated - CUBLAS:,}, tracked {peak:,}"
    )
    assert (found.moment == "an evaluation") == ("evaluation" in name)


@pytest.mark.torch
@pytest.mark.parametrize("described", [LLAMA, QWEN3], ids=["llama", "qwen3"])
def test_it_counts_the_parameters_that_transformers_and_peft_make(
    described: dict[str, object],
) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForSequenceClassification

    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(
            AutoConfig.for_model(**described, num_labels=7)
        )
    known = read_shape(described, labels=7)
    assert known.parameters == model.num_parameters()
    names = ["q_proj", "v_proj"]
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules=names, task_type="SEQ_CLS"))
    trained = sum(each.numel() for each in adapted.parameters() if each.requires_grad)
    assert trainable(known, Lora(rank=8, targets=tuple(names))) == trained


# -- what is asked ---------------------------------------------------------------------------------


PREPARED = Data(splits={"train": Split(700), "test": Split(900)})


def layout(*words: str, data: Data | None = None, **where: object) -> Layout:
    options = shell.options_of(words)
    known = training_options.shape_of(config("qwen3-0.6b"), options, task="classify", dataset=data)
    return training_options.layout_of(
        options, nodes=1, gpus_per_node=1, sharding="ddp", shape=known, dataset=data, **where
    )


def test_nothing_asked_is_what_the_training_takes() -> None:
    assert layout() == Layout(micro_batch=8, length=1024, loss="classes", evaluation=8)
    assert layout(data=PREPARED).length == 900  # held-out rows are evaluated
    assert layout("--max_events", "300", data=PREPARED).length == 300
    assert layout("--max_events", "3000", data=PREPARED).length == 900
    assert (
        layout("--max_length", "50", "--packing", "true", "--loss_type", "dft").padding_free
        is False
    )


def test_what_is_evaluated_counts() -> None:
    assert layout("--eval_strategy", "no").evaluation == 0
    assert layout("--per_device_eval_batch_size", "64").evaluation == 64
    words = training_options.layout_of(
        {}, nodes=1, gpus_per_node=1, sharding="ddp", shape=shape("qwen3-0.6b")
    )
    assert words.evaluation == 0


def test_checkpointing_is_off_where_nobody_asks_as_in_the_training() -> None:
    """The SFT training switches it on where memory does not suffice; the classifier's leaves it to
    transformers, which does not.
    """
    assert layout(gpu_bytes=1).checkpointing == "off"
    assert layout("--gradient_checkpointing", "true").checkpointing == "full"


def test_the_labels_are_those_that_are_named_or_the_datas_or_the_models() -> None:
    def labels(*words: str, data: Data | None = None, **changes: object) -> int:
        return training_options.shape_of(
            {**QWEN3, **changes}, shell.options_of(words), task="classify", dataset=data
        ).labels

    assert labels() == 2
    assert labels(id2label={"0": "a", "1": "b", "2": "c"}) == 3
    assert labels(num_labels=6) == 6
    assert labels(data=PREPARED) == 3
    assert labels(data=Data(labels=())) == 1
    assert labels("--class_names", "a", "b", data=PREPARED) == 2
    assert labels_of({"id2label": [], "num_labels": True}) == 2
    assert (
        training_options.shape_of(
            QWEN3, {"from_scratch": "true"}, task="classify", dataset=PREPARED
        ).vocab
        == 300
    )
    assert training_options.shape_of(QWEN3, {}, task="sft", dataset=PREPARED).labels == 0
