"""The rows and numbers of a report of one run, as text: for the page and for the terminal alike. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain.explain.render import joined
from hpctrain.report import scale
from hpctrain.report.efficiency import MIB, Efficiency, gpu_peak_mib
from hpctrain.report.facts import Facts, clock
from hpctrain.report.next_time import mean_of, size, spoken
from hpctrain.runs.history import History, RankMemory, Start
from hpctrain.runs.predicted import Beside
from hpctrain.scheduler.parse import duration, states
from hpctrain.scheduler.parse.accounting import Account

Pairs = list[tuple[str, str]]
_RAN_WITH = ("host", "platform", "python", "world_size", "cuda", "rocm", "driver", "nccl", "slurm")
_TAKEN = ("NODE_FAIL", "PREEMPTED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL")
STARTS = ("start", "host", "began", "took", "from step", "to step", "lost", "how it ended")
RANKS = (
    "rank",
    "node",
    "GPU",
    "GPU peak, GiB",
    "GPU has, GiB",
    "torch's peak, GiB",
    "utilisation, %",
    "process, GiB",
    "node's cgroup, GiB",
)


def subtitle(facts: Facts) -> str:
    """Return who, where and what, in one line."""
    run, given = facts.run, facts.given
    words = ["" if given.state.reason == given.state.word else given.state.reason or "", f"launch {run.tag}" if run.tag != run.id else "",
             f"point {run.index}" if run.index is not None else "",
             f"stage {run.stage}" if run.stage else "", f"by {given.owner}", f"made {clock(run.created)}" if run.created else "",
             f"jobs {', '.join(run.job_ids[-4:])}" if run.job_ids else ""]  # fmt: skip
    return " · ".join(word for word in words if word)


def going_on(facts: Facts) -> str | None:
    """Return what is to be said of a run that is not over."""
    word = facts.given.state.word
    if word == "running":
        return f"This run is still going on: it is shown as it was at {clock(facts.given.now)}."
    if word == "pending":
        return f"A job of this run is waiting: it is shown as it was at {clock(facts.given.now)}."
    if word == "unknown":
        return f"Whether this run still goes on is not known{f': {facts.given.silent}' if facts.given.silent else ''}."
    return None


def tiles(facts: Facts) -> list[tuple[str, str, str]]:
    """Return (name, value, small print) of what is asked first."""
    past, counted = facts.history, facts.efficiency
    log = [point.values["loss"] for point in past.of("log") if "loss" in point.values]
    evaluated = [point.values["eval_loss"] for point in past.of("evaluate") if "eval_loss" in point.values]
    tokens, mfu, wait = (mean_of(past, name) for name in ("useful_tokens_per_s", "mfu", "data_wait"))
    steps = "-" if past.last_step is None else f"{past.last_step:,}"
    found = [("steps", steps, f"of {past.max_steps:,}" if past.max_steps else "")] if not facts.from_log else []
    if log:
        found.append(("loss", scale.number(log[-1]), f"from {scale.number(log[0])}"))
    if evaluated:
        found.append(("evaluation loss", scale.number(evaluated[-1]), f"lowest {scale.number(min(evaluated))}"))
    if tokens is not None:
        found.append(("tokens/s", scale.number(tokens), "useful ones, the second half"))
    if mfu is not None:
        found.append(("model FLOP/s", f"{100 * mfu:.0f} %", "of what the GPUs can do"))
    if wait is not None:
        found.append(("waits for data", f"{100 * wait:.1f} %", "slowest process"))
    if counted.gpu_peak_bytes and counted.gpu_total_bytes:
        share = f"{size(counted.gpu_peak_bytes)} of {size(counted.gpu_total_bytes)}"
        found.append(("fullest GPU", f"{100 * counted.gpu_peak_bytes / counted.gpu_total_bytes:.0f} %", share))
    if counted.gpu_hours is not None:
        asked = f"of {scale.number(counted.asked_gpu_hours, 3)} asked for" if counted.asked_gpu_hours else ""
        found.append(("GPU hours", scale.number(counted.gpu_hours, 3), asked))
    elif counted.held_s:
        found.append(("time with nodes", spoken(counted.held_s), "no GPU" if counted.gpus == 0 else ""))
    restarts = sum(start.first_step is not None for start in past.starts[1:])
    if restarts:
        found.append(("restarts", str(restarts), f"{past.lost_steps} steps done again" if past.lost_steps else "no step lost"))
    return found


def starts(past: History, accounts: Sequence[Account] = ()) -> list[tuple[str, ...]]:
    """Return a row for each start; where it could not say how it ended, the scheduler's record does."""
    rows: list[tuple[str, ...]] = []
    for number, start in enumerate(past.starts):
        first, until = start.first_at, start.until
        took = "-" if first is None or until is None else spoken(max(0.0, until - first))
        recorded = _recorded(start, accounts)
        # A script whose node was taken away may believe that all went well: what the scheduler says otherwise stands beside it.
        shown = recorded if start.outcome == "interrupted" or (recorded or "").partition(" ")[0] in _TAKEN else None
        words = [start.outcome, shown, start.reason]
        ended = " ".join(dict.fromkeys(word for word in words if word))
        ended = ended or recorded or (f"exit code {start.status}" if start.status is not None else "it did not say")
        rows.append((
            f"{number + 1}: {start.name}", start.host or "-", clock(first), took,
            "-" if start.first_step is None else str(start.first_step),
            "-" if start.last_step is None else str(start.last_step), str(start.lost_steps) if start.lost_steps else "-", ended,
        ))  # fmt: skip
    return rows


