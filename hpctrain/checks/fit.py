"""The answer of `hpctrain fit`: the job's model, layout and site, and the layouts that fit."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.checks.job import hardware, limits
from hpctrain.checks.job.context import Case, Fact, InputFacts, PathFacts, Surroundings
from hpctrain.checks.service import DISCOVERY_TIMEOUT_S, profile_of
from hpctrain.clusters import discover
from hpctrain.clusters.merge import merge
from hpctrain.config import arguments as training_arguments
from hpctrain.config.arguments import Arguments
from hpctrain.data import manifest
from hpctrain.errors import UsageError
from hpctrain.fit import gpus, layouts, memory, training_options
from hpctrain.fit.layout import Layout
from hpctrain.fit.layouts import LayoutEstimate
from hpctrain.jobs.request import Job, Request, job_of, suggested
from hpctrain.jobs.scripts import jobs_of
from hpctrain.slurm.notations import units
from hpctrain.util import files, shell, stored

_EPOCHS = 3.0  # TrainingArguments.num_train_epochs
_ONE_PROCESS = (
    "DeepSpeed in one process is not followed: its bucket (1 GB) and its copies of the gradients"
    " come on top"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOptions:
    """The options that only fit has."""

    gpu: str | None = None
    gpu_memory: int | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitAnswer:
    """The complete answer.

    Attributes:
        name: of the job if there are several, else "".
        model: the directory, as the user named it.
        options: the training options.
        gpu_words: the GPU, and how it was determined.
        work_words: the source of `work.tokens`, or why it is unknown.
        host: memory that the processes of a node need; given: what the job gets on each.
        own: the requested layout; rows: the layouts that fit; best: the recommended one.
        notes: further sentences for the user.
    """

    name: str
    model: str
    options: Mapping[str, Any]
    gpu_words: str
    work: layouts.Workload
    work_words: str
    host: memory.HostMemory
    given: Fact[int] | None
    own: LayoutEstimate
    rows: tuple[LayoutEstimate, ...]
    best: LayoutEstimate | None
    notes: tuple[str, ...] = ()


def answer(request: Request, typed: GpuOptions, *, every: bool = False) -> FitAnswer:
    """Return the layouts that fit.

    Args:
        request: the job.
        typed: the options that only fit has.
        every: return all layouts that fit, not only the relevant ones.

    Raises:
        UsageError: the config, the model or the GPU is missing or invalid.
    """
    name, job, notes = _job(request, typed)
    model, config = _config(job, typed)
    data, options = None, shell.options_of(job.spec.arguments)
    dataset = Arguments(job.spec).get("dataset_name")
    if dataset is not None:
        data = manifest.read_manifest(Path(job.spec.chdir, stored.expanded(dataset)))
    problems = [
        f"{name} must be {expected}, got {value!r}"
        for name, value in options.items()
        if isinstance(value, str) and (expected := training_arguments.expected(name, value))
    ]
    if problems:
        hint = "edit training: in config.yaml, or the arguments after --"
        raise UsageError(problems[0], details=tuple(problems[1:]), hint=hint)
    task = job.spec.task if job.spec.script is None else "sft"
    shape = training_options.shape_of(config, options, task=task, dataset=data)
    if "quantization_config" in config:
        notes.append("the weights are stored quantized; they are counted as if they were not")
    if shape.labels and data is None and options.get("max_events") is None:
        notes.append(
            "the length of the longest row is unknown, and"
            f" {training_options.MAX_LENGTH} events are assumed: use a dataset of python -m"
            " hpctrain.data.timelines, or --max_events"
        )
    notes += training_options.uncounted(options)
    here = PathFacts(said="", path="", real="", exists=True)
    around = Surroundings(
        model=InputFacts(where=here, config=config),
        dataset=InputFacts(where=here, prepared=data) if data is not None else None,
    )
    case = Case(job.spec, profile_of(job), None, around, job.origins)  # the same as for `check`
    named = typed.gpu is not None or typed.gpu_memory is not None
    if not named and hardware.gpu_bytes(case) is None and shutil.which("sinfo") is not None:
        live = discover.discover(timeout=DISCOVERY_TIMEOUT_S)
        case = replace(case, live=live, cluster=merge(case.cluster, live))
    site, gpu_words = _site(case, typed, request)
    layout = training_options.layout_of(
        options,
        nodes=job.spec.nodes,
        gpus_per_node=job.spec.gpus_per_node,
        sharding=job.spec.sharding,
        shape=shape,
        cuda=not hardware.uses_cpu(case),
        bf16=site.gpu is None or site.gpu.bf16 is not None,
        gpu_bytes=site.gpu_bytes,
        dataset=data,
        stored=config.get("dtype") or config.get("torch_dtype"),
    )
    alone = layout.sharding.startswith("zero") and layout.processes == 1
    notes += [_ONE_PROCESS] if alone else []
    work, work_words = _work(options, layout, data)
    own = layouts.evaluate(shape, layout, site, work)
    rows = layouts.table(shape, layout, site, work, every=every)
    return FitAnswer(
        name=name,
        model=model,
        options=options,
        gpu_words=gpu_words,
        work=work,
        work_words=work_words,
        host=hardware.host_memory(case),
        given=hardware.memory_given(case),
        own=own,
        rows=rows,
        best=layouts.choice(layout, rows, site),
        notes=tuple(notes),
    )


# -- the job ---------------------------------------------------------------------------------------


def _job(request: Request, typed: GpuOptions) -> tuple[str, Job, list[str]]:
    """Return the job and notes; of several stages, the first with its name; of a sweep, the base
    job. Slurm is not queried.
    """
    name, job, notes = "", job_of(request), []
    if job.config.stages is not None:
        jobs = jobs_of(request)
        name, job = jobs[0]
        notes = [f"{len(jobs)} jobs: this is {name}"] if len(jobs) > 1 else []
    if job.config.sweep is not None or job.config.tune is not None:
        notes.append(
            "what the parameter combinations of the sweep or of the study change is not checked"
        )
    spec = job.spec
    if not spec.gpus_per_node:
        one = replace(request, options={**request.options, ("resources", "gpus_per_node"): "1"})
        raise UsageError(
            "the job runs on the CPU (gpus_per_node: 0), and fit computes what a GPU needs",
            fix=again(typed, one),
        )
    if spec.script is not None and typed.model is None:
        raise UsageError(
            f"{spec.script} is your own training script, and fit only knows hpctrain's: the memory of"
            " yours is unknown",
            details=(
                "with --model, the SFT training is estimated with these arguments, as a first"
                " approximation",
            ),
            hint="name a model: hpctrain fit --model DIR",
        )
    return name, job, notes


def _config(job: Job, typed: GpuOptions) -> tuple[str, dict[str, Any]]:
    """Return the model's directory, as named, and its config.json; a relative `--model` starts at
    the current directory, the job's at the job's.
    """
    said = typed.model or Arguments(job.spec).get("model_name_or_path")
    if said is None:
        raise UsageError(
            "no model is named",
            hint="use --model DIR, or set model_name_or_path under training: in config.yaml",
        )
    path = Path("" if typed.model is not None else job.spec.chdir, stored.expanded(said))
    file = path if path.suffix == ".json" else path / "config.json"
    config = files.read_json(file) if file.exists() else None
    if config is None:
        problem = "is not a JSON object" if file.exists() else "does not exist"
        raise UsageError(
            f"{file} {problem}; nothing is downloaded, and that file is enough",
            hint="with internet access, run: hf download OWNER/MODEL config.json --local-dir"
            f" {shell.quote(str(file.parent))}",
        )
    return said, config


# -- the site --------------------------------------------------------------------------------------


def _site(case: Case, typed: GpuOptions, request: Request) -> tuple[layouts.Site, str]:
    named = typed.gpu or hardware.gpu_name(case)
    fact = hardware.gpu_bytes(case) if typed.gpu is None else None
    size = typed.gpu_memory or (fact.value if fact is not None else None)
    gpu = gpus.find(named, size) if named is not None else None
    room = gpus.usable(named, size)
    if room is None:
        raise _unknown_gpu(named, typed, request)
    options = {"--gpu": typed.gpu, "--gpu-memory": typed.gpu_memory}
    source = " ".join(option for option, value in options.items() if value is not None)
    of_shape = case.of_nodes("gpu")
    source = source or (fact or of_shape or Fact(0, "live", "sinfo or gpu_type")).source
    more = [each.memory for each in gpus.variants(named or "") if not gpus.is_part(named or "")]
    if size is None and gpu is not None and gpu.memory < max(more, default=0):
        source += f": {named!r} may have more memory: set --gpu-memory"
    per_node, whole = (case.node("gpus") if typed.gpu is None else None), case.whole_nodes
    site = layouts.Site(
        gpu_bytes=room,
        gpu=gpu,
        gpus_per_node=per_node.value if per_node is not None and per_node.value else None,
        nodes_max=limits.nodes_max(case),
        whole_nodes=bool(whole is not None and whole.value and typed.gpu is None),
    )
    name = gpu.name if gpu is not None else named or "a GPU"
    return site, f"{name}, {memory.gib(room)} for programs ({source})"


def _unknown_gpu(named: str | None, typed: GpuOptions, request: Request) -> UsageError:
    known = f"known: {', '.join(gpus.names())}; or a MIG slice, such as 3g.20gb"
    lines = textwrap.wrap(known, 78, subsequent_indent="  ", break_on_hyphens=False)
    words = ("--gpu", "h100") if named is None else ("--gpu", named, "--gpu-memory", "80G")
    return UsageError(
        f"the memory of the GPU {named!r} is unknown" if named else "the job's GPU is unknown",
        details=tuple(lines),
        fix=again(typed, request, *words),
    )


def again(typed: GpuOptions, request: Request, *words: str) -> str:
    """Return this command with further options, which replace those that the user typed."""
    size = typed.gpu_memory and units.format_memory(typed.gpu_memory)
    own = {"--model": typed.model, "--gpu": typed.gpu, "--gpu-memory": size}
    pairs = [pair for pair in own.items() if pair[1] and pair[0] not in words]
    return suggested(request, "fit", *words, *(str(word) for pair in pairs for word in pair))


# -- the size of the training ----------------------------------------------------------------------


def _work(
    options: Mapping[str, Any], layout: Layout, data: manifest.DatasetManifest | None
) -> tuple[layouts.Workload, str]:
    name = str(options.get("dataset_train_split") or "train")
    split = data.splits.get(name) if data is not None else None
    row, context, counted = float(layout.length), None, "sequences of the maximum length"
    if split is not None and data is not None and split.rows:
        tokens = sum(most * rows for most, rows in split.histogram)
        context = sum(most * most * rows for most, rows in split.histogram) / (tokens or 1) or None
        # hpctrain's default for a prepared dataset: batches of rows of similar length
        # (training/preflight/rules.py).
        unasked = "random" if layout.loss == "classes" else "group_by_length"
        apart = str(options.get("train_sampling_strategy") or unasked) != "group_by_length"
        is_padded = apart and not data.packed and not layout.padding_free
        padded = max(1.0, split.padded) if is_padded else 1.0
        row = split.tokens / split.rows * padded
        how = f"x{padded:.2f} with padding" if padded > 1 else "without padding"
        counted = f"{how}, {split.tokens:,} in all"
    steps, epochs = (_number(options.get(key)) for key in ("max_steps", "num_train_epochs"))
    each = f"sequences x {row:,.0f} tokens ({counted})"
    if steps is not None and steps > 0:
        rows = layout.micro_batch * layout.accumulation * layout.processes
        count, words = steps * rows, f"{steps:,.0f} steps x {rows} {each}"
    elif split is not None:
        epochs = _EPOCHS if epochs is None else epochs
        count, words = epochs * split.rows, f"{epochs:g} epochs x {split.rows:,} {each}"
    else:
        return layouts.Workload(), "needs max_steps, or a dataset of `hpctrain prepare`"
    return layouts.Workload(tokens=round(count * row), context=context), words


def _number(value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


_CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")


def options_of(found: FitAnswer, row: LayoutEstimate) -> list[str]:
    """Return the options, and after `--` the arguments, that request the layout in `row`."""
    now, then = found.own.layout, row.layout
    changes = {
        "--nodes": (now.nodes, then.nodes),
        "--gpus": (now.gpus_per_node, then.gpus_per_node),
        "--sharding": (now.sharding, then.sharding),
        "--": (None, ""),
        "--per_device_train_batch_size": (now.micro_batch, then.micro_batch),
        "--gradient_accumulation_steps": (now.accumulation, then.accumulation),
    }
    words = [
        word
        for option, (before, after) in changes.items()
        if before != after
        for word in (option, str(after))
        if word
    ]
    wanted = then.checkpointing == "full"
    if bool(training_options.checkpointing_asked(found.options)) != wanted:
        name = next((name for name in _CHECKPOINTING if name in found.options), _CHECKPOINTING[0])
        words += [f"--{name}", str(wanted).lower()]
    return words[:-1] if words[-1] == "--" else words
