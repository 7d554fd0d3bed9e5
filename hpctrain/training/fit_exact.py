"""The memory of a training, found by running its steps with fake tensors: no GPU, no weights, no data.

    python -m hpctrain.training.fit_exact FOLDER --micro_batch 4 --length 4096 --checkpointing full

The model is transformers' own, with peft's adapter, autocast, checkpointing, TRL's loss and torch's optimizer; torch's MemTracker adds up
what each step allocates and frees. It is the oracle of the formula (hpctrain/fit/memory.py), and it knows every causal language model that
transformers knows. What CUDA does otherwise than the CPU that this runs on is played (hpctrain/training/fit_exact_kernels.py).

Not seen here, because torch's allocator is not asked: fragmentation, the CUDA context, cuBLAS' workspaces.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.fit.layout import Layout, Lora
from hpctrain.fit.memory import is_masked
from hpctrain.fit.parameters import lora_targets
from hpctrain.fit.shape import read_shape
from hpctrain.jobs import shell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

GIB = 1 << 30
OPTIMIZERS = ("adamw_torch_fused", "adamw_torch", "sgd")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMemory:
    """What the tracker saw.

    Attributes:
        peak: bytes allocated at the peak of a step when the optimizer has its states.
        parts: bytes at the peak by MemTracker's categories: Parameter, Gradient, Activation, Temp, Optstate, Buffer, Other.
        moments: the peak of each part of the step: forward, backward, optimizer.
    """

    peak: int
    parts: Mapping[str, int]
    moments: Mapping[str, int]


def exact(source: Mapping[str, Any] | str | Path, layout: Layout, *, labels: int = 2) -> ExactMemory:
    """Run a step with fake tensors and return its peak; with accumulation, of two micro batches; and an evaluation, where there is one.

    Args:
        source: a config.json's content, or its file, or the folder that has it.
        layout: how it is trained.
        labels: of a classifier (`loss` is `classes`).

    Raises:
        HpctrainError: this layout cannot be run with fake tensors, or config.json cannot be read.
    """
    _check(layout)
    content = _content(source) if isinstance(source, (str, Path)) else source
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from hpctrain.training.fit_exact_kernels import on_cuda
    from hpctrain.training.fit_exact_model import as_fake
    from hpctrain.training.fit_exact_sharding import group, shard

    config = _config(content, labels if layout.loss == "classes" else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with on_cuda(), group(layout) as mesh:
            with torch.device("meta"):
                model = _model(config, layout)
            with FakeTensorMode(allow_non_fake_inputs=True):
                as_fake(model)
                if mesh is not None:
                    shard(model, layout, mesh)
                return _Run(model, layout).step()


def _check(layout: Layout) -> None:
    problems = []
    if layout.optimizer not in OPTIMIZERS:
        problems.append(f"the optimizer '{layout.optimizer}' does not run with fake tensors; these do: {', '.join(OPTIMIZERS)}")
    if layout.quantization != "none":
        problems.append("quantized weights do not run with fake tensors")
    if layout.processes > 1 and layout.sharding != "fsdp":
        problems.append(f"with several processes fsdp alone runs with fake tensors, not {layout.sharding}")
    if layout.compute == "float16":
        problems.append("float16 with loss scaling is not run with fake tensors")
    if problems:
        details = tuple(problems) if len(problems) > 1 else ()
        what = problems[0] if len(problems) == 1 else f"{len(problems)} parts of this layout cannot be run"
        raise UsageError(what, details=details, fix="without --exact, the formula knows all of them: hpctrain fit")


def _content(source: str | Path) -> dict[str, Any]:
    """Return what a config.json, or that of a folder, says."""
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}", details=(str(error),), fix=f"ls -l {shell.quote(path)}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no JSON object", fix=f"head -c 300 {path}")
    return content


def _config(content: Mapping[str, Any], labels: int | None) -> Any:
    """Return transformers' configuration of it; `labels`: of a classifier, which needs to know its padding."""
    from transformers import AutoConfig

    left_out = {"quantization_config"} if labels is None else {"quantization_config", "id2label", "label2id"}
    values = {key: value for key, value in content.items() if key not in left_out}
    values |= {} if labels is None else {"num_labels": labels, "pad_token_id": 0}
    try:
        return AutoConfig.for_model(**values)
    except Exception as error:  # its own validation raises errors of several kinds
        what = f"transformers cannot read this config.json of model_type {content.get('model_type')!r}"
        raise HpctrainError(what, details=(str(error)[:400],), fix="pip install -U transformers, or mend config.json") from error


