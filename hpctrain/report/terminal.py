"""A report of one run in characters, for ssh: 80 columns, no colour, nothing that orders a terminal about. PURE."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

from hpctrain.report import charts, page_charts, page_rows, scale
from hpctrain.report.compare_text import fix_lines, printable, table
from hpctrain.report.drawing import Chart, Drawn
from hpctrain.report.efficiency import gpu_peak_mib
from hpctrain.report.facts import Facts
from hpctrain.report.next_time import spoken

WIDTH = 80
_HEIGHT = 9
_RANKS = 16
"""Ranks that have a line of their own; of more, the fullest and the least used."""


def run(facts: Facts, *, plain: bool = False, x: str | None = None) -> list[str]:
    """Return the lines. `plain` is ASCII; `x`: `step` or `time`, what lies below the curves."""
    past = facts.history
    out = [f"{facts.run.id}: {facts.given.state.word}", *_wrapped(page_rows.subtitle(facts).replace(" · ", ", "))]
    if note := page_rows.going_on(facts):
        out += _wrapped(note)
    out += ["", *_pairs((name, f"{value}{f' ({small})' if small else ''}") for name, value, small in page_rows.tiles(facts))]
    out += _diagnosis(facts)
    if past.starts:
        rows = [(row[0], row[2][5:16], *row[3:]) for row in page_rows.starts(past, facts.given.accounts)]
        head = ("start", "began", "took", "from", "to", "lost", "how it ended")
        out += ["", *table([head, *(_cut(row) for row in rows)])]
        out += [line for note in page_rows.starts_notes(past) for line in _wrapped(note)]
    if note := page_rows.training_note(facts):
        out += ["", *_wrapped(note)]
    drawn = [*page_charts.training(past, by_epoch=facts.from_log, x=x), *page_charts.speed(past, by_step=facts.from_log, x=x)]
    for chart in drawn:
        out += _curve(chart, plain=plain)
    out += _memory(facts, plain=plain)
    out += _efficiency(facts, plain=plain)
    out += _rest(facts)
    return [printable(line) for line in out]


def _cut(row: Sequence[str]) -> tuple[str, ...]:
    room = WIDTH - sum(len(cell) + 2 for cell in row[:-1])
    last = row[-1]
    return (*row[:-1], last if len(last) <= max(12, room) else f"{last[: max(11, room - 3)]}...")


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(printable(text), WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _pairs(rows: Iterable[tuple[str, str]]) -> list[str]:
    found: list[str] = []
    for name, value in rows:
        label = f"{printable(name):17} "
        found += textwrap.wrap(printable(value), WIDTH, initial_indent=label, subsequent_indent=" " * 18, break_on_hyphens=False) or [
            label.rstrip()
        ]
    return found


def _diagnosis(facts: Facts) -> list[str]:
    said = page_rows.diagnosis(facts)
    if not said["has"]["diagnosis"]:
        return []
    out = ["", "diagnosis"]
    for each in said["diagnoses"]:
        out += _wrapped(f"{each['certainty']}: {each['cause']}", "  ")
        out += fix_lines(each["fix"], "    ")
        for place, line in each["evidence"][:2]:
            out += _wrapped(f"{place}: {line}", "    ")
    if said["block"] is not None:
        out += _wrapped(f"no known cause matches; the earliest error, {said['block']['where']}:", "  ")
        out += [f"    {line[: WIDTH - 4]}" for line in said["block"]["text"].split("\n")[-12:]]
    out += [line for note in said["diagnosis_notes"] for line in _wrapped(note, "  ")]
    for each in said["idle"]:
        out += [*_wrapped(f"{each.what}: {each.cause}", "  "), *fix_lines(each.fix, "    ")]
    return out


def _curve(drawn: Drawn, *, plain: bool) -> list[str]:
    if not isinstance(drawn, Chart):
        return []
    (line, *_) = drawn.series
    points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
    if len([y for _, y in points if math.isfinite(y)]) < 2:
        return []
    name, factor = {"step": "step", "time": "s", "number": drawn.x_name}[drawn.x_kind], 1.0
    if drawn.x_kind == "time":
        _, factor = scale.time_ticks(points[0][0], points[-1][0])
        name = f"{scale.UNITS[factor]} {drawn.x_name}".strip()
    unit = f", {drawn.unit}" if drawn.unit else ""
    head = f"{drawn.title}{unit}, over {name}" + (f" ({line.name})" if len(drawn.series) > 1 else "")
    curve = charts.curve([(x / factor, y) for x, y in points], WIDTH, _HEIGHT, plain=plain)
    word = "step" if drawn.x_kind == "step" else f"{scale.UNITS[factor] if drawn.x_kind == 'time' else drawn.x_name[:5]:>5}"
    return ["", *_wrapped(head), *curve[:-1], curve[-1] if word == "step" else curve[-1].replace(" step", word, 1)]


def _memory(facts: Facts, *, plain: bool) -> list[str]:
    """Return a bar for each rank's GPU, against what it has, and how much it worked."""
    rows = []
    for each in facts.history.ranks:
        used = [(value, sample) for sample in each.samples if (value := gpu_peak_mib(sample)) is not None]
        total = next((sample.gpu_total_mib for _, sample in reversed(used) if sample.gpu_total_mib), None)
        if used and total:
            rows.append((max(value for value, _ in used) / total, total, each, used[-1][1].host))
    out = []
    if rows:
        worst = max(rows, key=lambda row: row[0])[2].rank
        least = min(rows, key=lambda row: row[2].mean_utilisation if row[2].mean_utilisation is not None else 101.0)[2].rank
        shown = rows if len(rows) <= _RANKS else sorted(rows, key=lambda row: -row[0])[:3] + [row for row in rows if row[2].rank == least]
        out += ["", "GPU memory at its peak, and mean utilisation, of each rank"]
        for part, total, each, host in {row[2].rank: row for row in shown}.values():
            work = "-" if each.mean_utilisation is None else f"{each.mean_utilisation:.0f} %"
            mark = " fullest" if each.rank == worst and len(rows) > 1 else " least used" if each.rank == least and len(rows) > 1 else ""
            bar = f"{charts.bar(part, 24, plain=plain)} {100 * part:3.0f} % of {total / 1024:.0f} GiB"
            out.append(f"{each.rank:>5} {printable(host)[:12]:12} {bar}  {work:>5}{mark}")
        if len(shown) < len(rows):
            out.append(f"      and {len(rows) - len({row[2].rank for row in shown})} other ranks")
    if facts.beside:
        out += ["", *table([("what", "predicted", "measured", "prediction is off"), *page_rows.beside(facts.beside)])]
    return out


