"""The frame of one run that is watched: lines that fit a terminal, from what is known now. PURE.

What matters most keeps its place when there is little room: state, progress, time, then what is wrong; the curve, ranks and warnings
share what is left.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpctrain.report import charts, live_ranks
from hpctrain.report.idle import Idle
from hpctrain.report.live_paint import Line
from hpctrain.runs.progress import Progress

LEVELS = {"wait": "yellow", "run": "cyan", "good": "green", "bad": "bad"}
_CURVE_MOST, _CURVE_LEAST = 12, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown of one run, or job. What is not known is None, or empty.

    Attributes:
        title: the run, or the job's name.
        job: `job 123 on Slurm`.
        state: in words; level: one of LEVELS, or nothing.
        elapsed_s, limit_s: of the job that runs.
        eta_s: seconds to the end of the training, from now.
        fits: whether it ends before the time limit; verdict: in words.
        quiet: since when nothing was heard, in words.
        saved: the newest checkpoint, in words.
        warnings: the last of the log, the newest last.
        notes: of the watching itself, such as a scheduler that is silent.
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
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    clock: str = ""


def frame(view: View, width: int, height: int, *, plain: bool = False) -> list[Line]:
    """Return the lines of a view: `height` at most, each of `width` characters at most.

    Args:
        view: what is known.
        width: columns, those that may be written.
        height: lines.
        plain: in ASCII.
    """
    width = max(20, width)
    top = [*_head(view, width), *_bar(view, width, plain), *_wrapped(_time(view), width), *_wrapped(_speed(view.progress), width)]
    bottom: list[Line] = [*_foot(view, width)]
    left = height - len(top) - len(bottom)
    idle = _idle(view.idle, width, max(0, min(6, left // 2)))
    left -= len(idle)
    warnings = _warnings(view.warnings, width, max(0, min(4, left // 3)))
    left -= len(warnings)
    # The ranks get what they need as long as a small curve fits, and the curve the rest.
    curve_least = _CURVE_LEAST if len(view.progress.losses) > 1 else 0
    ranks = live_ranks.lines(view.progress, width, max(min(3, left), left - curve_least), plain=plain)
    left -= len(ranks)
    return [*top, *_curve(view.progress, width, left, plain), *ranks, *idle, *warnings, *bottom][:height]


def _head(view: View, width: int) -> list[Line]:
    title = view.title if len(view.title) <= width else view.title[: width - 1] + "~"
    line: Line = [(title, "bold")]
    right = "   ".join(part for part in (view.job, view.clock) if part)
    if len(title) + len(right) + 3 <= width:
        line.append((" " * (width - len(title) - len(right)) + right, ""))
    return [line, *([(part, LEVELS.get(view.level, ""))] for part in _wrap(view.state, width)[:3])]


def _bar(view: View, width: int, plain: bool) -> list[Line]:
    step, most = view.progress.step, view.progress.max_steps
    if step is None:
        return []
    words = f"step {step}" + (f" of {most}" if most else "")
    words += f", epoch {view.progress.epoch:.2f}" if view.progress.epoch is not None else ""
    if not most:
        return [[(words, "")]]
    part = step / most
    right = f" {math.floor(100 * part):3d}%  {words}"
    length = width - len(right)
    if length < 8:
        return [[(right.strip(), "")]]
    return [[(charts.bar(part, min(length, 60), plain=plain), "green"), (right, "")]]


def _time(view: View) -> Line:
    parts = []
    if view.verdict:
        parts.append(view.verdict)
    elif view.eta_s is not None:
        parts.append(f"done in about {duration(view.eta_s)}")
    if view.quiet:
        parts.append(view.quiet)
    return [("; ".join(parts), "bad" if view.fits is False else "yellow" if view.quiet else "")]


def duration(seconds: float) -> str:
    """Return a duration as people say it: `41 s`, `12 min`, `3.2 h`, `8.5 days`."""
    seconds = max(0.0, seconds)
    for most, length, unit in ((99.5, 1, "s"), (99.5 * 60, 60, "min")):
        if seconds < most:
            return f"{seconds / length:.0f} {unit}"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 9.95 else f"{hours:.0f} h" if hours < 99.5 else f"{hours / 24:.1f} days"


def _speed(progress: Progress) -> Line:
    if progress.step is None:
        return []
    facts = [
        ("loss", None if progress.loss is None else charts.number(progress.loss)),
        ("eval", None if progress.eval_loss is None else charts.number(progress.eval_loss)),
        ("tokens/s", None if progress.tokens_per_s is None else f"{progress.tokens_per_s:.0f}"),
        ("MFU", None if progress.mfu is None else f"{progress.mfu:.1%}"),
        ("data wait", None if progress.data_wait is None else f"{progress.data_wait:.1%}"),
        ("step", None if progress.step_s is None else f"{charts.number(progress.step_s)} s"),
    ]
    return [("  ".join(f"{name} {value}" for name, value in facts if value is not None), "")]


def _curve(progress: Progress, width: int, height: int, plain: bool) -> list[Line]:
    if not progress.losses or height < 1:
        return []
    points = [(float(step), loss) for step, loss in progress.losses]
    if height < _CURVE_LEAST or len(points) < 2:
        spark = charts.spark([loss for _, loss in points], max(1, width - 6), plain=plain)
        return [[("loss  ", ""), (spark, "cyan")]] if len(points) > 1 else []
    drawn = charts.curve(points, min(width, 120), min(height, _CURVE_MOST), plain=plain)
    return [[(line, "cyan")] for line in drawn]


def _idle(found: Sequence[Idle], width: int, most: int) -> list[Line]:
    lines: list[Line] = []
    for each in found:
        said: list[Line] = [[(part, "bad")] for part in _wrap(each.what, width)]
        said += [[(part, "")] for part in _wrap(each.cause, width)]
        said += [[(part, "bold")] for part in _wrap(f"fix: {each.fix}", width)]
        if lines and len(lines) + len(said) > most:
            break
        lines += said
    return lines[:most]


def _warnings(found: Sequence[str], width: int, most: int) -> list[Line]:
    return [[(cut(line, width), "yellow")] for line in found[-most:]] if most else []


def _foot(view: View, width: int) -> list[Line]:
    lines: list[Line] = []
    if view.saved:
        lines.append([(cut(view.saved, width), "")])
    lines += [[(part, "yellow")] for note in view.notes for part in _wrap(note, width)]
    for command in view.next:
        lines.append([(cut(f"next: {command}", width), "bold")])
    return lines


def cut(text: str, width: int) -> str:
    """Return a text that is cut at `width`, with a mark where something is gone."""
    return text if len(text) <= width else text[: width - 1] + "~"


def _wrapped(line: Line, width: int) -> list[Line]:
    return [[(part, style)] for text, style in line for part in _wrap(text, width)]


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) if text else []
