"""`hpctrain fit`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from hpctrain.checks import fit
from hpctrain.cli.options import JobCommand, job_options, json_option, request_with_config
from hpctrain.cli.output import print_json, say
from hpctrain.errors import UsageError
from hpctrain.fit import layouts, speed
from hpctrain.fit.layout import Layout
from hpctrain.fit.memory import billions, gib
from hpctrain.fit.shape import trainable
from hpctrain.jobs.request import suggested
from hpctrain.slurm.notations import units
from hpctrain.util.text import count, table, wrap


@click.command("fit", cls=JobCommand)
@click.argument("config_file", required=False, metavar="[CONFIG]")
@job_options
@click.option(
    "--gpu",
    metavar="NAME",
    help="The GPU, such as h100, a100-80gb, mi250x. Default: that of the cluster's profile.",
)
@click.option(
    "--gpu-memory",
    metavar="SIZE",
    help="Memory of each GPU, such as 80G, where the name does not say it.",
)
@click.option(
    "--model", metavar="FOLDER", help="Directory with config.json. Default: model_name_or_path."
)
@click.option("--all", "every", is_flag=True, help="Show every layout that fits, not only ten.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, config_file: str | None, **parameters: Any) -> int:
    """Estimate GPU memory and training time.

    The job of CONFIG (./config.yaml) and of these options is worked out from the model's
    config.json alone: the peak of each GPU by part, the host memory of each node, and the layouts
    that fit on the cluster's GPUs with the same global batch, fastest first. Nothing is downloaded,
    queued or imported. Exit code 1 where the asked layout does not fit.

    \b
    hpctrain fit
    hpctrain fit --gpu h100 --gpus 4 --model models/llama
    """  # noqa: D301 - \b keeps click from wrapping
    asked = request_with_config(ctx, config_file, parameters, for_others="hpctrain fit --model")
    found = fit.answer(asked, _typed(parameters), every=parameters["every"])
    if parameters["as_json"]:
        site, given, own, host = found.own.site, found.given, found.own, found.host
        remedies = () if found.rows else layouts.remedies(found.own.shape, found.own.layout, site)
        print_json(
            model={
                "folder": found.model,
                "type": found.own.shape.model_type,
                "parameters": found.own.shape.parameters,
                "trained": trainable(found.own.shape, found.own.layout.lora),
                "labels": found.own.shape.labels or None,
            },
            gpu={
                "name": site.gpu.name if site.gpu is not None else None,
                "bytes": site.gpu_bytes,
                "source": found.gpu_words,
                "evidence": site.gpu.evidence if site.gpu is not None else None,
            },
            asked={
                **_row(own),
                "parts": {part.name: part.bytes for part in own.memory.parts},
                "moment": own.memory.moment,
                "allocated": own.memory.allocated,
                "reserved": own.memory.reserved,
                "context": own.memory.context,
            },
            host={
                "parts": {part.name: part.bytes for part in host.parts},
                "total": host.total,
                "least": host.least,
                "given": given.value if given is not None else None,
                "source": given.source if given is not None else None,
            },
            rows=[
                {"row": number, "best": row is found.best, **_row(row)}
                for number, row in enumerate(found.rows, 1)
            ],
            tokens=found.work.tokens,
            remedies=[asdict(each) for each in remedies],
            assumption=speed.ASSUMPTION,
            notes=list(found.notes),
        )
    else:
        for line in _page(found, every=parameters["every"]):
            click.echo("\n".join(wrap(line, hanging="  ")) if line[:1].isalpha() else line)
        if found.best is not None:
            say(f"next: {suggested(asked, 'check', *fit.options_of(found, found.best))}")
    return 0 if found.own.fits else 1


def _typed(parameters: dict[str, Any]) -> fit.GpuOptions:
    memory = parameters["gpu_memory"]
    try:
        size = units.parse_memory(memory) if memory is not None else None
    except ValueError as error:
        raise UsageError(f"--gpu-memory: {error}", hint="use --gpu-memory 80G") from error
    if size is not None and size < 1024**3:
        raise UsageError(
            f"--gpu-memory {memory} is less than a GiB; without a unit it counts MiB",
            hint="use --gpu-memory 80G",
        )
    return fit.GpuOptions(gpu=parameters["gpu"], gpu_memory=size, model=parameters["model"])


# -- the page --------------------------------------------------------------------------------------

_BAR = 40
_ROWS = 10
_MIB = 1024**2
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def _page(found: fit.FitAnswer, *, every: bool) -> Iterator[str]:
    """Yield the lines of the page; only those that start with a letter may be wrapped."""
    shape, layout = found.own.shape, found.own.layout
    labels = f", {count(shape.labels, 'label')}" if shape.labels else ""
    what = "all trained"
    if layout.lora is not None:
        trained = billions(trainable(shape, layout.lora))
        what = f"{trained} of them trained (LoRA, rank {layout.lora.rank})"
    parameters = f"{billions(shape.parameters)} parameters{labels}, {what}"
    yield f"model: {found.model}: {shape.model_type}, {parameters}"
    yield f"asked: {f'{found.name}: ' if found.name else ''}{_layout_words(layout)}"
    yield f"GPU: {found.gpu_words}"
    yield from (f"note: {note}" for note in found.notes)
    yield ""
    own, most = found.own, found.own.site.gpu_bytes
    yield f"memory of each GPU at the peak ({own.memory.moment}):"
    for part in own.memory.parts:
        if part.bytes >= _MIB:
            bar = "#" * max(1, round(_BAR * part.bytes / max(own.total, most)))
            yield f"  {part.name:<16} {gib(part.bytes):>10}  {bar}"
    state = "fits" if own.fits else f"does not fit: {gib(own.total - most)} too much"
    yield f"  {'total':<16} {gib(own.total):>10}  of {gib(most)}: {state}"
    needed, given = found.host, found.given
    parts = ", ".join(f"{part.name} {gib(part.bytes)}" for part in needed.parts)
    host = "; what the job gets is not known (--mem)"
    if given is not None:
        fits = "does not fit" if needed.least > given.value else "may not fit"
        fits = "fits" if needed.total <= given.value else fits
        host = f" of {gib(given.value)} ({given.source}): {fits}"
    yield f"host memory of each node: about {gib(needed.total)}{host} ({parts})"
    yield ""
    yield from _table(found, every=every) if found.rows else _nothing(found)


def _layout_words(layout: Layout) -> str:
    is_mixed = layout.compute not in (None, layout.weights)
    mixed = f", computed in {_SHORT[str(layout.compute)]}" if is_mixed else ""
    held = _SHORT[layout.weights] if layout.quantization == "none" else layout.quantization
    evaluated = f", evaluated in batches of {layout.evaluation}" if layout.evaluation else ""
    no = "" if layout.checkpointing == "full" else "no "
    return (
        f"{count(layout.nodes, 'node')} x {count(layout.gpus_per_node, 'GPU')}, {layout.sharding},"
        f" micro batch {layout.micro_batch} x accumulation {layout.accumulation}, sequences of"
        f" {layout.length} tokens{evaluated}, weights in {held}{mixed}, {layout.optimizer},"
        f" {layout.attention}, {no}activation checkpointing"
    )


def _table(found: fit.FitAnswer, *, every: bool) -> Iterator[str]:
    layout, rows, best = found.own.layout, found.rows, found.best
    batch = layout.micro_batch * layout.accumulation * layout.processes
    order = "fastest first" if found.own.site.gpu is not None else "fewest GPUs first"
    yield (
        f"Layouts that fit with the same global batch of {batch} sequences ({layout.tokens_per_step:,}"
        f" tokens), {order}:"
    )
    head = ["row", "GPUs", "sharding", "micro", "acc", "ckpt", "memory", "tokens/s"]
    timed = any(row.seconds is not None for row in rows)
    head += ["hours", "GPU h"] if timed else []
    head += ["node h"] if timed and found.own.site.whole_nodes else []
    lines = [head]
    for number, row in enumerate(rows, 1):
        if not (every or number <= _ROWS or row is best or row.layout == layout):
            continue
        each, tight = row.layout, "~" * layouts.is_tight(row, found.own.site)
        cells = [
            f"{'>' if row is best else ' '}{number:>4}",
            f"{each.nodes}x{each.gpus_per_node}",
            each.sharding,
            str(each.micro_batch),
            str(each.accumulation),
            "on" if each.checkpointing == "full" else "off",
            tight + gib(row.total),
            "unknown" if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}",
        ]
        seconds = None if row.seconds is None else row.seconds / 3600
        times = (_number(seconds), _number(row.gpu_hours), _number(row.node_hours))
        lines.append([*cells, *times[: len(head) - len(cells)]])
    yield from table(lines, right={0, 1, 3, 4, 6, 7, 8, 9, 10}, gap=" ")
    if len(lines) - 1 < len(rows):
        yield f"  and {len(rows) - len(lines) + 1} more: --all"
    more = best is not None and best.layout.processes > layout.processes
    marked = "the fewest GPUs that it fits on" if more else "no more GPUs than requested"
    yield f"> is the fastest on {marked}."
    if any(layouts.is_tight(row, found.own.site) for row in rows):
        yield "~ leaves less than 5% to spare: the estimate may be wrong by as much."
    if found.own.site.gpu is None:
        yield "tokens/s: unknown, as the GPU is; name it with --gpu."
    elif (first := rows[0].speed) is not None:
        yield f"tokens/s: {speed.ASSUMPTION}; MFU of row 1: {first.utilisation:.0%}."
    yield f"hours: {'' if timed else 'unknown: '}{found.work_words}."


def _number(value: float | None) -> str:
    if value is None:
        return "?"
    if 0 < value < 0.01:
        return "<0.01"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _nothing(found: fit.FitAnswer) -> Iterator[str]:
    remedies = layouts.remedies(found.own.shape, found.own.layout, found.own.site)
    yield "No layout fits with this global batch. What would:"
    for each in remedies:
        words = f"{gib(each.total)} of {gib(found.own.site.gpu_bytes)} ({each.fix})"
        yield "\n".join(wrap(f"- {each.what}: {words}", hanging="  "))
    if not remedies:
        yield "- a smaller model, or GPUs with more memory (--gpu NAME)"


# -- as JSON ---------------------------------------------------------------------------------------


def _row(row: layouts.LayoutEstimate) -> dict[str, Any]:
    return {
        "layout": asdict(row.layout),
        "bytes": row.total,
        "fits": row.fits,
        "tokens_per_s": row.tokens_per_s,
        "seconds": row.seconds,
        "gpu_hours": row.gpu_hours,
        "node_hours": row.node_hours,
        "mfu": row.speed.utilisation if row.speed is not None else None,
    }
