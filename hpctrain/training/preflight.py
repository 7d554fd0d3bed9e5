"""Checks of what a training is given, before torch is asked for anything: folders and the launcher's environment.

Pure but for reading the folders named. Every check returns problems instead of raising, so that all of them can be
shown at once.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.clusters.load import is_dir, is_file, open_regular, read_regular
from hpctrain.errors import UsageError
from hpctrain.jobs import shell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, as `HpctrainError` words it, and what to type about it."""

    what: str
    fix: str


def usage_error(problems: list[Problem]) -> UsageError:
    """Return one error that shows every problem."""
    fixes = "; ".join(dict.fromkeys(problem.fix for problem in problems))
    if len(problems) == 1:
        return UsageError(problems[0].what, fix=fixes)
    return UsageError(f"{len(problems)} problems before training", details=tuple(problem.what for problem in problems), fix=fixes)


# -- the model ---------------------------------------------------------------------------------------------------------

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZER = ("tokenizer*", "vocab*", "*.model", "tekken.json")
_LFS = b"version https://git-lfs"
#: The index of a model of some thousand weight files has 10 MB.
_MAX_JSON_BYTES = 100_000_000


MODEL_NEEDS = frozenset({"weights", "tokenizer"})


def model_needs(task: str, *, from_scratch: bool) -> frozenset[str]:
    """Return what a training of `task` (sft, classify) reads in the model's folder beside config.json."""
    if task != "classify":
        return MODEL_NEEDS
    return frozenset() if from_scratch else frozenset({"weights"})


#: Folder of a model's weights in a checkpoint that accelerate has saved in parts (FSDP_MODEL_NAME in its utils/constants.py).
FSDP_PARTS = "pytorch_model_fsdp_0"


def check_model(name: str | None, needs: frozenset[str] = MODEL_NEEDS) -> list[Problem]:
    """Return what is wrong with a local model folder: it needs config.json, and by default all its weights, and a tokenizer."""
    if name is None:
        return [Problem("--model_name_or_path is missing", "--model_name_or_path FOLDER")]
    folder = Path(name)
    if not is_dir(folder):
        what = f"there is no model folder '{name}'; models are read from local folders only, nothing is downloaded here"
        source = name if name.count("/") == 1 and not name.startswith((".", "/", "~")) else "OWNER/MODEL"
        return [Problem(what, f"hf download {shell.quote(source)} --local-dir {shell.quote(name)}")]
    fix = f"ls {name}"
    if is_dir(folder / FSDP_PARTS) and not is_file(folder / "config.json"):
        what = f"'{name}' is a checkpoint that FSDP has divided: its weights are in parts that no model is read from"
        parts = shell.quote(f"{name}/{FSDP_PARTS}")
        whole = f"accelerate merge-weights {parts} NEW_FOLDER, and copy config.json and the tokenizer's files there"
        return [Problem(what, f"RUN/model has whole weights; of this step: {whole}")]
    if not is_file(folder / "config.json"):
        return [Problem(f"the model folder '{name}' has no config.json", fix)]
    wrong = _weights_problems(folder) if "weights" in needs else []
    problems = [Problem(f"the model folder '{name}' {what}", fix) for what in wrong]
    if "tokenizer" in needs and not any(next(folder.glob(pattern), None) for pattern in _TOKENIZER):
        problems.append(Problem(f"the model folder '{name}' has no tokenizer (tokenizer.json, for instance)", fix))
    return problems


def _weights_problems(folder: Path) -> list[str]:
    shards: set[str] = set()
    for index in (*folder.glob("*.safetensors.index.json"), *folder.glob("pytorch_model*.bin.index.json")):
        content = json_object(index)
        if content is None:
            return [f"has an index that is not JSON: {index.name}"]
        names = content.get("weight_map", {})
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            return [f"has an index whose weight_map does not name files: {index.name}"]
        shards.update(names.values())
    missing = sorted(shard for shard in shards if not is_file(folder / shard))
    if missing:
        return [f"lacks {len(missing)} of {len(shards)} weight files: {', '.join(missing[:3])}"]
    files = [file for pattern in _WEIGHTS for file in folder.glob(pattern)]
    if not files:
        return ["has no weights (*.safetensors or pytorch_model*.bin)"]
    for file in files:
        try:
            with open_regular(file) as opened:
                first = opened.read(len(_LFS))
        except FileNotFoundError:  # a link to nothing
            return [f"has weights that are not a regular file: {file.name}"]
        except OSError as error:
            return [f"has weights that cannot be read: {file.name}: {error.strerror}"]
        if first == _LFS:
            return [f"has a git-lfs pointer where weights should be: {file.name}; run git lfs pull"]
    return []


