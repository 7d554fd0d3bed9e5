"""The frame of several runs that are watched: one line for each, those that run first. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.report import charts
from hpctrain.report.live import LEVELS, View, cut, duration
from hpctrain.report.live_paint import Line
from hpctrain.runs.progress import part_of

_ORDER = {"run": 0, "bad": 1, "wait": 2, "": 3, "good": 4}
_WORDS = {"run": "running", "wait": "waiting", "bad": "failed", "good": "completed", "": "ended"}
_BAR, _STEPS = 12, 35
"""Columns of the bar, and of what stands between it and the last."""
_WHY = 24
"""Columns that the last has at least, before the bar goes."""


def frame(views: Sequence[View], title: str, width: int, height: int, *, plain: bool = False) -> list[Line]:
    """Return `height` lines at most: how many are in which state, and a line of each, in the order of those that need to be seen."""
    counts = [(len([view for view in views if view.level == level]), word) for level, word in _WORDS.items()]
    told = ", ".join(f"{count} {word}" for count, word in counts if count)
    clock = next((view.clock for view in views if view.clock), "")
    head = cut(f"{title}: {told}", width - len(clock) - 1)
    notes: list[Line] = [[(cut(note, width), "yellow")] for note in dict.fromkeys(note for view in views for note in view.notes)]
    wasted = {each.what: view.title for view in views for each in view.idle[:1]}  # what is of the machine is said once
    idle: list[Line] = [[(cut(f"{title}: {what}", width), "bad")] for what, title in wasted.items()][:3]
    room = max(1, height - 2 - len(notes) - len(idle))
    ordered = sorted(enumerate(views), key=lambda each: (_ORDER.get(each[1].level, 3), each[0]))
    shown = ordered if len(ordered) <= room else ordered[: room - 1]
    rows = [(index, view) for index, view in sorted(shown, key=lambda each: each[0])]
    # The points of a sweep have its name in front, and the head says it.
    prefix = f"{title}_" if all(view.title.startswith(f"{title}_") for view in views) else ""
    names = [view.title.removeprefix(prefix) for _, view in rows]
    longest = min(max((len(name) for name in ("RUN", *names)), default=0), max(12, width // 3))
    states = max((len(_WORDS[view.level]) for _, view in rows), default=7)
    bar = _BAR if width - longest - states - _BAR - _STEPS >= _WHY else 0
    lines: list[Line] = [[(head, "bold"), (" " * (width - len(head) - len(clock)) + clock, "")]]
    lines.append(
        [
            (
                cut(f"{'RUN':{longest}} {'STATE':{states}} {'':{bar}} {'STEP':>13} {'LOSS':>7} {'TOK/S':>6} {'MEM':>4} LEFT, WHY", width),
                "bold",
            )
        ]
    )
    lines += [
        _row(view, cut(name, longest).ljust(longest), states, bar, width, plain=plain) for name, (_, view) in zip(names, rows, strict=True)
    ]
    if len(shown) < len(ordered):
        lines.append([(f"and {len(ordered) - len(shown)} more", "")])
    return [*lines, *idle, *notes][:height]


def _row(view: View, name: str, states: int, bar: int, width: int, *, plain: bool) -> Line:
    progress = view.progress
    part = progress.step / progress.max_steps if progress.step is not None and progress.max_steps else None
    step = "-" if progress.step is None else f"{progress.step}/{progress.max_steps or '-'}"
    loss = "-" if progress.loss is None else charts.number(progress.loss)
    speed = "-" if progress.tokens_per_s is None else f"{progress.tokens_per_s:.0f}"
    worst = progress.worst
    full = None if worst is None else part_of(worst.gpu_used_mib, worst.gpu_total_mib)
    why = duration(view.eta_s) if view.level == "run" and view.eta_s is not None else "" if view.level == "run" else view.state
    why = why.removeprefix(_WORDS[view.level]).lstrip(": ")  # the column before has said it
    begun: Line = [
        (f"{name} ", ""),
        (_WORDS[view.level].ljust(states) + " ", LEVELS.get(view.level, "")),
    ]
    begun.append((charts.bar(part, bar, plain=plain) if part is not None and bar else " " * bar, "green"))
    memory = "-" if full is None else f"{full:.0%}"
    rest = f" {step:>13} {loss:>7} {speed:>6} {memory:>4} {why}"
    return [*begun, (cut(rest, max(1, width - sum(len(text) for text, _ in begun))), "")]
