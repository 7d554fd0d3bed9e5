"""The screen of `hpctrain watch`: lines that fit a terminal. PURE.

For one run, the most important lines are kept if there is little room: state, progress, time, then
problems; the curve and ranks share the rest. Several runs have one line each; running
ones have priority.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpctrain.memory.sample import Sample
from hpctrain.report.idle import Idle
from hpctrain.runs.progress import Progress, part_of
from hpctrain.util import text

if TYPE_CHECKING:
    from rich.text import Text


LEVELS = {"wait": "yellow", "run": "cyan", "good": "green", "bad": "bold red"}
_CURVE_MOST, _CURVE_LEAST = 12, 4
#: hpctrain.memory.sample warns from this fraction on.
_FULL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The displayed state of one run, or job. Unknown values are None, or empty.

    Attributes:
        title: the run, or the job's name.
        job: `job 123 on Slurm`.
        state: as text; level: one of LEVELS, or empty.
        elapsed_s, limit_s: of the running job.
        eta_s: seconds to the end of the training, from now.
        fits: whether it ends before the time limit; verdict: the same as text.
        quiet: how long there was no new output, as text.
        saved: the newest checkpoint, as text.
        note: about the monitoring itself, such as an unreachable scheduler.
        next: commands to type.
        clock: the time of day.
    """

    title: str
    job: str = ""
    state: str = ""
    level: str = ""
    elapsed_s: float | None = None
    limit_s: float | None = None
    progress: Progress = field(default_factory=Progress)
    eta_s: float | None = None
    fits: bool | None = None
    verdict: str = ""
    quiet: str = ""
    saved: str = ""
    idle: tuple[Idle, ...] = ()
    note: str = ""
    next: tuple[str, ...] = ()
    clock: str = ""


# -- one run ---------------------------------------------------------------------------------------