# -- the dataset -------------------------------------------------------------------------------------------------------


_HOW_TO_SAVE = "hpctrain prepare DATA --model MODEL --to FOLDER; one to look at: hpctrain prepare --demo demo"


def check_dataset(name: str | None, splits: Iterable[str]) -> list[Problem]:
    """Return what is wrong with a dataset folder: it must be saved by `save_to_disk`, tokenised, and have the splits.

    Args:
        name: the folder.
        splits: the splits that will be read, the training split first; of a folder without splits that is all of it.
    """
    if name is None:
        return [Problem("--dataset_name is missing", "--dataset_name FOLDER")]
    folder = Path(name)
    if not is_dir(folder):
        what = f"there is no dataset folder '{name}'; datasets are read from local folders only, nothing is downloaded"
        return [Problem(what, _HOW_TO_SAVE)]
    parts = split_folders(folder)
    if parts is None:
        what = f"'{name}' is not a dataset saved by save_to_disk: it has neither dataset_dict.json nor state.json"
        return [Problem(what, _HOW_TO_SAVE)]
    problems: list[Problem] = []
    for number, split in enumerate(splits):
        part = parts.get(split, parts.get("") if number == 0 else None)
        if part is None:
            has = ", ".join(parts) if "" not in parts else "no splits at all"
            option = "--dataset_train_split NAME" if number == 0 else "--dataset_test_split NAME, or --eval_strategy no"
            problems.append(Problem(f"the dataset '{name}' has no split '{split}'; it has {has}", option))
            continue
        problems += _split_problems(name, split, part)
    return problems


def evaluation_split(name: str | None, asked: str | None) -> str:
    """Return the split to evaluate on: the one asked for; else `test`, or `validation` of a dataset that has this one alone.

    `hpctrain prepare` and many others hold out `validation`; `test` is TRL's default.
    """
    if asked is not None:
        return asked
    parts = (split_folders(Path(name)) if name is not None else None) or {}
    return "validation" if "validation" in parts and "test" not in parts else "test"


def split_folders(folder: Path) -> dict[str, Path] | None:
    """Return the folder of each split; of a dataset without splits itself under the name ""; None for anything else."""
    names = (json_object(folder / "dataset_dict.json") or {}).get("splits")
    if isinstance(names, list):
        return {str(name): folder / str(name) for name in names}
    return {"": folder} if is_file(folder / "state.json") else None


def columns(part: Path) -> list[str]:
    """Return the column names of one split's folder, as it was saved; none when that cannot be read."""
    features = (json_object(part / "dataset_info.json") or {}).get("features")
    return list(features) if isinstance(features, dict) else []


def _split_problems(name: str, split: str, part: Path) -> list[Problem]:
    state, found = json_object(part / "state.json"), columns(part)
    entries = (state or {}).get("_data_files", [])
    named = isinstance(entries, list) and all(isinstance(each, dict) and isinstance(each.get("filename"), str) for each in entries)
    if state is None or not found or not named:
        what = f"the dataset '{name}' is damaged: split '{split}' lacks a readable state.json or dataset_info.json"
        return [Problem(what, f"ls {part}")]
    files = [entry["filename"] for entry in entries]
    if missing := [file for file in files if not is_file(part / file)]:
        what = f"the dataset '{name}' is not complete: split '{split}' lacks {', '.join(missing[:3])}"
        return [Problem(what, f"ls {part}")]
    if "input_ids" not in found:
        what = f"the dataset '{name}' is not tokenised: split '{split}' has {', '.join(found)}, and no input_ids"
        return [Problem(what, _HOW_TO_SAVE)]
    return []


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config.json about text, which of most models is all of it."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else config


