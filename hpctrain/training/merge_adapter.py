"""A LoRA adapter, laid beside the model that it is to be merged into: whether the two go together, and what merging them takes.

Reads configurations and the adapter's tensors; the base model is looked at by its shapes only (torch's meta device).
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain import installed
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell
from hpctrain.runs import files
from hpctrain.training import preflight
from hpctrain.training.process import quiet_bitsandbytes

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
CLASSIFIER = "classifier_config.json"
"""Beside the adapter of a classifier: the configuration of the model with its classes; written by hpctrain/training/classify_trainer.py."""
DTYPES = ("float32", "bfloat16", "float16")
_MERGEABLE = ("LORA",)
_PREFIX = "base_model.model."
#: What peft puts behind a module's name in an adapter's tensors.
_KINDS = re.compile(r"\.(lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector|lora_ga\w*|token_adapter)(\.|$)")
#: What peft may put behind the name of a module that it saves whole.
_WRAPPED = re.compile(r"\.(base_layer|modules_to_save|original_module)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """What is known of an adapter.

    Attributes:
        folder: where it lies.
        config: adapter_config.json.
        shapes: of its tensors, without peft's prefix.
        bytes: of its weights' file.
    """

    folder: Path
    config: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    bytes: int

    @property
    def base(self) -> str | None:
        """The model that it was trained on, as its configuration names it."""
        name = self.config.get("base_model_name_or_path")
        return name if isinstance(name, str) and name else None

    @property
    def classifies(self) -> bool:
        """Whether it is a classifier's."""
        return self.config.get("task_type") == "SEQ_CLS"


