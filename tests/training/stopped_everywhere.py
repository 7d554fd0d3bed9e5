"""A program: one training uninterrupted, and the same stopped by a real signal at each of the steps
named and resumed; all in this process.

    [torchrun --nproc_per_node 2] stopped_everywhere.py RUNS_DIRECTORY STEPS OPTIONS...

STEPS: `1,2,5+9,8e` (`+`: stopped twice; `e`: in the middle of that step's evaluation). Only the
last rank gets the signal. Rank 0 writes RUNS_DIRECTORY/compared.json: for each of the STEPS what
differs from the uninterrupted training; nothing, if all is well. The variable TRAINING names the
module of another training than the SFT's.
"""

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import survival
from transformers import TrainerCallback

from hpctrain.training import loop
from hpctrain.training.options import read_options
from hpctrain.training.process import leave
from hpctrain.training.survival import stop

made_callbacks = loop._callbacks
TASK = importlib.import_module(os.environ.get("TRAINING", "hpctrain.training.sft")).TASK


class SignalAt(TrainerCallback):  # type: ignore[misc]
    """Sends this process a signal while a step is computed, or while it is evaluated."""

    def __init__(self, when: str) -> None:
        self.step, self.evaluating = step_of(when), when.endswith("e")

    def on_pre_optimizer_step(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step + 1 == self.step and not self.evaluating:
            os.kill(os.getpid(), signal.SIGUSR1)

    def on_prediction_step(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step == self.step and self.evaluating:
            os.kill(os.getpid(), signal.SIGUSR1)


def step_of(when: str) -> int:
    return int(when.removesuffix("e"))


def attempt(run: Path, number: int, options: list[str], *, signal_at: str | None) -> int | None:
    """Do one start of the job, and return the step at which it stopped, or None when it was done."""
    import torch

    torch.manual_seed(0)  # as in a process that has just begun
    os.environ.update(survival.run_environment({}, run, f"{number}.0"))
    stop._received.clear()
    last = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
    own = [SignalAt(signal_at)] if signal_at is not None and last else []
    loop._callbacks = lambda *given: [*made_callbacks(*given), *own]
    try:
        loop.train(read_options(options, TASK))
    except stop.Stopped as stopped:
        return stopped.step
    return None


def differences(whole: Path, run: Path) -> list[str]:
    found = []
    a, b = survival.logged(whole), survival.logged(run)
    for number, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            found.append(f"log {number}: {one} != {other}")
    if len(a) != len(b):
        found.append(
            f"{len(a)} log lines, and {len(b)}: {[each[1].get('step') for each in a]}"
            f" {[each[1].get('step') for each in b]}"
        )
    if survival.digests(whole / "model") != survival.digests(run / "model"):
        found.append("the final weights")
    last = max(
        (whole / "checkpoints").glob("checkpoint-*"),
        key=lambda path: int(path.name.partition("-")[2]),
    ).name
    if survival.digests(whole / "checkpoints" / last) != survival.digests(
        run / "checkpoints" / last
    ):
        found.append(f"the weights of {last}")
    one, other = (
        json.loads((each / "checkpoints" / last / "trainer_state.json").read_text())
        for each in (whole, run)
    )
    for name in (
        "best_metric",
        "best_global_step",
        "total_flos",
        "epoch",
        "num_input_tokens_seen",
        "stateful_callbacks",
    ):
        if one[name] != other[name]:
            found.append(f"{name}: {one[name]} != {other[name]}")
    return found


def main() -> None:
    runs, steps, *options = sys.argv[1:]
    directory = Path(runs)
    stop.listen()
    whole = directory / "whole"
    assert attempt(whole, 1, options, signal_at=None) is None
    compared = {}
    for plan in steps.split(","):
        run = directory / f"stopped-{plan.replace('+', '-')}"
        for number, at in enumerate(plan.split("+"), 1):
            assert attempt(run, number, options, signal_at=at) == step_of(at)
            assert not (run / "model").exists()
        assert attempt(run, 9, options, signal_at=None) is None
        compared[plan] = differences(whole, run) if int(os.environ.get("RANK", "0")) == 0 else []
    if int(os.environ.get("RANK", "0")) == 0:
        (directory / "compared.json").write_text(json.dumps(compared))


if __name__ == "__main__":
    code = 1
    try:
        main()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        leave(code)