def _recorded(start: Start, accounts: Sequence[Account]) -> str | None:
    """Return the scheduler's word for how a start ended: restarts of a job are counted, as its records are."""
    record = next((each for each in accounts if start.job is not None and start.job in (each.job_id, each.slurm_job_id)), None)
    if record is None:
        return None
    records = (*record.earlier, record)
    restart = (*start.name.split("."), "")[1]  # JOB.RESTART, or JOB.RESTART.AT (runs/layout.py)
    if not restart.isdecimal() or int(restart) >= len(records):
        return None
    said = records[int(restart)]
    if not said.is_final and said is record:  # the reason is still that of its last wait
        return "it goes on" if said.state in states.ACTIVE else None
    return " ".join(word for word in (said.state, said.reason) if word and word != "None")


def starts_notes(past: History) -> list[str]:
    """Return what is to be known of the clocks."""
    notes = [
        f"Start {start.name} seems to begin {start.shift_s:.0f} s before the one before it had ended: the clocks of the nodes differ."
        " It is drawn behind it."
        for start in past.starts
        if start.shift_s >= 1
    ]
    notes += [
        f"The clock of start {start.name} went back by {start.back_s:.0f} s while it ran; what came then is drawn behind what came before."
        for start in past.starts
        if start.back_s
    ]
    off = [each for each in past.ranks if each.clock_off_s]
    if off:
        notes.append(
            f"The clocks of {len(off)} ranks differ from rank 0's by up to {max(abs(each.clock_off_s) for each in off):.0f} s;"
            " their samples are drawn where they belong."
        )
    return notes


def training_note(facts: Facts) -> str | None:
    """Return why there is no curve, or where it is from."""
    past = facts.history
    if facts.from_log:
        return (
            "The training wrote no metrics.jsonl: these curves are from its log, which says no times. With hpctrain's RunFiles callback,"
            " or one of its own trainings, there is more."
        )
    if past.of("log", "evaluate"):
        return None
    if not past.starts:
        return "The run has not started."
    if all(start.began is None for start in past.starts):
        return "The training did not come to its first step, or is a script that logs nothing that is understood here."
    return "The training began, and has logged no loss yet."


