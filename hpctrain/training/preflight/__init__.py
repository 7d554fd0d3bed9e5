"""Checks of a training's inputs before torch is used: directories and the launcher's environment.

Pure except for reading these directories. Checks return problems instead of raising, so that all
can be shown at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpctrain.clusters.load import is_dir, is_file
from hpctrain.errors import UsageError
from hpctrain.util import files, shell
from hpctrain.util.stored import open_regular
from hpctrain.util.text import count, integer


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem and its fix, worded as for `HpctrainError`.

    Attributes:
        what: the problem.
        fix: a command or a sentence.
        command: `fix` is one command that can be run verbatim.
        cause: set if `check` has a better fix: the dataset is not prepared (`raw`); a file is a
            git-lfs pointer (`lfs`).
    """

    what: str
    fix: str
    command: bool = False
    cause: Literal["raw", "lfs"] | None = None


class LibraryDefault(int):
    """A library's default of an option, distinguishable from the same number set explicitly."""


def is_default(value: Any) -> bool:
    """Return whether an option is unset."""
    return value is None or isinstance(value, LibraryDefault)


def usage_error(problems: list[Problem]) -> UsageError:
    """Return one error that shows every problem."""
    fixes = dict.fromkeys(problem.fix for problem in problems if problem.command)
    hints = dict.fromkeys(problem.fix for problem in problems if not problem.command)
    several = len(problems) > 1
    return UsageError(
        f"{len(problems)} problems before training" if several else problems[0].what,
        details=tuple(problem.what for problem in problems) if several else (),
        fix=" && ".join(fixes) or None,
        hint="; ".join(hints) or None,
    )


# -- the model -------------------------------------------------------------------------------------

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZER = ("tokenizer*", "vocab*", "*.model", "tekken.json")
_LFS = b"version https://git-lfs"
#: The index of a model with some thousand weight files has 10 MB.
_MAX_INDEX_BYTES = 100_000_000


MODEL_NEEDS = frozenset({"weights", "tokenizer"})


def model_needs(task: str, *, from_scratch: bool) -> frozenset[str]:
    """Return what a training of `task` (sft, classify) needs in the model's directory besides
    config.json.
    """
    if task != "classify":
        return MODEL_NEEDS
    return frozenset() if from_scratch else frozenset({"weights"})


def check_model(name: str | None, needs: frozenset[str] = MODEL_NEEDS) -> list[Problem]:
    """Return the problems of a local model directory: it needs config.json, and by default all
    weights and a tokenizer.
    """
    if name is None:
        return [Problem("--model_name_or_path is missing", "use --model_name_or_path FOLDER")]
    folder = Path(name)
    if not is_dir(folder):
        on_hub = name.count("/") == 1 and not name.startswith((".", "/", "~"))
        source = shell.quote(name) if on_hub else "OWNER/MODEL"
        download = f"hf download {source} --local-dir {shell.quote(name)}"
        fix = download if on_hub else f"where there is a network, run: {download}"
        return [
            Problem(
                f"there is no model directory '{name}'; models are read from local folders only,"
                " nothing is downloaded here",
                fix,
                command=on_hub,
            )
        ]
    fix = f"ls {shell.quote(name)}"
    if not is_file(folder / "config.json"):
        return [Problem(f"the model directory '{name}' has no config.json", fix, command=True)]
    wrong = []
    if "weights" in needs and (problem := _weights_problem(folder)) is not None:
        wrong.append(problem)
    if "tokenizer" in needs and not any(next(folder.glob(pattern), None) for pattern in _TOKENIZER):
        wrong.append("has no tokenizer (tokenizer.json, for instance)")
    return [
        Problem(
            f"the model directory '{name}' {what}",
            fix,
            command=True,
            cause="lfs" if "git lfs pull" in what else None,
        )
        for what in wrong
    ]


