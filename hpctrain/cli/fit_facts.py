"""What `hpctrain fit` works with, gathered: the job, the model's shape, the GPU and its node, the dataset, and what earlier runs measured.

Reads config.json, the dataset's manifest and the runs' fit.json; asks Slurm only where no profile and no option says what the GPUs are.
"""

from __future__ import annotations

import math
import os
import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.cli import surroundings_files
from hpctrain.cli.job_options import Job, Request, job_from, layers_of, mention_unknown_variables, words_of
from hpctrain.cli.job_scripts import jobs_of
from hpctrain.errors import UsageError
from hpctrain.fit import asked, correction, gpus, host, layouts, memory
from hpctrain.fit.layout import Layout
from hpctrain.fit.shape import ModelShape
from hpctrain.jobs import shell
from hpctrain.jobs.arguments import Arguments
from hpctrain.jobs.check import hardware, limits, sizes
from hpctrain.jobs.check.case import Case, Fact
from hpctrain.jobs.check.surroundings import DatasetFacts, ModelFacts, PathFacts, Surroundings
from hpctrain.preparation import manifest
from hpctrain.runs import files
from hpctrain.scheduler.parse import memory_size

if TYPE_CHECKING:
    from hpctrain.clusters.profile import Cluster

_EPOCHS = 3.0  # TrainingArguments.num_train_epochs
_WITHOUT_GPU = "a GPU is named as below, or known by --cluster NAME (hpctrain clusters lists)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """fit's own options."""

    gpu: str | None = None
    gpu_memory: int | None = None
    model: str | None = None
    learn: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Everything that the answer is made of.

    Attributes:
        name: of the job among several, else "".
        model: the folder, as it was named.
        config: what its config.json says, with the vocabulary that the model will have.
        options: of the training.
        gpu_words: what the GPU is and where that is known from.
        work_words: why `work.tokens` is what it is, or is unknown.
        memory: of each node, what the job asks for or gets.
        notes: what to say besides.
    """

    job: Job
    name: str
    model: str
    config: Mapping[str, Any]
    shape: ModelShape
    options: Mapping[str, Any]
    layout: Layout
    site: layouts.Site
    gpu_words: str
    work: layouts.Work
    work_words: str
    host: host.HostMemory
    memory: Fact[int] | None
    learnt: correction.Correction
    notes: tuple[str, ...] = ()


def question(request: Request, typed: Typed) -> Question:
    """Return what is to be answered.

    Raises:
        UsageError: the config, the model or the GPU is missing or not understood.
    """
    jobs = _jobs(request)
    name, job = jobs[0]
    notes = [f"{len(jobs)} jobs: this is {name}"] if len(jobs) > 1 else []
    if job.config.sweep is not None or job.config.tune is not None:
        notes.append("what the points of the sweep or of the study change is not looked at")
    _refuse_other_trainings(job, typed)
    job = _with_config_file(job)
    config, model = _config(job, typed)
    data, options = _dataset(job), asked.options_of(job.spec.arguments)
    known = asked.shape_of(config, options, task=_task(job), dataset=data)
    if "quantization_config" in config:
        notes.append("the weights are stored quantised; they are taken as if they were not")
    notes += [*_notes_of_rows(known, options, data), *asked.uncounted(options)]
    case = _case(job, config, known, data)
    if typed.gpu is None and typed.gpu_memory is None and hardware.gpu_bytes(case) is None:
        case = _asking_slurm(case)
    site, words = _site(case, typed, request)
    wanted = asked.layout_of(
        options, nodes=job.spec.nodes, gpus_per_node=job.spec.gpus_per_node, sharding=job.spec.sharding, shape=known,
        cuda=not sizes.uses_cpu(case), bf16=site.gpu is None or site.gpu.bf16 is not None, gpu_bytes=site.gpu_bytes, dataset=data,
        stored=config.get("dtype") or config.get("torch_dtype"),
    )  # fmt: skip
    if memory.is_rough(known, wanted):
        notes.append("adapters on experts, or layers without experts: memory was up to 8% too low or too high in small models")
    if wanted.sharding.startswith("zero") and wanted.processes == 1:
        notes.append("DeepSpeed in one process is not followed: its bucket (1 GB) and its copies of the gradients come on top")
    work, work_words = _work(options, wanted, data)
    learnt = sizes.learnt(case, site.gpu.name if site.gpu is not None else None) if typed.learn else correction.NONE
    return Question(
        job=job, name=name, model=model, config=_as_made(config, known), shape=known,
        options=options, layout=wanted, site=site, gpu_words=words, work=work,
        work_words=work_words, host=sizes.host_memory(case), memory=hardware.memory_given(case), learnt=learnt, notes=tuple(notes),
    )  # fmt: skip


def _jobs(request: Request) -> list[tuple[str, Job]]:
    """Return the job, or those of stages, with their names; of a sweep, the job that its points change. Slurm is not asked."""
    job = job_from(request, layers_of(request))
    if job.config.stages is not None:
        return jobs_of(request)
    mention_unknown_variables()
    return [("", job)]


def _known_here(job: Job) -> Cluster | None:
    """Return the profile that the job names, else the one that knows this machine for its own."""
    if job.cluster is not None:
        return job.cluster
    from hpctrain.clusters import load

    names = load.detect(os.environ, cluster_name=None, hosts=(os.uname().nodename,))
    return load.load(names[0], os.environ) if len(names) == 1 else None


def _refuse_other_trainings(job: Job, typed: Typed) -> None:
    spec = job.spec
    if spec.script is not None and typed.model is None:
        raise UsageError(
            f"{spec.script} is a training of your own, and fit knows hpctrain's: what yours holds in memory only it knows",
            details=("with --model the SFT training is worked out with these arguments, as a first idea of yours",),
            fix="hpctrain fit --model FOLDER",
        )


def _task(job: Job) -> str:
    """Return which of hpctrain's trainings it is; a script of one's own is taken for the SFT training."""
    return job.spec.task if job.spec.script is None else "sft"


def _notes_of_rows(shape: ModelShape, options: Mapping[str, Any], data: manifest.Manifest | None) -> list[str]:
    """Return what to say of a classifier's rows, whose length only the data knows."""
    if not shape.labels or data is not None or options.get("max_events") is not None:
        return []
    made = "a dataset of python -m hpctrain.preparation.timelines says it, or --max_events"
    return [f"how long the longest row is is not known, and {asked.MAX_LENGTH} events are assumed: {made}"]