def _tracker() -> Any:
    """Return a MemTracker that also takes frozen parameters: torch 2.13's wants a hook on the gradient of each."""
    import torch
    from torch.distributed._tools.mem_tracker import MemTracker

    class _None:
        def remove(self) -> None:
            """There is no hook."""

    class Tracker(MemTracker):  # type: ignore[misc]
        def _track_module_params_and_buffers(self, module: Any, install_grad_hooks: bool = True) -> Any:
            for each in module.parameters():
                if not each.requires_grad:
                    self._param_to_grad_hook_handles[each] = (_None(), _None())
            return super()._track_module_params_and_buffers(module, install_grad_hooks)

        def _update_peak_stats(self, peak_state: Any) -> None:
            """Keep the peak of all; torch's also keeps one for each module, which takes half of the time."""
            del peak_state
            for device, now in self._curr_mem_snap.items():
                if self._peak_mem.get(device, 0) < now["Total"]:
                    self._peak_mem[device] = now["Total"]
                    self._peak_mem_snap[device] = dict(now)

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # Two gradients that meet: autograd adds real tensors in place, and makes a third of fake ones (input_buffer.cpp, accumulate).
            meet = func is torch.ops.aten.add.Tensor and self._mod_tracker.is_bw and not torch.is_grad_enabled()
            if meet and isinstance(args[1], torch.Tensor) and args[0].shape == args[1].shape and args[0].dtype == args[1].dtype:
                return args[0].add_(args[1])
            return super().__torch_dispatch__(func, types, args, kwargs)

    return Tracker()


