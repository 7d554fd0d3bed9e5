"""From which weights a training starts: the model's, those of `--init_from`, or a LoRA adapter's on top of the model's."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import checkpoints, files, layout
from hpctrain.training import preflight


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What is loaded before the first step.

    Attributes:
        model: the folder of the model.
        adapter: the folder of a LoRA adapter whose weights are put into the model's own; None for none.
        word: what `--init_from` said.
    """

    model: str | None
    adapter: Path | None = None
    word: str | None = None

    def in_words(self) -> str:
        """Return the log's first line of a training that starts with these, without its mark."""
        if self.word is None:
            return f"starts anew from {self.model}"
        found = str(self.adapter or self.model)
        what = "weights only: optimizer, learning rate and data begin anew"
        where = "" if found == self.word else f": {found}"
        return f"starts from the weights of {self.word}{where} ({what})"


def weights_to_start_from(asked: Any) -> tuple[Weights, list[preflight.Problem]]:
    """Return the weights that the options ask for, and what is wrong with `--init_from`.

    A run that goes on from a checkpoint of its own needs the weights of its first start no more: where these are gone, the model's
    folder is taken for its architecture.
    """
    plain = Weights(model=asked.model_name_or_path)
    if asked.init_from is None:
        return plain, []
    run_dir = os.environ.get(layout.RUN_DIR_VARIABLE)
    runs = Path(run_dir).absolute().parent if run_dir else Path(layout.RUNS)
    try:
        folder = checkpoints.weights_of(asked.init_from, runs=runs, tag=os.environ.get(layout.TAG_VARIABLE))
    except UsageError as error:
        own = Path(asked.output_dir or Path(run_dir or ".") / checkpoints.CHECKPOINTS)
        if run_dir and plain.model is not None and checkpoints.newest_complete(own, digests=False)[0] is not None:
            return plain, []
        return plain, [preflight.Problem("; ".join([f"--init_from: {error.what}", *map(str.strip, error.details)]), error.fix or "")]
    if (folder / "adapter_config.json").is_file():
        return Weights(model=plain.model or _base_of(folder), adapter=folder, word=asked.init_from), []
    return Weights(model=str(folder), word=asked.init_from), []


def weights_problems(weights: Weights, asked: Any, needs: frozenset[str] = preflight.MODEL_NEEDS) -> list[preflight.Problem]:
    """Return what is wrong with the folders, as far as it shows without loading them; `needs` as in `preflight.check_model`."""
    problems = preflight.check_model(weights.model, needs)
    if weights.adapter is not None:
        if not (weights.adapter / "adapter_model.safetensors").is_file():
            problems.append(preflight.Problem(f"{weights.adapter} has no adapter_model.safetensors", f"ls {weights.adapter}"))
        if not asked.use_peft and not asked.evaluate_only:  # which takes the adapter's own shape
            what = f"--init_from {weights.word} is a LoRA adapter, and this training has none to put it into"
            config = files.read_json(weights.adapter / "adapter_config.json") or {}
            how = f"--use_peft true --lora_r {config.get('r', 'R')}, or merge the adapter into its model first"
            problems.append(preflight.Problem(what, how))
    return problems


def _base_of(adapter: Path) -> str | None:
    base = (files.read_json(adapter / "adapter_config.json") or {}).get("base_model_name_or_path")
    return base if isinstance(base, str) else None


def load_adapter(model: Any, folder: Path) -> None:
    """Put the weights of a LoRA adapter into the fresh one of `model`.

    Raises:
        HpctrainError: it is an adapter of another kind.
    """
    from peft import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    saved = load_peft_weights(str(folder), device="cpu")
    mine = get_peft_model_state_dict(model)
    different = [name for name in mine if name not in saved or saved[name].shape != mine[name].shape] + [
        name for name in saved if name not in mine
    ]
    if different:
        config = files.read_json(folder / "adapter_config.json") or {}
        modules = " ".join(config.get("target_modules") or ())
        raise HpctrainError(
            f"the LoRA adapter in {folder} is another one than this training's",
            details=(f"{len(different)} of {len(mine)} tensors differ in name or shape, such as {different[0]}",),
            fix=f"--lora_r {config.get('r')} --lora_target_modules {shlex.quote(modules)}",
        )
    set_peft_model_state_dict(model, saved)
