"""Merging a LoRA adapter into its base model: a folder that a server loads, put into place when it was loaded and gives the same.

The base is loaded once, in the dtype of the result. Its logits with the adapter on top are kept; then the adapter is added to the
weights, the folder is written under another name, loaded anew, and asked the same. Only then it gets its name.
"""

from __future__ import annotations

import gc
import hashlib
import shlex
import shutil
import time
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpctrain import __version__
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import files
from hpctrain.runs.manifest import read_manifest, write_manifest
from hpctrain.training import merge_adapter
from hpctrain.training.merge_adapter import Adapter, Needs

RECORD = "hpctrain-merge.json"
"""In the merged folder: of what it was made."""

#: How far the logits may be off by rounding, of their largest: always, and at most where the adapter changes more than that.
ROUNDING = {"float32": (1e-5, 1e-4), "float16": (5e-3, 2e-2), "bfloat16": (3e-2, 1e-1)}
_TOKENIZER = (
    "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "*.model", "tekken.json", "chat_template*",
    "processor_config.json", "preprocessor_config.json",
)  # fmt: skip
_CHECKED_TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for.

    Attributes:
        adapter: its folder.
        to: the folder to make; it must not be there.
        base: the base model's folder; None: the one that the adapter names.
        dtype: of the result; None: the base's own.
        max_shard_size: of one file of weights, such as `5GB`.
        device: `cpu`, `cuda`, `cuda:1`.
        say: told what is being done, in a line.
    """

    adapter: Path
    to: Path
    base: Path | None = None
    dtype: str | None = None
    max_shard_size: str = "5GB"
    device: str = "cpu"
    say: Callable[[str], None] = field(default=lambda _: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What was made.

    Attributes:
        folder: where it is.
        base: what it was made of, besides the adapter.
        dtype: of its weights.
        parameters: of the model.
        bytes: of all files.
        off: largest difference of a logit, loaded anew, from the base's with the adapter on top.
        effect: largest difference that the adapter makes to a logit at all.
        bound: what `off` had to stay below.
        needs: memory and disk.
        notes: what was done that one may not expect.
    """

    folder: Path
    base: Path
    dtype: str
    parameters: int
    bytes: int
    off: float
    effect: float
    bound: float
    needs: Needs
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is known before anything is loaded; `notes` grows."""

    adapter: Adapter
    base: Path
    dtype: str
    config: Any
    loader: Any
    parameters: int
    needs: Needs
    notes: list[str]
    began: float


def merge(request: Request) -> Merged:
    """Merge; see the module.

    Raises:
        UsageError: the adapter, the base or the target are not what they should be.
        HpctrainError: memory or disk are too small, or the merged folder does not give what it should; nothing is left then.
        OSError: the folder cannot be written.
    """
    with warnings.catch_warnings():
        return _merge(request)


def _merge(request: Request) -> Merged:
    plan = _planned(request)
    draft = request.to.absolute().with_name(f".{request.to.name}.merging-{uuid.uuid4().hex[:12]}")
    try:
        draft.mkdir(parents=True)  # before minutes of loading, so that a folder that cannot be written is said at once
    except OSError as error:
        what = f"{request.to} cannot be made: {error.strerror}"
        raise HpctrainError(what, fix=f"--to FOLDER elsewhere; ls -ld {shlex.quote(str(draft.parent))}") from error
    try:
        wanted, whole, effect = _made(request, plan, draft)
        gc.collect()  # the model goes before it is loaded again
        request.say("loading what was written")
        bound = bound_of(plan.dtype, wanted, effect)
        off = _verify(draft, plan.loader, plan.dtype, device=request.device, wanted=wanted, whole=whole, bound=bound)
        if effect <= bound:
            why = f"no more than the rounding of {plan.dtype}" + ("; --dtype float32 keeps it" if plan.dtype != "float32" else "")
            plan.notes.append(f"the adapter changes logits by {effect:.2g}, {why}")
        size = _finish(request, plan, draft, {"off": off, "effect": effect, "bound": bound})
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Merged(
        folder=request.to, base=plan.base, dtype=plan.dtype, parameters=plan.parameters, bytes=size, off=off, effect=effect,
        bound=bound, needs=plan.needs, notes=tuple(plan.notes),
    )  # fmt: skip


def _planned(request: Request) -> _Plan:
    """Look at everything that can be wrong before the weights are loaded."""
    if request.to.exists() or request.to.is_symlink():
        raise UsageError(f"{request.to} is there already", fix="--to ANOTHER_FOLDER")
    adapter = merge_adapter.read(request.adapter)
    base = merge_adapter.base_of(adapter, request.base)
    dtype = request.dtype or _own_dtype(base)
    _quiet()
    config, loader = merge_adapter.config_of(adapter, base), merge_adapter.model_class(adapter, base)
    parameters = merge_adapter.check_fit(adapter, config, loader, base)
    needs = merge_adapter.needs(parameters, dtype, adapter, request.to, request.device)
    merge_adapter.check_needs(needs, target=request.to, device=request.device)
    request.say(f"loading {base}")
    free = f"{needs.memory / 1e9:.3g} GB of memory are needed, {needs.memory_free / 1e9:.3g} GB are free"
    request.say(f"{parameters:,} parameters in {dtype}; {free}")
    return _Plan(
        adapter=adapter, base=base, dtype=dtype, config=config, loader=loader, parameters=parameters, needs=needs,
        notes=_notes(adapter, base, request.base), began=time.monotonic(),
    )  # fmt: skip


def _finish(request: Request, plan: _Plan, draft: Path, found: dict[str, float]) -> int:
    """Write where it comes from and the manifest, give the folder its name, and return the bytes of its files."""
    more = {**found, "parameters": plan.parameters, "dtype": plan.dtype, "notes": plan.notes}
    files.write_json(draft / RECORD, _record(request, plan, more))
    source = read_manifest(request.adapter)
    made = write_manifest(
        draft, step=source.step if source else 0, world_size=source.world_size if source else 1, state=("model",),
        run_id=source.run_id if source else None, attempt=source.attempt if source else None, began=plan.began,
    )  # fmt: skip
    if request.to.exists():
        raise UsageError(f"{request.to} has come meanwhile", fix="--to ANOTHER_FOLDER")
    draft.rename(request.to)
    return made.bytes


def _own_dtype(base: Path) -> str:
    config = files.read_json(base / "config.json") or {}
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    said = next((each for each in (config.get("dtype"), config.get("torch_dtype"), (text or {}).get("dtype")) if each), "float32")
    return str(said) if said in merge_adapter.DTYPES else "float32"


def _notes(adapter: Adapter, base: Path, asked: Path | None) -> list[str]:
    named = adapter.base
    if asked is None or named is None or Path(named).expanduser().resolve() == base.resolve():
        return []
    return [f"the adapter was trained on {named}; that {base} is the same model is your word"]


def _quiet() -> None:
    from hpctrain.training.process import disable_progress_bars

    disable_progress_bars()
    warnings.filterwarnings("ignore", module="peft")  # of tied weights, which are looked at here
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


# -- merging -----------------------------------------------------------------------------------------------------------


def _made(request: Request, plan: _Plan, draft: Path) -> tuple[Any, Any, float]:
    """Write the merged model, and return the logits of base and adapter, those of the merged weights, and the adapter's effect."""
    from peft import PeftModel

    adapter, base = plan.adapter, plan.base
    model = _load(plan.loader, base, plan.dtype, request.device, config=_base_config(base, plan.config))
    rows, vocabulary = model.get_input_embeddings().weight.shape[0], merge_adapter.vocabulary_of(adapter)
    if vocabulary is not None and vocabulary != rows:
        plan.notes.append(f"the vocabulary grows from {rows} to {vocabulary}, as the adapter has it")
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
    if _untie(model, adapter):
        plan.notes.append("embedding and output layer were one tensor in the base; the adapter changes one of them, and they are two now")
    try:
        both = PeftModel.from_pretrained(model, str(adapter.folder), torch_device=request.device)
    except (RuntimeError, ValueError, KeyError) as error:
        said = tuple(str(error).strip().splitlines()[:3])
        raise UsageError(f"the adapter in {adapter.folder} cannot be put onto {base}", details=said, fix="--base FOLDER") from error
    both.eval()
    wanted = logits(both)
    with both.disable_adapter():
        effect = float((logits(both) - wanted).abs().max())
    request.say("merging")
    try:
        merged = both.merge_and_unload(safe_merge=True)
    except ValueError as error:  # NaN in the adapter
        fix = "merge an earlier checkpoint: hpctrain checkpoints list"
        raise HpctrainError("the adapter cannot be merged", details=(str(error),), fix=fix) from error
    return wanted, _write(merged, draft, adapter, base, request.max_shard_size), effect


