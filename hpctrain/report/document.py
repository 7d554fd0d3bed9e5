"""A report as sections of text, tables and charts. hpctrain.report.html renders it as a page. Charts
are over steps; a quantity that was not measured has none. PURE.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpctrain.explain.model import Diagnosis
from hpctrain.memory.sample import Sample
from hpctrain.report.charts import Chart, Marker, Series
from hpctrain.report.compare import CURVES, Comparison, best_words, cell
from hpctrain.report.efficiency import Efficiency, gpu_peak_mib, mean_of, records_of
from hpctrain.report.model import RunReport
from hpctrain.runs import job_state
from hpctrain.runs.history import History, Point, RankMemory
from hpctrain.runs.store import Attempt, Run
from hpctrain.slurm.notations import states, units
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import text
from hpctrain.util.secrets import hidden
from hpctrain.util.text import number

Rows = list[tuple[str, ...]]
_TAKEN = ("NODE_FAIL", "PREEMPTED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL")
_RANKS_OPEN = 16
#: Maximum number of lines with their own color.
_FEW_LINES = 8

# -- the model -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Text; `soft` is less prominent, and `heading` is the title of the following blocks."""

    text: str
    soft: bool = False
    heading: bool = False


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Preformatted lines: a command, or the end of a log."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of equal length; without a head, (name, value) pairs.

    Attributes:
        numeric: right-aligned columns.
        classes: of each row: `worst`, `best` or empty.
        folded: label of the collapsible section that contains the table; `open` expands it.
    """

    rows: Sequence[Sequence[str]]
    head: Sequence[str] = ()
    numeric: Collection[int] = ()
    classes: Sequence[str] = ()
    folded: str = ""
    open: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart."""

    drawn: Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportProblem:
    """A problem and its fix; `evidence` are (place, line)."""

    cause: str
    fix: str | None
    certainty: str = "likely"
    about: str = ""
    evidence: tuple[tuple[str, str], ...] = ()


Block = Paragraph | Verbatim | Table | Figure | ReportProblem


