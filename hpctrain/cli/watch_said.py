"""What `hpctrain watch` says where nothing can be drawn: one line for each change, as text or as JSON."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from hpctrain.cli.runs_table import printable
from hpctrain.cli.watch_view import Watched, as_json
from hpctrain.report.charts import number
from hpctrain.report.live import View, duration

STEP_S = 15.0
"""Seconds between two lines of steps, at least."""
_OLD_WARNINGS = 3


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is new: state, step, saved, warning, idle, note or end."""

    kind: str
    text: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Said:
    """What was said of one run, so that only what is new is said again."""

    _state: tuple[Any, ...] = ()
    _step: int | None = None
    _step_at: float = float("-inf")
    _fits: bool | None = None
    _saved: int | None = None
    _warned: set[str] = field(default_factory=set)
    _idle: set[tuple[str, str | None, int | None]] = field(default_factory=set)
    _notes: tuple[str, ...] = ()
    _ended: bool = False
    _began: bool = False

    def changes(self, watched: Watched, view: View, now: float) -> list[Change]:
        """Return what is new; of steps, the last one of each 15 s."""
        found = [*self._state_changes(watched, view), *self._step_changes(watched, view, now)]
        progress = watched.looked.progress
        if progress.saved_step is not None and progress.saved_step != self._saved:
            found.append(Change("saved", f"saved checkpoint-{progress.saved_step}", {"step": progress.saved_step}))
            self._saved = progress.saved_step
        if not self._began:  # of what was there before the watching began, the last ones
            self._warned.update(list(watched.looked.warnings)[:-_OLD_WARNINGS])
            self._began = True
        for key, (line, _) in watched.looked.warnings.items():
            if key not in self._warned:
                self._warned.add(key)
                found.append(Change("warning", line))
        for idle in view.idle:
            if (idle.id, idle.node, idle.rank) not in self._idle:
                self._idle.add((idle.id, idle.node, idle.rank))
                found.append(Change("idle", f"{idle.what}; {idle.cause}; fix: {idle.fix}", asdict(idle)))
        if view.notes != self._notes:
            self._notes = view.notes
            found += [Change("note", note) for note in view.notes]
        if watched.ended and not self._ended:
            self._ended = True
            found.append(Change("end", view.state, {"exit_code": watched.code, "next": list(view.next)}))
        return found

    def _state_changes(self, watched: Watched, view: View) -> list[Change]:
        record = watched.current
        starts = len(watched.looked.run.attempts) if watched.looked.run is not None else 0
        reason = record.reason if record is not None and record.state == watched.state else None
        key = (watched.job, max(1, starts), watched.state, reason, view.state if record is None else "")
        if key == self._state:
            return []
        self._state = key
        if watched.ended:
            return []  # the end is told once
        values = {
            "state": watched.state,
            "reason": reason,
            "start": record.start if record else None,
        }
        return [Change("state", f"{view.job}: {view.state}" if view.job else view.state, values)]

    def _step_changes(self, watched: Watched, view: View, now: float) -> list[Change]:
        progress = watched.looked.progress
        turned = view.fits is not None and view.fits != self._fits
        due = progress.step is not None and progress.step != self._step and (now - self._step_at >= STEP_S or watched.ended or turned)
        if not due:
            return []
        self._step, self._step_at = progress.step, now
        self._fits = view.fits if view.fits is not None else self._fits
        begins = "the training begins at " if progress.loss is None and progress.at is not None else ""
        parts = [f"{begins}step {progress.step}" + (f" of {progress.max_steps}" if progress.max_steps else "")]
        parts += [f"loss {number(progress.loss)}"] if progress.loss is not None else []
        parts += [f"{progress.tokens_per_s:.0f} tokens/s"] if progress.tokens_per_s is not None else []
        if turned and view.verdict:
            parts.append(view.verdict)
        elif view.eta_s is not None:
            parts.append(f"done in about {duration(view.eta_s)}")
        values = {**as_json(progress), "eta_s": view.eta_s, "elapsed_s": view.elapsed_s, "time_limit_s": view.limit_s, "fits": view.fits}
        return [Change("step", ", ".join(parts), values)]


def line(change: Change, title: str, now: float) -> str:
    """Return a change as a line of text."""
    return f"{time.strftime('%H:%M:%S', time.localtime(now))} {printable(title)}: {printable(change.text)}"


def as_json_line(change: Change, watched: Watched, now: float) -> str:
    """Return a change as a JSON object of one line."""
    head = {"schema": 1, "at": round(now, 3), "run": watched.looked.run_id, "job": watched.job, "change": change.kind, "text": change.text}
    return json.dumps(head | change.values)
