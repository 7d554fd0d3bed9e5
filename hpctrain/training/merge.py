"""Merging a LoRA adapter into its base model, as a directory that inference servers load.

The base is loaded once, in the dtype of the result, and its logits with the adapter are stored.
peft then merges the weights. The directory is written under a temporary name, reloaded, and renamed
only if its logits match.
"""

from __future__ import annotations

import gc
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
#: Accepted rounding errors of logits, as fractions of the largest: always, and at most.
ROUNDING = {"float32": (1e-5, 1e-4), "float16": (5e-3, 2e-2), "bfloat16": (3e-2, 1e-1)}
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
_CHECKED_TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A merged model.

    Attributes:
        base: the directory of the base model.
        bytes: size of all files.
        off: largest difference of a logit between the reloaded model and base with adapter.
        effect: largest change of a logit by the adapter.
        bound: upper limit for `off`.
        notes: messages about unexpected actions.
    """

    folder: Path
    base: Path
    dtype: str
    parameters: int
    bytes: int
    off: float
    effect: float
    bound: float
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
        HpctrainError: weights cannot be read, or the merged model differs from base and adapter;
            nothing is left then.
        OSError: the directory cannot be written.
    """
    if to.exists() or to.is_symlink():
        raise UsageError(f"{to} is there already", hint="use --to with another directory")
    settings = _adapter_config(adapter)
    base = _base_of(adapter, settings, base)
    draft = to.absolute().with_name(f".{to.name}.merging-{uuid.uuid4().hex[:12]}")
    try:
        draft.mkdir(parents=True)  # fail before minutes of loading
    except OSError as error:
        raise HpctrainError(
            f"{to} cannot be made: {error.strerror}",
            fix=f"ls -ld {shell.quote(draft.parent)}",
        ) from error
    try:
        with warnings.catch_warnings():
            disable_progress_bars()
            warnings.filterwarnings("ignore", module="peft")  # of tied weights, untied here
            warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
            made = _merge(adapter, settings, base, draft, dtype=dtype, say=say)
        draft.rename(to)  # fails if the target has files
        return replace(made, folder=to)
    except SafetensorError as error:
        raise UsageError(
            f"the weights of {adapter} or {base} cannot be read",
            details=(str(error).splitlines()[0],),
            fix=f"ls -l {shell.quote(adapter)} {shell.quote(base)}",
            hint="copy the damaged files again",
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _merge(
    adapter: Path,
    settings: Mapping[str, Any],
    base: Path,
    draft: Path,
    *,
    dtype: str | None,
    say: Callable[[str], None],
) -> Merged:
    began, notes = time.monotonic(), list[str]()
    tensors = load_peft_weights(str(adapter), device="cpu")
    config, loader = _config_of(adapter, settings, tensors, base), _class_of(settings, base)
    named = settings.get("base_model_name_or_path")
    if named and Path(named) != base:
        notes.append(
            f"the adapter was trained on {named}; whether {base} is the same model is not checked"
        )
    stored = str(config.dtype or config.get_text_config().dtype).removeprefix("torch.")
    dtype = dtype or (stored if stored in ROUNDING else "float32")
    say(f"loading {base} in {dtype}")
    model = _load(loader, base, dtype, config=config)
    parameters = int(model.num_parameters())
    if _untie(model, settings, tensors):
        notes.append(
            "embedding and output layer were one tensor in the base; the adapter changes one of"
            " them, and they are two now"
        )
    model = _with_adapter(model, adapter, tensors, base, named)
    wanted = _logits(model)
    with model.disable_adapter():
        effect = float((_logits(model) - wanted).abs().max())
    say("merging")
    try:
        model = model.merge_and_unload(safe_merge=True)
    except ValueError as error:  # NaN in the adapter
        raise HpctrainError(
            "the adapter cannot be merged",
            details=(str(error),),
            fix="hpctrain checkpoints list",
            hint="merge an earlier checkpoint",
        ) from error
    model.save_pretrained(draft, max_shard_size="5GB")
    _copy_tokenizer(adapter, base, draft)
    del model
    gc.collect()  # free memory before the model is reloaded
    say("loading what was written")
    bound = bound_of(dtype, wanted, effect)
    off = _verify(_load(loader, draft, dtype).eval(), wanted, dtype, bound)
    if effect <= bound:
        wider = "; --dtype float32 keeps it" if dtype != "float32" else ""
        notes.append(
            f"the adapter changes logits by {effect:.2g}, no more than the rounding of"
            f" {dtype}{wider}"
        )
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
    return Merged(
        folder=draft,
        base=base,
        dtype=dtype,
        parameters=parameters,
        bytes=manifest.bytes,
        off=off,
        effect=effect,
        bound=bound,
        notes=tuple(notes),
    )


# -- the adapter and its base ----------------------------------------------------------------------


def _adapter_config(folder: Path) -> Mapping[str, Any]:
    config = files.read_json(folder / CONFIG)
    if config is None and (folder / "config.json").is_file():
        raise UsageError(
            f"{folder} holds a whole model and no adapter: there is nothing to merge",
            hint=f"use it as it is: --model_name_or_path {shell.quote(folder)}",
        )
    look = f"ls -l {shell.quote(folder)}"
    if config is None:
        raise UsageError(f"{folder} has no readable {CONFIG}", fix=look)
    if config.get("peft_type") != "LORA":
        raise UsageError(
            f"{folder} is an adapter of kind {config.get('peft_type')}; only LoRA, DoRA and rsLoRA"
            " can be merged",
            fix=f"cat {shell.quote(folder / CONFIG)}",
        )
    if not (folder / WEIGHTS).is_file():
        raise UsageError(f"{folder} has no {WEIGHTS}", fix=look)
    return config


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
        config = files.read_json(folder / "adapter_config.json") or {}
        modules = " ".join(config.get("target_modules") or ())
        raise HpctrainError(
            f"the LoRA adapter in {folder} is another one than this training's",
            details=(f"{len(different)} tensors differ, such as {different[0]}",),
            hint=f"use --lora_r {config.get('r')} --lora_target_modules {shell.quote(modules)}",
        )
    set_peft_model_state_dict(model, saved)


def _base_of(adapter: Path, settings: Mapping[str, Any], base: Path | None) -> Path:
    name = str(base or settings.get("base_model_name_or_path") or "")
    if not name:
        raise UsageError(
            f"{adapter} does not name the model that it was trained on",
            hint="use --base FOLDER",
        )
    folder = Path(name).expanduser()
    if not folder.is_dir():
        which = "" if base is not None else "that the adapter names "
        raise UsageError(
            f"the base model {name} {which}is not there",
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


def _config_of(
    folder: Path, adapter: Mapping[str, Any], tensors: Mapping[str, Any], base: Path
) -> Any:
    try:
        config = AutoConfig.from_pretrained(str(base), local_files_only=True)
    except (ValueError, OSError) as error:
        raise UsageError(
            f"transformers does not know the model in {base}",
            details=(str(error).splitlines()[0],),
            fix=f"cat {shell.quote(base)}/config.json",
        ) from error
    if _classifies(adapter):
        heads = (".score.weight", ".classifier.weight", ".classifier.out_proj.weight")
        config.num_labels = next(
            (len(tensors[name]) for name in tensors if name.endswith(heads)), config.num_labels
        )
        saved = files.read_json(folder / CLASSIFIER) or {}
        if names := saved.get("id2label"):
            config.id2label = {int(number): name for number, name in names.items()}
            config.label2id = {name: number for number, name in config.id2label.items()}
        config.problem_type = saved.get("problem_type")
        if saved.get("pad_token_id") is not None:
            config.pad_token_id = config.get_text_config().pad_token_id = saved["pad_token_id"]
    return config


def _classifies(adapter: Mapping[str, Any]) -> bool:
    return adapter.get("task_type") == "SEQ_CLS"


def _class_of(adapter: Mapping[str, Any], base: Path) -> Any:
    if _classifies(adapter):
        return transformers.AutoModelForSequenceClassification
    names = (files.read_json(base / "config.json") or {}).get("architectures") or [""]
    return getattr(transformers, str(names[0]), None) or transformers.AutoModelForCausalLM


# -- merging ---------------------------------------------------------------------------------------


def _load(loader: Any, folder: Path, dtype: str, **named: Any) -> Any:
    return loader.from_pretrained(
        str(folder), dtype=getattr(torch, dtype), local_files_only=True, **named
    )


def _untie(model: Any, adapter: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """Untie the output layer if the adapter changes it or the embedding: merged into a shared
    tensor, the change would affect both. Return whether it was untied.
    """
    inner, outer = model.get_input_embeddings(), model.get_output_embeddings()
    names = [name for name, module in model.named_modules() if module in (inner, outer)]
    if (
        outer is None
        or inner.weight is not outer.weight
        or adapter.get("ensure_weight_tying")
        or not any(f".{name}." in tensor for name in names for tensor in tensors)
    ):
        return False
    outer.weight = torch.nn.Parameter(inner.weight.detach().clone(), requires_grad=False)
    model.config.tie_word_embeddings = False
    model.config.get_text_config().tie_word_embeddings = False
    return True


def _with_adapter(
    model: Any, adapter: Path, tensors: Mapping[str, Any], base: Path, named: str | None
) -> Any:
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
    return both.eval()


def _logits(model: Any) -> Any:
    size = model.get_input_embeddings().weight.shape[0]
    pad = getattr(model.config.get_text_config(), "pad_token_id", None)
    known = [number for number in range(1, size, max(1, size // 997)) if number != pad]
    ids = torch.tensor([[known[(place * 31 + 7) % len(known)] for place in range(_CHECKED_TOKENS)]])
    with torch.no_grad():
        return model(input_ids=ids).logits.float()


def _copy_tokenizer(adapter: Path, base: Path, draft: Path) -> None:
    has_tokenizer = any(adapter.glob("tokenizer*")) or (adapter / "vocab.json").is_file()
    for pattern in _TOKENIZER:
        for file in (adapter if has_tokenizer else base).glob(pattern):
            if file.is_file() and not (draft / file.name).exists():
                shutil.copyfile(file, draft / file.name)


def bound_of(dtype: str, wanted: Any, effect: float) -> float:
    """Return the accepted error of logits: half of the adapter's effect, limited to the range of
    rounding errors. A result without the adapter is off by its entire effect.
    """
    least, most = ROUNDING[dtype]
    largest = max(float(wanted.abs().max()), 1e-6)
    return min(most * largest, max(least * largest, effect / 2))


def _verify(model: Any, wanted: Any, dtype: str, bound: float) -> float:
    off = float((_logits(model) - wanted).abs().max())
    if not off <= bound:
        narrow = dtype != "float32"
        raise HpctrainError(
            "the merged model is not what it should be, and nothing was kept",
            details=(
                f"logits differ by {off:.3g} from those of base and adapter, and may by"
                f" {bound:.3g}",
            ),
            hint=(
                "use --dtype float32" if narrow else "load base and adapter with peft, report this"
            ),
        )
    return off