def _with_config_file(job: Job) -> Job:
    """Return the job with the arguments of `--config FILE` laid under its own."""
    from hpctrain import yaml12
    from hpctrain.jobs.sweep.words import argument_words

    name = Arguments(job.spec).get("config")
    if name is None:
        return job
    path = Path(job.spec.chdir, surroundings_files.expanded(name))
    try:
        values = yaml12.load(path.read_text(encoding="utf-8"), name).data
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read --config {name}: {error}", fix=f"ls -l {shell.quote(name)}") from error
    words = tuple(argument_words((key, value) for key, value in values.items() if key != "env"))
    own, kept = list(job.spec.arguments), []
    for position, word in enumerate(own):
        if word == "--config" or (position and own[position - 1] == "--config") or word.startswith("--config="):
            continue
        kept.append(word)
    return replace(job, spec=replace(job.spec, arguments=(*words, *kept)))


def _config(job: Job, typed: Typed) -> tuple[dict[str, Any], str]:
    """Return config.json and the folder, as it was named; `--model` counts from where it is typed, the job's from where it runs."""
    said = typed.model or Arguments(job.spec).get("model_name_or_path")
    if said is None:
        raise UsageError("no model is named", fix="hpctrain fit --model FOLDER, or model_name_or_path under training: in config.yaml")
    path = surroundings_files.expanded(said) if typed.model is not None else Path(job.spec.chdir, surroundings_files.expanded(said))
    file = path if path.suffix == ".json" else path / "config.json"
    if not file.exists():
        hub = said if said.count("/") == 1 and not said.startswith((".", "/", "~")) else "OWNER/MODEL"
        raise UsageError(
            f"there is no {file if path.suffix == '.json' else f'config.json in {said}'}; nothing is downloaded, and that file is enough",
            fix=f"where there is a network: hf download {shell.quote(hub)} config.json --local-dir {shell.quote(said)}",
        )
    config = files.read_json(file)
    if config is None:
        raise UsageError(f"{file} is no JSON object", fix=f"head -c 300 {shell.quote(str(file))}")
    return config, said