@dataclass(frozen=True, slots=True)
class ReportSection:
    """Blocks under a title."""

    id: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A report.

    Attributes:
        state: shown beside the title.
        lead: lines below it; `note` is the most important message.
        tiles: (name, value, small print) of the key figures.
        next: commands to type.
        at: seconds since the epoch.
    """

    title: str
    state: str = ""
    lead: tuple[str, ...] = ()
    note: str | None = None
    tiles: Sequence[tuple[str, str, str]] = ()
    sections: tuple[ReportSection, ...] = ()
    next: tuple[str, ...] = ()
    at: float = 0.0


def _sections(*given: tuple[str, str, Iterable[Block]]) -> tuple[ReportSection, ...]:
    made = (ReportSection(name, title, tuple(blocks)) for name, title, blocks in given)
    return tuple(section for section in made if section.blocks)


# -- one run ---------------------------------------------------------------------------------------


def of_run(facts: RunReport) -> Document:
    """Return the report of one run."""
    curves, speed = history_charts(facts.history)
    return Document(
        title=facts.run.id,
        state=facts.given.state.word,
        lead=(_subtitle(facts),),
        note=_note(facts),
        tiles=_tiles(facts),
        sections=_sections(
            ("diagnosis", "Diagnosis", _diagnosis(facts)),
            ("starts", "Starts", _starts(facts)),
            ("training", "Training", _training(facts, curves)),
            ("speed", "Speed", map(Figure, speed)),
            ("memory", "Memory and GPUs", _memory(facts)),
            ("efficiency", "Efficiency", _efficiency(facts.efficiency)),
            ("checkpoints", "Checkpoints", _checkpoints(facts)),
            ("config", "Config", _config(facts)),
            ("environment", "Code and environment", _environment(facts)),
            ("log", "End of the log", _log_ends(facts)),
        ),
        at=facts.given.now,
    )


def _subtitle(facts: RunReport) -> str:
    run, given = facts.run, facts.given
    summary = job_state.of_run(run, given.state).words
    words = [
        "" if summary == given.state.word else summary,
        f"launch {run.tag}" if run.tag != run.id else "",
        f"by {given.owner}",
        f"made {text.date(run.created)}" if run.created else "",
        f"jobs {', '.join(run.job_ids[-4:])}" if run.job_ids else "",
    ]
    return " · ".join(filter(None, words))


def _note(facts: RunReport) -> str | None:
    at, silent = text.date(facts.given.now), facts.given.silent
    return {
        "running": f"This run is still running; this is its state at {at}.",
        "pending": f"A job of this run is waiting; this is its state at {at}.",
        "unknown": f"Whether this run continues is unknown{f': {silent}' if silent else ''}.",
    }.get(facts.given.state.word)


def _tiles(facts: RunReport) -> list[tuple[str, str, str]]:
    past, counted = facts.history, facts.efficiency
    found = []
    steps = "-" if past.last_step is None else f"{past.last_step:,}"
    found.append(("steps", steps, f"of {past.max_steps:,}" if past.max_steps else ""))
    for name, event, key in (("loss", "log", "loss"), ("evaluation loss", "evaluate", "eval_loss")):
        if values := [each.values[key] for each in past.of(event) if key in each.values]:
            found.append((name, number(values[-1]), f"from {number(values[0])}"))
    for key, name, factor, unit, what in (
        ("useful_tokens_per_s", "tokens/s", 1, "", "useful ones, the second half"),
        ("mfu", "model FLOP/s", 100, " %", "of the GPUs' peak"),
    ):
        if (mean := mean_of(past, key)) is not None:
            found.append((name, number(factor * mean, 3 if unit else 4) + unit, what))
    if counted.gpu_hours is not None:
        asked = counted.asked_gpu_hours
        of = f"of {number(asked, 3)} requested" if asked else ""
        found.append(("GPU hours", number(counted.gpu_hours, 3), of))
    return found


def _diagnosis(facts: RunReport) -> Iterable[Block]:
    explanation, unexplained = facts.given.explanation, facts.given.unexplained
    found: list[Block] = []
    if explanation is not None:
        found += [_problem(each) for each in explanation.diagnoses]
        if (block := explanation.unexplained) is not None:
            who = f" of rank {block.rank}" if block.rank is not None else ""
            who += f" on {block.node}" if block.node else ""
            who += f", {block.since}" if block.since else ""
            where = f"{block.file}:{block.line}{who}"
            known = "" if explanation.diagnoses else "No known cause matches. "
            found.append(Paragraph(f"{known}The earliest error, {where}:"))
            found.append(Verbatim(tuple(map(hidden, block.lines))))
        for each in explanation.consequences:
            lines = text.count(each.count, "line")
            place = _place(each.evidence.file, each.evidence.line)
            found.append(Paragraph(f"A consequence, {lines}: {each.what} ({place})", soft=True))
    notes = [*([unexplained] if unexplained else []), *(explanation.notes if explanation else ())]
    if not found and not notes and facts.given.state.word == "failed":
        notes = ["The logs do not show why it failed."]
    wasted = (ReportProblem(cause=idle.what, about=idle.cause, fix=idle.fix) for idle in facts.idle)
    return [*found, *map(Paragraph, notes), *wasted]


def _problem(each: Diagnosis) -> ReportProblem:
    about = [
        each.certainty,
        each.id,
        f"rank {each.rank}" if each.rank is not None else "",
        f"on {each.node}" if each.node else "",
        f"since {each.since}" if each.since else "",
        f"start {each.attempt}" if each.attempt else "",
        f"hpctrain explain {each.id}",
    ]
    return ReportProblem(
        cause=hidden(each.cause),
        certainty=each.certainty,
        about=" · ".join(filter(None, about)),
        fix=hidden(each.fix.text),
        evidence=tuple(
            (_place(item.file, item.line), hidden(item.text)) for item in each.evidence[:6]
        ),
    )


def _place(file: str, line: int | None) -> str:
    return f"{file}:{line}" if line else file


def _starts(facts: RunReport) -> Iterable[Block]:
    past, accounts = facts.history, facts.given.accounts
    if not past.starts:
        return
    head = ("start", "host", "began", "took", "from step", "to step", "lost", "how it ended")
    yield Table(head=head, rows=start_rows(past, accounts), numeric=(4, 5, 6))


def start_rows(past: History, accounts: Sequence[JobRecord] = ()) -> Rows:
    """Return a row for each start; if it recorded no end, the scheduler's record is used."""
    attempts = tuple(
        Attempt(
            name=start.name,
            job_id=start.job,
            status=start.status,
            outcome=None if start.outcome == "interrupted" else start.outcome,
            reason=start.reason,
            was_interrupted=start.outcome == "interrupted",
        )
        for start in past.starts
    )
    run = Run(id="", tag="", attempts=attempts)
    rows: Rows = []
    records = records_of(past.starts, accounts)
    for at, (start, attempt, record) in enumerate(
        zip(past.starts, attempts, records, strict=True), 1
    ):
        first, until = start.first_at, start.until
        took = "-" if first is None or until is None else text.duration(until - first)
        how = _ended(attempt, record, job_state.continuation(run, attempt))
        steps = (start.first_step, start.last_step, start.lost_steps or None)
        began = text.date(first)
        rows.append(
            (f"{at}: {start.name}", start.host or "-", began, took, *map(_dash, steps), how)
        )
    return rows