class _Run:
    """One model, its optimizer, and the tracker over them."""

    def __init__(self, model: Any, layout: Layout) -> None:
        import torch

        self.layout, self.torch, self.model = layout, torch, model
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = _optimizer(layout, trained)
        self.trained = trained
        self.tracker = _tracker()
        self.tracker.track_external(self.model, self.optimizer)
        self.leaves: list[Any] = []
        if layout.lora is not None and layout.checkpointing == "full":
            model.get_input_embeddings().register_forward_hook(lambda *found: self.leaves.append(found[2]))

    def step(self) -> ExactMemory:
        """Run one step after one that gave the optimizer its states; its peak."""
        best: tuple[int, dict[str, int]] = (0, {})
        peaks: dict[str, int] = {}
        with self.tracker:
            for each in self.trained:
                each.grad = self.torch.empty_like(each)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self._moment()
            for moment in self._step():
                total, parts = self._moment()
                if moment == "optimizer" and self.layout.processes > 1:
                    continue  # DTensor works out shapes with whole tensors there, which the tracker takes for memory
                peaks[moment] = max(total, peaks.get(moment, 0))
                best = max(best, (total, parts), key=lambda found: found[0])
        return ExactMemory(peak=best[0], parts=best[1], moments=peaks)

    def _moment(self) -> tuple[int, dict[str, int]]:
        """Return the peak since the last call, in all and by category, and begin anew."""
        snapshot = self.tracker.get_tracker_snapshot("peak")
        device = next(iter(snapshot))
        parts = {str(getattr(name, "value", name)): int(size) for name, size in snapshot[device].items()}
        current = self.tracker.get_tracker_snapshot("current")
        self.tracker._peak_mem_snap = current
        self.tracker._peak_mem = {each: now["Total"] for each, now in current.items()}
        return parts.pop("Total"), parts

    def _step(self) -> Iterator[str]:
        torch, layout = self.torch, self.layout
        passes = min(layout.accumulation, 2)
        for number in range(passes):
            if layout.processes > 1:  # Trainer has them reduced in a step's last pass alone, unless it is told otherwise
                self.model.set_requires_gradient_sync(layout.sync_each_batch or number == passes - 1)
            loss = self._loss()
            yield "forward"
            loss.backward()
            del loss
            self._let_go()
            yield "backward"
            self.tracker.reset_mod_stats()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        yield "optimizer"
        if layout.evaluation:
            self.model.eval()
            with torch.no_grad():
                self._loss(layout.evaluation)
            yield "evaluation"

    def _let_go(self) -> None:
        """Free the output of frozen embeddings, of which checkpointing wants a gradient: the tracker's own hooks would hold it."""
        for each in self.leaves:
            for tensor in (each, each.grad):
                if tensor is not None:
                    tensor.untyped_storage().resize_(0)
        self.leaves.clear()

    def _loss(self, rows: int | None = None) -> Any:
        torch, layout = self.torch, self.layout
        rows = rows or layout.micro_batch
        shape = (1, rows * layout.length) if layout.padding_free else (rows, layout.length)
        ids = torch.zeros(*shape, dtype=torch.int64)
        mask = None
        if is_masked(replace(layout, micro_batch=rows)):
            mask = torch.ones(shape[0], 1, shape[1], shape[1], dtype=torch.bool)
        with contextlib.ExitStack() as stack:
            if layout.compute is not None:
                stack.enter_context(torch.autocast("cpu", dtype=getattr(torch, layout.compute)))
            return self._classes(ids, mask) if layout.loss == "classes" else self._words(ids, mask)

    def _words(self, ids: Any, mask: Any) -> Any:
        """Return the loss of a language model, as TRL's SFTTrainer takes it."""
        torch = self.torch
        fused = {"fused_lm_head": True} if self.layout.loss == "fused" else {}
        items = torch.ones((), dtype=torch.int64)
        out = self.model(input_ids=ids, attention_mask=mask, labels=ids.clone(), use_cache=False, num_items_in_batch=items, **fused)
        return self._wide(out).loss

    def _classes(self, ids: Any, mask: Any) -> Any:
        """Return the loss of a classifier: rows with positions and a mask, and a label each (hpctrain/training/classify_trainer.py)."""
        torch = self.torch
        positions, real = torch.zeros_like(ids), torch.ones_like(ids)
        out = self._wide(self.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False))
        labels = torch.zeros(len(ids), dtype=torch.int64)
        loss = torch.nn.functional.cross_entropy(out.logits.float(), labels, reduction="none").sum()
        del real  # the batch's own mask, from which the model makes the other
        return loss

    def _wide(self, out: Any) -> Any:
        """Return what a model puts out in float32, as accelerate wraps the model for autocast."""
        if self.layout.compute is None:
            return out
        from accelerate.utils import convert_to_fp32

        return convert_to_fp32(out)


