"""One variant of the training benchmark, in a process of its own; bench/train.py starts it.

The last line of stdout is its result as JSON.

`trl`: SFTTrainer as TRL's documentation shows it, with the raw chats. `hpctrain`: the training of a
job script, with the prepared dataset. Both take further options as NAME=VALUE. Useful tokens are
those of the text: padding is none.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent / "gpu"))

import varlen

_CHECK_EVERY = 5


class Meter:
    """Counts useful tokens on the device, and ends the process when the budget is spent.

    Steps before `warmup` are not counted: they load kernels, and compile.
    """

    def __init__(self, budget: int, warmup: int) -> None:
        self.budget, self.warmup = budget, warmup
        self.steps = self.micro = 0
        self.useful: Any = 0
        self.slots = 0
        self.began = 0.0

    def attach(self, trainer: Any) -> Any:
        """Put the meter around a Trainer's training step, and return the Trainer."""
        from transformers import TrainerCallback

        meter, step = self, trainer.training_step

        def counted(model: Any, inputs: dict[str, Any], *args: Any, **named: Any) -> Any:
            mask = inputs.get("attention_mask")
            meter.useful = meter.useful + (
                mask.sum() if mask is not None else inputs["input_ids"].numel()
            )
            meter.slots += inputs["input_ids"].numel()
            meter.micro += 1
            return step(model, inputs, *args, **named)

        class Ends(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, *_: Any, **__: Any) -> None:
                meter.step_ended()

        trainer.training_step = counted
        trainer.add_callback(Ends())
        return trainer

    def step_ended(self) -> None:
        """Begin the count after the warm-up; look every few steps whether the budget is spent, for
        looking makes a GPU wait.
        """
        self.steps += 1
        if self.steps == self.warmup:
            _wait()
            self.useful, self.slots, self.micro, self.began = 0, 0, 0, time.perf_counter()
        elif (
            self.steps > self.warmup
            and (self.steps - self.warmup) % _CHECK_EVERY == 0
            and int(self.useful) >= self.budget
        ):
            _wait()
            self._end(time.perf_counter() - self.began)

    def _end(self, seconds: float) -> NoReturn:
        steps, useful = self.steps - self.warmup, int(self.useful)
        result = {
            "steps": steps,
            "seconds": seconds,
            "useful_tokens": useful,
            "useful_tokens_per_s": useful / seconds,
            "padding_share": 1 - useful / self.slots,
            "step_s": seconds / steps,
            **_memory(),
        }
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
        _leave()


class Profile:
    """Ends the process after some profiled steps, and prints where their time went."""

    def __init__(self, first: int, steps: int = 3) -> None:
        self.first, self.steps, self.number = first, steps, 0

    def attach(self, trainer: Any) -> Any:
        """Watch the steps of a Trainer, and return it."""
        import torch
        from transformers import TrainerCallback

        profile = self
        kinds = torch.profiler.ProfilerActivity
        gpu = [kinds.CUDA] if torch.cuda.is_available() else []
        profiler = torch.profiler.profile(activities=[kinds.CPU, *gpu])

        class Watches(TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                if profile.number == profile.first:
                    _wait()
                    profiler.start()
                    profile.began = time.perf_counter()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                profile.number += 1
                if profile.number == profile.first + profile.steps:
                    _wait()
                    seconds = time.perf_counter() - profile.began
                    profiler.stop()
                    profile.end(seconds, profiler.key_averages())

        trainer.add_callback(Watches())
        return trainer

    def end(self, seconds: float, averages: Any) -> NoReturn:
        """Print seconds per step: in all, busy on the device, and of what takes the most there and
        on the CPU.
        """

        def most(key: str) -> list[list[Any]]:
            rows = sorted(averages, key=lambda each: -getattr(each, key))[:20]
            return [
                [each.key[:120], each.count, getattr(each, key) / 1e6 / self.steps] for each in rows
            ]

        busy = sum(each.self_device_time_total for each in averages) / 1e6
        result = {
            "step_s": seconds / self.steps,
            "device_s": busy / self.steps,
            "on_the_device": most("self_device_time_total"),
            "on_the_cpu": most("self_cpu_time_total"),
        }
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
        _leave()


def _leave() -> NoReturn:
    """End within a training that would go on, with what is done at every end: os._exit alone leaves
    semaphores and temporary folders.
    """
    atexit._run_exitfuncs()
    os._exit(0)


def _wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _memory() -> dict[str, int]:
    import torch

    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if not torch.cuda.is_available():
        return {"peak_bytes": host}
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "host_bytes": host,
    }


