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
from hpctrain.util.text import number, printable

if TYPE_CHECKING:
    from rich.text import Text


LEVELS = {"wait": "yellow", "run": "cyan", "good": "green", "bad": "bold red"}
_CURVE_MOST, _CURVE_LEAST = 12, 4
_FULL = 0.95
"""hpctrain.memory.sample warns from this fraction on."""


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
    width = max(20, width)
    top = [*_head(view, width), *_progress(view, width)]
    bottom = [
        *_lines([view.saved], "", width, whole=False),
        *_lines([view.note], "yellow", width),
        *_lines([f"next: {command}" for command in view.next], "bold", width, whole=False),
    ]
    left = height - len(top) - len(bottom)
    idle = _idle(view.idle, width, max(0, min(6, left // 2)))
    left -= len(idle)
    # The ranks get the lines they need if a small curve still fits; the curve gets the rest.
    least = _CURVE_LEAST if len(view.progress.losses) > 1 else 0
    shown = ranks(view.progress, max(min(3, left), left - least))
    drawn = _curve(view.progress, width, left - len(shown))
    lines = [*top, *drawn, *shown, *idle, *bottom][:height]
    return [(cut(words, width), style) for words, style in lines]


def _lines(words: Iterable[str], style: str, width: int, *, whole: bool = True) -> list[Line]:
    """Format texts as lines: wrapped, or truncated unless `whole`."""
    if whole:
        words = (
            part for each in words for part in textwrap.wrap(each, width, break_on_hyphens=False)
        )
    return [(cut(each, width), style) for each in words if each]


def _head(view: View, width: int) -> list[Line]:
    title = cut(view.title, width)
    right = "   ".join(filter(None, (view.job, view.clock)))
    gap = width - len(title) - len(right)
    line = title + (" " * gap + right) * (gap >= 3)
    return [(line, "bold"), *_lines([view.state], LEVELS.get(view.level, ""), width)[:3]]


def _progress(view: View, width: int) -> list[Line]:
    known = view.progress
    step, most = known.step, known.max_steps
    eta = "" if view.eta_s is None else f"done in about {text.duration(view.eta_s)}"
    style = "bold red" if view.fits is False else "yellow" if view.quiet else ""
    words = "; ".join(filter(None, (view.verdict or eta, view.quiet)))
    ends = _lines([words], style, width)
    if not step:
        return ends
    words = f"step {step}" + (f" of {most}" if most else "")
    words += f", epoch {known.epoch:.2f}" if known.epoch is not None else ""
    if most:
        words = f" {math.floor(100 * step / most):3d}%  {words}"
        length = min(60, width - len(words))
        words = bar(step / most, length) + words if length >= 8 else words.strip()
    facts = (
        ("loss", known.loss, number),
        ("eval", known.eval_loss, number),
        ("tokens/s", known.tokens_per_s, "{:.0f}".format),
        ("MFU", known.mfu, "{:.1%}".format),
        ("data wait", known.data_wait, "{:.1%}".format),
        ("step", known.step_s, lambda value: f"{number(value)} s"),
    )
    speed = "  ".join(f"{name} {form(value)}" for name, value, form in facts if value is not None)
    return [(words, "green"), *ends, *_lines([speed], "", width)]


def _curve(progress: Progress, width: int, height: int) -> list[Line]:
    points = [(float(step), loss) for step, loss in progress.losses]
    if height < _CURVE_LEAST or len(points) < 2:
        return []
    drawn = curve(points, min(width, 120), min(height, _CURVE_MOST))
    return [(line, "cyan") for line in drawn]


def _idle(found: Sequence[Idle], width: int, most: int) -> list[Line]:
    lines: list[Line] = []
    for each in found:
        new = _lines([each.what], "bold red", width) + _lines([each.cause], "", width)
        new += _lines([f"fix: {each.fix}"], "bold", width)
        if lines and len(lines) + len(new) > most:
            break
        lines += new
    return lines[:most]


# -- its ranks -------------------------------------------------------------------------------------


def ranks(progress: Progress, most: int) -> list[Line]:
    """Return the memory and utilization of every rank's GPU, and host memory, in at most `most`
    lines; if there are more ranks, those with the highest usage.
    """
    samples = progress.samples
    if not samples or most < 1:
        return []
    gpus = [s for s in samples if _part(s) is not None or s.gpu_utilisation_percent is not None]
    known = gpus or [sample for sample in samples if sample.rss_mib is not None]
    foot = _hosts(samples)
    kept = sorted(known, key=lambda each: -(_part(each) or 0.0))
    if len(known) > (room := most - len(foot)):
        kept = kept[: max(0, room - 1)]
        foot = [(f"and {len(known) - len(kept)} more{', less full' * bool(gpus)}", ""), *foot]
    longest = max(len(_name(sample)) for sample in samples)
    shown = sorted(kept, key=lambda each: each.rank)
    return [*(_rank(each, longest, gpu=bool(gpus)) for each in shown), *foot][-most:]


def _name(sample: Sample) -> str:
    gpu = f":{sample.gpu_index}" if sample.gpu_index is not None else ""
    return f"rank {sample.rank} {_short(sample.host)}{gpu}"


def _short(host: str) -> str:
    name = host if host[:1].isdigit() else host.partition(".")[0]  # an address has no domain
    return name if len(name) <= 14 else f"{name[:6]}~{name[-7:]}"


def _rank(sample: Sample, longest: int, *, gpu: bool) -> Line:
    if not gpu:
        return f"{_name(sample)} {_gib(sample.rss_mib)} GiB", ""
    percent = sample.gpu_utilisation_percent
    total = "-" if sample.gpu_total_mib is None else f"{sample.gpu_total_mib / 1024:.0f}"
    line = (
        f"{_name(sample):{longest}} {bar(_part(sample), 14)}"
        f" {_gib(sample.gpu_used_mib):>5}/{total} GiB"
        f" {bar(None if percent is None else percent / 100, 10)}"
        f" {'-' if percent is None else percent:>3}%"
    )
    return line, _style(_part(sample))


def _hosts(samples: Sequence[Sample]) -> list[Line]:
    """Return the memory of the node with the highest usage, and the job's memory on the node where
    it is closest to its limit.
    """
    line, fullest = "", 0.0
    for word, used, total in (
        ("host", "node_used_mib", "node_total_mib"),
        ("job's limit", "cgroup_used_mib", "cgroup_limit_mib"),
    ):
        parts = [(part_of(getattr(each, used), getattr(each, total)), each) for each in samples]
        known = [(part, each) for part, each in parts if part is not None]
        if known:
            part, most = max(known, key=lambda pair: pair[0])
            name = f"   {word} " if line else f"{word} {_short(most.host)} "
            size = f"{_gib(getattr(most, used))}/{_gib(getattr(most, total))} GiB"
            line, fullest = f"{line}{name}{bar(part, 12)} {size}", max(fullest, part)
    return [(line, _style(fullest))] if line else []


def _part(sample: Sample) -> float | None:
    return part_of(sample.gpu_used_mib, sample.gpu_total_mib)


def _style(part: float | None) -> str:
    return "bold red" if part is not None and part >= _FULL else ""


def _gib(mib: int | None) -> str:
    return "-" if mib is None else f"{mib / 1024:.1f}" if mib < 100 * 1024 else f"{mib / 1024:.0f}"


# -- several runs ----------------------------------------------------------------------------------

_WORDS = {"run": "running", "wait": "waiting", "bad": "failed", "good": "completed", "": "ended"}
_ORDER = ("run", "bad", "wait", "", "good")


def frame_of_many(views: Sequence[View], title: str, width: int, height: int) -> list[Line]:
    """Return at most `height` lines: the number of runs in each state, and a line for each; if
    there are too many, for the most urgent.
    """
    states = [view.level for view in views]
    told = ", ".join(f"{states.count(key)} {_WORDS[key]}" for key in _WORDS if key in states)
    notes = dict.fromkeys(view.note for view in views if view.note)
    room = max(1, height - 2 - len(notes))
    order = sorted(range(len(views)), key=lambda at: (_ORDER.index(views[at].level), at))
    shown = [views[at] for at in sorted(order if len(views) <= room else order[: room - 1])]
    # Parameter combinations of a sweep share its name as a prefix, which is in the header.
    prefix = f"{title}_" if all(view.title.startswith(f"{title}_") for view in views) else ""
    names = [cut(view.title.removeprefix(prefix), max(12, width // 3)) for view in shown]
    head = ("RUN", "STATE", "STEP", "LOSS", "TOK/S", "MEM", "LEFT, WHY")
    cells = [(name, *_cells(view)) for name, view in zip(names, shown, strict=True)]
    rows = text.table([head, *cells], right=(2, 3, 4, 5), gap=" ")
    clock = next((view.clock for view in views if view.clock), "")
    lines: list[Line] = [(f"{title}: {told}   {clock}", "bold"), (rows[0], "bold")]
    styles = (LEVELS.get(view.level, "") for view in shown)
    lines += zip(rows[1:], styles, strict=True)
    if len(shown) < len(views):
        lines.append((f"and {len(views) - len(shown)} more", ""))
    lines += _lines(notes, "yellow", width, whole=False)
    return [(cut(words, width), style) for words, style in lines[:height]]


def _cells(view: View) -> tuple[str, ...]:
    known, worst = view.progress, view.progress.worst
    part = None if worst is None else _part(worst)
    left = "" if view.eta_s is None else text.duration(view.eta_s)
    # The previous column already shows the state.
    why = left if view.level == "run" else view.state.removeprefix(_WORDS[view.level])
    return (
        _WORDS[view.level],
        "-" if known.step is None else f"{known.step}/{known.max_steps or '-'}",
        number(known.loss),
        "-" if known.tokens_per_s is None else f"{known.tokens_per_s:.0f}",
        "-" if part is None else f"{part:.0%}",
        why.lstrip(": "),
    )


# -- lines for a terminal, and bars and curves in characters ----------------------------------------

Line = tuple[str, str]
"""A text and its rich style, or no style."""
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

    Points in the same column are averaged; a column without points repeats the previous one. A
    column without a finite value is marked `x` at the top.

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
        column = round((x - first) / (last - first) * (inner - 1)) if last > first else 0
        columns[column].append(min(1e150, max(-1e150, y)) if math.isfinite(y) else math.nan)
    means = [_mean(column) for column in columns]
    known = [mean for mean in means if mean is not None]
    if not known:
        words = "every loss is NaN or infinite" if points else "no loss yet"
        return [words[:width].ljust(width)]
    low, span = min(known), (max(known) - min(known)) or 1.0
    heights, height_before = [], 0.0
    for mean in means:
        height_before = height_before if mean is None else (mean - low) / span * (rows * 8 - 1) + 1
        heights.append(height_before)
    drawn = []
    for row in reversed(range(rows)):
        label = max(known) if row == rows - 1 else low if row == 0 else None
        name = "" if label is None else number(label, 3)
        body = "".join(_LEVELS[min(8, max(0, math.ceil(each - row * 8)))] for each in heights)
        drawn.append([f"{name:>{_LABEL}} {'│' if label is None else '┤'}", body])
    bad = [bool(column) and mean is None for column, mean in zip(columns, means, strict=True)]
    drawn[0][1] = "".join(
        "x" if is_bad else sign for sign, is_bad in zip(drawn[0][1], bad, strict=True)
    )
    ends = f"{first:.0f}", f"{last:.0f}" if last > first else ""
    axis = f"{'step':>{_LABEL}}  {ends[0]}{ends[1]:>{max(0, inner - len(ends[0]))}}"
    return [each[:width].ljust(width) for each in (*map("".join, drawn), axis)]


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


# -- lines -----------------------------------------------------------------------------------------


def cut(words: str, width: int) -> str:
    """Truncate a text to `width`, with a mark at the cut."""
    return words if len(words) <= width else words[: width - 1] + "~"


def paint(lines: Iterable[Line]) -> Text:
    """Convert lines to rich text, without characters that control a terminal."""
    from rich.text import Text

    shown = Text(no_wrap=True, overflow="crop", end="")
    for at, (words, style) in enumerate(lines):
        shown.append("\n" * (at > 0)).append(printable(words), style or None)
    return shown
