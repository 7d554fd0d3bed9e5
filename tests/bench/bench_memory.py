"""What one memory sample and one line of the speed cost, and which share of training that is.

    python tests/bench/bench_memory.py [--samples 2000] [--children 4] [--threads 64] [--json]

Measures, in one run on one machine, the whole path of MemoryCallback (all sensors, the line, the
JSON record, both written). The process has children and threads as a training has data loader
workers and torch's pools. The target is below 0.1 % of
training at every=10 and 100 ms a step: 1 ms a sample. The speed's share is that of one line and ten
steps' batches of 8 x 2048 tokens; on a GPU (--cuda) the batches lie there, and a line waits for it.

Exit code 1: the median of a sample is above the target.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

EVERY, STEP_MS, TARGET = 10, 100.0, 0.001


def timed(do: Callable[[], Any], count: int) -> dict[str, float]:
    for _ in range(min(50, count)):
        do()
    spent = []
    for _ in range(count):
        began = time.perf_counter_ns()
        do()
        spent.append((time.perf_counter_ns() - began) / 1000)
    median = statistics.median(spent)
    return {
        "median_us": round(median, 1),
        "p95_us": round(statistics.quantiles(spent, n=20)[-1], 1),
        "share_percent": round(100 * median / 1000 / (EVERY * STEP_MS), 4),
    }


def callback(run_dir: Path, event: str) -> Callable[[], None]:
    from hpctrain import MemoryCallback

    own = MemoryCallback(every=1, run_dir=run_dir)
    args = SimpleNamespace(
        process_index=0, world_size=1, local_process_index=0, output_dir=str(run_dir)
    )
    state = SimpleNamespace(global_step=1)
    own.on_train_begin(args, state)
    own.on_step_end(args, state)
    return (
        (lambda: own.on_step_end(args, state))
        if event == "step"
        else (lambda: own.on_save(args, state))
    )


def skipped() -> Callable[[], None]:
    from hpctrain import MemoryCallback

    own = MemoryCallback(every=10)
    own._first_step = False
    state = SimpleNamespace(global_step=7)
    return lambda: own.on_step_end(SimpleNamespace(), state)


def speed(run_dir: Path, device: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return what SpeedCallback does in a step without a line, and a line with the ten steps before
    it; of one process.
    """
    import torch

    from hpctrain.training.monitoring.run_files import RunFiles
    from hpctrain.training.monitoring.speed import SpeedCallback
    from hpctrain.training.process import Ranks
    from hpctrain.training.survival import ResilienceContext

    files = RunFiles(run_dir, "bench")
    own = SpeedCallback(
        every=EVERY,
        survival=ResilienceContext(),
        ranks=Ranks(),
        run_files=files,
    )
    strategy = SimpleNamespace(value="no")
    args = SimpleNamespace(
        process_index=0,
        world_size=1,
        output_dir=str(run_dir),
        dataloader_num_workers=0,
        eval_strategy=strategy,
        save_strategy=strategy,
    )
    state = SimpleNamespace(
        global_step=1,
        max_steps=10**9,
        epoch=0.5,
        eval_steps=0,
        save_steps=0,
        logging_steps=EVERY,
        is_world_process_zero=True,
    )
    batch = {
        "input_ids": torch.zeros((8, 2048), dtype=torch.int64, device=device),
        "attention_mask": torch.ones((8, 2048), dtype=torch.int64, device=device),
        "labels": torch.zeros((8, 2048), dtype=torch.int64, device=device),
    }
    trainer = SimpleNamespace(get_batch_samples=lambda batches, *_: ([next(batches)], None))
    own.attach(trainer)
    files.on_train_begin(args, state, None)  # type: ignore[arg-type]
    own.on_train_begin(args, state, None)

    def step(number: int) -> None:
        trainer.get_batch_samples(iter([batch]), 1, device)
        state.global_step = number
        own.on_step_end(args, state, None)

    def ten() -> None:
        for number in range(1, EVERY + 1):
            step(number)

    ten()
    return (lambda: step(7)), ten


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--children", type=int, default=4)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument(
        "--cuda", action="store_true", help="measure the speed with batches on the GPU"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    stop = threading.Event()
    for _ in range(options.threads):
        threading.Thread(target=stop.wait, daemon=True).start()
    sleeper = [sys.executable, "-c", "input()"]
    children = [subprocess.Popen(sleeper, stdin=subprocess.PIPE) for _ in range(options.children)]
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, Path(folder, "stdout").open("w") as output:
        few = max(20, options.samples // 20)
        with contextlib.redirect_stdout(output):
            results["MemoryCallback, a step without a sample"] = timed(skipped(), options.samples)
            results["MemoryCallback, one sample"] = timed(
                callback(Path(folder), "step"), options.samples
            )
            results["MemoryCallback, at a save (all threads)"] = timed(
                callback(Path(folder), "save"), few
            )
            one, ten = speed(Path(folder), "cuda" if options.cuda else "cpu")
            results["SpeedCallback, a step without a line"] = timed(one, few)
            results["SpeedCallback, ten steps and their line"] = timed(ten, few)
    stop.set()
    for child in children:
        child.communicate(b"\n")
    setting = {
        "every": EVERY,
        "step_ms": STEP_MS,
        "children": options.children,
        "threads": options.threads + 1,
        "processes_of_the_node": len(psutil.pids()),
        "gpu": Path("/dev/nvidiactl").exists(),
        "cpus": os.cpu_count(),
    }
    if options.json:
        print(json.dumps({"schema": 1, "setting": setting, "results": results}))
    else:
        print(" ".join(f"{name}={value}" for name, value in setting.items()))
        print(f"{'':45}{'median µs':>12}{'p95 µs':>12}{'share of training':>20}")
        for name, row in results.items():
            print(
                f"{name:45}{row['median_us']:12.1f}{row['p95_us']:12.1f}{row['share_percent']:19.4f}%"
            )
    return int(results["MemoryCallback, one sample"]["share_percent"] > 100 * TARGET)


if __name__ == "__main__":
    sys.exit(main())