def trl(arguments: argparse.Namespace, options: dict[str, Any], meter: Meter | Profile) -> None:
    """Train as the first example of TRL's documentation does."""
    import torch
    from datasets import load_dataset
    from trl import ModelConfig, SFTConfig, SFTTrainer, get_peft_config

    lora = {
        name: options.pop(name)
        for name in list(options)
        if name in ("use_peft", "lora_r", "lora_target_modules")
    }
    cpu = {} if torch.cuda.is_available() else {"use_cpu": True, "bf16": False}
    config = SFTConfig(
        **{
            "output_dir": arguments.out,
            "max_steps": 10**6,
            "save_strategy": "no",
            "disable_tqdm": True,
            **cpu,
            **options,
        }
    )
    data = load_dataset(
        "json", data_files=arguments.data, split="train", cache_dir=f"{arguments.out}/cache"
    )
    peft = get_peft_config(ModelConfig(**lora)) if lora else None
    meter.attach(
        SFTTrainer(model=arguments.model, args=config, train_dataset=data, peft_config=peft)
    ).train()


def hpctrain(
    arguments: argparse.Namespace, options: dict[str, Any], meter: Meter | Profile
) -> None:
    """Train as a job script does."""
    import torch

    from hpctrain.training import loop, sft
    from hpctrain.training.options import read_options

    if not torch.cuda.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"
    given = {
        "model_name_or_path": arguments.model,
        "dataset_name": arguments.data,
        "output_dir": arguments.out,
        "save_strategy": "no",
        "max_steps": 10**6,
        **options,
    }
    words = [word for name, value in given.items() for word in (f"--{name}", *words_of(value))]
    varlen.register()
    task = replace(sft.TASK, trainer=lambda *given: meter.attach(sft.TASK.trainer(*given)))
    loop.train(read_options(words, task))


def words_of(value: Any) -> list[str]:
    """Return an option's value as it is typed: a list as several words."""
    if isinstance(value, list):
        return [str(each) for each in value]
    return [value if isinstance(value, str) else json.dumps(value)]


def matmul(seconds: float = 3.0) -> None:
    """Print what a large matrix product reaches, in FLOP/s: bfloat16 on a GPU, float32 on a CPU."""
    import torch

    cuda = torch.cuda.is_available()
    size = 8192 if cuda else 1024
    a, b = (
        torch.randn(
            size,
            size,
            device="cuda" if cuda else "cpu",
            dtype=torch.bfloat16 if cuda else torch.float32,
        )
        for _ in range(2)
    )
    for _ in range(3):
        a @ b
    _wait()
    began, products = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            a @ b
        _wait()
        products += 10
    rate = 2 * size**3 * products / (time.perf_counter() - began)
    name = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    sys.stdout.write(json.dumps({"flops": rate, "device": name, "torch": torch.__version__}) + "\n")


def main(words: list[str] | None = None) -> None:
    """Run one variant; `words` are those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variant", choices=["trl", "hpctrain", "matmul"])
    for name in ("--model", "--data", "--out"):
        parser.add_argument(name)
    parser.add_argument("--tokens", type=int, default=0)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="where the time of a step goes")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=JSON")
    arguments = parser.parse_args(words)
    options = {
        name: json.loads(value)
        for name, _, value in (word.partition("=") for word in arguments.option)
    }
    if arguments.variant == "matmul":
        matmul()
        return
    meter = (
        Profile(arguments.warmup)
        if arguments.profile
        else Meter(arguments.tokens, arguments.warmup)
    )
    {"trl": trl, "hpctrain": hpctrain}[arguments.variant](arguments, options, meter)
    sys.exit("the data ended before the budget was spent")


if __name__ == "__main__":
    main()
