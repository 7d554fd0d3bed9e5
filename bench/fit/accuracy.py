"""Predicted against tracked memory: the formula of hpctrain/fit/memory.py beside torch's
MemTracker, over a grid of models and layouts.

python bench/fit/accuracy.py             # some twenty minutes on two cores; writes
docs/fit-accuracy.md python bench/fit/accuracy.py --part 2/8  # one part of it; rows that are
there already are kept
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpctrain.fit.layout import Layout, Lora
from hpctrain.fit.memory import CUBLAS, gpu_memory
from hpctrain.fit.shape import read_shape

PAGE = Path(__file__).parents[2] / "docs" / "fit-accuracy.md"
GIB = 1 << 30


def _llama(*sizes: int, vocab: int = 128256, tied: bool = False) -> dict[str, Any]:
    hidden, inner, layers, heads, kv = sizes
    return {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 131072,
    }


def _qwen(kind: str, *sizes: int, tied: bool = True) -> dict[str, Any]:
    head = {"head_dim": 128} if kind == "qwen3" else {}
    return {**_llama(*sizes, vocab=151936, tied=tied), "model_type": kind, **head}


def _moe(key: str, experts: int, of_token: int) -> dict[str, Any]:
    return {key: experts, "num_experts_per_tok": of_token}


#: Published sizes: the config.json of each model, as far as memory depends on it.
MODELS: Mapping[str, dict[str, Any]] = {
    "Llama 0.13B": _llama(768, 2048, 12, 12, 12, vocab=32000),
    "Qwen2.5 0.5B": _qwen("qwen2", 896, 4864, 24, 14, 2),
    "Qwen3 0.6B": _qwen("qwen3", 1024, 3072, 28, 16, 8),
    "Llama 3.2 1B": _llama(2048, 8192, 16, 32, 8, tied=True),
    "Qwen3 1.7B": _qwen("qwen3", 2048, 6144, 28, 16, 8),
    "Llama 3.2 3B": _llama(3072, 8192, 28, 24, 8, tied=True),
    "Qwen3 4B": _qwen("qwen3", 2560, 9728, 36, 32, 8),
    "Qwen2.5 7B": _qwen("qwen2", 3584, 18944, 28, 28, 4, tied=False),
    "Llama 3.1 8B": _llama(4096, 14336, 32, 32, 8),
    "Qwen3 8B": _qwen("qwen3", 4096, 12288, 36, 32, 8, tied=False),
    "Mixtral, 8 experts, 0.7B": {
        **_llama(768, 2048, 12, 12, 4, vocab=32000),
        "model_type": "mixtral",
        **_moe("num_local_experts", 8, 2),
    },
    "Qwen3 MoE, 32 experts, 0.9B": {
        **_qwen("qwen3", 1024, 3072, 12, 16, 4),
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 512,
        **_moe("num_experts", 32, 4),
    },
}
QV = ("q_proj", "v_proj")
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FULL: Mapping[str, Any] = {}
BF16: Mapping[str, Any] = {"weights": "bfloat16", "compute": None}
LORA: Mapping[str, Any] = {"weights": "bfloat16", "lora": Lora(rank=16, targets=ALL)}
LORA_QV: Mapping[str, Any] = {"weights": "bfloat16", "lora": Lora(rank=8, targets=QV, dropout=True)}
CHECKPOINT: Mapping[str, Any] = {"checkpointing": "full"}
CLASSES: Mapping[str, Any] = {"loss": "classes", "evaluation": 8}
FSDP: Mapping[str, Any] = {"gpus_per_node": 8, "sharding": "fsdp"}
#: Of the classifiers.
LABELS = 5

#: (model, rows of a micro batch, length, the rest of the layout)
GRID: tuple[tuple[str, int, int, Mapping[str, Any]], ...] = (
    ("Llama 0.13B", 1, 8192, FULL),
    ("Llama 0.13B", 8, 512, {**FULL, **CHECKPOINT}),
    ("Llama 0.13B", 4, 2048, LORA),
    ("Llama 0.13B", 8, 1024, {**LORA_QV, **CHECKPOINT}),
    ("Llama 0.13B", 2, 1024, {"loss": "logits"}),
    ("Qwen2.5 0.5B", 1, 4096, FULL),
    ("Qwen2.5 0.5B", 4, 512, FULL),
    ("Qwen2.5 0.5B", 16, 1024, {**LORA, **CHECKPOINT}),
    ("Qwen3 0.6B", 1, 1024, {"accumulation": 8}),
    ("Qwen3 0.6B", 4, 1024, {"padding_free": True}),
    ("Qwen3 0.6B", 1, 8192, CHECKPOINT),
    ("Qwen3 0.6B", 2, 2048, LORA_QV),
    ("Qwen3 0.6B", 1, 4096, BF16),
    ("Llama 3.2 1B", 1, 2048, FULL),
    ("Llama 3.2 1B", 8, 2048, {**BF16, **CHECKPOINT}),
    ("Llama 3.2 1B", 2, 4096, {**LORA, **CHECKPOINT}),
    ("Qwen3 1.7B", 1, 4096, FULL),
    ("Qwen3 1.7B", 4, 1024, CHECKPOINT),
    ("Qwen3 1.7B", 1, 8192, LORA),
    ("Qwen3 1.7B", 1, 8192, {**LORA, **CHECKPOINT}),
    ("Llama 3.2 3B", 1, 512, FULL),
    ("Llama 3.2 3B", 1, 8192, {**FULL, **CHECKPOINT}),
    ("Qwen3 4B", 2, 1024, LORA),
    ("Qwen3 4B", 1, 4096, {**BF16, **CHECKPOINT}),
    ("Qwen2.5 7B", 1, 2048, LORA_QV),
    ("Qwen2.5 7B", 1, 4096, {**FULL, **CHECKPOINT}),
    ("Llama 3.1 8B", 1, 4096, FULL),
    ("Llama 3.1 8B", 1, 4096, LORA),
    ("Llama 3.1 8B", 1, 8192, {**LORA, **CHECKPOINT}),
    ("Llama 3.1 8B", 2, 512, {**FULL, **CHECKPOINT}),
    ("Qwen3 8B", 1, 1024, BF16),
    ("Qwen3 8B", 4, 2048, {**LORA_QV, **CHECKPOINT}),
    ("Llama 0.13B", 8, 512, CLASSES),
    ("Llama 0.13B", 16, 1024, {**CLASSES, **CHECKPOINT}),
    ("Qwen3 0.6B", 8, 512, {**CLASSES, **LORA}),
    ("Qwen3 0.6B", 1, 2048, {**CLASSES, **CHECKPOINT, "evaluation": 64}),
    ("Qwen3 1.7B", 8, 1024, {**CLASSES, **LORA_QV, **CHECKPOINT}),
    ("Llama 0.13B", 1, 1024, FSDP),
    ("Llama 0.13B", 1, 1024, {**FSDP, **CHECKPOINT, "accumulation": 8}),
    ("Qwen3 0.6B", 2, 2048, {**FSDP, **CHECKPOINT}),
    ("Qwen3 0.6B", 2, 2048, {**FSDP, **CHECKPOINT, "accumulation": 8}),
    ("Llama 0.13B", 1, 1024, {**FSDP, **LORA}),
    ("Qwen3 0.6B", 1, 1024, {**FSDP, **LORA, **CHECKPOINT, "accumulation": 8}),
    ("Llama 3.1 8B", 1, 512, {**FSDP, **LORA_QV, **CHECKPOINT}),
    ("Llama 3.1 8B", 1, 512, {**FSDP, **CHECKPOINT, "accumulation": 8}),
    ("Mixtral, 8 experts, 0.7B", 4, 1024, FULL),
    ("Mixtral, 8 experts, 0.7B", 8, 1024, {**BF16, **CHECKPOINT}),
    ("Qwen3 MoE, 32 experts, 0.9B", 8, 1024, {**LORA_QV, **CHECKPOINT}),
    ("Qwen3 MoE, 32 experts, 0.9B", 4, 1024, BF16),
)


def layout_of(rows: int, length: int, rest: Mapping[str, Any]) -> Layout:
    """Return the layout of one row of the grid; sdpa takes flash where the rows need no mask."""
    return Layout(micro_batch=rows, length=length, **rest)


def measure(index: int) -> dict[str, Any]:
    """Return one row: predicted and tracked, in bytes."""
    from fit_tracked import tracked

    name, rows, length, rest = GRID[index]
    layout, started = layout_of(rows, length, rest), time.monotonic()
    peak = tracked(MODELS[name], layout, labels=LABELS).peak
    return {
        "key": _key(index),
        "tracked": peak,
        "seconds": round(time.monotonic() - started, 1),
    }


def predicted(index: int) -> int:
    """Return the formula's figure, without what torch's tracker cannot see because no kernel runs:
    cuBLAS' workspaces.
    """
    name, rows, length, rest = GRID[index]
    layout = layout_of(rows, length, rest)
    return (
        gpu_memory(
            read_shape(MODELS[name], labels=LABELS if layout.loss == "classes" else 0), layout
        ).allocated
        - CUBLAS
    )


def _key(index: int) -> str:
    name, rows, length, rest = GRID[index]
    return f"{name} {json.dumps(dataclasses.asdict(layout_of(rows, length, rest)), sort_keys=True)}"


def _words(rest: Mapping[str, Any]) -> str:
    lora = rest.get("lora")
    words = [
        (
            "LoRA on all linear layers"
            if lora and len(lora.targets) > 2
            else "LoRA on q and v, dropout"
            if lora
            else "full"
        )
    ]
    words.append(
        "bf16 weights"
        if rest.get("compute", "") is None
        else ""
        if lora
        else "fp32 weights, bf16 autocast"
    )
    words += [
        "classifier" * (rest.get("loss") == "classes"),
        f"evaluated by {rest['evaluation']}" if "evaluation" in rest else "",
    ]
    words += ["8 processes with FSDP2"] * ("sharding" in rest)
    words += [
        "padding-free" * bool(rest.get("padding_free")),
        "full logits" * (rest.get("loss") == "logits"),
    ]
    words.append(f"{rest['accumulation']} accumulated" if "accumulation" in rest else "")
    return ", ".join(word for word in words if word)


def page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the Markdown page of the rows that were measured."""
    import torch
    import transformers
    import trl

    rows = [
        (GRID[index], predicted(index), found[_key(index)]["tracked"])
        for index in range(len(GRID))
        if _key(index) in found
    ]
    deviations = [abs(foreseen / tracked - 1) for _, foreseen, tracked in rows]
    lines = [
        "# How exact the memory formula is",
        "",
        (
            "`hpctrain fit` works out the peak of a GPU from config.json. Here it is beside the"
            " peak that torch's MemTracker finds when the"
        ),
        (
            "same step runs with fake tensors: transformers' model, peft's adapter, TRL's loss,"
            " autocast, checkpointing, fused AdamW."
        ),
        "",
        (
            f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, a machine with {os.cpu_count()} cores"
            f" and no GPU; torch {torch.__version__},"
        ),
        (
            f"transformers {transformers.__version__}, TRL {trl.__version__}. {len(rows)} rows:"
            f" worst {max(deviations):.2%}, mean {sum(deviations) / len(deviations):.2%}."
        ),
        "Again: `python bench/fit/accuracy.py`.",
        "",
        (
            "| model | rows x length | training | checkpointing | predicted GiB | tracked GiB |"
            " deviation |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for (name, count, length, rest), foreseen, tracked in rows:
        lines.append(
            f"| {name} | {count} x {length} | {_words(rest)} | {rest.get('checkpointing', 'off')} |"
            f" {foreseen / GIB:.2f} | {tracked / GIB:.2f} | {foreseen / tracked - 1:+.2%} |"
        )
    return "\n".join([*lines, "", *_NOTES, ""])


_ZERO = (
    "## ZeRO",
    "",
    (
        "DeepSpeed 0.19.8 with the config that accelerate 1.15 makes, in real trainings on the CPU"
        " (2026-11-22, 2 cores; torch 2.13.0+cpu, two"
    ),
    (
        "processes of gloo, Llama of 29.5 million parameters, 8 tokens): bytes of all tensors that"
        " live on one process at the peak of a step."
    ),
    (
        "`few`: DeepSpeed's buckets made as small beside the model as they are beside one of some"
        " billion parameters. The table with the peaks"
    ),
    (
        "of the parts of a step is in tests/fit/test_zero.py, which compares the formula with it. A"
        " row again:"
    ),
    "`torchrun --standalone --nproc_per_node 2 bench/fit/zero.py --stage 3 --few`.",
    "",
    "| training | measured MB | predicted MB | deviation |",
    "|---|---|---|---|",
    "| ZeRO-2 | 1,295.0 | 1,299.2 | +0.32% |",
    "| ZeRO-3 | 1,355.5 | 1,355.9 | +0.02% |",
    "| ZeRO-2, few | 354.5 | 354.0 | -0.15% |",
    "| ZeRO-2, few, LoRA | 75.5 | 75.5 | +0.01% |",
    "| ZeRO-2, few, float32 | 414.0 | 413.0 | -0.25% |",
    "| ZeRO-2, few, 4 processes | 207.2 | 206.5 | -0.33% |",
    "| ZeRO-3, few | 258.2 | 259.9 | +0.68% |",
    "| ZeRO-3, few, checkpointing | 258.2 | 258.7 | +0.20% |",
    "| ZeRO-3, few, LoRA | 63.9 | 60.8 | -4.92% |",
    "| ZeRO-3, few, float32 | 334.3 | 342.7 | +2.51% |",
    "| ZeRO-3, few, 4 processes | 140.2 | 142.0 | +1.26% |",
    "",
    (
        "A reduce bucket is 1 GB (500 million elements of two bytes) whatever the model's size:"
        " ZeRO-2 has it in the backward pass, ZeRO-3"
    ),
    "always.",
)


_NOTES = (
    (
        "Rows of a micro batch are taken to differ in length, so that sdpa gets a mask; one row"
        " alone needs none."
    ),
    "",
    "What this does not show, and a GPU would:",
    "",
    (
        "- Fragmentation, the CUDA context and NCCL. They are allowances in the prediction, and"
        " left out on both sides here."
    ),
    "- Workspaces of cuBLAS, left out here too.",
    (
        "- What CUDA's kernels hold: the tracker runs stand-ins"
        " (bench/fit/fit_tracked.py) that allocate what the sources of"
    ),
    "  flash attention, of the memory-efficient kernel and of TRL's Triton kernels allocate.",
    (
        "- DDP: torch's reducer takes no fake tensors. With small real ones and a fake process"
        " group it held a second copy of gradients at"
    ),
    "  the peak, to the byte what the formula has.",
    (
        "- Optimizers' states and quantized weights: against the real ones of transformers and"
        " bitsandbytes on a CPU, within 5 % or 4 KiB"
    ),
    "  (tests/fit/test_optimizers.py).",
    "",
    *_ZERO,
)


def _indices(part: str | None) -> Iterator[int]:
    number, _, of = (part or "1/1").partition("/")
    yield from range(int(number) - 1, len(GRID), int(of))


def main() -> None:
    """Measure, keep each row at once, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", metavar="N/OF", help="every OF-th row, beginning with the N-th")
    parser.add_argument(
        "--rows", type=Path, default=Path("fit_accuracy.jsonl"), help="rows measured so far"
    )
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args()
    lines = asked.rows.read_text(encoding="utf-8").splitlines() if asked.rows.exists() else []
    found = {row["key"]: row for row in map(json.loads, lines)}
    for index in _indices(asked.part):
        if _key(index) not in found:
            row = found[_key(index)] = measure(index)
            with asked.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            deviation = predicted(index) / row["tracked"] - 1
            print(
                f"{deviation:+.2%} {row['tracked'] / GIB:.2f} GiB {row['seconds']} s"
                f" {row['key'][:60]}",
                flush=True,
            )
    if asked.part is None:
        asked.page.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
