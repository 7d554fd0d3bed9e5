"""A model's folder and data of real text for the tests of the whole preparation, and ways to run
it.
"""

import inspect
import json
import textwrap
from pathlib import Path
from typing import Any

from hpctrain.data import pipeline
from hpctrain.data.pipeline import PrepareSummary
from hpctrain.data.request import PrepareRequest

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content']"
    " }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def model(folder: Path) -> Path:
    """Make the folder of a model: its tokenizer, with a chat template, and its config; no weights."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([inspect.getsource(textwrap)], trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
    ).save_pretrained(folder)
    (folder / "config.json").write_text(
        json.dumps({"model_type": "qwen3", "max_position_embeddings": 512, "vocab_size": 600})
    )
    return folder


def chats(path: Path, count: int) -> Path:
    """Write `count` conversations of lines of `textwrap`'s source, all different."""
    lines = [line for line in inspect.getsource(textwrap).splitlines() if line.strip()]
    with path.open("w", encoding="utf-8") as stream:
        for number in range(count):
            answer = "\n".join(
                lines[(number * 7 + step) % len(lines)] for step in range(number % 11 + 1)
            )
            turns = [
                {"role": "user", "content": f"Say number {number}."},
                {"role": "assistant", "content": answer},
            ]
            stream.write(json.dumps({"messages": turns}) + "\n")
    return path


def prepared(data: Path, model_folder: Path, target: Path, **more: Any) -> PrepareSummary:
    """Prepare in this process's name, with two workers where it is not said otherwise."""
    asked: dict[str, Any] = {
        "max_length": 256,
        "pack": True,
        "workers": 2,
        "validation": 0.1,
        **more,
    }
    return pipeline.prepare(
        PrepareRequest(paths=(data,), target=target, tokenizer=model_folder, **asked)
    )


def everything(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
