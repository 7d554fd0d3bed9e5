"""A training of a model with one weight, as a process of its own: what test_trackers.py starts,
kills and starts again.

python tracked_training.py STEPS [--stop STEP] [--kill STEP] [--trackers A,B] [--fail STEP]
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from hpctrain.training import trackers
from hpctrain.training.monitoring.run_files import RunFiles
from hpctrain.training.process import leave


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: Any) -> dict[str, Any]:
        return {"loss": ((self.weight - x.float()) ** 2).mean()}


class End(TrainerCallback):
    """Ends the training in the middle, in the way asked for."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # The step before is logged by now.
        if state.global_step == self.asked.kill:
            if "mlflow" in sys.modules:
                sys.modules["mlflow"].flush_async_logging()  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGKILL)
        if state.global_step == self.asked.fail:
            raise RuntimeError("the training fails")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.asked.stop:
            control.should_save = control.should_training_stop = True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    for option in ("--stop", "--kill", "--fail"):
        parser.add_argument(option, type=int)
    parser.add_argument("--trackers", default=",".join(trackers.NAMES))
    asked = parser.parse_args()
    run_dir = Path(os.environ["HPCTRAIN_RUN_DIR"])
    args = TrainingArguments(
        output_dir=str(run_dir / "checkpoints"),
        max_steps=asked.steps,
        use_cpu=True,
        report_to=asked.trackers.split(","),
        logging_steps=1,
        save_steps=4,
        disable_tqdm=True,
        seed=int(os.environ.get("SEED", "7")),
    )
    found = get_last_checkpoint(args.output_dir) if Path(args.output_dir).is_dir() else None
    step = None if found is None else int(found.rpartition("-")[2])
    callbacks = trackers.setup(
        args, run_dir=run_dir, run_id=os.environ["HPCTRAIN_RUN_ID"], resumed_step=step
    )
    model = Model()
    trainer = Trainer(
        model,
        args,
        train_dataset=[{"x": n} for n in range(200)],
        callbacks=[RunFiles(run_dir, os.environ["HPCTRAIN_ATTEMPT"]), *callbacks, End(asked)],
    )
    code = 0
    try:
        trainer.train(resume_from_checkpoint=found)
        code = 0 if trainer.state.global_step == asked.steps else 85
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        code = 1
    trackers.finish(code)
    sys.stdout.write(f"[end] step={trainer.state.global_step} weight={model.weight.item():.6f}\n")
    leave(code)


if __name__ == "__main__":
    main()