def _model(config: Any, layout: Layout) -> Any:
    """Return the model as TRL 1.16's SFTTrainer makes it: adapter, checkpointing, fused output layer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    from trl.trainer.utils import add_fused_lm_head

    from hpctrain.training.fit_exact_kernels import NAME
    from hpctrain.training.fit_exact_model import with_adapter

    attention = "eager" if layout.attention == "eager" else NAME
    kind = AutoModelForSequenceClassification if layout.loss == "classes" else AutoModelForCausalLM
    try:
        model = kind.from_config(config, dtype=getattr(torch, layout.weights), attn_implementation=attention)
    except Exception as error:  # transformers lists all that it knows there, in one line of some thousand characters
        what = f"transformers makes no {kind.__name__.removeprefix('AutoModelFor')} of model_type {config.model_type!r}"
        raise HpctrainError(
            what, details=(str(error)[:200],), fix="a short run measures it: hpctrain submit --time 15 -- --max_steps 5"
        ) from error
    if layout.loss != "classes":
        add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    if layout.lora is not None:
        model = with_adapter(model, layout)
    if layout.checkpointing == "full":
        if layout.lora is not None:
            model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def _optimizer(layout: Layout, trained: list[Any]) -> Any:
    import torch

    if layout.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=1e-3)
    fused = layout.optimizer == "adamw_torch_fused"
    return torch.optim.AdamW(trained, lr=1e-3, fused=fused, foreach=not fused)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hpctrain.training.fit_exact", description="The memory of a training step, run with fake tensors."
    )
    parser.add_argument("model", metavar="CONFIG_OR_FOLDER", help="a config.json, or the folder that has one")
    parser.add_argument("--micro_batch", type=_count, default=8, help="rows of one process in one forward pass (8)")
    parser.add_argument("--length", type=_count, default=1024, help="tokens of a row (1024)")
    parser.add_argument("--accumulation", type=_count, default=1, help="micro batches of one step (1)")
    parser.add_argument("--checkpointing", choices=("off", "full"), default="off")
    parser.add_argument("--weights", choices=("float32", "bfloat16"), default="float32", help="the dtype of the weights (float32)")
    parser.add_argument("--compute", choices=("float32", "bfloat16"), default="bfloat16", help="autocast's dtype; float32 for none")
    parser.add_argument("--attention", choices=("sdpa", "flash", "flex", "eager"), default="sdpa")
    parser.add_argument("--loss", choices=("fused", "logits", "classes"), default="fused", help="classes: of a classifier")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default=OPTIMIZERS[0])
    parser.add_argument("--padding_free", action="store_true", help="rows are laid end to end")
    parser.add_argument("--lora_r", type=_count, help="the rank of a LoRA adapter; the base is frozen then")
    parser.add_argument("--lora_target_modules", nargs="+", metavar="NAME", help="layers of the adapter, or all-linear")
    parser.add_argument("--lora_dropout", action="store_true", help="the adapter has dropout")
    parser.add_argument("--json", action="store_true", help="one object with raw bytes")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not '{text}'")
    return int(text)


def _layout(asked: argparse.Namespace, config: Mapping[str, Any]) -> Layout:
    """Return the layout that was asked for; the adapter's layers by the formula's knowledge of the architecture."""
    lora = None
    if asked.lora_r is not None:
        targets = lora_targets(read_shape(config), asked.lora_target_modules)
        lora = Lora(rank=asked.lora_r, targets=targets, dropout=asked.lora_dropout)
    return Layout(
        micro_batch=asked.micro_batch,
        length=asked.length,
        accumulation=asked.accumulation,
        checkpointing=asked.checkpointing,
        weights=asked.weights,
        compute=None if asked.compute == "float32" else asked.compute,
        attention=asked.attention,
        loss=asked.loss,
        optimizer=asked.optimizer,
        padding_free=asked.padding_free,
        lora=lora,
    )


def main(argv: list[str] | None = None) -> int:
    """Print what a step holds at its peak; 2 where it cannot be run."""
    asked = _parser().parse_args(argv)
    try:
        config = _content(asked.model)
        found = exact(config, _layout(asked, config))
    except HpctrainError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_code
    if asked.json:
        shown = {"schema": 1, "peak": found.peak, "parts": dict(found.parts), "moments": dict(found.moments)}
        sys.stdout.write(json.dumps(shown) + "\n")
        return 0
    lines = [f"peak {found.peak / GIB:9.3f} GiB, without fragmentation, CUDA context and cuBLAS"]
    lines += [f"  {name.lower():12}{size / GIB:9.3f} GiB" for name, size in found.parts.items() if size >= GIB / 1000]
    lines += [f"  {name + ':':12}{size / GIB:9.3f} GiB at its peak" for name, size in found.moments.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