def json_object(path: Path) -> dict[str, Any] | None:
    """Return a file's JSON object, or None when it is not there or is something else."""
    try:
        content = json.loads(read_regular(path, _MAX_JSON_BYTES).decode())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


# -- the launcher ------------------------------------------------------------------------------------------------------


def check_launch(environ: Mapping[str, str]) -> list[Problem]:
    """Return what is wrong with how the processes were started, as far as the environment of one of them tells.

    Each of these mistakes lets every process train alone, as rank 0, and exit with 0.
    """
    problems: list[Problem] = []
    world = _int(environ, "WORLD_SIZE")
    if world is not None and world > 1:
        if missing := [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in environ]:
            what = f"WORLD_SIZE is {world} without {', '.join(missing)}: each process would train alone"
            problems.append(Problem(what, "torchrun --standalone --nproc_per_node N -m hpctrain.training.sft ..."))
    elif (tasks := _int(environ, "SLURM_STEP_NUM_TASKS") or 1) > 1 and world is None:
        what = f"srun started {tasks} tasks and WORLD_SIZE is not set: each of them would train alone"
        problems.append(Problem(what, "hpctrain submit (its scripts set WORLD_SIZE, RANK and LOCAL_RANK)"))
    expected = _int(environ, "HPCTRAIN_WORLD_SIZE")
    if expected is not None and expected != (world or 1):
        what = f"the job asked for {expected} processes and the launcher started {world or 1}"
        problems.append(Problem(what, "hpctrain render, which writes both numbers"))
    return problems


#: What HPCTRAIN_SHARDING stands for in accelerate's words (DistributedType).
DISTRIBUTED_TYPES = {"fsdp": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}


def check_sharding(environ: Mapping[str, str]) -> list[Problem]:
    """Return what is missing for the sharding that the job asked for."""
    asked = environ.get("HPCTRAIN_SHARDING", "")
    if DISTRIBUTED_TYPES.get(asked) == "DEEPSPEED" and importlib.util.find_spec("deepspeed") is None:
        return [
            Problem(
                f"sharding {asked} needs DeepSpeed, which is not installed", "pip install deepspeed, or: hpctrain render --sharding fsdp"
            )
        ]
    return []


def sharding_problem(environ: Mapping[str, str], found: str) -> Problem | None:
    """Return what is wrong when the job asked for sharding and accelerate does something else, which it does without a word.

    Args:
        environ: of the process.
        found: accelerate's DistributedType by name, such as `FSDP` or `MULTI_CPU`.
    """
    asked = environ.get("HPCTRAIN_SHARDING", "")
    wanted = DISTRIBUTED_TYPES.get(asked)
    if wanted is None or wanted == found:
        return None
    return Problem(
        f"the job asked for sharding {asked} and accelerate runs {found}: every process holds the whole model",
        "hpctrain render --sharding ddp",
    )


def check_gpus(visible: int, *, cpu: bool, environ: Mapping[str, str], host: str) -> list[Problem]:
    """Return what is wrong with the GPUs this process sees.

    Args:
        visible: CUDA or ROCm devices visible to this process.
        cpu: the training was asked to run on the CPU.
        environ: the launcher's environment.
        host: this node's name.
    """
    if cpu:
        return []
    if visible == 0:
        return [
            Problem(
                f"no GPU is visible on {host}",
                "ask for GPUs with --gpus N, or set ACCELERATE_USE_CPU=true to train on the CPU",
            )
        ]
    if visible > 1 and "LOCAL_RANK" not in environ:
        what = f"{visible} GPUs are visible on {host} and one process was started without a launcher"
        fix = f"torchrun --standalone --nproc_per_node {visible} -m hpctrain.training.sft ..., or CUDA_VISIBLE_DEVICES=0"
        return [Problem(what, fix)]
    local = max(_int(environ, "LOCAL_WORLD_SIZE") or 1, (_int(environ, "LOCAL_RANK") or 0) + 1)
    if visible < local:
        what = f"{local} processes on {host} see {visible} GPU{'s' * (visible > 1)}: some would share a GPU"
        return [Problem(what, f"start {visible} per node, or ask for {local} GPUs with --gpus {local}")]
    return []


def _int(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else None
