"""One measurement of a training's speed, and the texts it becomes: a line for people and the values of a row of metrics.jsonl.

Pure: no clock, no environment, no files, no printing. `parse_line` reads what `format_line` writes, as exactly as the line says it.

    [speed] step=20/1000 tokens/s=14210 useful_tokens/s=13180 trained_tokens/s=4120 mfu=41.2% data_wait=0.3% step_s=0.812
    memory=38120/81559M reserved=40110M rank=3 host=9120M eta=0:13:16

It is always one line (wrapped here). `M` is MiB, `-` is "not known". All values are of the whole job, over the steps since the line
before; docs/log.md says what each one is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

MARK = "[speed]"
"""The word every line starts with."""

EVENT = "speed"
"""The event of its rows in metrics.jsonl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """See the module. What is not known is None.

    Attributes:
        step: optimizer steps done, of `max_steps`.
        tokens_per_s: tokens that went through the model, padding included, of all processes.
        useful_tokens_per_s: of these, those that are no padding; `trained_tokens_per_s`: those that the loss looks at.
        mfu: model FLOP/s of the useful tokens, as a part of what the GPUs can do in bfloat16.
        data_wait: the part of the time that the slowest process waited for its data loader.
        step_s: seconds of a step; evaluations and saves are left out of it.
        peak_mib, reserved_mib, total_mib: of the process `rank`, whose GPU memory is the fullest: the most that tensors ever held, what
            torch's allocator holds, and what the GPU has.
        host_mib: resident memory of all processes on the node where they take most, with their data loader workers.
        eta_s: seconds to the end of the training, evaluations and saves included; the job may have to be started again for it.
    """

    step: int
    max_steps: int
    tokens_per_s: float | None = None
    useful_tokens_per_s: float | None = None
    trained_tokens_per_s: float | None = None
    mfu: float | None = None
    data_wait: float | None = None
    step_s: float | None = None
    peak_mib: int | None = None
    reserved_mib: int | None = None
    total_mib: int | None = None
    rank: int | None = None
    host_mib: int | None = None
    eta_s: float | None = None


def format_line(speed: Speed) -> str:
    """Return the line, without the line break."""
    memory = "-" if speed.peak_mib is None else f"{speed.peak_mib}/{_whole(speed.total_mib)}M"
    return (
        f"{MARK} step={speed.step}/{speed.max_steps} tokens/s={_whole(speed.tokens_per_s)}"
        f" useful_tokens/s={_whole(speed.useful_tokens_per_s)} trained_tokens/s={_whole(speed.trained_tokens_per_s)}"
        f" mfu={_percent(speed.mfu)} data_wait={_percent(speed.data_wait)} step_s={_short(speed.step_s)}"
        f" memory={memory} reserved={_mib(speed.reserved_mib)} rank={_whole(speed.rank)} host={_mib(speed.host_mib)}"
        f" eta={'-' if speed.eta_s is None else clock(speed.eta_s)}"
    )


def clock(seconds: float) -> str:
    """Return a duration as Slurm writes it, in hours: `0:13:16`, `24:00:00`, `100:00:00`."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"


_NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_LINE = re.compile(
    re.escape(MARK)
    + r" step=(?P<step>\d+)/(?P<max_steps>\d+) tokens/s=(?P<tokens_per_s>-|\d+)"
    + r" useful_tokens/s=(?P<useful_tokens_per_s>-|\d+) trained_tokens/s=(?P<trained_tokens_per_s>-|\d+)"
    + rf" mfu=(?P<mfu>-|{_NUMBER}%) data_wait=(?P<data_wait>-|{_NUMBER}%) step_s=(?P<step_s>-|{_NUMBER})"
    + r" memory=(?:-|(?P<peak_mib>\d+)/(?P<total_mib>-|\d+)M) reserved=(?P<reserved_mib>-|\d+M) rank=(?P<rank>-|\d+)"
    + r" host=(?P<host_mib>-|\d+M) eta=(?P<eta_s>-|\d+:\d\d:\d\d)\s*$",
    re.ASCII,
)
_PARTS = frozenset({"mfu", "data_wait"})
_WHOLE = frozenset({"step", "max_steps", "peak_mib", "reserved_mib", "total_mib", "rank", "host_mib"})


def parse_line(line: str) -> Speed | None:
    """Return the measurement that a line of a log carries, or None when it carries none.

    What a launcher put in front of it is skipped; a line that was cut short, or has anything behind it, is None.
    """
    if MARK not in line or (match := _LINE.search(line)) is None:
        return None
    return Speed(**{name: _value(name, text) for name, text in match.groupdict().items()})


def _value(name: str, text: str | None) -> Any:
    if text is None or text == "-":
        return None
    if name == "eta_s":
        hours, minutes, seconds = map(int, text.split(":"))
        return float(hours * 3600 + minutes * 60 + seconds)
    if name in _WHOLE:
        return int(text.removesuffix("M"))
    return float(text.removesuffix("%")) / (100 if name in _PARTS else 1)


def rounded(speed: Speed) -> Speed:
    """Return the measurement with six digits, which are more than is known: rounded once, the line and the row say the same."""
    named = {field.name: getattr(speed, field.name) for field in fields(speed)}
    short: dict[str, Any] = {name: float(f"{value:.6g}") for name, value in named.items() if isinstance(value, float)}
    return replace(speed, **short)


def to_values(speed: Speed) -> dict[str, float | int]:
    """Return the values of a row of metrics.jsonl, by the attributes' names: those that are known; the step is the row's own."""
    # Rows of many digits would crowd the others out of what is read of the file's end.
    named = {field.name: getattr(rounded(speed), field.name) for field in fields(speed) if field.name != "step"}
    return {name: value for name, value in named.items() if value is not None}


def from_row(row: Mapping[str, Any]) -> Speed | None:
    """Return the measurement in a row of metrics.jsonl (hpctrain.runs.metrics); None for a row of another kind."""
    if row.get("event") != EVENT or not isinstance(row.get("max_steps"), int):
        return None
    known = {field.name: row[field.name] for field in fields(Speed) if isinstance(row.get(field.name), int | float)}
    return Speed(**known)


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _mib(value: int | None) -> str:
    return "-" if value is None else f"{value}M"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