def _weights_problem(folder: Path) -> str | None:
    shards: set[str] = set()
    for pattern in _WEIGHTS:
        for index in folder.glob(f"{pattern}.index.json"):
            names = (files.read_json(index, _MAX_INDEX_BYTES) or {}).get("weight_map")
            if not isinstance(names, dict) or not all(
                isinstance(each, str) for each in names.values()
            ):
                return f"has an index without a weight_map of file names: {index.name}"
            shards.update(names.values())
    if missing := sorted(shard for shard in shards if not is_file(folder / shard)):
        return f"lacks {len(missing)} of {len(shards)} weight files: {', '.join(missing[:3])}"
    found = [file for pattern in _WEIGHTS for file in folder.glob(pattern)]
    for file in found:
        try:
            with open_regular(file) as opened:
                first = opened.read(len(_LFS))
        except OSError as error:
            return f"has weights that cannot be read: {file.name}: {error.strerror}"
        if first == _LFS:
            return f"has a git-lfs pointer where weights should be: {file.name}; run git lfs pull"
    return None if found else "has no weights (*.safetensors or pytorch_model*.bin)"


# -- the dataset -----------------------------------------------------------------------------------


_HOW_TO_SAVE = (
    "run: hpctrain prepare DATA --model MODEL --to FOLDER; for one to look at:"
    " hpctrain prepare --demo demo"
)


def check_dataset(name: str | None, splits: Iterable[str]) -> list[Problem]:
    """Return the problems of a dataset directory: it must be saved by `save_to_disk`, tokenized,
    and have the splits.

    Args:
        name: the directory.
        splits: the splits to read, the training split first; a dataset without splits is one
            training split.
    """
    if name is None:
        return [Problem("--dataset_name is missing", "use --dataset_name FOLDER")]
    folder = Path(name)
    if not is_dir(folder):
        return [
            Problem(
                f"there is no dataset directory '{name}'; datasets are read from local folders"
                " only, nothing is downloaded",
                _HOW_TO_SAVE,
                cause="raw",
            )
        ]
    parts = split_folders(folder)
    if parts is None:
        return [
            Problem(
                f"'{name}' is not a dataset saved by save_to_disk: it has neither"
                " dataset_dict.json nor state.json",
                _HOW_TO_SAVE,
                cause="raw",
            )
        ]
    problems: list[Problem] = []
    for number, split in enumerate(splits):
        part = parts.get(split, parts.get("") if number == 0 else None)
        if part is not None:
            problems += _split_problems(name, split, part)
            continue
        has = ", ".join(filter(None, parts)) or "no splits at all"
        option = "use --dataset_train_split NAME"
        if number > 0:
            option = "use --dataset_test_split NAME, or --eval_strategy no"
        problems.append(
            Problem(f"the dataset '{name}' has no split '{split}'; it has {has}", option)
        )
    return problems


def evaluation_split(name: str | None, asked: str | None) -> str:
    """Return the split to evaluate on: the requested one, else `test`, or `validation` if the
    dataset has only that.

    `hpctrain prepare` and many datasets have `validation`; `test` is TRL's default.
    """
    if asked is not None:
        return asked
    parts = (split_folders(Path(name)) if name is not None else None) or {}
    return "validation" if "validation" in parts and "test" not in parts else "test"


def split_folders(folder: Path) -> dict[str, Path] | None:
    """Return the directory of each split; for a dataset without splits, its own under the name "";
    None if it is not a dataset, and no splits if dataset_dict.json is damaged.
    """
    if is_file(folder / "dataset_dict.json"):
        names = (files.read_json(folder / "dataset_dict.json") or {}).get("splits")
        return {str(name): folder / str(name) for name in names or () if isinstance(names, list)}
    return {"": folder} if is_file(folder / "state.json") else None


def columns(part: Path) -> list[str]:
    """Return the column names in a split's directory; empty if they cannot be read."""
    features = (files.read_json(part / "dataset_info.json") or {}).get("features")
    return list(features) if isinstance(features, dict) else []