def frame(view: View, width: int, height: int) -> list[Line]:
    """Return the lines of a view: at most `height` lines of at most `width` characters.

    Args:
        view: the state to display.
        width: usable columns.
        height: lines.
    """
    width, known = max(20, width), view.progress
    right = "   ".join(filter(None, (view.job, view.clock)))
    gap = width - len(cut(view.title, width)) - len(right)
    title = cut(view.title, width) + (" " * gap + right) * (gap >= 3)
    top = [(title, "bold"), *_wrapped(view.state, LEVELS.get(view.level, ""), width)[:3]]
    top += _progress(view, width)
    bottom = [(view.saved, "")] * bool(view.saved)
    bottom += [*_wrapped(view.note, "yellow", width), *((f"next: {x}", "bold") for x in view.next)]
    left = height - len(top) - len(bottom)
    idle: list[Line] = []
    for each in view.idle:
        new = _wrapped(each.what, "bold red", width) + _wrapped(each.cause, "", width)
        new += _wrapped(f"fix: {each.fix}", "bold", width)
        most = max(0, min(6, left // 2))
        if not idle or len(idle) + len(new) <= most:
            idle = (idle + new)[:most]
    left -= len(idle)
    # The ranks get the lines they need if a small curve still fits; the curve gets the rest.
    has_curve = len(known.losses) > 1
    shown = ranks(known, max(min(3, left), left - _CURVE_LEAST * has_curve))
    room = min(left - len(shown), _CURVE_MOST)
    if has_curve and room >= _CURVE_LEAST:
        points = [(float(step), loss) for step, loss in known.losses]
        top += [(line, "cyan") for line in curve(points, min(width, 120), room)]
    return [(cut(words, width), style) for words, style in [*top, *shown, *idle, *bottom][:height]]


def _wrapped(words: str, style: str, width: int) -> list[Line]:
    return [(line, style) for line in textwrap.wrap(words, width, break_on_hyphens=False)]


def _progress(view: View, width: int) -> list[Line]:
    known = view.progress
    step, most = known.step, known.max_steps
    eta = "" if view.eta_s is None else f"done in about {text.duration(view.eta_s)}"
    style = "bold red" if view.fits is False else "yellow" if view.quiet else ""
    ends = _wrapped("; ".join(filter(None, (view.verdict or eta, view.quiet))), style, width)
    if not step:
        return ends
    words = f"step {step}" + (f" of {most}" if most else "")
    words += f", epoch {known.epoch:.2f}" if known.epoch is not None else ""
    if most:
        words = f" {math.floor(100 * step / most):3d}%  {words}"
        length = min(60, width - len(words))
        words = bar(step / most, length) + words if length >= 8 else words.strip()
    facts = (
        ("loss {}", text.number(known.loss), known.loss),
        ("eval {}", text.number(known.eval_loss), known.eval_loss),
        ("tokens/s {:.0f}", known.tokens_per_s, known.tokens_per_s),
        ("MFU {:.1%}", known.mfu, known.mfu),
        ("data wait {:.1%}", known.data_wait, known.data_wait),
        ("step {} s", text.number(known.step_s), known.step_s),
    )
    speed = "  ".join(form.format(shown) for form, shown, value in facts if value is not None)
    return [(words, "green"), *ends, *_wrapped(speed, "", width)]


# -- its ranks -------------------------------------------------------------------------------------


def ranks(progress: Progress, most: int) -> list[Line]:
    """Return the memory and utilization of every rank's GPU, and host memory, in at most `most`
    lines; if there are more ranks, those with the highest usage.
    """
    samples = progress.samples
    if not samples or most < 1:
        return []
    gpus = [s for s in samples if _part(s) is not None or s.gpu_utilisation_percent is not None]
    foot = _hosts(samples)
    kept = sorted(gpus, key=lambda each: -(_part(each) or 0.0))
    if len(gpus) > (room := most - len(foot)):
        kept = kept[: max(0, room - 1)]
        foot = [(f"and {len(gpus) - len(kept)} more, less full", ""), *foot]
    lines: list[Line] = []
    longest = max(len(_name(sample)) for sample in samples)
    for each in sorted(kept, key=lambda each: each.rank):
        percent, part = each.gpu_utilisation_percent, _part(each)
        busy = bar(None if percent is None else percent / 100, 10)
        total = "-" if each.gpu_total_mib is None else f"{each.gpu_total_mib / 1024:.0f}"
        line = f"{_name(each):{longest}} {bar(part, 14)} {_gib(each.gpu_used_mib):>5}/{total} GiB"
        line += f" {busy} {'-' if percent is None else percent:>3}%"
        lines.append((line, _style(part)))
    return [*lines, *foot][-most:]


def _name(sample: Sample) -> str:
    gpu = f":{sample.gpu_index}" if sample.gpu_index is not None else ""
    return f"rank {sample.rank} {_short(sample.host)}{gpu}"


def _short(host: str) -> str:
    name = host if host[:1].isdigit() else host.partition(".")[0]  # an address has no domain
    return name if len(name) <= 14 else f"{name[:6]}~{name[-7:]}"


def _hosts(samples: Sequence[Sample]) -> list[Line]:
    """Return the memory of the node with the highest usage, and the job's memory on the node where
    it is closest to its limit.
    """
    words: list[str] = []
    fullest = 0.0
    for word, used, total in (
        ("host", "node_used_mib", "node_total_mib"),
        ("job's limit", "cgroup_used_mib", "cgroup_limit_mib"),
    ):
        parts = [(part_of(getattr(each, used), getattr(each, total)), each) for each in samples]
        known = [(part, each) for part, each in parts if part is not None]
        if known:
            part, most = max(known, key=lambda pair: pair[0])
            name = word if words else f"{word} {_short(most.host)}"
            size = f"{_gib(getattr(most, used))}/{_gib(getattr(most, total))} GiB"
            words.append(f"{name} {bar(part, 12)} {size}")
            fullest = max(fullest, part)
    return [("   ".join(words), _style(fullest))] if words else []


def _part(sample: Sample) -> float | None:
    return part_of(sample.gpu_used_mib, sample.gpu_total_mib)


def _style(part: float | None) -> str:
    return "bold red" if part is not None and part >= _FULL else ""


def _gib(mib: int | None) -> str:
    return "-" if mib is None else f"{mib / 1024:.1f}" if mib < 100 * 1024 else f"{mib / 1024:.0f}"


# -- several runs ----------------------------------------------------------------------------------

#: By level, the most urgent first.
_WORDS = {"run": "running", "bad": "failed", "wait": "waiting", "": "ended", "good": "completed"}


def frame_of_many(views: Sequence[View], title: str, width: int, height: int) -> list[Line]:
    """Return at most `height` lines: the number of runs in each state, and a line for each; if
    there are too many, for the most urgent.
    """
    states, order = [view.level for view in views], list(_WORDS)
    told = ", ".join(f"{states.count(key)} {_WORDS[key]}" for key in order if key in states)
    notes = dict.fromkeys(view.note for view in views if view.note)
    room = max(1, height - 2 - len(notes))
    urgent = sorted(range(len(views)), key=lambda at: (order.index(states[at]), at))
    shown = [views[at] for at in sorted(urgent if len(views) <= room else urgent[: room - 1])]
    # Parameter combinations of a sweep share its name as a prefix, which is in the header.
    prefix = f"{title}_" if all(view.title.startswith(f"{title}_") for view in views) else ""
    cells = [("RUN", "STATE", "STEP", "LOSS", "TOK/S", "MEM", "LEFT, WHY")]
    for view in shown:
        known = view.progress
        part = None if known.worst is None else _part(known.worst)
        left = "" if view.eta_s is None else text.duration(view.eta_s)
        # The previous column already shows the state.
        why = left if view.level == "run" else view.state.removeprefix(_WORDS[view.level])
        cells.append(
            (
                cut(view.title.removeprefix(prefix), max(12, width // 3)),
                _WORDS[view.level],
                "-" if known.step is None else f"{known.step}/{known.max_steps or '-'}",
                text.number(known.loss),
                "-" if known.tokens_per_s is None else f"{known.tokens_per_s:.0f}",
                "-" if part is None else f"{part:.0%}",
                why.lstrip(": "),
            )
        )
    rows = text.table(cells, right=(2, 3, 4, 5), gap=" ")
    clock = next((view.clock for view in views if view.clock), "")
    lines: list[Line] = [(f"{title}: {told}   {clock}", "bold"), (rows[0], "bold")]
    lines += zip(rows[1:], (LEVELS.get(view.level, "") for view in shown), strict=True)
    if len(shown) < len(views):
        lines.append((f"and {len(views) - len(shown)} more", ""))
    lines += [(note, "yellow") for note in notes]
    return [(cut(words, width), style) for words, style in lines[:height]]


# -- lines for a terminal, and bars and curves in characters ----------------------------------------

#: A text and its rich style, or no style.
Line = tuple[str, str]
Point = tuple[float, float]

_LEVELS = " ▁▂▃▄▅▆▇█"
_LABEL = 8


def bar(part: float | None, width: int) -> str:
    """Draw a bar of `width` characters, including its ends, filled to the fraction `part` (0 to 1);
    if that is unknown or NaN, a bar of `?`.
    """
    inner = max(1, width - 2)
    if part is None or math.isnan(part):
        return f"▕{'?' * inner}▏"
    return f"▕{'█' * round(min(1.0, max(0.0, part)) * inner):{inner}}▏"


def curve(points: Sequence[Point], width: int, height: int) -> list[str]:
    """Draw a curve of `height` lines with its scale at the left and the first and last x below.

    Points in the same column are averaged; a column without a finite one repeats the previous
    column.

    Args:
        points: (x, y), sorted by x.
        width: characters of each line, including 10 for the scale; at least 20.
        height: lines, including the x axis; at least 2.

    Returns:
        Lines of exactly `width` characters; one message if no point is finite.
    """
    inner, rows = width - _LABEL - 2, height - 1
    columns: list[list[float]] = [[] for _ in range(inner)]
    first, last = (points[0][0], points[-1][0]) if points else (0.0, 0.0)
    for x, y in points:
        columns[round((x - first) / ((last - first) or 1.0) * (inner - 1))].append(y)
    finite = [[min(1e150, max(-1e150, y)) for y in ys if math.isfinite(y)] for ys in columns]
    means = [sum(ys) / len(ys) if ys else None for ys in finite]
    known = [mean for mean in means if mean is not None]
    if not known:
        words = "every loss is NaN or infinite" if points else "no loss yet"
        return [words[:width].ljust(width)]
    low, high = min(known), max(known)
    heights = [0.0]
    for mean in means:
        part = None if mean is None else (mean - low) / ((high - low) or 1.0)
        heights.append(heights[-1] if part is None else part * (rows * 8 - 1) + 1)
    lines = []
    for row in reversed(range(rows)):
        body = "".join(_LEVELS[min(8, max(0, math.ceil(h - row * 8)))] for h in heights[1:])
        label = {0: text.number(low, 3), rows - 1: text.number(high, 3)}.get(row)
        lines.append(f"{label or '':>{_LABEL}} {'│' if label is None else '┤'}{body}")
    ends = f"{first:.0f}", f"{last:.0f}" if last > first else ""
    lines.append(f"{'step':>{_LABEL}}  {ends[0]}{ends[1]:>{max(0, inner - len(ends[0]))}}")
    return [line[:width].ljust(width) for line in lines]


def cut(words: str, width: int) -> str:
    """Truncate a text to `width`, with a mark at the cut."""
    return words if len(words) <= width else words[: width - 1] + "~"


def paint(lines: Iterable[Line]) -> Text:
    """Convert lines to rich text, without characters that control a terminal."""
    from rich.text import Text

    parts = [(text.printable(words), style) for words, style in lines]
    shown = Text(no_wrap=True, overflow="crop", end="")
    return shown.append_text(Text("\n").join(Text(*part) for part in parts))
