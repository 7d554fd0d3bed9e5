"""What a dataset that `hpctrain prepare` made needs of the training: it is loaded, and nothing of it is done a second time.

Its manifest (hpctrain/preparation/manifest.py) says how it was made. A dataset that somebody else tokenised has none, and is trained on
as TRL does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpctrain.fit.asked import rows_unasked
from hpctrain.preparation import manifest as manifests
from hpctrain.preparation.fingerprint import tokenizer_fingerprint
from hpctrain.preparation.manifest import Manifest
from hpctrain.training.preflight import Problem, json_object, text_config
from hpctrain.training.task import is_unasked

BATCHES = ("per_device_train_batch_size", "per_device_eval_batch_size")
LENGTH = "length"
"""The column of an unpacked dataset's lengths."""


def of(options: Any) -> Manifest | None:
    """Return the manifest of the dataset that a training's options name; None where `hpctrain prepare` did not make it."""
    return read(options.script.dataset_name)


def read(dataset: str | None) -> Manifest | None:
    """Return the manifest of a dataset's folder, or None."""
    return manifests.read(Path(dataset)) if dataset else None


def problems(asked: Any, manifest: Manifest) -> list[Problem]:
    """Return why this dataset cannot be trained on by this model, and what the options would do to it a second time.

    Args:
        asked: the options; `model_name_or_path` is the folder that is loaded.
        manifest: of the dataset.
    """
    name, model = asked.dataset_name, asked.model_name_or_path
    again = f"hpctrain prepare --model {model} ..."
    found = []
    if manifest.form == "classes":
        found.append(Problem(f"the dataset '{name}' has classes, not text to learn", "--task classify"))
    theirs = tokenizer_fingerprint(Path(model)) if model else None
    if theirs is not None and theirs != manifest.tokenizer:
        what = f"the dataset '{name}' was prepared with another tokenizer ({manifest.tokenizer_name}) than that of the model '{model}'"
        found.append(Problem(f"{what}: its token ids mean something else there", again))
    rows = vocabulary_of(model)
    if rows is not None and manifest.vocabulary > rows and (theirs is None or theirs != manifest.tokenizer):
        found.append(Problem(f"the dataset '{name}' uses {manifest.vocabulary} token ids and the model has {rows}", again))
    split = manifest.splits.get(asked.dataset_train_split)
    if split is not None and split.trained == 0:
        found.append(Problem(f"no token of the dataset '{name}' is trained on: the mask leaves nothing", f"{again} --show 3"))
    return found + _second_time(asked, manifest, longest=split.longest if split is not None else None)


def _second_time(asked: Any, manifest: Manifest, *, longest: int | None) -> list[Problem]:
    """Return which options would prepare again what is prepared."""
    name = asked.dataset_name
    found = []
    if asked.packing and manifest.packed:
        found.append(Problem(f"--packing true, and the dataset '{name}' is packed already", "leave --packing out"))
    if asked_length(asked) is not None and manifest.packed and longest is not None and asked.max_length < longest:
        what = f"--max_length {asked.max_length}, and rows of the dataset '{name}' are packed to {longest} tokens: cut, they lose examples"
        found.append(Problem(what, "leave --max_length out, or: hpctrain prepare --max-length N"))
    if asked.padding_free is False and manifest.packed:
        what = f"--padding_free false, and the dataset '{name}' is packed: the examples of a row would see each other"
        found.append(Problem(what, "leave --padding_free out"))
    if asked.completion_only_loss or asked.assistant_only_loss:
        option = "--completion_only_loss" if asked.completion_only_loss else "--assistant_only_loss"
        what = f"{option} true does nothing: the dataset '{name}' says itself which tokens are trained on ({manifest.loss_on})"
        if manifest.loss_on != option.removeprefix("--").removesuffix("_only_loss"):
            found.append(Problem(what, f"hpctrain prepare --loss-on {option.removeprefix('--').removesuffix('_only_loss')} ..."))
    return found


def defaults(manifest: Manifest) -> dict[str, Any]:
    """Return what is taken where nobody asked: rows are neither cut nor packed again, and nothing is padded that need not be.

    Of long packed rows, a pass takes fewer than TRL's 8: `hpctrain fit` counts with the same number.
    """
    if manifest.packed:
        rows = dict.fromkeys(BATCHES, rows_unasked(manifest))
        return {"max_length": None, "padding_free": True, "train_sampling_strategy": "random", **rows}
    return {"max_length": None, "train_sampling_strategy": "group_by_length"}


def in_words(manifest: Manifest, split: str, *, rows: int) -> str | None:
    """Return what a batch of packed rows holds, which is more than its number says; None of rows that hold one example each.

    Args:
        manifest: of the dataset.
        split: the training split.
        rows: rows of one optimizer step, of all processes.
    """
    part = manifest.splits.get(split)
    if part is None or not manifest.packed or part.rows == 0:
        return None
    each = part.examples / part.rows
    return (
        f"packed rows: the batch size counts rows, of {each:.1f} examples each: a step of {rows} rows learns"
        f" from {rows * each:.0f} examples and {rows * part.tokens / part.rows:,.0f} tokens"
    )


def asked_length(asked: Any) -> int | None:
    """Return `--max_length` where somebody gave it, else None."""
    return None if is_unasked(asked.max_length) else int(asked.max_length)


def vocabulary_of(model: str | None) -> int | None:
    """Return the number of token ids that a model's config.json names; None where it names none."""
    config = json_object(Path(model) / "config.json") if model else None
    size = text_config(config or {}).get("vocab_size")
    return size if isinstance(size, int) else None
