"""A report as sections of text, tables and charts. hpctrain.report.html renders it as a page. Charts
are over steps; a quantity that was not measured has none. PURE.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from hpctrain.explain.model import Diagnosis
from hpctrain.memory.sample import Sample
from hpctrain.report.compare import CURVES, Comparison, best_words, cell
from hpctrain.report.efficiency import Efficiency, gpu_peak_mib, mean_of, most, records_of
from hpctrain.report.model import RunReport
from hpctrain.runs import job_state
from hpctrain.runs.history import History, RankMemory
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line.

    Attributes:
        x, y: of equal length; NaN in `y` is marked.
        colour: 0 to 7, of the page's palette; None draws it thin and gray: one of many.
        emphasis: thicker than the others.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    colour: int | None = 0
    emphasis: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A line across the chart: at an `x`, a restart; or at a `y`, a limit."""

    text: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over steps.

    Attributes:
        id: unique on the page.
        unit: of y: `GiB`, `%`, or "".
        zero: y starts at 0.
        top: minimum upper end of y.
        says: one sentence that describes the chart, for screen readers.
    """

    id: str
    title: str
    series: tuple[Series, ...]
    unit: str = ""
    rules: tuple[Marker, ...] = ()
    zero: bool = False
    top: float | None = None
    says: str = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Text; `heading` is the title of the following blocks, `soft` is less prominent, and `verbatim`
    keeps its lines: a command, or the end of a log.
    """

    text: str
    kind: Literal["", "heading", "soft", "verbatim"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of equal length; without a head, (name, value) pairs.

    Attributes:
        numeric: right-aligned columns.
        classes: of each row: `worst`, `best` or empty.
        folded: label of the collapsed section that contains the table.
    """

    rows: Sequence[Sequence[str]]
    head: Sequence[str] = ()
    numeric: Collection[int] = ()
    classes: Sequence[str] = ()
    folded: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportProblem:
    """A problem and its fix; `evidence` are (place, line)."""

    cause: str
    fix: str | None
    certainty: str = "likely"
    about: str = ""
    evidence: tuple[tuple[str, str], ...] = ()


Block = Paragraph | Table | Chart | ReportProblem
#: Id, title and content.
Section = tuple[str, str, Sequence[Block]]


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
    sections: tuple[Section, ...] = ()
    next: tuple[str, ...] = ()
    at: float = 0.0


# -- one run ---------------------------------------------------------------------------------------


def of_run(facts: RunReport) -> Document:
    """Return the report of one run."""
    past, given = facts.history, facts.given
    training, speed = history_charts(past)
    starts = Table(
        head=("start", "host", "began", "took", "from step", "to step", "lost", "how it ended"),
        rows=start_rows(past, given.accounts),
        numeric=(4, 5, 6),
    )
    memory: list[Block] = [*memory_charts(past)]
    if known := [each for each in past.ranks if each.samples]:
        memory.append(_ranks(known))
    checkpoints = Table(
        head=("checkpoint", "step", "files"),
        rows=[
            (one.path.name, _dash(one.step), "; ".join(one.wrong) or "complete")
            for one in facts.saved
        ],
        numeric=(1,),
    )
    values = {**facts.code, **facts.environment}
    environment = Table(
        rows=[
            (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            for key, value in values.items()
            if value not in (None, [], "") and key not in ("schema", "packages")
        ]
    )
    command: list[Block] = []
    if facts.command:
        command = [Paragraph("launched by", "soft"), Paragraph(facts.command, "verbatim")]
    config = Table(head=("key", "value", "from"), rows=facts.config)
    log_ends: list[Block] = []
    for name, lines in facts.ends:
        log_ends += [Paragraph(name, "heading"), Paragraph("\n".join(lines), "verbatim")]
    sections: list[Section] = [
        ("diagnosis", "Diagnosis", _diagnosis(facts)),
        ("starts", "Starts", [starts]),
        ("training", "Training", _training(facts, training)),
        ("speed", "Speed", speed),
        ("memory", "Memory and GPUs", memory),
        ("efficiency", "Efficiency", _efficiency(facts.efficiency)),
        ("checkpoints", "Checkpoints", [checkpoints]),
        ("config", "Config", [*command, config]),
        ("environment", "Code and environment", [environment]),
        ("log", "End of the log", log_ends),
    ]
    return Document(
        title=facts.run.id,
        state=given.state.word,
        lead=(_subtitle(facts),),
        note=_note(facts),
        tiles=_tiles(facts),
        sections=_filled(sections),
        at=given.now,
    )


def _filled(sections: Iterable[Section]) -> tuple[Section, ...]:
    kept = (
        (name, title, [each for each in blocks if not isinstance(each, Table) or each.rows])
        for name, title, blocks in sections
    )
    return tuple(section for section in kept if section[2])


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
    steps = "-" if past.last_step is None else f"{past.last_step:,}"
    found = [("steps", steps, f"of {past.max_steps:,}" if past.max_steps else "")]
    for name, event, key in (("loss", "log", "loss"), ("evaluation loss", "evaluate", "eval_loss")):
        if values := [each.values[key] for each in past.of(event) if key in each.values]:
            found.append((name, number(values[-1]), f"from {number(values[0])}"))
    tokens, flops = mean_of(past, "useful_tokens_per_s"), mean_of(past, "mfu")
    if tokens is not None:
        found.append(("tokens/s", number(tokens), "useful ones, the second half"))
    if flops is not None:
        found.append(("model FLOP/s", f"{number(100 * flops, 3)} %", "of the GPUs' peak"))
    if counted.gpu_hours is not None:
        asked = counted.asked_gpu_hours
        of = f"of {number(asked, 3)} requested" if asked else ""
        found.append(("GPU hours", number(counted.gpu_hours, 3), of))
    return found


def _diagnosis(facts: RunReport) -> list[Block]:
    explanation, unexplained = facts.given.explanation, facts.given.unexplained
    found: list[Block] = []
    notes = [unexplained] if unexplained else []
    if explanation is not None:
        found += [_problem(each) for each in explanation.diagnoses]
        if (block := explanation.unexplained) is not None:
            who = f" of rank {block.rank}" if block.rank is not None else ""
            who += f" on {block.node}" if block.node else ""
            who += f", {block.since}" if block.since else ""
            known = "" if explanation.diagnoses else "No known cause matches. "
            found.append(Paragraph(f"{known}The earliest error, {block.file}:{block.line}{who}:"))
            found.append(Paragraph("\n".join(map(hidden, block.lines)), "verbatim"))
        for each in explanation.consequences:
            lines = text.count(each.count, "line")
            place = _place(each.evidence.file, each.evidence.line)
            found.append(Paragraph(f"A consequence, {lines}: {each.what} ({place})", "soft"))
        notes += explanation.notes
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
    for start, attempt, record in zip(
        past.starts, attempts, records_of(past.starts, accounts), strict=True
    ):
        first, until = start.first_at, start.until
        took = "-" if first is None or until is None else text.duration(until - first)
        how = _ended(attempt, record, job_state.continuation(run, attempt))
        steps = map(_dash, (start.first_step, start.last_step, start.lost_steps or None))
        name = f"{len(rows) + 1}: {start.name}"
        rows.append((name, start.host or "-", text.date(first), took, *steps, how))
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


def _training(facts: RunReport, curves: Sequence[Chart]) -> list[Block]:
    found: list[Block] = [*curves]
    if not curves:
        note = "The training has recorded no loss; hpctrain's RunFiles callback records it."
        note = note if facts.history.starts else "The run has not started."
        found.append(Paragraph(note, "soft"))
    if facts.evaluation:
        rows = [(name, number(value)) for name, value in facts.evaluation.items()]
        found += [Paragraph("Evaluation", "heading"), Table(rows=rows)]
    return found


def _ranks(known: Sequence[RankMemory]) -> Table:
    peaks = [max((gpu_peak_mib(s) or 0 for s in each.samples), default=0) for each in known]
    gpus = dict.fromkeys(each.samples[-1].gpu_name for each in known)
    rows = []
    for each, peak in zip(known, peaks, strict=True):
        last, mean = each.samples[-1], each.mean_utilisation
        rows.append(
            (
                str(each.rank),
                last.host,
                _dash(last.gpu_index),
                _gib(peak or None),
                _gib(last.gpu_total_mib),
                "-" if mean is None else f"{mean:.0f}",
                _gib(most(sample.rss_mib for sample in each.samples)),
                _gib(most(sample.cgroup_used_mib for sample in each.samples)),
            )
        )
    words = ", ".join([text.count(len(rows), "rank"), *filter(None, gpus)])
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
        folded=words if len(rows) > _RANKS_OPEN else "",
    )


def _gib(mib: int | None) -> str:
    return "-" if mib is None else f"{mib / 1024:.1f}"


def _efficiency(counted: Efficiency) -> list[Block]:
    found: list[Block] = [Table(rows=efficiency_rows(counted))]
    if counted.held_s:
        rows = [
            (
                f"{100 * part.seconds / counted.held_s:.0f} %",
                text.duration(part.seconds),
                number(part.gpu_s / 3600, 3) if part.gpu_s else "-",
                part.what,
            )
            for part in counted.parts
        ]
        found += [
            Paragraph("Where the time went", "heading"),
            Table(head=("share", "time", "GPU hours", "spent on"), rows=rows, numeric=(0, 1, 2)),
        ]
    if counted.next:
        asks = [(ask.line, ask.asked or "-", ask.why) for ask in counted.next]
        found += [
            Paragraph("Request next time", "heading"),
            Table(head=("next time", "requested", "because"), rows=asks),
        ]
    return [*found, *map(Paragraph, counted.notes)]


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
            rows.append(
                ("GPU utilization", f"{100 * counted.utilisation:.0f} % on average during training")
            )
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


# -- several runs ----------------------------------------------------------------------------------


def of_comparison(found: Comparison) -> Document:
    """Return the report that compares runs."""
    by_state = Counter(row.state for row in found.rows)
    words = ", ".join(f"{many} {state}" for state, many in by_state.most_common())
    summary = f"{len(found.rows)} runs: {words}"
    if found.metric:
        better = "higher" if found.higher else "lower"
        summary += f"; ordered by {found.metric}, {better} is better"
    rows = [
        (
            row.id,
            row.state,
            number(row.metric, 5),
            number(row.best, 5),
            _dash(row.steps),
            text.duration(row.seconds)
            if (row.seconds or row.state in ("completed", "failed"))
            else "-",
            *(cell(row.values[key]) if key in row.values else "-" for key in found.keys),
        )
        for row in found.rows
    ]
    runs = Table(
        head=("run", "state", found.metric or "metric", "best", "steps", "took", *found.keys),
        rows=rows,
        numeric=(2, 3, 4, 5),
        classes=["best" if row is found.best else "" for row in found.rows],
    )
    best = best_words(found)
    having = [row for row in found.rows if row.curve]
    left = len(having) - CURVES
    curves = Chart(
        id="curves",
        title="Loss curves",
        series=_coloured(
            {row.id: dict(row.curve) for row in having[:CURVES]},
            found.best.id if found.best is not None else None,
            f"{found.best.id} (best)" if found.best is not None else "",
        ),
        says="training loss of each run"
        + (f"; the best {CURVES}, {left} more are left out" if left > 0 else ""),
    )
    return Document(
        title=found.title,
        lead=(summary, *([best] if best else [])),
        sections=_filled(
            [("curves", "Loss curves", [curves] if having else []), ("runs", "Runs", [runs])]
        ),
        next=found.next,
        at=found.now,
    )


# -- charts: curves --------------------------------------------------------------------------------


#: Charts of the training, and of its speed: id, title, unit, minimum upper end; of each line: name,
#: event, key, color and factor.
_TRAINING = (
    (
        ("loss", "Loss", "", None),
        ("train", "log", "loss", 0, 1),
        ("evaluation", "evaluate", "eval_loss", 1, 1),
    ),
    (("lr", "Learning rate", "", None), ("learning rate", "log", "learning_rate", 0, 1)),
    (("grad", "Gradient norm", "", None), ("gradient norm", "log", "grad_norm", 0, 1)),
)
_SPEED = (
    (
        ("tokens", "Tokens per second, all processes", "", None),
        ("useful", "speed", "useful_tokens_per_s", 0, 1),
    ),
    (
        ("mfu", "Model FLOP/s utilization", "%", None),
        ("model FLOP/s", "speed", "mfu", 2, 100),
    ),
    (
        ("wait", "Waiting for data, slowest process", "%", 5.0),
        ("waiting", "speed", "data_wait", 3, 100),
    ),
)


def history_charts(history: History) -> tuple[list[Chart], list[Chart]]:
    """Return the training charts (loss, learning rate, gradient norm), and the speed charts (tokens
    per second, model FLOP/s, wait for data).
    """
    training = (_curves(history, *given) for given in _TRAINING)
    speed = (_curves(history, *given) for given in _SPEED)
    return list(filter(None, training)), list(filter(None, speed))


def _curves(
    history: History,
    about: tuple[str, str, str, float | None],
    *lines: tuple[str, str, str, int, float],
) -> Chart | None:
    (name, title, unit, top), series = about, []
    for label, event, key, colour, factor in lines:
        pairs: list[tuple[float, float]] = []
        for point in history.of(event):
            if key in point.values:
                while pairs and pairs[-1][0] >= point.step:
                    pairs.pop()  # after a start from scratch, a repeated step counts
                pairs.append((float(point.step), factor * point.values[key]))
        if pairs:
            xs, ys = zip(*pairs, strict=True)
            series.append(Series(name=label, x=xs, y=ys, colour=colour))
    if not series:
        return None
    return Chart(
        id=name,
        title=title,
        series=tuple(series),
        unit=unit,
        rules=_restarts(history),
        zero=name not in ("loss", "grad"),
        top=top,
        says="; ".join(_says(line, unit) for line in series),
    )


def _restarts(history: History) -> tuple[Marker, ...]:
    return tuple(
        Marker(
            x=float(each.first_step), text=f"start {each.name} resumed at step {each.first_step}"
        )
        for each in history.starts[1:]
        if each.first_step is not None
    )


def _says(line: Series, unit: str) -> str:
    values = [y for y in line.y if math.isfinite(y)]
    if not values:
        return f"{line.name}: no value is a finite number"
    first, last, low, high = map(number, (values[0], values[-1], min(values), max(values)))
    lost = len(line.y) - len(values)
    bad = f"; {lost} of {len(line.y)} are NaN or infinite" if lost else ""
    unit = f" {unit}" if unit else ""
    return f"{line.name}: from {first} to {last}{unit}, lowest {low}, highest {high}{bad}"


# -- charts: memory --------------------------------------------------------------------------------

#: Id, title, whether of nodes or of ranks, value, and its limit with a name; utilization has none.
_MEMORY: tuple[tuple[str, str, bool, Callable[[Sample], int | None], str, str], ...] = (
    ("gpu-memory", "GPU memory of each rank", False, gpu_peak_mib, "gpu_total_mib", "GPU"),
    (
        "cgroup",
        "Host memory of the job, each node",
        True,
        attrgetter("cgroup_used_mib"),
        "cgroup_limit_mib",
        "the job's limit",
    ),
    (
        "node-memory",
        "Memory of each node, all of its processes",
        True,
        attrgetter("node_used_mib"),
        "node_total_mib",
        "node",
    ),
    (
        "utilisation",
        "GPU utilization of each rank",
        False,
        attrgetter("gpu_utilisation_percent"),
        "",
        "",
    ),
)


def memory_charts(history: History) -> list[Chart]:
    """Return memory of every GPU and node against its limit, and the GPUs' utilization."""
    # Samples from before the model was loaded are omitted.
    samples = [
        sample for each in history.ranks for sample in each.samples if sample.event != "train_begin"
    ]

    means = {f"rank {each.rank}": each.mean_utilisation or 0.0 for each in history.ranks}
    found = []
    for name, title, by_node, value, limit, what in _MEMORY:
        # The highest value of each step, over all ranks of a node and repeated steps.
        known: dict[str, dict[int, float]] = {}
        unit, per = ("GiB", 1024) if limit else ("%", 1)
        for sample in samples:
            if (y := value(sample)) is not None:
                steps = known.setdefault(sample.host if by_node else f"rank {sample.rank}", {})
                steps[sample.step] = max(steps.get(sample.step, 0.0), round(y / per, 3))
        if not known:
            continue
        rules = _restarts(history)
        if limit:
            peaks = {label: max(values.values()) for label, values in known.items()}
            shown = max(peaks, key=lambda label: peaks[label])
            words, full = f"{shown} (the fullest)", ""
            if limits := [mib for sample in samples if (mib := getattr(sample, limit))]:
                top = min(limits) / 1024
                full = f" of {number(top)} GiB ({100 * peaks[shown] / top:.0f} %)"
                rules += (Marker(y=top, text=f"{what}: {number(top)} GiB"),)
            says = f"the fullest is {shown} with {number(peaks[shown])} GiB{full}"
        else:
            shown = min(known, key=lambda label: means[label])
            words = f"{shown} (mean {means[shown]:.0f} %)"
            says = f"the least used is {shown} with {means[shown]:.0f} % on average"
        found.append(
            Chart(
                id=name,
                title=title,
                series=_coloured(known, shown, words),
                unit=unit,
                rules=rules,
                zero=True,
                top=None if limit else 100.0,
                says=says,
            )
        )
    return found


def _coloured(
    known: Mapping[str, Mapping[int, float]], first: str | None, words: str
) -> tuple[Series, ...]:
    """Return one line each, sorted by step; `first` is highlighted and labeled `words`; if there
    are many, the others are gray.
    """
    found = []
    for index, (label, values) in enumerate(known.items()):
        stands_out = label == first and len(known) > 1
        found.append(
            Series(
                name=words if stands_out else label,
                x=tuple(map(float, sorted(values))),
                y=tuple(values[step] for step in sorted(values)),
                colour=(1 if label == first else (0, 2, 3, 4, 5, 6, 7)[index % 7])
                if label == first or len(known) <= _FEW_LINES
                else None,
                emphasis=stands_out,
            )
        )
    return tuple(found)
