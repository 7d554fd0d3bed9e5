"""The same model, data and token budget trained with TRL's defaults, with hpctrain's, and with
settings tuned by hand; side by side.

    python bench/train.py                                  # toy size, for a CPU: two minutes
    python bench/train.py --shape 1.7b --max-length 4096 --tokens 2000000 --knobs
    python bench/train.py --shape 8b --lora --max-length 4096 --tuned per_device_train_batch_size=4

Every variant is a process of its own (without a GPU the fork of one that has imported the
libraries); each is run `--repeats` times, the variants in turn, and the median counts. Printed:
useful tokens/s (padding is not useful), model FLOP/s as a share of what a large matrix product
reaches in the same run, peak memory, and ratios to TRL's defaults. `--knobs` adds the settings one
by one, to each what it gains alone. `--json FILE` writes all of it.

Exit code 1: hpctrain's defaults are slower than TRL's, which they must never be.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import material
import worker

WORKER = Path(__file__).with_name("worker.py")
#: What every variant imports, for more seconds than a toy trains; forked only without a GPU, whose
#: driver a fork cannot take over.
FORKS = multiprocessing.get_context("forkserver")
LIBRARIES = [
    "datasets",
    "torch",
    "trl.trainer.sft_trainer",
    "hpctrain.training.entry_point",
    "hpctrain.training.sft",
]
LORA = {"use_peft": True, "lora_r": 16, "lora_target_modules": ["all-linear"]}


@dataclass(frozen=True)
class Variant:
    """One way to train.

    `data` is the raw chats, or how they are prepared: `packed` or `rows`.
    """

    name: str
    program: str
    data: str
    options: dict[str, Any] = field(default_factory=dict)


#: The best that was found by trying (docs/performance.md), where nobody says otherwise: of a CPU;
#: of a GPU nobody has looked yet.
TUNED = Variant("tuned by hand", "hpctrain", "rows", {"train_sampling_strategy": "group_by_length"})
#: What is changed alone, the rest being TRL's defaults.
KNOBS = (
    Variant("no activation checkpointing", "trl", "raw", {"gradient_checkpointing": False}),
    Variant("weights in bfloat16", "trl", "raw", {"model_init_kwargs": {"dtype": "bfloat16"}}),
    Variant("grouped by length", "trl", "raw", {"train_sampling_strategy": "group_by_length"}),
    Variant("padding-free", "trl", "raw", {"padding_free": True, "max_length": None}),
    Variant("packed (TRL's own)", "trl", "raw", {"packing": True}),
    Variant("full logits", "trl", "raw", {"label_smoothing_factor": 1e-9}),
    Variant("torch.compile", "trl", "raw", {"torch_compile": True}),
)
#: What is changed alone, the rest being hpctrain's defaults.
OWN_KNOBS = (
    Variant("activation checkpointing", "hpctrain", "packed", {"activation_checkpointing": True}),
    Variant(
        "rows grouped by length", "hpctrain", "rows", {"train_sampling_strategy": "group_by_length"}
    ),
    Variant("torch.compile", "hpctrain", "packed", {"torch_compile": True}),
    Variant("no memory samples", "hpctrain", "packed", {"memory_every": 0}),
    Variant("a memory sample at each step", "hpctrain", "packed", {"memory_every": 1}),
)


def main() -> None:
    """Measure, and print the table."""
    arguments = read_arguments()
    os.environ["HF_HUB_OFFLINE"] = "1"
    FORKS.set_forkserver_preload(LIBRARIES)
    with tempfile.TemporaryDirectory(prefix="bench-train.", dir=arguments.folder) as folder:
        place = Path(folder)
        # torch makes its cache of compiled kernels when it is imported, in the temporary directory.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(place / "inductor"))
        made = make(place, arguments)
        peak = last_json([sys.executable, str(WORKER), "matmul"])
        found = {variant.name: [] for variant in variants_of(arguments)}  # type: dict[str, list[dict[str, Any]]]
        for _ in range(arguments.repeats):
            for variant in variants_of(arguments):
                sys.stderr.write(f"running: {variant.name}\n")
                found[variant.name].append(
                    run_variant(
                        variant, made, arguments, place, fork=peak["device"].startswith("CPU")
                    )
                )
    rows = [
        row_of(name, runs, arguments, made["context"], peak["flops"])
        for name, runs in found.items()
    ]
    base = rows[0]["useful_tokens_per_s"]
    for row in rows:
        row["ratio"] = (
            row["useful_tokens_per_s"] / base if base and row["useful_tokens_per_s"] else None
        )
    result = {
        "schema": 1,
        "date": datetime.now(UTC).date().isoformat(),
        "shape": arguments.shape,
        "lora": arguments.lora,
        "max_length": arguments.max_length,
        "budget_tokens": arguments.tokens,
        "matrix_product": peak,
        "rows": rows,
    }
    sys.stdout.write(_table(result) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    ours = next(row for row in rows if row["name"] == "hpctrain's defaults")
    sys.exit(0 if ours["ratio"] is not None and ours["ratio"] >= 1 else 1)


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options; `words` are those of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(material.SHAPES), default="toy")
    parser.add_argument(
        "--lora", action="store_true", help="LoRA of rank 16 on all linear layers, in every variant"
    )
    parser.add_argument("--max-length", type=int, default=1024)
    parser.add_argument(
        "--batch",
        type=int,
        default=8,
        help="rows of TRL's micro batch; packed rows are as many tokens",
    )
    parser.add_argument("--rows", type=int, default=2000, help="chats in the data")
    parser.add_argument(
        "--tokens", type=int, default=60_000, help="useful tokens to train, after the warm-up"
    )
    parser.add_argument("--warmup", type=int, default=3, help="steps that are not counted")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--tuned",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="an option of the variant tuned by hand",
    )
    parser.add_argument(
        "--tuned-data", choices=["packed", "rows"], default="packed", help="what --tuned trains on"
    )
    parser.add_argument("--knobs", action="store_true")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where models and data are made (8b takes 17 GB)"
    )
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args(words)


def variants_of(arguments: argparse.Namespace) -> list[Variant]:
    """Return TRL's defaults, hpctrain's, those tuned by hand, and what the options add."""
    lora = LORA if arguments.lora else {}
    trl = {
        "max_length": arguments.max_length,
        "per_device_train_batch_size": arguments.batch,
        **lora,
    }
    own = dict(lora)
    tuned = {
        name: json.loads(value)
        for name, _, value in (word.partition("=") for word in arguments.tuned)
    }
    by_hand = Variant(TUNED.name, "hpctrain", arguments.tuned_data, tuned) if tuned else TUNED
    made = [
        Variant("TRL's defaults", "trl", "raw", trl),
        Variant("hpctrain's defaults", "hpctrain", "packed", own),
        Variant(by_hand.name, by_hand.program, by_hand.data, {**own, **by_hand.options}),
    ]
    if arguments.knobs:
        made += [
            Variant(f"TRL, {knob.name}", knob.program, knob.data, {**trl, **knob.options})
            for knob in KNOBS
        ]
        made += [
            Variant(f"hpctrain, {knob.name}", knob.program, knob.data, {**own, **knob.options})
            for knob in OWN_KNOBS
        ]
    return made


def make(place: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Make the model and the data, raw and prepared; `context` is the mean number of tokens before
    a token in its example, twice that.
    """
    if not (place / "model" / "config.json").exists():
        material.make_model(place / "model", arguments.shape)
    material.make_data(place / "chats.jsonl", arguments.rows)
    made: dict[str, Any] = {"model": place / "model", "raw": place / "chats.jsonl"}
    for kind, how in (("packed", "--pack"), ("rows", "--no-pack")):
        made[kind] = place / kind
        if made[kind].exists():
            continue
        command = [
            "prepare",
            str(made["raw"]),
            "--model",
            str(made["model"]),
            "--to",
            str(made[kind]),
            "--max-length",
            str(arguments.max_length),
            "--validation",
            "0",
            "--loss-on",
            "all",
            how,
        ]
        subprocess.run(
            [sys.executable, "-m", "hpctrain", *command], check=True, stdout=subprocess.DEVNULL
        )
    from datasets import load_from_disk

    lengths = load_from_disk(str(made["rows"]))["train"]["length"]
    made["context"] = sum(length**2 for length in lengths) / sum(lengths)
    return made