def _as_made(config: dict[str, Any], shape: ModelShape) -> dict[str, Any]:
    """Return config.json with the data's vocabulary, where the model is made from it."""
    return {**config, "vocab_size": shape.vocab} if shape.labels else config


def _dataset(job: Job) -> manifest.Manifest | None:
    name = Arguments(job.spec).get("dataset_name")
    return manifest.read(Path(job.spec.chdir, surroundings_files.expanded(name))) if name is not None else None


def _case(job: Job, config: dict[str, Any], known: ModelShape, data: manifest.Manifest | None) -> Case:
    """Return the job as `check` sees it, so that both say the same."""
    here = PathFacts(said="", path="", real="", exists=True)
    around = Surroundings(
        model=ModelFacts(where=here, config=config, parameters=known.parameters),
        dataset=DatasetFacts(where=here, prepared=data) if data is not None else None,
        measured=surroundings_files.measured(job.spec.chdir),
    )
    return Case(job.spec, _known_here(job), None, around, job.origins)


def _asking_slurm(case: Case) -> Case:
    """Return the case with what Slurm says of its GPUs, where Slurm is there."""
    if shutil.which("sinfo") is None:
        return case
    from hpctrain.cli.examine import DISCOVERY_TIMEOUT_S
    from hpctrain.scheduler import discover

    live = discover.discover(timeout=DISCOVERY_TIMEOUT_S)
    if case.cluster is None:
        return replace(case, live=live)
    from hpctrain.clusters.merge import merge

    return replace(case, live=live, cluster=merge(case.cluster, live))


def _site(case: Case, typed: Typed, request: Request) -> tuple[layouts.Site, str]:
    """Return the GPU and its node, and where that is known from."""
    shape, live = case.shape, next((kind for group in case.live_nodes for kind, _ in group.gpus if kind), None)
    named = typed.gpu or sizes.gpu_name(case)
    fact = hardware.gpu_bytes(case) if typed.gpu is None else None
    size = typed.gpu_memory or (fact.value if fact is not None else None)
    gpu = gpus.find(named, size) if named is not None else None
    memory = gpus.usable(named, size)
    if typed.gpu is not None and memory is None:
        raise _unknown_gpu(typed, request)
    if memory is None:
        profile = f"the profile {case.profile.name} says nothing of them" if case.profile is not None else "no cluster profile is named"
        reason = f"{named!r} is not in the table of GPUs" if named else f"{profile}, and {_said_by_slurm(case)}"
        raise UsageError("which GPU the job gets is not known", details=(reason, _WITHOUT_GPU), fix=again(typed, request, "--gpu", "h100"))
    typed_words = " ".join(word for word in ("--gpu" * (typed.gpu is not None), "--gpu-memory" * (typed.gpu_memory is not None)) if word)
    said = case.fact(shape.gpu, "nodes", case.shape_name or "", "gpu") if shape is not None else None
    known = fact.source if fact is not None else said.source if said is not None else "sinfo" if live else "gpu_type"
    source = typed_words or known
    per_node, whole = (case.node("gpus") if typed.gpu is None else None), case.whole_nodes
    site = layouts.Site(
        gpu_bytes=memory, gpu=gpu, gpus_per_node=per_node.value if per_node is not None and per_node.value else None,
        nodes_max=limits.nodes_max(case), whole_nodes=bool(whole is not None and whole.value and typed.gpu is None),
    )  # fmt: skip
    part = named is not None and gpus.is_part(named)
    if size is None and gpu is not None and not part and gpu.memory < max(each.memory for each in gpus.variants(named or "")):
        source += f": {named!r} may have more memory, --gpu-memory says how much"
    return site, f"{gpu.name if gpu is not None else named or 'a GPU'}, {sizes.gib(memory)} for programs ({source})"