def ranks(past: History) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the head, a row for each rank, and its class: the fullest stands out. What no rank knows has no column."""
    rows, peaks = [], []
    one_kind = kind_of(past) is not None
    for each in past.ranks:
        if not each.samples:
            continue
        last = each.samples[-1]
        peak = max((value for sample in each.samples if (value := gpu_peak_mib(sample)) is not None), default=None)
        peaks.append(peak or 0)
        rows.append((
            str(each.rank), last.host,
            "-" if last.gpu_index is None else str(last.gpu_index) if one_kind else f"{last.gpu_index} {last.gpu_name or ''}",
            _gib(peak),
            _gib(last.gpu_total_mib), _gib(_highest(each, "torch_peak_mib")),
            "-" if each.mean_utilisation is None else f"{each.mean_utilisation:.0f}", _gib(_highest(each, "rss_mib")),
            _gib(_highest(each, "cgroup_used_mib")),
        ))  # fmt: skip
    worst = max(peaks, default=0)
    kept = [at for at in range(len(RANKS)) if at < 2 or any(row[at] != "-" for row in rows)]
    classes = ["worst" if worst and peak == worst and len(peaks) > 1 else "" for peak in peaks]
    return [RANKS[at] for at in kept], [[row[at] for at in kept] for row in rows], classes


def kind_of(past: History) -> str | None:
    """Return the name of the GPUs, where all ranks have the same."""
    names = {each.samples[-1].gpu_name for each in past.ranks if each.samples}
    return next(iter(names)) if len(names) == 1 else None


def _highest(each: RankMemory, name: str) -> int | None:
    return max((value for sample in each.samples if (value := getattr(sample, name)) is not None), default=None)


def _gib(mib: int | None) -> str:
    return "-" if mib is None else f"{mib * MIB / 2**30:.1f}"


def beside(rows: Sequence[Beside]) -> list[tuple[str, ...]]:
    """Return what was predicted beside what was measured."""
    found = []
    for each in rows:
        shown = [
            "-" if value is None else size(value) if each.is_size else scale.number(value) for value in (each.predicted, each.measured)
        ]
        name = "tokens/s, padding counted" if each.name == "tokens/s" else each.name
        found.append((name, *shown, "-" if each.off is None else f"{100 * each.off:+.1f} %"))
    return found


def efficiency(counted: Efficiency) -> Pairs:
    """Return what the run had and used."""
    rows: Pairs = []
    if counted.gpu_hours is not None:
        wasted = counted.wasted_gpu_hours
        of = f"; {scale.number(wasted, 3)} of them were no training" if wasted is not None else ""
        gpus = " and ".join(map(str, counted.counts)) or str(counted.gpus)
        had = f"{gpus} GPU{'s' * (gpus != '1')} for {spoken(counted.held_s)}"
        rows.append(("GPU hours", f"{scale.number(counted.gpu_hours, 3)} used: {had}{of}"))
        if counted.asked_gpu_hours:
            rows.append(("asked for", f"{scale.number(counted.asked_gpu_hours, 3)} GPU hours: the time limits of all starts"))
        if counted.utilisation is not None:
            rows.append(("GPU utilisation", f"{100 * counted.utilisation:.0f} % on average while it trained"))
    elif counted.held_s:
        rows.append(("time with nodes", spoken(counted.held_s) + (", without GPUs" if counted.gpus == 0 else "")))
    if counted.node_hours is not None and counted.whole_nodes:
        rows.append(("node hours", f"{scale.number(counted.node_hours, 3)}: {counted.nodes} whole nodes, as the site bills them"))
    if counted.waited_s is not None:
        rows.append(("waited", f"{spoken(counted.waited_s)} in the queue and between starts"))
    if counted.asked_s:
        rows.append(("time", f"{spoken(counted.held_s)} of {duration.format(round(counted.asked_s))} in all starts"
                     f" ({100 * counted.held_s / counted.asked_s:.0f} %)"))  # fmt: skip
    if counted.host_peak_bytes is not None:
        of = (
            f" of {size(counted.host_asked_bytes)} ({100 * counted.host_peak_bytes / counted.host_asked_bytes:.0f} %)"
            if counted.host_asked_bytes
            else ""
        )
        rows.append(("host memory", f"{size(counted.host_peak_bytes)}{of}, the fullest node"))
    if counted.cores_busy is not None:
        of = f" of {counted.cpus}" if counted.cpus else ""
        rows.append(("cores", f"{counted.cores_busy:.1f}{of} busy on average"))
    return rows or [("nothing", "is known yet of what the run used")]


def code(values: Mapping[str, Any]) -> Pairs:
    """Return the version of the code."""
    if not values:
        return [("code", "not recorded")]
    commit, digest = values.get("commit"), values.get("digest")
    rows: Pairs = []
    if isinstance(commit, str):
        rows.append(
            ("git commit", commit + (" with changes that were not committed (code.diff of the launch)" if values.get("dirty") else ""))
        )
    else:
        rows.append(("git commit", "none: the project is no git repository"))
    for key, name in (("branch", "branch"), ("describe", "describe"), ("remote", "remote")):
        if isinstance(values.get(key), str):
            rows.append((name, values[key]))
    if isinstance(digest, str):
        rows.append(("files", f"snapshot {digest}" if values.get("snapshot") else f"digest {digest}"))
    return rows


def environment(values: Mapping[str, Any]) -> Pairs:
    """Return what the training ran with."""
    versions = values.get("versions")
    rows: Pairs = [(key, str(values[key])) for key in _RAN_WITH if isinstance(values.get(key), str | int)]
    gpus = values.get("gpus")
    if isinstance(gpus, list) and gpus:
        names = [str(name) for name in gpus]
        rows.append(("GPUs of a node", ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))))
    if isinstance(versions, Mapping):
        rows.append(("packages", ", ".join(f"{name} {version}" for name, version in versions.items())))
    variables = values.get("variables")
    if isinstance(variables, Mapping) and variables:
        rows.append(("variables", " ".join(f"{name}={value}" for name, value in variables.items())))
    return rows


def diagnosis(facts: Facts) -> dict[str, Any]:
    """Return what is shown of the explanation; `has` says whether there is anything."""
    said, word = facts.given.explanation, facts.given.state.word
    found = [_diagnosis(each) for each in said.diagnoses] if said is not None else []
    block = None
    notes = [] if facts.given.unexplained is None else [facts.given.unexplained]
    consequences: list[str] = []
    if said is not None:
        notes += list(said.notes)
        consequences = [
            f"A consequence, {each.count} line{'s' * (each.count != 1)}: {each.what} ({each.evidence.file}"
            + (f":{each.evidence.line}" if each.evidence.line else "") + ")"
            for each in said.consequences
        ]  # fmt: skip
        if said.unexplained is not None:
            each = said.unexplained
            who = f" of rank {each.rank}" if each.rank is not None else ""
            where = f"{each.file}:{each.line}{who}" + (f" on {each.node}" if each.node else "") + (f", {each.since}" if each.since else "")
            block = {"where": where, "text": _hidden("\n".join(each.lines))}
    if not found and block is None and not notes and word == "failed":
        notes = ["Nothing in the logs says why it failed."]
    has = bool(found or block or notes or facts.idle or consequences)
    return {
        "diagnoses": found,
        "block": block,
        "consequences": consequences,
        "diagnosis_notes": notes,
        "idle": facts.idle,
        "has": {"diagnosis": has},
    }


def _diagnosis(each: Any) -> dict[str, Any]:
    about = [each.certainty, each.id, f"rank {each.rank}" if each.rank is not None else "", f"on {each.node}" if each.node else "",
             f"since {each.since}" if each.since else "", f"start {each.attempt}" if each.attempt else "",
             f"hpctrain docs {each.id}"]  # fmt: skip
    evidence = [(item.file + (f":{item.line}" if item.line is not None else ""), _hidden(item.text)) for item in each.evidence[:6]]
    return {
        "certainty": each.certainty, "cause": _hidden(each.cause), "about": " · ".join(word for word in about if word),
        "fix": "\n".join(joined(_hidden(each.fix.text).split("\n"))), "evidence": evidence,
    }  # fmt: skip


def _hidden(text: str) -> str:
    from hpctrain.report import secrets

    return "\n".join(secrets.text(line) for line in text.split("\n"))