def run_variant(
    variant: Variant,
    made: Mapping[str, Any],
    arguments: argparse.Namespace,
    place: Path,
    *,
    fork: bool,
    profile: bool = False,
) -> dict[str, Any] | None:
    """Return what one training of a variant measured, None where it could not run; with `profile`
    where the time of its steps goes.
    """
    words = [f"--option={name}={json.dumps(value)}" for name, value in variant.options.items()]
    command = [
        sys.executable,
        str(WORKER),
        variant.program,
        "--model",
        str(made["model"]),
        "--data",
        str(made[variant.data]),
        "--out",
        str(place / "out"),
        "--tokens",
        str(arguments.tokens),
        "--warmup",
        str(arguments.warmup),
        *(["--profile"] if profile else []),
        *words,
    ]
    return last_json(command, place if fork else None, may_fail=True)


def last_json(command: list[str], fork_in: Path | None = None, *, may_fail: bool = False) -> Any:
    """Return the JSON in the last line that a program prints; it ends this one where it fails."""
    if fork_in is None:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        code, out, err = _forked(command[2:], fork_in)
    lines = out.strip().splitlines()
    if code == 0 and lines:
        return json.loads(lines[-1])
    sys.stderr.write(out[-2000:] + err[-4000:])
    if not may_fail:
        sys.exit(f"it failed: {' '.join(command)}")
    return None