def _base_config(base: Path, config: Any) -> Any:
    """Return the configuration to load the base with: the merged one's but for the vocabulary, which grows afterwards."""
    from transformers import AutoConfig

    size = AutoConfig.from_pretrained(str(base), local_files_only=True).get_text_config().vocab_size
    config.get_text_config().vocab_size = size
    return config


def _load(loader: Any, folder: Path, dtype: str, device: str, **named: Any) -> Any:
    import torch
    from safetensors import SafetensorError

    try:
        model = loader.from_pretrained(str(folder), dtype=getattr(torch, dtype), local_files_only=True, **named)
    except SafetensorError as error:
        fix = f"ls -l {shlex.quote(str(folder))}, and copy what is damaged anew"
        raise UsageError(f"the weights in {folder} cannot be read", details=(str(error),), fix=fix) from error
    return model.to(device).eval()


def _untie(model: Any, adapter: Adapter) -> bool:
    """Make two tensors of a tied embedding where the adapter changes one: added to the tensor, the change would reach both."""
    inner, outer = model.get_input_embeddings(), model.get_output_embeddings()
    tied = outer is not None and inner.weight.data_ptr() == outer.weight.data_ptr()
    if not tied or not merge_adapter.touches_embeddings(adapter) or adapter.config.get("ensure_weight_tying"):
        return False
    import torch

    outer.weight = torch.nn.Parameter(inner.weight.detach().clone(), requires_grad=False)
    model.config.tie_word_embeddings = model.config.get_text_config().tie_word_embeddings = False
    return True