def _efficiency(facts: Facts, *, plain: bool) -> list[str]:
    counted = facts.efficiency
    out = ["", "efficiency", *_pairs((f"  {name}", value) for name, value in page_rows.efficiency(counted))]
    for part in counted.parts:
        share = part.seconds / counted.held_s if counted.held_s else 0.0
        out.append(f"  {part.id:15} {charts.bar(share, 24, plain=plain)} {100 * share:3.0f} %  {spoken(part.seconds)}")
    if counted.next:
        out += ["", "ask for next time"]
        for ask in counted.next:
            was = "asked for the same; " if ask.is_as_it_was else f"asked for {ask.asked}; " if ask.asked else ""
            out += [ask.line, *_wrapped(f"{was}{ask.why}", "    ")]
    return out + [line for note in counted.notes for line in _wrapped(note)]


def _rest(facts: Facts) -> list[str]:
    out = []
    if facts.saved:
        rows = [(each.name, "-" if each.step is None else str(each.step), each.problem or "complete") for each in facts.saved]
        out += ["", *table([("checkpoint", "step", "files"), *(_cut(row) for row in rows)])]
    if facts.command:
        out += ["", "launched by", f"  {printable(facts.command)}"]
    if facts.config:
        out += ["", "config, as set"]
        out += [line for key, value, _ in facts.config for line in _wrapped(f"{key}: {value}", "  ")[:3]]
    out += ["", *_pairs((*page_rows.code(facts.code), *page_rows.environment(facts.environment)))]
    for each in facts.ends:
        out += ["", f"end of {each.name}", *(f"  {line[: WIDTH - 2]}" for line in each.lines[-12:])]
    return out