def _said_by_slurm(case: Case) -> str:
    """Return what Slurm says of the GPUs, which it does not name: a GRES may have a number and no type."""
    if case.live is None:
        return "Slurm was not asked, as there is no sinfo here"
    numbers = [number for group in case.live_nodes for _, number in group.gpus]
    if numbers:
        return f"Slurm has {max(numbers)} GPUs on a node, and does not say of which kind"
    return "Slurm shows no GPUs where the job goes"


def again(typed: Typed, request: Request, *words: str) -> str:
    """Return the same command with further options, which take the place of those that were typed."""
    own = {"--model": typed.model, "--gpu": typed.gpu, "--gpu-memory": typed.gpu_memory and memory_size.format(typed.gpu_memory)}
    typed_words = [word for option, value in own.items() if value and option not in words for word in (option, str(value))]
    return shell.join(("hpctrain", "fit", *words, *typed_words, *(() if request.is_bare else words_of(request))))


def _unknown_gpu(typed: Typed, request: Request) -> UsageError:
    """Return what to say of a name that the table lacks, or of a part of a GPU that does not say how large it is."""
    name = str(typed.gpu)
    fix = again(typed, request, "--gpu", name, "--gpu-memory", "80G")
    size = "its memory has to be said, then; of speed nothing is"
    if gpus.is_part(name):
        what = f"{name!r} is a part of a GPU, and does not say how large it is"
        return UsageError(what, details=("MIG's names do, such as 3g.20gb", size), fix=fix)
    known = textwrap.wrap(f"known: {', '.join(gpus.names())}", 78, subsequent_indent="  ", break_on_hyphens=False)
    return UsageError(f"no GPU is known by the name {name!r}", details=(*known, size), fix=fix)


def _work(options: Mapping[str, Any], layout: Layout, data: manifest.Manifest | None) -> tuple[layouts.Work, str]:
    """Return how many tokens there are to do, and the words that say how that comes about."""
    split = data.splits.get(str(options.get("dataset_train_split") or "train")) if data is not None else None
    rows_per_step = layout.micro_batch * layout.accumulation * layout.processes
    row, context, counted = float(layout.length), None, "rows as long as they can be"
    if split is not None and split.rows:
        # What hpctrain trains a prepared dataset with, where nobody asks: batches of rows that are about as long (training/prepared.py).
        unasked = "random" if layout.loss == "classes" else "group_by_length"
        apart = str(options.get("train_sampling_strategy") or unasked) != "group_by_length"
        row, context, counted = _row(split, layout, packed=data is not None and data.packed, padded=split.padded if apart else 1.0)
    steps = _number(options.get("max_steps"))
    if steps is not None and steps > 0:
        words = f"{steps:,.0f} steps x {rows_per_step} rows x {row:,.0f} tokens ({counted})"
        return layouts.Work(tokens=round(steps * rows_per_step * row), context=context), words
    if split is None:
        return layouts.Work(), "needs max_steps, or a dataset that `hpctrain prepare` made"
    epochs = _number(options.get("num_train_epochs"))
    epochs = _EPOCHS if epochs is None else epochs
    words = f"{epochs:g} epochs x {split.rows:,} rows x {row:,.0f} tokens ({counted})"
    return layouts.Work(tokens=round(epochs * split.rows * row), context=context), words


def _row(split: manifest.Split, layout: Layout, *, packed: bool, padded: float) -> tuple[float, float | None, str]:
    """Return the mean tokens of a row as it is computed, what attention reaches over on average, and words for it."""
    mean = split.tokens / split.rows
    tokens = sum(most * count for most, count in split.histogram)
    within = sum(most * most * count for most, count in split.histogram) / tokens if tokens else None
    if packed:
        return mean, within, f"packed, {split.tokens:,} in all"
    if layout.padding_free:
        return mean, within, f"not padded, {split.tokens:,} in all"
    words = f"x{padded:.2f} with padding" if padded > 1 else "grouped by length"
    return mean * max(1.0, padded), within, f"{words}, {split.tokens:,} in all"


def _number(value: object) -> float | None:
    try:
        number = float(str(value)) if value is not None else None
    except ValueError:
        return None
    return number if number is not None and math.isfinite(number) else None