def logits(model: Any) -> Any:
    """Return a model's logits, in float32 on the host, for token ids that are the same each time, without padding."""
    import torch

    size = model.get_input_embeddings().weight.shape[0]
    pad = getattr(model.config.get_text_config(), "pad_token_id", None)
    known = [number for number in range(1, size, max(1, size // 997)) if number != pad]
    ids = torch.tensor([[known[(place * 31 + 7) % len(known)] for place in range(_CHECKED_TOKENS)]])
    with torch.no_grad():
        return model(input_ids=ids.to(next(model.parameters()).device)).logits.float().cpu()


def _write(model: Any, draft: Path, adapter: Adapter, base: Path, max_shard_size: str) -> Any:
    """Write the folder, and return the merged model's logits, which the written one must give to the last bit."""
    model.save_pretrained(draft, max_shard_size=max_shard_size)
    source = adapter.folder if any(any(adapter.folder.glob(pattern)) for pattern in ("tokenizer*", "vocabulary.json")) else base
    for pattern in _TOKENIZER:
        for file in source.glob(pattern):
            if file.is_file() and not (draft / file.name).exists():
                shutil.copyfile(file, draft / file.name)
    if (base / "generation_config.json").is_file() and not adapter.classifies:
        shutil.copyfile(base / "generation_config.json", draft / "generation_config.json")
    return logits(model)


def bound_of(dtype: str, wanted: Any, effect: float) -> float:
    """Return how far logits may be off: rounding, and never more than half of what the adapter changes, where that is more than it.

    A folder into which no adapter was merged is off by all of that.
    """
    least, most = ROUNDING[dtype]
    largest = max(float(wanted.abs().max()), 1e-6)
    return min(most * largest, max(least * largest, effect / 2))


def _verify(draft: Path, loader: Any, dtype: str, *, device: str, wanted: Any, whole: Any, bound: float) -> float:
    """Load the written folder, compare, and return how far the logits are off.

    Raises:
        HpctrainError: it is not complete, not finite, or gives something else.
    """
    import torch

    model, said = loader.from_pretrained(str(draft), dtype=getattr(torch, dtype), local_files_only=True, output_loading_info=True)
    model = model.to(device).eval()
    wrong = [
        f"{name}: {', '.join(sorted(map(str, said[name]))[:4])}"
        for name in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if said[name]
    ]
    wrong += [
        f"{name} is not finite" for name, tensor in model.state_dict().items() if tensor.is_floating_point() and not tensor.isfinite().all()
    ]
    found = logits(model)
    off = float((found - wanted).abs().max())
    if not torch.equal(found, whole):
        wrong.append(f"loaded anew, logits differ by {float((found - whole).abs().max()):.3g} from those of the weights that were written")
    if not off <= bound:
        wrong.append(f"logits differ by {off:.3g} from those of base and adapter, and may by {bound:.3g}")
    if wrong:
        raise HpctrainError(
            "the merged model is not what it should be, and nothing was kept", details=tuple(wrong[:6]),
            fix="--dtype float32" if dtype != "float32" else "load base and adapter with peft, and report this",
        )  # fmt: skip
    return off


# -- where it comes from -----------------------------------------------------------------------------------------------


def _record(request: Request, plan: _Plan, more: dict[str, Any]) -> dict[str, Any]:
    import peft
    import torch
    import transformers

    adapter, base = plan.adapter, plan.base
    versions = {"hpctrain": __version__, "torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}
    of_adapter = _digests(adapter.folder, (*merge_adapter.WEIGHTS, merge_adapter.CONFIG))
    of_base = _digests(base, ("*.safetensors", "pytorch_model*.bin", "config.json"))
    return {
        "schema": 1,
        "at": round(time.time(), 3),
        "adapter": {"path": str(request.adapter.absolute()), "files": of_adapter},
        "base": {"path": str(base.absolute()), "named": adapter.base, "files": of_base},
        "versions": versions,
        **more,
    }


def _digests(folder: Path, patterns: tuple[str, ...]) -> dict[str, str]:
    """Return the SHA-256 of files, by name."""
    found = {}
    for pattern in patterns:
        for file in sorted(folder.glob(pattern)):
            with file.open("rb") as stream:
                found[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found
