"""`make bench`: tokens/s of `hpctrain prepare` against TRL's own preparation, on the same data with
as many processes; at least as fast.

    python tests/bench/bench_prepare.py [--megabytes 24] [--workers N] [--times 2]

The data: conversations made of the standard library's docstrings and sources (real text), tokenized
with the demo's vocabulary. TRL's side is SFTTrainer's `_prepare_dataset` (dataset_num_proc) alone,
from a dataset that is in Arrow already; ours is everything from the first piece that is handed out
to the result in its place: reading JSONL, tokenising, dividing, writing. So the ratio is in TRL's
favour. Both are processes of their own; memory is the sum of the proportional set sizes (PSS) of
all their processes, at its most. The results are compared token by token and mask by mask (but for
the first token of an example, which nothing predicts and which we never train on).
"""

import argparse
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['role'] =="
    " 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>\n{% endgeneration %}{% else"
    " %}{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt"
    " %}<|im_start|>assistant\n{% endif %}"
)
MAX_LENGTH = 2048


# -- the data --------------------------------------------------------------------------------------


def write_chats(path: Path, megabytes: float) -> int:
    """Write conversations of real text, all different in their order; return how many."""
    texts = [text[:4000] for text in sources() if len(text) > 200]
    chosen, size, count = random.Random(0), 0, 0
    with path.open("w", encoding="utf-8") as stream:
        while size < megabytes * 1e6:
            turns = []
            for _ in range(chosen.randint(1, 3)):
                text = chosen.choice(texts)
                start = chosen.randrange(max(1, len(text) - 200))
                turns.append(
                    {
                        "role": "user",
                        "content": (
                            "What does this"
                            f" do?\n{text[start : start + chosen.randint(40, 300)].strip()}"
                        ),
                    }
                )
                turns.append(
                    {"role": "assistant", "content": text[: chosen.randint(100, len(text))].strip()}
                )
            size += stream.write(json.dumps({"messages": turns}) + "\n")
            count += 1
    return count


def sources() -> Iterator[str]:
    """Yield the functions and classes of the standard library, as they are written."""
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield from file.read_text(encoding="utf-8", errors="replace").split("\n\n\n")


# -- the two sides ---------------------------------------------------------------------------------


