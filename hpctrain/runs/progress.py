"""The current progress of a run, read from the ends of its files, so that the cost does not grow
with the run.

For a run without such files, the log is read (`Lines`). The scheduler is not queried, and no
content of a run's directory raises an error.

A measurement of the speed (`Speed`) is a line of the log and a row of metrics.jsonl. The line:

    [speed] step=20/1000 tokens/s=14210 useful_tokens/s=13180 trained_tokens/s=4120 mfu=41.2%
    data_wait=0.3% step_s=0.812 memory=38120/81559M reserved=40110M rank=3 host=9120M eta=0:13:16

It is always one line (wrapped here). `M` is MiB, `-` is unknown. All values are for the entire job,
over the steps since the previous line; docs/memory.md explains each.

Other lines that show progress, from hpctrain and from any transformers Trainer:

    [memory] 2026-11-20T21:08:03.123Z step=10 …      hpctrain.memory.sample
    [train] step=10/1000 loss=8.2448 grad_norm=3.9 … hpctrain.training.monitoring.log
    {'loss': '2.345', 'learning_rate': '1e-05', 'epoch': '0.12'}      the Trainer's own; versions
    before 5 write numbers without quotes
     12%|█▏        | 120/1000 [03:20<24:30,  1.67s/it]                 its progress bar

A bar of another loop (loading, mapping) has text in front and is ignored. If there are two bars
without text, as during an evaluation, the longer one is the training's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hpctrain.memory import sample as memory
from hpctrain.memory.sample import Sample, from_json
from hpctrain.runs import metrics, store
from hpctrain.runs.metrics import Thinned
from hpctrain.util import files
from hpctrain.util.text import clock


def stamp(path: Path) -> tuple[int, int, int]:
    """Return size, mtime in ns and inode, to detect changes of a file; zeros if it is missing."""
    try:
        said = path.stat()
    except OSError:
        return 0, 0, 0
    return said.st_size, said.st_mtime_ns, said.st_ino


#: The prefix of every line.
MARK = "[speed]"

#: The event of its rows in metrics.jsonl.
EVENT = "speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """A speed measurement, see the module. Unknown values are None.

    Attributes:
        step: optimizer steps done, of `max_steps`.
        tokens_per_s: tokens processed by the model, including padding, by all processes.
        useful_tokens_per_s: of these, tokens other than padding; `trained_tokens_per_s`: unmasked
            tokens, which contribute to the loss.
        mfu: model FLOP/s of the useful tokens, as a fraction of the GPUs' bfloat16 peak.
        data_wait: the fraction of the time that the slowest process waited for its data loader.
        step_s: seconds per step, without evaluations and saves.
        peak_mib, reserved_mib, total_mib: GPU memory of the process `rank`, whose GPU is the
            fullest: peak allocated by tensors, reserved by torch's allocator, and the GPU's total.
        host_mib: resident memory of all processes, including data loader workers, on the node with
            the highest usage.
        eta_s: seconds to the end of the training, including evaluations and saves; may exceed the
            job's time limit.
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

    def known(value: float | None, form: str = "{:.0f}") -> str:
        return "-" if value is None else form.format(value)

    memory = "-" if speed.peak_mib is None else f"{speed.peak_mib}/{known(speed.total_mib)}M"
    return (
        f"{MARK} step={speed.step}/{speed.max_steps} tokens/s={known(speed.tokens_per_s)}"
        f" useful_tokens/s={known(speed.useful_tokens_per_s)}"
        f" trained_tokens/s={known(speed.trained_tokens_per_s)} mfu={known(speed.mfu, '{:.1%}')}"
        f" data_wait={known(speed.data_wait, '{:.1%}')} step_s={known(speed.step_s, '{:.4g}')}"
        f" memory={memory} reserved={known(speed.reserved_mib, '{}M')} rank={known(speed.rank)}"
        f" host={known(speed.host_mib, '{}M')}"
        f" eta={'-' if speed.eta_s is None else clock(speed.eta_s)}"
    )


def rounded(speed: Speed) -> Speed:
    """Return the measurement rounded to six digits, which exceeds its accuracy; this way the line
    and the row agree.
    """
    short: dict[str, Any] = {
        name: float(f"{value:.6g}")
        for name, value in asdict(speed).items()
        if isinstance(value, float)
    }
    return replace(speed, **short)