def _dash(value: object) -> str:
    return "-" if value is None else str(value)


def _ended(attempt: Attempt, record: JobRecord | None, next_job: str) -> str:
    if record is not None and states.is_final(record.state):
        # The script may have recorded success although its node was lost: trust the scheduler.
        if attempt.outcome is None or record.state in _TAKEN:
            return job_state.of_job(
                record.state,
                attempt,
                exit_code=record.exit_code,
                signal=record.signal,
                reason=record.reason,
                next_job=next_job,
            ).words
    elif record is not None and attempt.outcome is None and not attempt.was_interrupted:
        return "still running"
    words = job_state.of_job(None, attempt, next_job=next_job).words
    return words.removeprefix("; ") or "no record of its end"


def _training(facts: RunReport, curves: Sequence[Chart]) -> Iterable[Block]:
    if not curves:
        note = "The training has recorded no loss; hpctrain's RunFiles callback records it."
        yield Paragraph(note if facts.history.starts else "The run has not started.", soft=True)
    yield from map(Figure, curves)
    if facts.evaluation:
        yield Paragraph("Evaluation", heading=True)
        yield Table(rows=[(name, number(value)) for name, value in facts.evaluation.items()])


def _memory(facts: RunReport) -> Iterable[Block]:
    yield from map(Figure, memory_charts(facts.history))
    if known := [each for each in facts.history.ranks if each.samples]:
        yield _ranks(known)


def _ranks(known: Sequence[RankMemory]) -> Table:
    peaks = [max((gpu_peak_mib(s) or 0 for s in each.samples), default=0) for each in known]
    gpus = dict.fromkeys(each.samples[-1].gpu_name for each in known)
    rows = []
    for each, peak in zip(known, peaks, strict=True):
        last = each.samples[-1]
        hosts = [s.cgroup_used_mib for s in each.samples if s.cgroup_used_mib is not None]
        mean = each.mean_utilisation
        rows.append(
            (
                str(each.rank),
                last.host,
                _dash(last.gpu_index),
                _gib(peak or None),
                _gib(last.gpu_total_mib),
                "-" if mean is None else f"{mean:.0f}",
                _gib(max((s.rss_mib for s in each.samples if s.rss_mib is not None), default=None)),
                _gib(max(hosts, default=None)),
            )
        )
    return Table(
        head=(
            "rank",
            "node",
            "GPU",
            "GPU peak, GiB",
            "GPU has, GiB",
            "busy, %",
            "process, GiB",
            "node's cgroup, GiB",
        ),
        rows=rows,
        numeric=(0, 3, 4, 5, 6, 7),
        classes=["worst" * (len(rows) > 1 and 0 < peak == max(peaks)) for peak in peaks],
        folded=", ".join([text.count(len(rows), "rank"), *filter(None, gpus)]),
        open=len(rows) <= _RANKS_OPEN,
    )


def _gib(mib: int | None) -> str:
    return "-" if mib is None else f"{mib / 1024:.1f}"


