"""Creates everything for a first training without a download: a tokenizer, a tokenized dataset, a
small model.

The text is the docstrings of the installed Python standard library: a question asks what a function
does, and its docstring is the answer. The files are parsed; nothing is imported or run.
"""

from __future__ import annotations

import ast
import json
import random
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from hpctrain.errors import UsageError
from hpctrain.training.process import disable_progress_bars
from hpctrain.util import installed

#: The file that marks a directory as created by this module, so that it may be replaced.
MARKER = ".hpctrain-demo.json"

VOCABULARY = 4096
#: Longer pairs are skipped, so that a training batch on a CPU stays small.
MAX_TOKENS = 192

#: Training options with which the demo's loss clearly falls within a minute on two CPU cores.
DEMO_TRAINING: Final[Mapping[str, Any]] = {
    "max_steps": 60,
    "per_device_train_batch_size": 8,
    "learning_rate": 2.0e-3,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 5,
    "max_length": 256,
    "gradient_checkpointing": False,
    "ddp_find_unused_parameters": False,
    "logging_steps": 5,
    "eval_strategy": "steps",
    "eval_steps": 30,
    "save_strategy": "steps",
    "save_steps": 30,
    "save_total_limit": 1,
}

_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content']"
    " }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_SKIPPED = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "__pycache__",
    "ensurepip",
    "turtledemo",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSummary:
    """The files that were written.

    Attributes:
        model: a directory for --model_name_or_path, with the tokenizer.
        dataset: a directory for --dataset_name, with the splits train and test.
        modules: source files whose docstrings were used.
        tokens: tokens of both splits, including the questions.
    """

    directory: Path
    model: Path
    dataset: Path
    modules: int
    train_pairs: int
    test_pairs: int
    tokens: int
    vocabulary: int
    parameters: int
    seconds: float


#: A question about a function or class, and its answer.
Pair = tuple[str, str]


def make_demo(directory: Path, *, seed: int = 0, max_pairs: int = 6000) -> DemoSummary:
    """Create `directory` with `model/` and `dataset/`; the same standard library and seed give the
    same content.

    Everything is written to a temporary directory beside it and renamed into place. This takes
    about 15 seconds.

    Args:
        directory: the directory to create; replaced if an earlier call created it.
        seed: for the order of the pairs, the split, and the model's weights.
        max_pairs: the most pairs, in both splits together.

    Raises:
        UsageError: the directory exists and was not created by this function.
        HpctrainError: the [train] extra is not installed.
        OSError: the directory cannot be written.
    """
    began = time.monotonic()
    directory = Path(directory).expanduser().absolute()
    is_ours = (directory / MARKER).is_file()
    if directory.exists() and not is_ours and (directory.is_file() or any(directory.iterdir())):
        raise UsageError(
            f"{directory} exists and was not made by this command",
            hint="name another directory: hpctrain prepare --demo DIR",
        )
    installed.require("train", "datasets", "tokenizers", "torch", "transformers")
    disable_progress_bars()
    texts, pairs, modules = _collect(Path(sysconfig.get_path("stdlib")))
    directory.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        tokenizer = train_tokenizer(texts)
        random.Random(seed).shuffle(pairs)  # noqa: S311 - an order, not a secret
        sizes = _save_dataset(pairs[:max_pairs], tokenizer, draft / "dataset")
        parameters = _save_model(tokenizer, seed, draft / "model")
        summary = DemoSummary(
            directory=directory,
            model=directory / "model",
            dataset=directory / "dataset",
            modules=modules,
            train_pairs=sizes["train"],
            test_pairs=sizes["test"],
            tokens=sizes["tokens"],
            vocabulary=len(tokenizer),
            parameters=parameters,
            seconds=round(time.monotonic() - began, 1),
        )
        (draft / MARKER).write_text(
            json.dumps(asdict(summary), default=str, indent=1) + "\n", encoding="utf-8"
        )
        draft.chmod(0o755)
        if directory.exists():
            shutil.rmtree(directory)
        draft.rename(directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return summary


# -- the text --------------------------------------------------------------------------------------


def _collect(stdlib: Path) -> tuple[list[str], list[Pair], int]:
    texts, pairs, modules = list[str](), list[Pair](), 0
    for path in sorted(stdlib.rglob("*.py")):
        parts = path.relative_to(stdlib).parts
        if _SKIPPED.intersection(parts) or parts[0].startswith("config-"):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        found = list(
            _documented(".".join(parts).removesuffix(".py").removesuffix(".__init__"), tree)
        )
        modules += bool(found)
        texts += [docstring for _, _, docstring in found]
        for name, node, docstring in found:
            summary = " ".join(docstring.partition("\n\n")[0].split())
            is_public = not name.rpartition(".")[2].startswith("_")
            if len(summary) >= 20 and is_public and not isinstance(node, ast.Module):
                question = f"What is the class `{name}` for?"
                if not isinstance(node, ast.ClassDef):
                    question = f"What does `{name}({ast.unparse(node.args)})` do?"
                pairs.append((question, summary))
    return texts, pairs, modules


def _documented(name: str, node: Any) -> Iterator[tuple[str, Any, str]]:
    if docstring := ast.get_docstring(node):
        yield name, node, docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _documented(f"{name}.{child.name}", child)


# -- the tokenizer, the dataset, the model ---------------------------------------------------------


def train_tokenizer(texts: list[str]) -> Any:
    """Return a byte-level BPE tokenizer trained on the texts, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=list(_SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_SPECIAL[0],
        eos_token=_SPECIAL[2],
        chat_template=_TEMPLATE,
        model_max_length=1024,
    )


def _save_dataset(pairs: list[Pair], tokenizer: Any, folder: Path) -> dict[str, int]:
    """Tokenize the pairs, use one in twenty as the test split, save, and return the sizes.

    `labels` is -100 over the question, so that only the answer is trained, regardless of the
    options.
    """
    from datasets import Dataset, DatasetDict

    questions = tokenizer(
        [f"<|im_start|>user\n{each}<|im_end|>\n<|im_start|>assistant\n" for each, _ in pairs]
    )
    answers = tokenizer([f"{answer}<|im_end|>\n" for _, answer in pairs])
    rows = [
        {"input_ids": question + answer, "labels": [-100] * len(question) + answer}
        for question, answer in zip(questions["input_ids"], answers["input_ids"], strict=True)
        if len(question) + len(answer) <= MAX_TOKENS
    ]
    held_back = max(1, len(rows) // 20)
    data = DatasetDict(
        train=Dataset.from_list(rows[held_back:]), test=Dataset.from_list(rows[:held_back])
    )
    data.save_to_disk(str(folder))
    return {
        "train": len(rows) - held_back,
        "test": held_back,
        "tokens": sum(len(row["input_ids"]) for row in rows),
    }


def _save_model(tokenizer: Any, seed: int, folder: Path) -> int:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return int(model.num_parameters())
