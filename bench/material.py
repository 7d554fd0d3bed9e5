"""What the training benchmark trains: instruction data of mixed lengths from real text, and models
of real shapes with random weights.

Nothing is downloaded: the text is the standard library's functions and their docstrings.
"""

from __future__ import annotations

import ast
import json
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: config.json of Qwen3's shapes (0.6B, 1.7B, 8B as published), and two for a CPU.
SHAPES: dict[str, dict[str, Any]] = {
    "toy": {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
    "small": {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
    },
    "1.7b": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
    },
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}
_CPU = ("toy", "small")


def config_of(shape: str, vocabulary: int, layers: int | None = None) -> dict[str, Any]:
    """Return the config.json of a shape, with fewer layers where a number is given.

    On a CPU the vocabulary is the tokenizer's, else the published one, for the loss costs as much.
    """
    small = shape in _CPU
    return {
        "vocab_size": vocabulary if small else 151_936,
        "head_dim": 32 if small else 128,
        "tie_word_embeddings": shape != "8b",
        "max_position_embeddings": 8192,
        "dtype": "bfloat16",
        **SHAPES[shape],
        **({"num_hidden_layers": layers} if layers else {}),
    }


def make_model(folder: Path, shape: str, *, layers: int | None = None, seed: int = 0) -> None:
    """Save a model of random bfloat16 weights, as models are published, with a tokenizer trained on
    the text.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from hpctrain.training.demo import train_tokenizer

    tokenizer = train_tokenizer([text for pair in pairs(2000) for text in pair])
    config = Qwen3Config(
        **config_of(shape, len(tokenizer), layers),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        model = Qwen3ForCausalLM(config)
        torch.set_default_dtype(before)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_data(file: Path, rows: int, *, seed: int = 0) -> None:
    """Write a JSONL file of chats: what a function is for, or its source, asked for and answered.

    Lengths vary as in real ones.
    """
    found = list(pairs(rows))
    random.Random(seed).shuffle(found)  # noqa: S311 - an order, not a secret
    with file.open("w", encoding="utf-8") as out:
        for number in range(rows):
            question, answer = found[number % len(found)]
            messages = [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
            out.write(json.dumps({"messages": messages}) + "\n")


def pairs(most: int) -> Iterator[tuple[str, str]]:
    """Yield at most so many questions and answers, in the order of the files."""
    given = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if {"site-packages", "dist-packages", "test", "tests"} & set(path.parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or not (doc := ast.get_docstring(node)):
                continue
            source = ast.get_source_segment(text, node) or ""
            summary = doc.partition("\n\n")[0]
            for pair in (
                (f"What does `{node.name}` of {path.stem} do?", doc),
                (f"Write the function `{node.name}`. {summary}", source),
            ):
                yield pair
                given += 1
                if given == most:
                    return