def _split_problems(name: str, split: str, part: Path) -> list[Problem]:
    entries = (files.read_json(part / "state.json") or {}).get("_data_files")
    found = columns(part)
    if not isinstance(entries, list) or not found:
        return [
            Problem(
                f"the dataset '{name}' is damaged: split '{split}' lacks a readable state.json or"
                " dataset_info.json",
                f"ls {shell.quote(part)}",
                command=True,
            )
        ]
    names = [str(each.get("filename")) for each in entries if isinstance(each, dict)]
    if missing := [file for file in names if not is_file(part / file)]:
        return [
            Problem(
                f"the dataset '{name}' is not complete: split '{split}' lacks"
                f" {', '.join(missing[:3])}",
                f"ls {shell.quote(part)}",
                command=True,
            )
        ]
    if "input_ids" not in found:
        return [
            Problem(
                f"the dataset '{name}' is not tokenized: split '{split}' has {', '.join(found)},"
                " and no input_ids",
                _HOW_TO_SAVE,
                cause="raw",
            )
        ]
    return []


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text part of a config.json, which for most models is all of it."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else config


# -- the launcher ----------------------------------------------------------------------------------


def check_launch(environ: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the problems of the launch, judged by the environment of one process.

    With each of these mistakes, every process trains alone as rank 0 and exits with 0.
    """
    world = integer(environ.get("WORLD_SIZE", ""))
    tasks = integer(environ.get("SLURM_STEP_NUM_TASKS", "")) or 1
    needed = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = ", ".join(name for name in needed if name not in environ)
    if world is not None and world > 1 and missing:
        yield Problem(
            f"WORLD_SIZE is {world} without {missing}: each process would train alone",
            "run: torchrun --standalone --nproc_per_node N -m hpctrain.training.sft ...",
        )
    if world is None and tasks > 1:
        yield Problem(
            f"srun started {tasks} tasks and WORLD_SIZE is not set: each of them would train alone",
            "run hpctrain submit, whose scripts set WORLD_SIZE, RANK and LOCAL_RANK",
        )
    expected = integer(environ.get("HPCTRAIN_WORLD_SIZE", ""))
    if expected is not None and expected != (world or 1):
        yield Problem(
            f"the job requests {expected} processes and the launcher started {world or 1}",
            "run hpctrain render, which writes both numbers",
        )


#: HPCTRAIN_SHARDING → accelerate's DistributedType.
DISTRIBUTED_TYPES = {"fsdp": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}


def sharding_problem(environ: Mapping[str, str], found: str) -> Problem | None:
    """Return a problem if accelerate silently uses other sharding than the job requests.

    Args:
        environ: the process's environment.
        found: name of accelerate's DistributedType, such as `FSDP` or `MULTI_CPU`.
    """
    asked = environ.get("HPCTRAIN_SHARDING", "")
    wanted = DISTRIBUTED_TYPES.get(asked)
    if wanted is None or wanted == found:
        return None
    return Problem(
        f"the job requests sharding {asked} and accelerate runs {found}: every process holds the"
        " whole model",
        "use --sharding ddp",
    )


def check_gpus(visible: int, *, cpu: bool, environ: Mapping[str, str], host: str) -> list[Problem]:
    """Return the problems of the GPUs visible to this process.

    Args:
        visible: CUDA or ROCm devices visible to this process.
        cpu: the CPU was requested for the training.
        environ: the launcher's environment.
        host: this node's name.
    """
    local = max(
        integer(environ.get("LOCAL_WORLD_SIZE", "")) or 1,
        (integer(environ.get("LOCAL_RANK", "")) or 0) + 1,
    )
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
        return [
            Problem(
                f"{visible} GPUs are visible on {host} and one process was started without a"
                " launcher",
                f"run: torchrun --standalone --nproc_per_node {visible} -m hpctrain.training.sft ...;"
                " or set CUDA_VISIBLE_DEVICES=0",
            )
        ]
    if visible < local:
        return [
            Problem(
                f"{local} processes on {host} see {count(visible, 'GPU')}: some would share a GPU",
                f"start {visible} per node, or ask for {local} GPUs with --gpus {local}",
            )
        ]
    return []