def _efficiency(counted: Efficiency) -> Iterable[Block]:
    yield Table(rows=efficiency_rows(counted))
    if counted.parts and counted.held_s:
        rows = [
            (
                f"{100 * part.seconds / counted.held_s:.0f} %",
                text.duration(part.seconds),
                number(part.gpu_s / 3600, 3) if part.gpu_s else "-",
                part.what,
            )
            for part in counted.parts
        ]
        yield Paragraph("Where the time went", heading=True)
        yield Table(head=("share", "time", "GPU hours", "spent on"), rows=rows, numeric=(0, 1, 2))
    if counted.next:
        yield Paragraph("Request next time", heading=True)
        asks = [(ask.line, ask.asked or "-", ask.why) for ask in counted.next]
        yield Table(head=("next time", "requested", "because"), rows=asks)
    yield from map(Paragraph, counted.notes)


def efficiency_rows(counted: Efficiency) -> Rows:
    """Return the allocated and used resources as (name, value)."""
    rows: Rows = []
    held = text.duration(counted.held_s)
    if counted.gpu_hours is not None:
        wasted = counted.wasted_gpu_hours
        of = "" if wasted is None else f"; {number(wasted, 3)} of them were not training"
        gpus = " and ".join(map(str, counted.counts)) or str(counted.gpus)
        had = f"{gpus} GPU{'s' * (gpus != '1')} for {held}"
        rows.append(("GPU hours", f"{number(counted.gpu_hours, 3)} used: {had}{of}"))
        if counted.utilisation is not None:
            work = f"{100 * counted.utilisation:.0f} % on average during training"
            rows.append(("GPU utilization", work))
    if counted.held_s:
        of = ""
        if counted.asked_s:
            share = 100 * counted.held_s / counted.asked_s
            limits = units.format_time(round(counted.asked_s))
            of = f" of {limits}, the time limits of all starts ({share:.0f} %)"
        rows.append(("time with nodes", held + of))
    if (peak := counted.host_peak_bytes) is not None:
        asked = counted.host_asked_bytes
        of = f" of {text.size(asked)} ({100 * peak / asked:.0f} %)" if asked else ""
        who = "the tasks of a node, as Slurm sampled them (MaxRSS)"
        who = who if counted.is_max_rss else "the fullest node"
        rows.append(("host memory", f"{text.size(peak)}{of}, {who}"))
    return rows or [("nothing", "is known yet of what the run used")]


def _checkpoints(facts: RunReport) -> Iterable[Block]:
    rows = [
        (one.path.name, _dash(one.step), "; ".join(one.wrong) or "complete") for one in facts.saved
    ]
    return [Table(head=("checkpoint", "step", "files"), rows=rows, numeric=(1,))] if rows else []


def _config(facts: RunReport) -> Iterable[Block]:
    if facts.command:
        yield Paragraph("launched by", soft=True)
        yield Verbatim((facts.command,))
    if facts.config:
        yield Table(head=("key", "value", "from"), rows=facts.config)


