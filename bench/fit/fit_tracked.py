"""The memory of a training, found by running its steps with fake tensors: no GPU, no weights, no
data.

The model is transformers' own, with peft's adapter, autocast, checkpointing, TRL's loss and torch's
optimizer; torch's MemTracker adds up what each step allocates and frees. It is the oracle of the
formula (hpctrain/fit/memory.py), and it knows every causal language model that transformers knows.
What CUDA does otherwise than the CPU that this runs on is simulated.

Not seen here, because torch's allocator is not asked: fragmentation, the CUDA context, cuBLAS'
workspaces.
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from hpctrain.fit.activations import is_masked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpctrain.fit.layout import Layout


ATTENTION_NAME = "hpctrain_fit"
#: The efficient kernel's log-sum-exp has rows of whole warps
#: (ATen/native/transformers/cuda/attention.cu: kAlignLSE).
_LSE_ROW = 32


class _Attention(torch.autograd.Function):  # type: ignore[misc]  # torch has no types on the login node
    """Flash attention (ATen/native/transformers/cuda/flash_attn/flash_api.cpp) or, with a mask, the
    efficient kernel.

    Kept: q, k, v, the output, and log-sum-exp in float32. Backward: the gradients; flash also the
    gradient of the queries in float32 and one float32 a query; with grouped queries the gradients
    of keys and values for each head of queries, before they are summed.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
        batch, heads, length, head_dim = query.shape
        # Laid out as (batch, length, heads, head_dim), which the model's transpose makes contiguous
        # again without a copy.
        output = query.new_empty(batch, length, heads, head_dim).transpose(1, 2)
        rows = -(-length // _LSE_ROW) * _LSE_ROW if mask is not None else length
        ctx.save_for_backward(
            query,
            key,
            value,
            output,
            query.new_empty(batch, heads, rows, dtype=torch.float32),
            mask,
        )
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        query, key, value, output, _, mask = ctx.saved_tensors
        batch, heads, length, head_dim = query.shape
        like = gradient.new_empty
        work = [like(batch, heads, length, dtype=torch.float32)]
        shape = (batch, length, heads, head_dim)
        if mask is None:
            rounded = -(-length // 128) * 128
            work.append(like(batch, rounded, heads, -(-head_dim // 32) * 32, dtype=torch.float32))
        of_query = like(shape, dtype=query.dtype).transpose(1, 2)
        of_key, of_value = (
            like(batch, each.shape[2], each.shape[1], head_dim, dtype=each.dtype).transpose(1, 2)
            for each in (key, value)
        )
        if key.shape[1] != heads:
            work += [like(shape, dtype=key.dtype), like(shape, dtype=key.dtype)]
        del work, output
        return of_query, of_key, of_value, None


def attention(*tensors: Any, **_: Any) -> tuple[Any, None]:
    """Play transformers' sdpa_attention_forward on CUDA: flash without a mask, the efficient kernel
    with one.

    With a mask keys and values are repeated for each head of queries, and the mask becomes one of
    the queries' dtype, which each layer keeps (convert_boolean_attn_mask in
    ATen/native/transformers/attention.cpp).
    """
    _module, query, key, value, attention_mask = tensors
    groups = query.shape[1] // key.shape[1]
    if attention_mask is not None and groups > 1:
        key, value = (torch.repeat_interleave(each, groups, dim=1) for each in (key, value))
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (
            each.to(torch.get_autocast_dtype("cpu")) for each in (query, key, value)
        )
    mask = None if attention_mask is None else torch.empty_like(attention_mask, dtype=query.dtype)
    output = _Attention.apply(query, key, value, mask)
    return output.transpose(1, 2).contiguous(), None


class _AllTokens(TorchFunctionMode):  # type: ignore[misc]
    """Plays `tensor[mask]`, which fake tensors cannot: every token is trained on, which is the most
    that there can be.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            func is torch.Tensor.__getitem__
            and isinstance(args[1], torch.Tensor)
            and args[1].dtype is torch.bool
        ):
            tensor, mask = args
            rows = tensor.flatten(0, mask.dim() - 1)
            return rows.index_select(0, torch.zeros(rows.shape[0], dtype=torch.int64))
        return func(*args, **(kwargs or {}))


class _Grouped(torch.autograd.Function):  # type: ignore[misc]
    """The product of a mixture of experts: each row with its expert's matrix.

    Kept: both; the gradient is as large as all experts.
    """

    @staticmethod
    def forward(ctx: Any, rows: Any, weight: Any) -> Any:
        wanted = ctx.needs_input_grad
        ctx.save_for_backward(rows if wanted[1] else None, weight if wanted[0] else None)
        ctx.like = rows.shape, weight.shape, weight.stride()
        return rows.new_empty(rows.shape[0], weight.shape[-1])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (rows, weight, stride), wanted = ctx.like, ctx.needs_input_grad
        of_rows = gradient.new_empty(rows) if wanted[0] else None
        return of_rows, (
            torch.empty_strided(weight, stride, dtype=gradient.dtype) if wanted[1] else None
        )


def grouped_mm(rows: Any, weight: Any, *, offs: Any = None) -> Any:
    """Play torch's grouped_mm on CUDA."""
    del offs
    return _Grouped.apply(rows, weight)


def _nothing(*_: Any, **__: Any) -> None:
    """A Triton kernel that works in place, or a product that is added in place: no memory of its
    own.
    """


def _dropout(tensor: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """CUDA's dropout keeps one byte of each element; the CPU's keeps a tensor of the input's dtype."""
    del inplace
    return torch.native_dropout(tensor, p, training)[0] if training and p > 0 else tensor


@contextlib.contextmanager
def on_cuda() -> Iterator[None]:
    """Let transformers and TRL take the ways that they take on a CUDA GPU, with kernels that hold
    memory and compute nothing.

    TRL 1.16's fused loss (trl/kernels/chunked_logprob.py): its Triton kernels fold each tile of
    logits in place, and `torch.addmm` with `out_dtype` adds in float32 without a copy. Layer norm
    and powers are computed and given out in float32 under CUDA's autocast.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, attention)
    layer_norm, power = torch.nn.functional.layer_norm, torch.pow

    def in_float32(
        tensor: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Any:
        if torch.is_autocast_enabled("cpu"):
            tensor, weight, bias = (
                None if each is None else each.float() for each in (tensor, weight, bias)
            )
        return layer_norm(tensor, shape, weight, bias, eps)

    def power_in_float32(tensor: Any, exponent: Any) -> Any:
        cast = (
            torch.is_autocast_enabled("cpu")
            and torch.is_tensor(tensor)
            and tensor.is_floating_point()
        )  # a base may be a number
        return power(tensor.float() if cast else tensor, exponent)

    with (
        mock.patch.object(chunked_logprob, "_forward_tile", _nothing),
        mock.patch.object(chunked_logprob, "_backward_tile", _nothing),
        mock.patch.object(chunked_logprob, "_addmm_fp32", _nothing),
        mock.patch.object(utils, "_use_triton", return_value=True),
        mock.patch.object(torch.nn.functional, "layer_norm", in_float32),
        mock.patch.object(torch.nn.functional, "dropout", _dropout),
        mock.patch.object(
            torch.nn.functional, "grouped_mm", grouped_mm, create=True
        ),  # torch has it since 2.10
        mock.patch.object(torch, "pow", power_in_float32),
        _AllTokens(),
    ):
        yield


def with_adapter(model: Any, layout: Layout) -> Any:
    """Return the model frozen, with its adapter; a classifier's output layer is trained beside it,
    all of it in float32.
    """
    from peft import LoraConfig, get_peft_model

    lora, task = layout.lora, "SEQ_CLS" if layout.loss == "classes" else "CAUSAL_LM"
    assert lora is not None  # noqa: S101 - for mypy
    asked = LoraConfig(
        r=lora.rank,
        target_modules=list(lora.targets),
        lora_dropout=0.05 if lora.dropout else 0.0,
        task_type=task,
    )
    made = get_peft_model(model, asked)
    for each in made.parameters():
        if task == "SEQ_CLS" and each.requires_grad:
            each.data = each.data.float()
    return made


def as_fake(model: Any) -> None:
    """Replace what lies on the meta device by fake tensors of the CPU; what is tied stays tied."""
    done: dict[int, Any] = {}
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for name, tensor in store.items():
                if tensor is None:
                    continue
                if id(tensor) not in done:
                    new: Any = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                    if isinstance(tensor, torch.nn.Parameter):
                        new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
                    done[id(tensor)] = (
                        new,
                        tensor,
                    )  # the old one is held, so that its id is not given again
                store[name] = done[id(tensor)][0]


@contextlib.contextmanager
def fake_group(layout: Layout) -> Iterator[Any]:
    """Give the mesh of all processes of the layout; None where there is one process."""
    if layout.processes == 1:
        yield None
        return
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=layout.processes, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (layout.processes,))
    finally:
        distributed.destroy_process_group()


def shard_model(model: Any, layout: Layout, mesh: Any) -> None:
    """Divide the model as accelerate 1.15 does with FSDP2 (utils/fsdp_utils.py,
    fsdp2_prepare_model).

    Each decoder layer is a unit, and so is the table of embeddings; the last norm and the output
    layer are one that stays gathered until the backward pass. What is trained is kept in float32,
    and gathered and reduced in the compute dtype.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    compute = None if layout.compute is None else getattr(torch, layout.compute)
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=compute, output_dtype=compute)
    common: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    for each in model.parameters():
        if compute is not None and each.requires_grad:
            each.data = each.data.float()
    base = model.get_base_model() if layout.lora is not None else model
    table, head = base.get_input_embeddings(), base.get_output_embeddings()
    body = base.base_model
    for layer in body.layers:
        fully_shard(layer, reshard_after_forward=True, **common)
    tied = head is not None and table.weight is head.weight
    if not tied:
        fully_shard(table, reshard_after_forward=True, **common)
    tail = [body.norm, *([table] if tied else []), *([head] if head is not None else [])]
    fully_shard(tail, reshard_after_forward=False, **common)
    fully_shard(model, **common)


OPTIMIZERS = ("adamw_torch_fused", "adamw_torch", "sgd")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedMemory:
    """What the tracker saw.

    Attributes:
        peak: bytes allocated at the peak of a step when the optimizer has its states.
        parts: bytes at the peak by MemTracker's categories: Parameter, Gradient, Activation, Temp,
            Optstate, Buffer, Other.
        moments: the peak of each part of the step: forward, backward, optimizer.
    """

    peak: int
    parts: Mapping[str, int]
    moments: Mapping[str, int]


def tracked(config: Mapping[str, Any], layout: Layout, *, labels: int = 2) -> TrackedMemory:
    """Run a step with fake tensors and return its peak; with accumulation, of two micro batches;
    and an evaluation, where there is one.

    Args:
        config: the content of config.json.
        layout: how it is trained.
        labels: of a classifier (`loss` is `classes`).

    Raises:
        ValueError: this layout cannot be run with fake tensors.
    """
    _check(layout)
    from torch._subclasses.fake_tensor import FakeTensorMode

    described = _config(config, labels if layout.loss == "classes" else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with on_cuda(), fake_group(layout) as mesh:
            with torch.device("meta"):
                model = _model(described, layout)
            with FakeTensorMode(allow_non_fake_inputs=True):
                as_fake(model)
                if mesh is not None:
                    shard_model(model, layout, mesh)
                return _Run(model, layout).step()


def _check(layout: Layout) -> None:
    if layout.optimizer not in OPTIMIZERS:
        raise ValueError(f"with fake tensors run {', '.join(OPTIMIZERS)}, not {layout.optimizer}")
    if layout.quantization != "none" or layout.compute == "float16":
        raise ValueError("quantized weights and loss scaling do not run with fake tensors")
    if layout.processes > 1 and layout.sharding != "fsdp":
        raise ValueError(f"several processes run with fsdp alone, not with {layout.sharding}")


def _config(content: Mapping[str, Any], labels: int | None) -> Any:
    """Return transformers' configuration of it; `labels`: of a classifier, which needs to know its
    padding.
    """
    from transformers import AutoConfig

    left_out = (
        {"quantization_config"}
        if labels is None
        else {"quantization_config", "id2label", "label2id"}
    )
    values = {key: value for key, value in content.items() if key not in left_out}
    values |= {} if labels is None else {"num_labels": labels, "pad_token_id": 0}
    return AutoConfig.for_model(**values)


def _tracker() -> Any:
    """Return a MemTracker that also takes frozen parameters: torch 2.13's wants a hook on the
    gradient of each.
    """
    from torch.distributed._tools.mem_tracker import MemTracker

    class _None:
        def remove(self) -> None:
            """There is no hook."""

    class Tracker(MemTracker):  # type: ignore[misc]
        def _track_module_params_and_buffers(
            self, module: Any, install_grad_hooks: bool = True
        ) -> Any:
            for each in module.parameters():
                if not each.requires_grad:
                    self._param_to_grad_hook_handles[each] = (_None(), _None())
            return super()._track_module_params_and_buffers(module, install_grad_hooks)

        def _update_peak_stats(self, peak_state: Any) -> None:
            """Keep the peak of all; torch's also keeps one for each module, which takes half of the
            time.
            """
            del peak_state
            for device, now in self._curr_mem_snap.items():
                if self._peak_mem.get(device, 0) < now["Total"]:
                    self._peak_mem[device] = now["Total"]
                    self._peak_mem_snap[device] = dict(now)

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            # Two gradients that meet: autograd adds real tensors in place, and makes a third of
            # fake ones (input_buffer.cpp, accumulate).
            meet = (
                func is torch.ops.aten.add.Tensor
                and self._mod_tracker.is_bw
                and not torch.is_grad_enabled()
            )
            if (
                meet
                and isinstance(args[1], torch.Tensor)
                and args[0].shape == args[1].shape
                and args[0].dtype == args[1].dtype
            ):
                return args[0].add_(args[1])
            return super().__torch_dispatch__(func, types, args, kwargs)

    return Tracker()


class _Run:
    """One model, its optimizer, and the tracker over them."""

    def __init__(self, model: Any, layout: Layout) -> None:

        self.layout, self.model = layout, model
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = _optimizer(layout, trained)
        self.trained = trained
        self.tracker = _tracker()
        self.tracker.track_external(self.model, self.optimizer)
        self.leaves: list[Any] = []
        if layout.lora is not None and layout.checkpointing == "full":
            model.get_input_embeddings().register_forward_hook(
                lambda *found: self.leaves.append(found[2])
            )

    def step(self) -> TrackedMemory:
        """Run one step after one that gave the optimizer its states; its peak."""
        best: tuple[int, dict[str, int]] = (0, {})
        peaks: dict[str, int] = {}
        with self.tracker:
            for each in self.trained:
                each.grad = torch.empty_like(each)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self._moment()
            for moment in self._step():
                total, parts = self._moment()
                if moment == "optimizer" and self.layout.processes > 1:
                    # DTensor works out shapes with whole tensors there, which the tracker takes for
                    # memory
                    continue
                peaks[moment] = max(total, peaks.get(moment, 0))
                best = max(best, (total, parts), key=lambda found: found[0])
        return TrackedMemory(peak=best[0], parts=best[1], moments=peaks)

    def _moment(self) -> tuple[int, dict[str, int]]:
        """Return the peak since the last call, in all and by category, and begin anew."""
        snapshot = self.tracker.get_tracker_snapshot("peak")
        device = next(iter(snapshot))
        parts = {
            str(getattr(name, "value", name)): int(size) for name, size in snapshot[device].items()
        }
        current = self.tracker.get_tracker_snapshot("current")
        self.tracker._peak_mem_snap = current
        self.tracker._peak_mem = {each: now["Total"] for each, now in current.items()}
        return parts.pop("Total"), parts

    def _step(self) -> Iterator[str]:
        layout = self.layout
        passes = min(layout.accumulation, 2)
        for number in range(passes):
            if layout.processes > 1:  # Trainer has them reduced in a step's last pass alone
                self.model.set_requires_gradient_sync(number == passes - 1)
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
        """Free the output of frozen embeddings, of which checkpointing wants a gradient: the
        tracker's own hooks would hold it.
        """
        for each in self.leaves:
            for tensor in (each, each.grad):
                if tensor is not None:
                    tensor.untyped_storage().resize_(0)
        self.leaves.clear()

    def _loss(self, rows: int | None = None) -> Any:
        layout = self.layout
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
        fused = {"fused_lm_head": True} if self.layout.loss == "fused" else {}
        items = torch.ones((), dtype=torch.int64)
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            labels=ids.clone(),
            use_cache=False,
            num_items_in_batch=items,
            **fused,
        )
        return self._wide(out).loss

    def _classes(self, ids: Any, mask: Any) -> Any:
        """Return the loss of a classifier: rows with positions and a mask, and a label each
        (hpctrain/training/classifier.py).
        """
        positions, real = torch.zeros_like(ids), torch.ones_like(ids)
        out = self._wide(
            self.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
        )
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
    """Return the model as TRL 1.16's SFTTrainer makes it: adapter, checkpointing, fused output
    layer.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    from trl.trainer.utils import add_fused_lm_head

    attention = "eager" if layout.attention == "eager" else ATTENTION_NAME
    kind = AutoModelForSequenceClassification if layout.loss == "classes" else AutoModelForCausalLM
    model = kind.from_config(
        config, dtype=getattr(torch, layout.weights), attn_implementation=attention
    )
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

    if layout.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=1e-3)
    fused = layout.optimizer == "adamw_torch_fused"
    return torch.optim.AdamW(trained, lr=1e-3, fused=fused, foreach=not fused)