def read(folder: Path) -> Adapter:
    """Return the adapter in a folder.

    Raises:
        UsageError: there is none, or one that cannot be merged.
    """
    quoted = shlex.quote(str(folder))
    config = files.read_json(folder / CONFIG)
    if config is None:
        if (folder / "config.json").is_file():
            raise UsageError(
                f"{folder} holds a whole model and no adapter: there is nothing to merge",
                fix=f"use it as it is: --model_name_or_path {quoted}",
            )
        raise UsageError(f"{folder} has no readable {CONFIG}", fix=f"ls {quoted}")
    kind = config.get("peft_type")
    if kind not in _MERGEABLE:
        raise UsageError(
            f"{folder} is an adapter of kind {kind}; LoRA (DoRA and rsLoRA too) is what can be merged here", fix=f"cat {quoted}/{CONFIG}"
        )
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise UsageError(f"{folder} has no {WEIGHTS[0]}", fix=f"ls {quoted}")
    try:
        shapes = _shapes(path)
    except Exception as error:  # a truncated file: safetensors and torch have exceptions of their own
        raise UsageError(f"{path} cannot be read", details=(str(error).splitlines()[0],), fix=f"ls -l {shlex.quote(str(path))}") from error
    return Adapter(folder=folder, config=config, shapes=shapes, bytes=path.stat().st_size)


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(str(path), framework="pt") as tensors:
            return {name.removeprefix(_PREFIX): tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    import torch

    loaded = torch.load(path, map_location="cpu", weights_only=True)
    return {name.removeprefix(_PREFIX): tuple(tensor.shape) for name, tensor in loaded.items()}


def base_of(adapter: Adapter, asked: Path | None) -> Path:
    """Return the folder of the base model.

    Raises:
        UsageError: it is not there, not whole, or stored quantised.
    """
    name = str(asked) if asked is not None else adapter.base
    if name is None:
        raise UsageError(f"{adapter.folder} does not name the model that it was trained on", fix="--base FOLDER")
    folder = Path(name).expanduser()
    if not folder.is_dir():
        said = "is not there" if asked is not None else "that the adapter names is not there"
        raise UsageError(f"the base model {name} {said}", details=(f"adapter: {adapter.folder}",), fix="--base FOLDER, where it is now")
    problems = preflight.check_model(name, frozenset({"weights"}))
    if problems:
        raise preflight.usage_error(problems)
    config = files.read_json(folder / "config.json") or {}
    if config.get("quantization_config"):
        raise UsageError(
            f"the base model {folder} is stored quantised, and an adapter is merged into full weights",
            fix="--base FOLDER with the model as it was before",
        )
    return folder


# -- whether they go together ------------------------------------------------------------------------------------------


def config_of(adapter: Adapter, base: Path) -> Any:
    """Return the configuration of the merged model: that of the base, of a classifier with its classes.

    Raises:
        UsageError: it is no model that transformers knows.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(base), local_files_only=True)
    except (ValueError, OSError) as error:
        raise UsageError(
            f"{base} is no model that transformers knows", details=(str(error).splitlines()[0],), fix=f"cat {shell.quote(base)}/config.json"
        ) from error
    if adapter.classifies:
        kept = files.read_json(adapter.folder / CLASSIFIER) or {}
        head = next(
            (shape for name, shape in adapter.shapes.items() if re.search(r"(^|\.)(score|classifier(\.out_proj)?)\.weight$", name)), None
        )
        if head is None:
            raise UsageError(
                f"{adapter.folder} is the adapter of a classifier, and holds no head (score or classifier)", fix="train it anew"
            )
        config.num_labels = head[0]
        if isinstance(kept.get("id2label"), dict) and len(kept["id2label"]) == head[0]:
            config.id2label = {int(number): name for number, name in kept["id2label"].items()}
            config.label2id = {name: int(number) for number, name in config.id2label.items()}
        if "problem_type" in kept:
            config.problem_type = kept["problem_type"]
        if isinstance(kept.get("pad_token_id"), int):
            config.pad_token_id = config.get_text_config().pad_token_id = kept["pad_token_id"]
    rows = vocabulary_of(adapter)
    if rows is not None and rows != config.get_text_config().vocab_size:
        config.get_text_config().vocab_size = rows
    return config


def vocabulary_of(adapter: Adapter) -> int | None:
    """Return the rows of the embedding that the adapter brings along or changes; None where it leaves it alone."""
    for name, shape in adapter.shapes.items():
        if re.search(r"(^|\.)(embed_tokens|wte|word_embeddings|embed_in)(\.base_layer|\.modules_to_save)?\.weight$", name):
            return shape[0]
        if ".lora_embedding_A" in name:
            return shape[1]
    return None


def touches_embeddings(adapter: Adapter) -> bool:
    """Say whether the adapter changes the embedding or the output layer, which a tied model has but once."""
    return any(re.search(r"(^|\.)(embed_tokens|wte|word_embeddings|embed_in|lm_head|embed_out)\.", name) for name in adapter.shapes)


def model_class(adapter: Adapter, base: Path) -> Any:
    """Return the class that loads the model."""
    import transformers

    if adapter.classifies:
        return transformers.AutoModelForSequenceClassification
    names = (files.read_json(base / "config.json") or {}).get("architectures") or [""]
    return getattr(transformers, str(names[0]), None) or transformers.AutoModelForCausalLM


def check_fit(adapter: Adapter, config: Any, loader: Any, base: Path) -> int:
    """Compare the adapter's tensors with the model's shapes, and return the model's parameters.

    Raises:
        UsageError: they are another model's.
    """
    import torch

    with torch.device("meta"):
        model = loader.from_config(config) if hasattr(loader, "from_config") else loader(config)
    known = {name.removesuffix(".weight"): tuple(each.shape) for name, each in model.named_parameters(remove_duplicate=False)}
    wrong = [f"{name}: {list(shape)}, and {said}" for name, shape in adapter.shapes.items() if (said := _misfit(name, shape, known))]
    if wrong and not adapter.config.get("target_parameters"):
        more = f"{len(wrong)} of {len(adapter.shapes)} tensors do not fit, such as"
        named = adapter.base or "none"
        raise UsageError(
            f"the adapter in {adapter.folder} is not one of {base}",
            details=(more, *(f"  {line}" for line in wrong[:3]), f"the adapter names as its base: {named}"),
            fix=f"--base {shlex.quote(named) if named != str(base) else 'FOLDER'}",
        )
    return int(sum(each.numel() for each in model.parameters()))


def _misfit(name: str, shape: tuple[int, ...], known: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return what is wrong with one tensor of the adapter; None if it fits."""
    found = _KINDS.search(name)
    module = name[: found.start()] if found else _WRAPPED.sub("", name.removesuffix(".weight"))
    if name.endswith(".bias"):
        return None if name in known or module.removesuffix(".bias") in known else "the model has no such bias"
    if module not in known:
        return f"the model has no {module}"
    there = known[module]
    if found is None:
        return None if shape == there else f"there {list(there)}"
    if len(there) != 2 or len(shape) != 2 or found[1] not in ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B"):
        return None
    # GPT-2 keeps its matrices the other way round.
    side = shape[1] if found[1].endswith("A") else shape[0]
    return None if side in there else f"{module} is {list(there)} there"


# -- what it takes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What merging takes, and what there is, in bytes.

    Attributes:
        memory, memory_free: of the host, or of the device that is merged on.
        disk, disk_free: where the folder is written.
    """

    memory: int
    memory_free: int
    disk: int
    disk_free: int


#: torch, transformers and peft, loaded: 0.45 GB measured with torch 2.13 for the CPU; and the buffers of a save.
_LIBRARIES = 700_000_000


def needs(parameters: int, dtype: str, adapter: Adapter, target: Path, device: str) -> Needs:
    """Return what merging takes: the weights once, the adapter twice (as it is read, and as it is added)."""
    weights = parameters * (4 if dtype == "float32" else 2)
    free = shutil.disk_usage(next(each for each in (target.absolute().parent, *target.absolute().parents) if each.is_dir())).free
    return Needs(
        memory=weights + 2 * adapter.bytes + (_LIBRARIES if device == "cpu" else 0),
        memory_free=_free_memory(device), disk=weights + 20_000_000, disk_free=free,
    )  # fmt: skip


def check_needs(found: Needs, *, target: Path, device: str) -> None:
    """Refuse to begin what cannot be ended.

    Raises:
        HpctrainError: memory or disk is too small; with the numbers.
    """
    wrong = []
    if found.memory > found.memory_free:
        where = "of memory" if device == "cpu" else f"of memory on {device}"
        wrong.append(
            (
                f"{_gb(found.memory)} {where} are needed, and {_gb(found.memory_free)} are free",
                "--dtype bfloat16, or a node with more memory",
            )
        )
    if found.disk > found.disk_free:
        wrong.append(
            (f"{_gb(found.disk)} of disk are needed, and {_gb(found.disk_free)} are free", f"--to FOLDER elsewhere; df -h {target.parent}")
        )
    if wrong:
        raise HpctrainError(
            f"the model cannot be merged here: {wrong[0][0]}",
            details=tuple(what for what, _ in wrong[1:]),
            fix="; ".join(fix for _, fix in wrong),
        )


def _free_memory(device: str) -> int:
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    import psutil

    from hpctrain.memory import cgroup

    free = int(psutil.virtual_memory().available)
    try:
        level = cgroup.find_limit()
        limit = level.limit_mib() if level is not None else None
        if level is not None and limit is not None:
            free = min(free, max(0, limit - level.used_mib()) * cgroup.MIB)
    except (OSError, ValueError):  # the node's own word is what remains
        pass
    return free


def require_libraries() -> None:
    """Import what merging needs.

    Raises:
        HpctrainError: it is not installed.
    """
    quiet_bitsandbytes()
    try:
        import peft  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise HpctrainError(f"cannot import {error.name}", fix=installed.command("train")) from error


def devices() -> int:
    """Return how many GPUs torch sees."""
    import torch

    return int(torch.cuda.device_count())


def _gb(count: int) -> str:
    return f"{count / 1e9:.3g} GB"