def run_trl(folder: Path, workers: int) -> dict[str, Any]:
    """Prepare with TRL, and save the result aside."""
    from datasets import Features, List, Value, load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    seconds: list[float] = []

    class Timed(SFTTrainer):
        def _prepare_dataset(self, *words: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return super()._prepare_dataset(*words, **named)
            finally:
                seconds.append(time.perf_counter() - began)

    features = Features({"messages": List({"role": Value("string"), "content": Value("string")})})
    data = load_dataset(
        "json",
        data_files=str(folder / "chats.jsonl"),
        split="train",
        features=features,
        cache_dir=str(folder / "cache"),
    )
    arguments = SFTConfig(
        output_dir=str(folder / "unused"),
        assistant_only_loss=True,
        max_length=MAX_LENGTH,
        dataset_num_proc=workers,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(folder / "model"),
        args=arguments,
        train_dataset=data,
        processing_class=tokenizer,
    )
    trainer.train_dataset.select_columns(["input_ids", "labels"]).save_to_disk(str(folder / "trl"))
    return {"seconds": sum(seconds)}


def run_ours(folder: Path, workers: int) -> dict[str, Any]:
    """Prepare with the command, in a process of its own."""
    words = [
        Path(sys.executable).with_name("hpctrain"),
        "prepare",
        folder / "chats.jsonl",
        "--model",
        folder / "model",
        "--to",
        folder / "ours",
    ]
    options = [
        "--max-length",
        str(MAX_LENGTH),
        "--no-pack",
        "--validation",
        "0",
        "--workers",
        str(workers),
        "--json",
        "--force",
    ]
    done = subprocess.run(
        [*map(str, words), *options], capture_output=True, text=True, check=True, cwd=folder
    )
    said = json.loads(done.stdout)
    assert not said["already_there"]
    return {"seconds": said["working_seconds"], "tokenising": said["tokenising_seconds"]}


class Peak(threading.Thread):
    """The most memory of a process and all below it, as PSS, in MiB."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.mib, self.over = pid, 0.0, threading.Event()

    def run(self) -> None:
        import psutil

        while not self.over.wait(0.1):
            try:
                parent = psutil.Process(self.pid)
                kib = sum(
                    pss_kib(process.pid) for process in [parent, *parent.children(recursive=True)]
                )
            except psutil.Error:
                continue
            self.mib = max(self.mib, kib / 1024)


def pss_kib(pid: int) -> int:
    """Return the proportional set size of a process; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def measured(side: str, folder: Path, workers: int) -> dict[str, Any]:
    """Run one side in a process of its own; return its seconds and its peak memory."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    words = [
        sys.executable,
        __file__,
        "--side",
        side,
        "--folder",
        str(folder),
        "--workers",
        str(workers),
    ]
    began = time.perf_counter()
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    peak = Peak(process.pid)
    peak.start()
    out, error = process.communicate()
    peak.over.set()
    if process.returncode:
        sys.exit(f"{side} failed\n{error[-3000:]}")
    return {
        **json.loads(out.splitlines()[-1]),
        "whole": time.perf_counter() - began,
        "mib": peak.mib,
    }


# -- the comparison --------------------------------------------------------------------------------


def compare(folder: Path) -> tuple[int, int]:
    """Return examples and tokens of both, which must be equal."""
    from datasets import load_from_disk

    ours, theirs = (
        load_from_disk(str(folder / "ours"))["train"],
        load_from_disk(str(folder / "trl")),
    )
    if len(ours) != len(theirs):
        sys.exit(f"the results differ: {len(ours)} and {len(theirs)} examples")
    tokens = 0
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one["input_ids"] != other["input_ids"] or one["labels"][1:] != other["labels"][1:]:
            sys.exit(f"the results differ in example {number}:\n{one}\n{other}")
        tokens += len(one["input_ids"])
    return len(ours), tokens


def make(folder: Path, megabytes: float) -> None:
    """Make model and data."""
    from hpctrain.training.demo import make_demo

    made = make_demo(folder / "demo", max_pairs=200)
    made.model.rename(folder / "model")
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        path = folder / "model" / name
        if name.endswith(".jinja"):
            path.write_text(TEMPLATE, encoding="utf-8")
        elif path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            content.pop("chat_template", None)
            path.write_text(json.dumps(content), encoding="utf-8")
    count = write_chats(folder / "chats.jsonl", megabytes)
    print(
        f"{count:,} conversations, {(folder / 'chats.jsonl').stat().st_size / 1e6:.0f} MB, rows of"
        f" at most {MAX_LENGTH} tokens"
    )


def main() -> None:
    """Print the figures; exit with 1 where the ratio is below 1."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=24)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--side", choices=("trl", "ours"))
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    if asked.side:
        print(
            json.dumps({"trl": run_trl, "ours": run_ours}[asked.side](asked.folder, asked.workers))
        )
        return
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        folder = Path(name)
        make(folder, asked.megabytes)
        best: dict[str, dict[str, Any]] = {}
        for _ in range(asked.times):
            for side in ("trl", "ours"):
                subprocess.run(["rm", "-rf", str(folder / side), str(folder / "cache")], check=True)
                found = measured(side, folder, asked.workers)
                if side not in best or found["seconds"] < best[side]["seconds"]:
                    best[side] = found
        examples, tokens = compare(folder)
        print(
            f"{examples:,} examples, {tokens:,} tokens, the same on both sides; {asked.workers}"
            " processes"
        )
        for side, title in (("trl", "TRL's _prepare_dataset"), ("ours", "hpctrain prepare")):
            figures = best[side]
            print(
                f"{title:24} {tokens / figures['seconds'] / 1e3:8.0f} k tokens/s"
                f" {figures['seconds']:7.1f} s   whole command {figures['whole']:6.1f} s  "
                f" {figures['mib']:6.0f} MiB"
            )
        ratio = best["trl"]["seconds"] / best["ours"]["seconds"]
        print(f"ratio {ratio:.2f}   >= 1: {'met' if ratio >= 1 else 'MISSED'}")
        sys.exit(ratio < 1)


if __name__ == "__main__":
    main()
