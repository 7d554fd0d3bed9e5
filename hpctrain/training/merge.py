"""Merging a LoRA adapter into its base model, as a directory that inference servers load.

peft merges the weights, in the dtype of the result. The directory is written under a temporary name
and renamed.
"""

from __future__ import annotations

import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import PeftModel, get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict
from safetensors import SafetensorError
from transformers import AutoConfig

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs.manifest import read_manifest, write_manifest
from hpctrain.training import preflight
from hpctrain.training.process import disable_progress_bars
from hpctrain.util import files, shell

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
#: Beside the adapter of a classifier: the model's config with its classes
#: (hpctrain/training/classifier.py).
CLASSIFIER = "classifier_config.json"
_DTYPES = ("float32", "float16", "bfloat16")
_TOKENIZER = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "tekken.json",
    "chat_template*",
    "processor_config.json",
    "preprocessor_config.json",
)
#: The weights of a classifier's head, in an adapter.
_HEADS = (".score.weight", ".classifier.weight", ".classifier.out_proj.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A merged model.

    Attributes:
        base: the directory of the base model.
        bytes: size of all files.
        notes: messages about unexpected actions.
    """

    folder: Path
    base: Path
    dtype: str
    parameters: int
    bytes: int
    notes: tuple[str, ...]


def merge(
    adapter: Path,
    to: Path,
    *,
    base: Path | None = None,
    dtype: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Merged:
    """Merge, see the module.

    Args:
        adapter: the adapter's directory.
        to: the directory to create; it must not exist.
        base: the base model's directory; None for the one that the adapter names.
        dtype: dtype of the result; None for the base's.
        say: prints a line of progress.

    Raises:
        UsageError: the adapter, the base or the target is not valid.
        HpctrainError: the adapter's weights are not finite, or the target cannot be written;
            nothing is left then.
    """
    if to.exists() or to.is_symlink():
        raise UsageError(f"{to} is there already", hint="use --to with another directory")
    settings = _adapter_config(adapter)
    named = settings.get("base_model_name_or_path")
    base = _base_of(adapter, named, base)
    draft = to.absolute().with_name(f".{to.name}.merging-{uuid.uuid4().hex[:12]}")
    try:
        draft.mkdir(parents=True)  # fail before minutes of loading
        with warnings.catch_warnings():
            disable_progress_bars()
            warnings.filterwarnings("ignore", module="peft")  # of tied weights, untied here
            warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
            began, notes = time.monotonic(), list[str]()
            model, dtype = _with_adapter(adapter, settings, base, dtype, notes=notes, say=say)
            say("merging")
            model = model.merge_and_unload(safe_merge=True)
            model.save_pretrained(draft, max_shard_size="5GB")
        has_tokenizer = any(adapter.glob("tokenizer*")) or (adapter / "vocab.json").is_file()
        for pattern in _TOKENIZER:
            for file in (adapter if has_tokenizer else base).glob(pattern):
                if file.is_file() and not (draft / file.name).exists():
                    shutil.copyfile(file, draft / file.name)
        source = read_manifest(adapter)
        manifest = write_manifest(
            draft,
            step=source.step if source else 0,
            world_size=source.world_size if source else 1,
            state=("model",),
            run_id=source.run_id if source else None,
            attempt=source.attempt if source else None,
            began=began,
        )
        draft.rename(to)  # fails if the target has files
    except SafetensorError as error:
        raise UsageError(
            f"the weights of {adapter} or {base} cannot be read",
            details=(str(error).splitlines()[0],),
            fix=f"ls -l {shell.quote(adapter)} {shell.quote(base)}",
            hint="copy the damaged files again",
        ) from error
    except OSError as error:
        raise HpctrainError(
            f"{to} cannot be made: {error.strerror or error}",
            fix=f"ls -ld {shell.quote(draft.parent)}",
        ) from error
    except ValueError as error:  # NaN in the adapter
        raise HpctrainError(
            "the adapter cannot be merged",
            details=(str(error),),
            fix="hpctrain checkpoints list",
            hint="merge an earlier checkpoint",
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Merged(
        folder=to,
        base=base,
        dtype=dtype,
        parameters=int(model.num_parameters()),
        bytes=manifest.bytes,
        notes=tuple(notes),
    )


# -- the adapter and its base ----------------------------------------------------------------------


def _adapter_config(folder: Path) -> Mapping[str, Any]:
    config, look = files.read_json(folder / CONFIG), f"ls -l {shell.quote(folder)}"
    if config is None and (folder / "config.json").is_file():
        raise UsageError(
            f"{folder} holds a whole model and no adapter: there is nothing to merge",
            hint=f"use it as it is: --model_name_or_path {shell.quote(folder)}",
        )
    if config is None or not (folder / WEIGHTS).is_file():
        lacks = f"readable {CONFIG}" if config is None else WEIGHTS
        raise UsageError(f"{folder} has no {lacks}", fix=look)
    if config.get("peft_type") != "LORA":
        raise UsageError(
            f"{folder} is an adapter of kind {config.get('peft_type')}; only LoRA, DoRA and rsLoRA"
            " can be merged",
            fix=f"cat {shell.quote(folder / CONFIG)}",
        )
    return config


def _base_of(adapter: Path, named: str | None, base: Path | None) -> Path:
    folder = Path(base or named or "").expanduser()
    if not (base or named) or not folder.is_dir():
        which = str(base) if base is not None else f"{named} that the adapter names"
        raise UsageError(
            f"the base model {which} is not there",
            details=(f"adapter: {adapter}",),
            hint="give its current directory: --base DIR",
        )
    if problems := preflight.check_model(str(folder), frozenset({"weights"})):
        raise preflight.usage_error(problems)
    if (files.read_json(folder / "config.json") or {}).get("quantization_config"):
        raise UsageError(
            f"the base model {folder} is stored quantized, and an adapter is merged into full"
            " weights",
            hint="use --base FOLDER with the model as it was before",
        )
    return folder


def differences(model: Any, tensors: Mapping[str, Any]) -> list[str]:
    """Return how the tensors of a LoRA adapter differ from those that a model with a new LoRA
    adapter expects.
    """
    expected = get_peft_model_state_dict(model)
    found = []
    for name in dict.fromkeys((*expected, *tensors)):
        if name not in tensors:
            found.append(f"{name}: not in the adapter")
        elif name not in expected:
            found.append(f"{name}: the model has none")
        elif tensors[name].shape != expected[name].shape:
            shapes = list(tensors[name].shape), list(expected[name].shape)
            found.append(f"{name}: {shapes[0]}, and {shapes[1]} in the model")
    return found


def load_adapter(model: Any, folder: Path) -> None:
    """Load the weights of a LoRA adapter into the new adapter of `model`.

    Raises:
        HpctrainError: its tensors do not match the model's adapter.
    """
    saved = load_peft_weights(str(folder), device="cpu")
    if different := differences(model, saved):
        config = files.read_json(folder / CONFIG) or {}
        modules = " ".join(config.get("target_modules") or ())
        raise HpctrainError(
            f"the LoRA adapter in {folder} is another one than this training's",
            details=(f"{len(different)} tensors differ, such as {different[0]}",),
            hint=f"use --lora_r {config.get('r')} --lora_target_modules {shell.quote(modules)}",
        )
    set_peft_model_state_dict(model, saved)


def _with_adapter(
    adapter: Path,
    settings: Mapping[str, Any],
    base: Path,
    dtype: str | None,
    *,
    notes: list[str],
    say: Callable[[str], None],
) -> tuple[Any, str]:
    tensors = load_peft_weights(str(adapter), device="cpu")
    named = settings.get("base_model_name_or_path")
    if named and Path(named) != base:
        notes.append(
            f"the adapter was trained on {named}; whether {base} is the same model is not checked"
        )
    try:
        config = AutoConfig.from_pretrained(str(base), local_files_only=True)
    except (ValueError, OSError) as error:
        raise UsageError(
            f"transformers does not know the model in {base}",
            details=(str(error).splitlines()[0],),
            fix=f"cat {shell.quote(base)}/config.json",
        ) from error
    if settings.get("task_type") == "SEQ_CLS":
        loader = transformers.AutoModelForSequenceClassification
        _set_classes(config, tensors, files.read_json(adapter / CLASSIFIER) or {})
    else:
        name = str((config.architectures or [""])[0])
        loader = getattr(transformers, name, None) or transformers.AutoModelForCausalLM
    stored = str(config.dtype or config.get_text_config().dtype).removeprefix("torch.")
    dtype = dtype or (stored if stored in _DTYPES else "float32")
    say(f"loading {base} in {dtype}")
    model = loader.from_pretrained(
        str(base), dtype=getattr(torch, dtype), local_files_only=True, config=config
    )
    if _untie(model, settings, tensors):
        notes.append(
            "embedding and output layer were one tensor in the base; the adapter changes one of"
            " them, and they are two now"
        )
    try:
        both = PeftModel.from_pretrained(model, str(adapter))
        wrong = differences(both, tensors)
    except (RuntimeError, ValueError, KeyError) as error:
        wrong = str(error).strip().splitlines()
    if wrong:
        raise UsageError(
            f"the adapter in {adapter} is not one of {base}",
            details=(*wrong[:3], f"the adapter names as its base: {named}"),
            hint=f"use --base {'FOLDER' if named in (None, str(base)) else named}",
        )
    return both, dtype


def _set_classes(config: Any, tensors: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    config.num_labels = next(
        (len(tensors[name]) for name in tensors if name.endswith(_HEADS)), config.num_labels
    )
    if names := saved.get("id2label"):
        config.id2label = {int(number): name for number, name in names.items()}
        config.label2id = {name: number for number, name in config.id2label.items()}
    config.problem_type = saved.get("problem_type")
    if saved.get("pad_token_id") is not None:
        config.pad_token_id = config.get_text_config().pad_token_id = saved["pad_token_id"]


def _untie(model: Any, settings: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """Untie the output layer if the adapter changes it or the embedding: merged into a shared
    tensor, the change would affect both. Return whether it was untied.
    """
    inner, outer = model.get_input_embeddings(), model.get_output_embeddings()
    names = [name for name, module in model.named_modules() if module in (inner, outer)]
    if (
        outer is None
        or inner.weight is not outer.weight
        or settings.get("ensure_weight_tying")
        or not any(f".{name}." in tensor for name in names for tensor in tensors)
    ):
        return False
    outer.weight = torch.nn.Parameter(inner.weight.detach().clone(), requires_grad=False)
    model.config.tie_word_embeddings = False
    model.config.get_text_config().tie_word_embeddings = False
    return True