def _environment(facts: RunReport) -> Iterable[Block]:
    values = {**facts.code, **facts.environment}
    known = {key: value for key, value in values.items() if value not in (None, [], "")}
    yield Table(
        rows=[
            (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            for key, value in known.items()
            if key not in ("schema", "packages")
        ]
    )


def _log_ends(facts: RunReport) -> Iterable[Block]:
    for name, lines in facts.ends:
        yield Paragraph(name, heading=True)
        yield Verbatim(tuple(lines))


# -- several runs ----------------------------------------------------------------------------------


def of_comparison(found: Comparison) -> Document:
    """Return the report that compares runs."""
    best = best_words(found)
    return Document(
        title=found.title,
        lead=(_summary(found), *([best] if best else [])),
        sections=_sections(
            ("curves", "Loss curves", map(Figure, comparison_charts(found))),
            ("runs", "Runs", [_compared(found)] if found.rows else []),
        ),
        next=found.next,
        at=found.now,
    )


def _summary(found: Comparison) -> str:
    by_state = [row.state for row in found.rows]
    count = sorted(set(by_state), key=lambda state: -by_state.count(state))
    words = ", ".join(f"{by_state.count(state)} {state}" for state in count)
    words = f"{len(found.rows)} runs: {words}"
    if found.metric:
        better = "higher" if found.higher else "lower"
        words += f"; ordered by {found.metric}, {better} is better"
    return words


def _compared(found: Comparison) -> Block:
    rows = []
    for row in found.rows:
        has_run = row.seconds or row.state in ("completed", "failed")
        rows.append(
            (
                row.id,
                row.state,
                number(row.metric, 5),
                number(row.best, 5),
                _dash(row.steps),
                text.duration(row.seconds) if has_run else "-",
                *(cell(row.values[key]) if key in row.values else "-" for key in found.keys),
            )
        )
    return Table(
        head=("run", "state", found.metric or "metric", "best", "steps", "took", *found.keys),
        rows=rows,
        numeric=(2, 3, 4, 5),
        classes=["best" if row is found.best else "" for row in found.rows],
    )


# -- charts: curves --------------------------------------------------------------------------------


def _line(
    name: str, points: Iterable[Point], key: str, colour: int, factor: float = 1
) -> Series | None:
    pairs: list[tuple[float, float]] = []
    for point in points:
        if key in point.values:
            while pairs and pairs[-1][0] >= point.step:
                pairs.pop()  # after a start from scratch, a repeated step counts
            pairs.append((float(point.step), factor * point.values[key]))
    if not pairs:
        return None
    xs, ys = zip(*pairs, strict=True)
    return Series(name=name, x=xs, y=ys, colour=colour)


def history_charts(history: History) -> tuple[list[Chart], list[Chart]]:
    """Return the training charts (loss, learning rate, gradient norm), and the speed charts (tokens
    per second, model FLOP/s, wait for data).
    """
    log, evaluated = history.of("log"), history.of("evaluate")
    speed = history.of("speed")

    def charts(
        name: str, title: str, *lines: Series | None, unit: str = "", top: float | None = None
    ) -> list[Chart]:
        kept = tuple(line for line in lines if line is not None)
        chart = Chart(
            id=name,
            title=title,
            series=kept,
            unit=unit,
            rules=_restarts(history),
            zero=name not in ("loss", "grad"),
            top=top,
            says="; ".join(_says(line, unit) for line in kept),
        )
        return [chart] if kept else []

    losses = _line("train", log, "loss", 0), _line("evaluation", evaluated, "eval_loss", 1)
    useful = _line("useful", speed, "useful_tokens_per_s", 0)
    flops = _line("model FLOP/s", speed, "mfu", 2, factor=100)
    waits = _line("waiting", speed, "data_wait", 3, factor=100)
    return [
        *charts("loss", "Loss", *losses),
        *charts("lr", "Learning rate", _line("learning rate", log, "learning_rate", 0)),
        *charts("grad", "Gradient norm", _line("gradient norm", log, "grad_norm", 0)),
    ], [
        *charts("tokens", "Tokens per second, all processes", useful),
        *charts("mfu", "Model FLOP/s utilization", flops, unit="%"),
        *charts("wait", "Waiting for data, slowest process", waits, unit="%", top=5.0),
    ]


def _restarts(history: History) -> tuple[Marker, ...]:
    return tuple(
        Marker(
            x=float(each.first_step), text=f"start {each.name} resumed at step {each.first_step}"
        )
        for each in history.starts[1:]
        if each.first_step is not None
    )


def _says(line: Series, unit: str) -> str:
    given = [y for y in line.y if y is not None]
    values = [y for y in given if math.isfinite(y)]
    if not values:
        return f"{line.name}: no value is a finite number"
    ends = (values[0], values[-1], min(values), max(values))
    first, last, low, high = map(number, ends)
    lost = len(given) - len(values)
    bad = f"; {lost} of {len(given)} are NaN or infinite" if lost else ""
    unit = f" {unit}" if unit else ""
    return f"{line.name}: from {first} to {last}{unit}, lowest {low}, highest {high}{bad}"


# -- charts: memory --------------------------------------------------------------------------------

#: Values by rank, or node, and step.
_Lines = dict[str, dict[int, float]]


def memory_charts(history: History) -> list[Chart]:
    """Return memory of every GPU and node against its limit, and the GPUs' utilization."""
    # Samples from before the model was loaded are omitted.
    samples = [
        sample for each in history.ranks for sample in each.samples if sample.event != "train_begin"
    ]

    def lines(value: Callable[[Sample], int | None], *, by_node: bool, per: float) -> _Lines:
        """Return the highest value of each step, over all ranks of a node and repeated steps."""
        found: _Lines = {}
        for sample in samples:
            if (y := value(sample)) is not None:
                steps = found.setdefault(sample.host if by_node else f"rank {sample.rank}", {})
                steps[sample.step] = max(steps.get(sample.step, 0.0), round(y / per, 3))
        return found

    found = []
    for name, title, by_node, value, limit, what in (
        ("gpu-memory", "GPU memory of each rank", False, gpu_peak_mib, "gpu_total_mib", "GPU"),
        (
            "cgroup",
            "Host memory of the job, each node",
            True,
            lambda sample: sample.cgroup_used_mib,
            "cgroup_limit_mib",
            "the job's limit",
        ),
        (
            "node-memory",
            "Memory of each node, all of its processes",
            True,
            lambda sample: sample.node_used_mib,
            "node_total_mib",
            "node",
        ),
    ):
        known = lines(value, by_node=by_node, per=1024)
        if not known:
            continue
        peaks = {label: max(values.values()) for label, values in known.items()}
        worst = max(peaks, key=lambda label: peaks[label])
        full, rules = "", _restarts(history)
        if limits := [mib for sample in samples if (mib := getattr(sample, limit))]:
            top = min(limits) / 1024
            full = f" of {number(top)} GiB ({100 * peaks[worst] / top:.0f} %)"
            rules += (Marker(y=top, text=f"{what}: {number(top)} GiB"),)
        found.append(
            Chart(
                id=name,
                title=title,
                series=_coloured(known, worst, f"{worst} (the fullest)"),
                unit="GiB",
                rules=rules,
                zero=True,
                says=f"the fullest is {worst} with {number(peaks[worst])} GiB{full}",
            )
        )
    if known := lines(lambda sample: sample.gpu_utilisation_percent, by_node=False, per=1):
        means = {f"rank {each.rank}": each.mean_utilisation or 0.0 for each in history.ranks}
        least = min(known, key=lambda label: means[label])
        found.append(
            Chart(
                id="utilisation",
                title="GPU utilization of each rank",
                series=_coloured(known, least, f"{least} (mean {means[least]:.0f} %)"),
                unit="%",
                zero=True,
                top=100.0,
                rules=_restarts(history),
                says=f"the least used is {least} with {means[least]:.0f} % on average",
            )
        )
    return found


def _coloured(
    known: Mapping[str, Mapping[int, float | None]], first: str | None, words: str
) -> tuple[Series, ...]:
    """Return one line each, sorted by step; `first` is highlighted and labeled `words`; if there
    are many, the others are gray.
    """
    found = []
    for index, (label, values) in enumerate(known.items()):
        stands_out = label == first and len(known) > 1
        colour = 1 if label == first else (0, 2, 3, 4, 5, 6, 7)[index % 7]
        found.append(
            Series(
                name=words if stands_out else label,
                x=tuple(map(float, sorted(values))),
                y=tuple(values[step] for step in sorted(values)),
                colour=colour if label == first or len(known) <= _FEW_LINES else None,
                emphasis=stands_out,
            )
        )
    return tuple(found)


# -- charts: several runs --------------------------------------------------------------------------


def comparison_charts(found: Comparison) -> Iterable[Chart]:
    """Return the loss curves in one chart, the best one marked."""
    having = [row for row in found.rows if row.curve]
    if not having:
        return
    rows = having[:CURVES]
    best = found.best.id if found.best is not None else None
    left = len(having) - len(rows)
    more = f"; the best {CURVES}, {left} more are left out" if left else ""
    yield Chart(
        id="curves",
        title="Loss curves",
        series=_coloured({row.id: dict(row.curve) for row in rows}, best, f"{best} (best)"),
        says=f"training loss of each run{more}",
    )
