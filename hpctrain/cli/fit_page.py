"""What `hpctrain fit` shows: the asked layout by part, the host's memory, the table of layouts, what would fit where none does.

Makes lines and JSON values; prints nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from hpctrain.cli.fit_facts import Question
from hpctrain.fit import host, layouts, parameters, speed
from hpctrain.fit.layouts import Row
from hpctrain.jobs.check.sizes import gib
from hpctrain.scheduler.parse import duration

if TYPE_CHECKING:
    from hpctrain.fit.layout import Layout

_WIDTH = 80
_BAR = 40
_ROWS = 10
_MIB = 1024**2
#: What to write for accelerate's GradientAccumulationPlugin(sync_each_batch=True).
SYNC = "accelerator_config: {gradient_accumulation_kwargs: {sync_each_batch: true}}"
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def page(
    question: Question, own: Row, rows: Sequence[Row], best: Row | None, exact: dict[str, Any] | None, *, every: bool
) -> Iterator[str]:
    """Return the lines of the whole page."""
    yield from _head(question)
    yield ""
    yield from _parts(question, own)
    if exact is not None:
        yield from _wrapped(_exact_words(own, exact))
    yield from _host(question)
    if not own.fits:
        yield ""
        yield from _why(question, own, rows)
    yield ""
    if rows:
        yield from _table(question, own, rows, best, every=every)
    else:
        yield from _nothing(question)
    for note in sync_notes(question, best):
        yield from _wrapped(f"note: {note}")


def sync_notes(question: Question, best: Row | None) -> list[str]:
    """Return a sentence where a layout fits as soon as gradients are sent in each pass of a step that accumulates."""
    row = layouts.synced(question.shape, question.layout, question.site, question.learnt, best=best)
    if row is None:
        return []
    which = "the asked layout" if replace(row.layout, sync_each_batch=False) == question.layout else _in_short(row.layout)
    rate = f" and {row.tokens_per_s:,.0f} tokens/s" if row.tokens_per_s is not None else ""
    return [
        f"{which} would fit, with {gib(row.total)}{rate}, if the gradients of each pass were sent at once, not kept whole until the "
        f"step's last pass; under training: {SYNC}"
    ]


def _in_short(layout: Layout) -> str:
    checkpointing = "with" if layout.checkpointing == "full" else "without"
    machines = f"{layout.nodes}x{layout.gpus_per_node}"
    return f"{layout.sharding} on {machines} GPUs, micro batch {layout.micro_batch}, {checkpointing} checkpointing,"


def _head(question: Question) -> Iterator[str]:
    shape, layout = question.shape, question.layout
    trained = parameters.trainable(shape, layout.lora)
    head = f", {_count(shape.labels, 'label')}" if shape.labels else ""
    what = "all trained" if layout.lora is None else f"{host.billions(trained)} of them trained (LoRA, rank {layout.lora.rank})"
    lines = [f"model: {question.model}: {shape.model_type}, {host.billions(shape.parameters)} parameters{head}, {what}"]
    asked = f"{question.name}: " if question.name else ""
    lines.append(f"asked: {asked}{layout_words(layout)}")
    lines.append(f"GPU: {question.gpu_words}")
    lines += [f"note: {note}" for note in question.notes]
    for line in lines:
        yield from _wrapped(line)


def layout_words(layout: Layout) -> str:
    """Return a layout in words."""
    machines = f"{_count(layout.nodes, 'node')} x {_count(layout.gpus_per_node, 'GPU')}"
    arithmetic = "" if layout.compute in (None, layout.weights) else f", computed in {_SHORT[str(layout.compute)]}"
    base = "" if layout.quantization == "none" else f" in {layout.quantization}"
    rows = f"micro batch {layout.micro_batch} x accumulation {layout.accumulation}, rows of {layout.length} tokens"
    rows += f", evaluated in batches of {layout.evaluation}" if layout.evaluation else ""
    checkpointing = "activation checkpointing" if layout.checkpointing == "full" else "no activation checkpointing"
    weights = f"weights{base or f' in {_SHORT[layout.weights]}'}{arithmetic}"
    return f"{machines}, {layout.sharding}, {rows}, {weights}, {layout.optimizer}, {layout.attention}, {checkpointing}"


def _parts(question: Question, own: Row) -> Iterator[str]:
    memory, most = own.memory, question.site.gpu_bytes
    yield f"memory of each GPU at the peak ({memory.moment}):"
    scale = max(own.total, most)
    for part in memory.parts:
        if part.bytes >= _MIB:
            yield f"  {part.name:<16} {gib(part.bytes):>10}  {_bar(part.bytes, scale)}".rstrip()
    factor = question.learnt.of_memory(question.layout)
    if factor.runs:
        yield f"  {factor.words}"
    state = "fits" if own.fits else f"does not fit: {gib(own.total - most)} too much"
    yield f"  {'total':<16} {gib(own.total):>10}  of {gib(most)}: {state}"


def _bar(size: int, whole: int) -> str:
    return "#" * max(1, round(_BAR * size / whole)) if whole else ""


def _exact_words(own: Row, exact: dict[str, Any]) -> str:
    counted, formula = int(exact["peak"]), int(exact["formula"])
    off = formula / counted - 1 if counted else 0.0
    counting = int(exact["processes"])
    several = f" of one of {counting} processes" if counting > 1 else f" of one process alone, not of {own.layout.processes}"
    alone = several if own.layout.processes > 1 else ""
    left = f"; what {own.layout.sharding} adds to that or divides is arithmetic alone" if counting < own.layout.processes else ""
    parts = ", ".join(f"{name} {gib(size)}" for name, size in exact["parts"].items() if size >= _MIB)
    return f"exact: torch's tracker counts {gib(counted)} of tensors{alone} ({parts}); the formula has {gib(formula)}, {off:+.1%}{left}"


def _host(question: Question) -> Iterator[str]:
    needed, given = question.host, question.memory
    parts = ", ".join(f"{part.name} {gib(part.bytes)}" for part in needed.parts)
    if given is None:
        words = f"about {gib(needed.total)}; what the job gets is not known (--mem)"
    else:
        state = "fits" if needed.total <= given.value else "does not fit" if needed.least > given.value else "may not fit"
        words = f"about {gib(needed.total)} of {gib(given.value)} ({given.source}): {state}"
    yield from _wrapped(f"host memory of each node: {words} ({parts})")


def _why(question: Question, own: Row, rows: Sequence[Row]) -> Iterator[str]:
    biggest = sorted(own.memory.parts, key=lambda part: -part.bytes)[:2]
    words = " and ".join(f"{part.name} ({gib(part.bytes)})" for part in biggest)
    yield from _wrapped(f"The asked layout does not fit: {words} are the largest parts.")
    near = layouts.nearest(question.layout, tuple(rows))
    if near is not None:
        changes = ", ".join(layouts.differences(question.layout, near.layout))
        yield from _wrapped(f"The nearest that fits: {changes}; {gib(near.total)}, row {list(rows).index(near) + 1}.")


def _table(question: Question, own: Row, rows: Sequence[Row], best: Row | None, *, every: bool) -> Iterator[str]:
    layout = question.layout
    batch = layout.micro_batch * layout.accumulation * layout.processes
    order = "fastest first" if question.site.gpu is not None else "fewest GPUs first"
    yield from _wrapped(f"Layouts that fit with the same global batch of {batch} rows ({layout.tokens_per_step:,} tokens), {order}:")
    timed = any(row.seconds is not None for row in rows)
    node = question.site.whole_nodes and timed
    head = f"{'row':>5} {'GPUs':>6} {'sharding':<8} {'micro':>5} {'acc':>4} {'ckpt':<4} {'memory':>9} {'tokens/s':>9}"
    yield head + (f" {'hours':>7} {'GPU h':>7}" if timed else "") + (f" {'node h':>6}" if node else "")
    shown = [(number, row) for number, row in enumerate(rows, 1) if every or number <= _ROWS or row is best or row.layout == layout]
    for number, row in shown:
        yield _line(number, row, ">" if row is best else " ", "~" if layouts.is_tight(row, question.site) else "", timed=timed, node=node)
    if len(shown) < len(rows):
        yield f"  and {len(rows) - len(shown)} more: --all"
    yield from _legend(question, own, rows, best, timed=timed)


def _line(number: int, row: Row, mark: str, tight: str, *, timed: bool, node: bool) -> str:
    each = row.layout
    rate = f"{row.tokens_per_s:,.0f}" if row.tokens_per_s is not None else "unknown"
    gpus = f"{each.nodes}x{each.gpus_per_node}"
    line = f"{mark}{number:>4} {gpus:>6} {each.sharding:<8} {each.micro_batch:>5} {each.accumulation:>4}"
    line += f" {'on' if each.checkpointing == 'full' else 'off':<4} {tight + gib(row.total):>9} {rate:>9}"
    line += f" {_hours(row.seconds)} {_number(row.gpu_hours)}" if timed else ""
    return line + (f" {_number(row.node_hours, 6)}" if node else "")


def _hours(seconds: float | None) -> str:
    return _number(None if seconds is None else seconds / 3600)


def _number(value: float | None, width: int = 7) -> str:
    if value is None:
        return f"{'?':>{width}}"
    if 0 < value < 0.01:
        return f"{'<0.01':>{width}}"
    return f"{value:>{width},.0f}" if value >= 100 else f"{value:>{width}.1f}" if value >= 1 else f"{value:>{width}.2f}"


def _legend(question: Question, own: Row, rows: Sequence[Row], best: Row | None, *, timed: bool) -> Iterator[str]:
    asked = next((number for number, row in enumerate(rows, 1) if row.layout == question.layout), None)
    more = best is not None and best.layout.processes > question.layout.processes
    marked = "the fewest GPUs that it fits on" if more else "no more GPUs than asked"
    words = [f"> is the fastest on {marked}{'' if asked is None else f'; row {asked} is what is asked'}."]
    if any(layouts.is_tight(row, question.site) for row in rows):
        words.append("~ leaves less than 5% to spare: the estimate may be wrong by as much.")
    if question.site.gpu is None:
        words.append("tokens/s: unknown, as the GPU is; name it with --gpu.")
    else:
        words.append(f"tokens/s: {speed.ASSUMPTION}; MFU of row 1: {_utilisation(rows[0])}.")
    factor = question.learnt.of_speed((best or own).layout)
    words += [f"tokens/s {factor.words}."] if factor.runs else []
    unlike = [row for row in rows if not question.learnt.of_memory(row.layout).runs]
    if question.learnt.memory and unlike:
        words.append(f"{len(unlike)} of these layouts are of a kind that none of your runs was: not corrected.")
    words.append(f"hours: {question.work_words}." if timed else f"hours: unknown: {question.work_words}.")
    words += _limit(question, best)
    if question.site.whole_nodes:
        words.append("GPU h and node h are of whole nodes, as they are charged here.")
    for sentence in words:
        yield from _wrapped(sentence)


def _limit(question: Question, best: Row | None) -> list[str]:
    """Return a sentence where the training takes longer than the job may."""
    limit, seconds = question.job.spec.time_s, best.seconds if best is not None else None
    if limit is None or seconds is None or seconds <= limit:
        return []
    follows = {"requeue": "is requeued", "chain": "is followed by the next job of the chain", "off": "ends there (restart: off)"}
    needed, most = -(-int(seconds) // limit) - 1, question.job.spec.max_restarts
    times = "" if question.job.spec.restart == "off" else f" {needed} times" + (f" ({most} at most: restart.max)" if needed > most else "")
    then = f"{follows[question.job.spec.restart]}{times}"
    return [f"The time limit is {duration.format(limit)}, and > takes {_hours(seconds).strip()} h: it {then}."]


def _utilisation(row: Row) -> str:
    return f"{row.speed.utilisation:.0%}" if row.speed is not None else "unknown"


def _nothing(question: Question) -> Iterator[str]:
    yield "No layout fits with this global batch. What would:"
    found = layouts.remedies(question.shape, question.layout, question.site, question.learnt)
    for remedy in found:
        state = "fits" if remedy.fits else "does not fit"
        yield from _wrapped(f"- {remedy.what}: {gib(remedy.total)} of {gib(question.site.gpu_bytes)}, {state} ({remedy.fix})")
    if not any(remedy.fits for remedy in found):
        yield "- nothing of this suffices: a smaller model, or GPUs with more memory (--gpu NAME)"


def document(question: Question, own: Row, rows: Sequence[Row], best: Row | None, exact: dict[str, Any] | None) -> dict[str, Any]:
    """Return the object of --json: bytes, seconds and tokens."""
    site, given = question.site, question.memory
    return {
        "schema": 1,
        "model": {"folder": question.model, "type": question.shape.model_type, "parameters": question.shape.parameters,
                  "trained": parameters.trainable(question.shape, question.layout.lora), "labels": question.shape.labels or None},
        "gpu": {"name": site.gpu.name if site.gpu is not None else None, "bytes": site.gpu_bytes, "source": question.gpu_words,
                "evidence": site.gpu.evidence if site.gpu is not None else None},
        "asked": {**_row(own), "parts": {part.name: part.bytes for part in own.memory.parts}, "moment": own.memory.moment,
                  "allocated": own.memory.allocated, "reserved": own.memory.reserved, "context": own.memory.context},
        "exact": exact,
        "host": {"parts": {part.name: part.bytes for part in question.host.parts}, "total": question.host.total,
                 "least": question.host.least, "given": given.value if given is not None else None,
                 "source": given.source if given is not None else None},
        "rows": [{"row": number, "best": row is best, **_row(row)} for number, row in enumerate(rows, 1)],
        "tokens": question.work.tokens,
        "remedies": [] if rows else [asdict(each) for each in
                                     layouts.remedies(question.shape, question.layout, site, question.learnt)],
        "corrected": {"memory": asdict(question.learnt.of_memory(question.layout)),
                      "speed": asdict(question.learnt.of_speed(question.layout))},
        "assumption": speed.ASSUMPTION,
        "notes": [*question.notes, *sync_notes(question, best)],
    }  # fmt: skip


def _row(row: Row) -> dict[str, Any]:
    return {
        "layout": asdict(row.layout), "bytes": row.total, "fits": row.fits, "tokens_per_s": row.tokens_per_s, "seconds": row.seconds,
        "gpu_hours": row.gpu_hours, "node_hours": row.node_hours, "mfu": row.speed.utilisation if row.speed is not None else None,
    }  # fmt: skip


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