def _forked(words: list[str], place: Path) -> tuple[int | None, str, str]:
    """Run the worker in a fork of a process that has imported the libraries; return its exit code
    and what it wrote.
    """
    out, err = place / "stdout", place / "stderr"
    process = FORKS.Process(target=_in_fork, args=(words, out, err))
    process.start()
    process.join()
    return (
        process.exitcode,
        out.read_text(encoding="utf-8", errors="replace"),
        err.read_text(encoding="utf-8", errors="replace"),
    )


def _in_fork(words: list[str], out: Path, err: Path) -> None:
    for number, path in ((1, out), (2, err)):
        with path.open("wb") as stream:
            os.dup2(stream.fileno(), number)
    worker.main(words)


def row_of(
    name: str,
    runs: list[dict[str, Any] | None],
    arguments: argparse.Namespace,
    context: float,
    peak: float,
) -> dict[str, Any]:
    """Return the medians of a variant; None where it could not run."""
    from hpctrain.fit.layout import Layout, Lora
    from hpctrain.fit.shape import lora_targets, read_shape
    from hpctrain.fit.speed import model_flops_per_token

    good = [run for run in runs if run is not None]
    if not good:
        return {
            "name": name,
            "useful_tokens_per_s": None,
            "mfu": None,
            "peak_bytes": None,
            "runs": runs,
        }
    shape = read_shape({"model_type": "qwen3", **material.config_of(arguments.shape, 4096)})
    lora = Lora(rank=16, targets=lora_targets(shape, ("all-linear",))) if arguments.lora else None
    rate = statistics.median(run["useful_tokens_per_s"] for run in good)
    flops = model_flops_per_token(
        shape, Layout(length=arguments.max_length, lora=lora), context=context
    )
    return {
        "name": name,
        "useful_tokens_per_s": rate,
        "mfu": rate * flops / peak,
        "padding_share": statistics.median(run["padding_share"] for run in good),
        "step_s": statistics.median(run["step_s"] for run in good),
        "peak_bytes": max(run["peak_bytes"] for run in good),
        "runs": runs,
    }


def _table(result: dict[str, Any]) -> str:
    peak = result["matrix_product"]
    lines = [
        (
            f"{result['shape']}{' LoRA' if result['lora'] else ''}, rows of at most"
            f" {result['max_length']} tokens, {result['budget_tokens']:,} useful tokens;"
            f" {peak['device']}, torch {peak['torch']}, matrix product {peak['flops'] / 1e12:.3g}"
            f" TFLOP/s; {result['date']}"
        ),
        "",
        (
            "| variant | useful tokens/s | ratio | FLOP/s of the matrix product's | padding | peak"
            " memory |"
        ),
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        rate = row["useful_tokens_per_s"]
        if rate is None:
            lines.append(f"| {row['name']} | could not run | | | | |")
            continue
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        memory = f"{row['peak_bytes'] / 2**30:.2f} GiB"
        lines.append(
            f"| {row['name']} | {rate:,.0f} | {ratio} | {row['mfu']:.1%} |"
            f" {row['padding_share']:.0%} | {memory} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