def to_values(speed: Speed) -> dict[str, float | int]:
    """Return the known values for a row of metrics.jsonl, by attribute name; without the step,
    which the row has.
    """
    # Only the end of the file is read: long rows would crowd out the others.
    values = asdict(rounded(speed)).items()
    return {name: value for name, value in values if value is not None and name != "step"}


def from_row(row: Mapping[str, Any]) -> Speed | None:
    """Return the measurement in a row of metrics.jsonl (hpctrain.runs.metrics); None for a row of
    another kind.
    """
    if row.get("event") != EVENT or not isinstance(row.get("max_steps"), int):
        return None
    values = {each.name: row.get(each.name) for each in fields(Speed)}
    known: dict[str, Any] = {
        name: value for name, value in values.items() if isinstance(value, int | float)
    }
    return Speed(**known)


MOST_LOSSES = 400
#: Number of newest attempts that are read.
_ATTEMPTS = 16
_END_BYTES = 65536
#: Bytes read from the end of a rank's samples: about ten of 700 bytes each.
_SAMPLES_BYTES = 8192
_RANK = re.compile(r"rank-([0-9]{1,7})\.jsonl\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A run's progress; unknown values are None.

    Attributes:
        step, max_steps: optimizer steps done and in total, over all starts.
        at: time of the newest row, in seconds since the epoch by the node's clock.
        loss: the newest logged value; losses: (step, loss), newest last, at most 400,
            thinned evenly.
        tokens_per_s: useful tokens; mfu, data_wait: fractions; step_s: seconds per step.
        eta_s: seconds to the end of the training, counted from `at`.
        samples: the newest sample of each rank, by rank.
        recent: the last samples of all ranks since the training began, by time, for
            hpctrain.report.idle.
        attempt: the attempt that wrote the newest row.
        interval_s: seconds between the newest row and the one before it.
        saved_step, saved_at: step and time of the newest logged checkpoint.
    """

    step: int | None = None
    max_steps: int | None = None
    at: float | None = None
    epoch: float | None = None
    loss: float | None = None
    losses: tuple[tuple[int, float], ...] = ()
    eval_loss: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    data_wait: float | None = None
    step_s: float | None = None
    eta_s: float | None = None
    samples: tuple[Sample, ...] = ()
    recent: tuple[Sample, ...] = ()
    attempt: str | None = None
    interval_s: float | None = None
    saved_step: int | None = None
    saved_at: float | None = None

    def eta_at(self, now: float) -> float | None:
        """Return the seconds from `now` to the end.

        Because clocks of nodes differ, the age of a row is limited to the time between two rows.
        """
        if self.eta_s is not None:
            age = 0.0 if self.at is None else max(0.0, now - self.at)
            return max(0.0, self.eta_s - min(age, 2 * (self.interval_s or 30.0)))
        if self.step is None or not self.max_steps or not self.step_s:
            return None
        return max(0.0, (self.max_steps - self.step) * self.step_s)

    @property
    def worst(self) -> Sample | None:
        """The sample of the rank whose GPU is the fullest; without GPUs, whose cgroup or node is
        the fullest.
        """
        for used, total in (
            ("gpu_used_mib", "gpu_total_mib"),
            ("cgroup_used_mib", "cgroup_limit_mib"),
            ("node_used_mib", "node_total_mib"),
        ):
            parts = {
                each.rank: (part, -each.rank, each)
                for each in self.samples
                if (part := part_of(getattr(each, used), getattr(each, total))) is not None
            }
            if parts:
                return max(parts.values())[2]
        return None


def part_of(used: int | None, total: int | None) -> float | None:
    """Return the fraction that is used; None if either is unknown."""
    return None if used is None or not total else used / total


def read(
    run_dir: Path, *, attempts: Collection[str] | None = None, end_bytes: int = _END_BYTES
) -> Progress:
    """Return the run's current progress.

    Missing, incomplete or unrelated files are ignored.

    Args:
        run_dir: the run's directory.
        attempts: names of the attempts to read, such as those of one job; None for all.
        end_bytes: bytes to read from the end of each metrics.jsonl.
    """
    run = store.read_run(run_dir.absolute().parent, run_dir.name)
    known = [run_dir / metrics.ATTEMPTS / each.name for each in run.attempts] if run else []
    counted = [each for each in known if attempts is None or each.name in attempts]
    found = _metrics(counted, end_bytes)
    if known[-1:] != counted[-1:]:  # the newest samples belong to the newest attempt
        return found
    newest, recent = of_ranks(
        [
            list(_parsed(files.tail(path, _SAMPLES_BYTES)))
            for _, path in rank_files(run_dir / "memory")
        ]
    )
    first, step = next(iter(newest), None), found.step
    if first is not None and first.rank == 0 and step is not None:
        # A sample between two rows may be newer than the last row.
        step = max(step, first.step) if first.time_ms >= 1000 * (found.at or 0.0) else step
    return replace(found, step=step, samples=newest, recent=recent)


# -- metrics.jsonl ---------------------------------------------------------------------------------


def _metrics(attempts: list[Path], end_bytes: int) -> Progress:
    rows: list[metrics.Row] = []
    losses: list[tuple[int, float]] = []
    latest: dict[str, float] = {}
    saved = attempt = None
    for path in attempts[-_ATTEMPTS:]:
        tail = files.tail(path / metrics.FILE, end_bytes)
        own = [row for line in tail if (row := metrics.row_of(line)) is not None]
        rows, attempt = (own, path.name) if own else (rows, attempt)
        for row in own:
            step, event, values = row["step"], row["event"], metrics.values(row)
            latest |= values
            saved = row if event == "save" else saved
            if event == "begin":
                _forget(losses, step + 1)
            elif event == "log" and "loss" in values:
                _forget(losses, step)
                losses.append((step, float(values["loss"])))
    if not rows:
        return Progress()
    newest, most = rows[-1], latest.get("max_steps", 0)
    epochs = (row.get("epoch") for row in reversed(rows))
    before = (
        row["at"]
        for row in reversed(rows)
        if row["step"] < newest["step"] or row["at"] < newest["at"] - 1
    )
    earlier = next(before, None)
    found = Progress(
        step=newest["step"],
        max_steps=int(most) if most > 0 else None,
        at=float(newest["at"]),
        epoch=next((float(each) for each in epochs if isinstance(each, int | float)), None),
        loss=latest.get("loss"),
        losses=_thinned(losses),
        eval_loss=latest.get("eval_loss"),
        attempt=attempt,
        interval_s=None if earlier is None else max(0.0, newest["at"] - earlier),
        saved_step=saved["step"] if saved else None,
        saved_at=float(saved["at"]) if saved else None,
    )
    return replace(found, **_speed(newest, found.max_steps, rows))


def _forget(losses: list[tuple[int, float]], step: int) -> None:
    while losses and losses[-1][0] >= step:
        losses.pop()


def _speed(newest: metrics.Row, max_steps: int | None, rows: list[metrics.Row]) -> dict[str, Any]:
    """Return the speed that this start measured; an earlier one may have run on other nodes."""
    begun = max((index for index, row in enumerate(rows) if row["event"] == "begin"), default=0)
    row = next((row for row in reversed(rows[begun:]) if from_row(row)), newest)
    measured = from_row(row)
    if measured is None:
        logged = [row for row in rows[begun:] if row["event"] == "log"] or [newest]
        steps = logged[-1]["step"] - logged[0]["step"]
        seconds = logged[-1]["at"] - logged[0]["at"]
        return {"step_s": seconds / steps if steps > 0 and seconds > 0 else None}
    useful, eta = measured.useful_tokens_per_s, measured.eta_s
    if eta is not None:
        eta = max(0.0, eta - max(0.0, newest["at"] - row["at"]))
    return {
        "tokens_per_s": measured.tokens_per_s if useful is None else useful,
        "mfu": measured.mfu,
        "data_wait": measured.data_wait,
        "step_s": measured.step_s,
        "eta_s": 0.0 if max_steps and newest["step"] >= max_steps else eta,
    }


def _thinned(points: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    kept: Thinned[tuple[int, float]] = Thinned(MOST_LOSSES)
    for point in points:
        kept.add(point)
    return tuple(kept.items())


# -- memory/rank-N.jsonl ---------------------------------------------------------------------------


def of_ranks(tails: Iterable[list[Sample]]) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Return the newest sample of each rank, and the last samples of all, from one list per rank.

    After a start with fewer ranks, files of an earlier one are stale: only ranks within the world
    size of the newest sample count.
    """
    tails = [tail for tail in tails if tail]
    if not tails:
        return (), ()
    world = max((tail[-1] for tail in tails), key=lambda sample: sample.time_ms).world_size
    tails = [tail for tail in tails if tail[-1].world_size == world and tail[-1].rank < world]
    recent = []
    for tail in tails:
        begins = [at for at, sample in enumerate(tail) if sample.event == "train_begin"]
        recent += tail[begins[-1] if begins else 0 :]
    newest = sorted((tail[-1] for tail in tails), key=lambda sample: sample.rank)
    return tuple(newest), tuple(sorted(recent, key=lambda sample: (sample.time_ms, sample.rank)))


def rank_files(directory: Path) -> list[tuple[int, Path]]:
    """Return the ranks with samples in a run's `memory`, in order, and their files."""
    found = ((_RANK.match(path.name), path) for path in directory.glob("rank-*"))
    return sorted((int(match[1]), path) for match, path in found if match)


def _parsed(lines: Iterable[bytes]) -> Iterator[Sample]:
    for line in lines:
        try:
            yield from_json(line.decode())
        except (ValueError, RecursionError, OverflowError):
            continue


def watched(run_dir: Path) -> dict[str, Any]:
    """Return the size and mtime of each file that `read` reads; they change when there is something
    new.
    """
    patterns = (f"{metrics.ATTEMPTS}/*/{metrics.FILE}", "memory/rank-*.jsonl")
    return {str(path): stamp(path) for each in patterns for path in run_dir.glob(each)}


_NUMBER = r"-?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|nan|inf)"
_TRAIN = re.compile(
    r"\[(?:train|speed)\] (?:begin: )?step=(?P<step>[0-9]{1,15})/(?P<most>[0-9]{1,15})\b"
)
_PAIR = re.compile(rf"\b(?P<name>[A-Za-z_]\w{{0,60}})=(?P<value>{_NUMBER})(?=\s|$)")
_DICT = re.compile(r"\{'[A-Za-z_][\w./ -]{0,60}': .{1,4000}?\}")
_ITEM = re.compile(rf"'(?P<name>[A-Za-z_][\w./ -]{{0,60}})': '?(?P<value>{_NUMBER})'?(?=[,}}])")
_BAR = re.compile(
    r"(?:^|\r)\s*[0-9]{1,3}%\|[^|]*\| (?P<step>[0-9]{1,15})/(?P<most>[0-9]{1,15})"
    r" \[[0-9:]+<(?P<left>[0-9:]+|\?),\s+(?P<rate>[0-9.]+|\?)(?P<unit>s/it|it/s)"
)
#: Number of samples kept per rank.
_KEPT = 10


@dataclass(slots=True)
class Lines:
    """The progress from the lines of a growing log; `add` them in order."""

    bar: re.Match[str] | None = None
    ours: re.Match[str] | None = None
    latest: dict[str, float] = field(default_factory=dict)
    losses: list[tuple[int, float]] = field(default_factory=list)
    samples: dict[int, list[Sample]] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """Add one cleaned line; a line may contain several states of a progress bar."""
        for bar in _BAR.finditer(line) if "%|" in line else ():
            if self.bar is None or int(bar["most"]) >= int(self.bar["most"]):
                self.bar = bar
        if memory.MARK in line:
            if (found := memory.parse_line(line)) is not None:
                self.samples[found.rank] = [*self.samples.get(found.rank, ()), found][-_KEPT:]
            return
        ours = _TRAIN.search(line)
        said = None if ours else _DICT.search(line)
        self.ours = ours or self.ours
        pairs = (
            _PAIR.findall(line[ours.end() :]) if ours else _ITEM.findall(said[0] if said else "")
        )
        values = {name: float(value) for name, value in pairs}
        self.latest |= values
        if "loss" in values:
            place = self.ours or self.bar
            step = int(place["step"]) if place else len(self.losses)
            _forget(self.losses, max(1, step))
            self.losses.append((step, values["loss"]))
            if len(self.losses) > 4000:
                self.losses[:] = _thinned(self.losses)

    def progress(self) -> Progress:
        """Return the progress; `at` is unknown, because lines have no time."""
        newest, recent = of_ranks(self.samples.values())
        place, left, rate = self.ours or self.bar, "?", 0.0
        if self.bar is not None:
            left, rate = self.bar["left"], float(self.bar["rate"].replace("?", "0"))
            rate = 1 / rate if rate and self.bar["unit"] == "it/s" else rate
        return Progress(
            step=int(place["step"]) if place else None,
            max_steps=int(place["most"]) if place else None,
            epoch=self.latest.get("epoch"),
            eval_loss=self.latest.get("eval_loss"),
            samples=newest,
            recent=recent,
            loss=self.losses[-1][1] if self.losses else None,
            losses=_thinned(self.losses),
            step_s=rate or None,
            eta_s=None if left == "?" else float(_seconds(left)),
        )


def _seconds(text: str) -> int:
    return sum(int(part or 0) * 60**at for at, part in enumerate(reversed(text.split(":"))))
