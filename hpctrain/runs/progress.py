"""Where a run stands now: read from the ends of its files, so that looking costs the same however long it has been running.

Of metrics.jsonl (hpctrain.runs.metrics) the ends of the newest attempts are read, and of a long one some places more, so that the curve of
the loss is that of the whole run; of memory/rank-N.jsonl the ends. A run that has no such files says what its log says
(hpctrain.runs.progress_lines). Nothing here asks a scheduler, and nothing raises for what lies in a run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.memory.sample import Sample, from_json
from hpctrain.runs import metrics, pieces, speed
from hpctrain.runs.speed import Speed

MOST_LOSSES = 400
#: Attempts that are read; a run that was requeued more often shows what these did.
_ATTEMPTS = 16
_END_BYTES = 65536
#: Places of older rows that are read, of all attempts together, and what is read there: a few rows.
_PLACES, _PLACE_BYTES = 160, 2048
#: The end of a rank's samples: about ten of 700 bytes each.
_SAMPLES_BYTES = 8192
#: With more ranks than this, the last samples alone.
_MANY_RANKS, _FEW_BYTES = 256, 2048
_RANK = re.compile(r"rank-([0-9]{1,7})\.jsonl\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is not known is None.

    Attributes:
        step, max_steps: optimizer steps done, of all starts together.
        at: seconds since the epoch of the newest row, in the clock of the node.
        loss: the newest that was logged; losses: (step, loss), the newest last, 400 at most, thinned evenly.
        tokens_per_s: useful ones; mfu, data_wait: parts of 1; step_s: seconds of a step.
        eta_s: seconds to the end of the training, counted from `at`.
        samples: the newest of each rank, by rank.
        recent: the last ones of all ranks, since the training began, in time's order: what hpctrain.report.idle judges.
        attempt: that wrote the newest row.
        interval_s: seconds between the newest row and the one before it.
        saved_step, saved_at: of the newest checkpoint that was logged.
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

    @property
    def worst(self) -> Sample | None:
        """The sample of the rank whose GPU is the fullest; where no GPU is known, of the one whose cgroup, or node, is."""
        for used, total in (
            ("gpu_used_mib", "gpu_total_mib"),
            ("cgroup_used_mib", "cgroup_limit_mib"),
            ("node_used_mib", "node_total_mib"),
        ):
            parts = [
                (part, sample) for sample in self.samples if (part := part_of(getattr(sample, used), getattr(sample, total))) is not None
            ]
            if parts:
                return max(parts, key=lambda each: (each[0], -each[1].rank))[1]
        return None


def part_of(used: int | None, total: int | None) -> float | None:
    """Return which part is used; None where either is not known."""
    return None if used is None or not total else used / total


def read(run_dir: Path, *, lines: Iterable[str] = ()) -> Progress:
    """Return where the run stands. Files that are missing, half written or of something else say nothing.

    Args:
        run_dir: the run's directory.
        lines: of the end of its log, cleaned; asked only for what the files do not say, as a training of the user's own has none.
    """
    found = _metrics(run_dir)
    newest, recent = _samples(run_dir / "memory")
    found = replace(found, samples=newest, recent=recent)
    lines = list(lines)
    if not lines or (found.step is not None and found.samples):
        return found
    from hpctrain.runs import progress_lines

    said = progress_lines.read(lines)
    if found.step is not None:
        return replace(found, samples=said.samples, recent=said.recent)
    return said if not found.samples else replace(said, samples=newest, recent=recent)


# -- metrics.jsonl -----------------------------------------------------------------------------------------------------


def _metrics(run_dir: Path) -> Progress:
    paths = [attempt / metrics.FILE for attempt in metrics.attempts(run_dir)[-_ATTEMPTS:]]
    ends = [[row for line in pieces.end(path, _END_BYTES) if (row := _row(line))] for path in paths]
    last = next((index for index in reversed(range(len(paths))) if ends[index]), None)
    if last is None:
        return Progress()
    rows = ends[last]
    before = [row for end in ends[: last + 1] for row in end]
    losses = _losses([_sampled(path, end, _share(paths, path)) for path, end in zip(paths, ends, strict=True)])
    losing = next((row for row in reversed(before) if "loss" in metrics.values(row)), None)
    evaluated = next((value for row in reversed(before) if (value := metrics.values(row).get("eval_loss")) is not None), None)
    saved = next((row for row in reversed(before) if row["event"] == "save"), None)
    known = next((said for row in reversed(before) if (said := speed.from_row(row))), None)
    newest = rows[-1]
    found = Progress(
        step=newest["step"],
        max_steps=known.max_steps if known and known.max_steps > 0 else None,
        at=float(newest["at"]),
        epoch=next((float(row["epoch"]) for row in reversed(rows) if isinstance(row.get("epoch"), int | float)), None),
        loss=metrics.values(losing)["loss"] if losing else None,
        losses=losses,
        eval_loss=evaluated,
        attempt=paths[last].parent.name,
        interval_s=_interval(rows),
        saved_step=saved["step"] if saved else None,
        saved_at=float(saved["at"]) if saved else None,
    )
    return _with_speed(found, rows)


def _with_speed(found: Progress, rows: list[metrics.Row]) -> Progress:
    """Add what this start measured of its speed; what an earlier one did on other nodes says nothing of it."""
    begun = max((index for index, row in enumerate(rows) if row["event"] == "begin"), default=0)
    measured = next(((row, said) for row in reversed(rows[begun:]) if (said := speed.from_row(row))), None)
    if measured is None:
        return replace(found, step_s=_step_s(rows[begun:]))
    row, said = measured
    eta = said.eta_s
    if eta is not None and found.at is not None:
        eta = max(0.0, eta - max(0.0, found.at - float(row["at"])))
    if found.max_steps and found.step is not None and found.step >= found.max_steps:
        eta = 0.0
    return replace(found, tokens_per_s=_tokens(said), mfu=said.mfu, data_wait=said.data_wait, step_s=said.step_s, eta_s=eta)


def _tokens(said: Speed) -> float | None:
    return said.useful_tokens_per_s if said.useful_tokens_per_s is not None else said.tokens_per_s


def _step_s(rows: list[metrics.Row]) -> float | None:
    """Return the seconds of a step between the rows that the Trainer logged, where nobody measured them."""
    logged = [row for row in rows if row["event"] == "log"]
    if len(logged) < 2:
        return None
    steps, seconds = logged[-1]["step"] - logged[0]["step"], logged[-1]["at"] - logged[0]["at"]
    return seconds / steps if steps > 0 and seconds > 0 else None


def _interval(rows: list[metrics.Row]) -> float | None:
    """Return the time between the last two steps that rows were written of."""
    newest = rows[-1]
    earlier = next((row for row in reversed(rows) if row["step"] < newest["step"] or row["at"] < newest["at"] - 1), None)
    return None if earlier is None or newest["at"] < earlier["at"] else float(newest["at"] - earlier["at"])


def _share(paths: list[Path], path: Path) -> int:
    """Return how many places of a file are read: in proportion to its size."""
    sizes = {each: pieces.size(each) for each in paths}
    whole = sum(sizes.values())
    return 0 if not whole else max(8, _PLACES * sizes[path] // whole)


def _sampled(path: Path, end: list[metrics.Row], places: int) -> list[metrics.Row]:
    """Return rows of a whole file, in its order: all of its end, and of what is before a few at even distances."""
    older = [row for line in pieces.spread(path, places=places, each=_PLACE_BYTES, before=_END_BYTES) if (row := _row(line))]
    return older + end


def _losses(attempts: list[list[metrics.Row]]) -> tuple[tuple[int, float], ...]:
    """Return the curve, without the steps that a later start did again."""
    found: list[tuple[int, float]] = []
    bound = float("inf")
    for rows in reversed(attempts):
        for row in reversed(rows):
            if row["event"] == "begin":
                bound = min(bound, row["step"] + 0.5)
            elif row["event"] == "log" and row["step"] < bound and (loss := metrics.values(row).get("loss")) is not None:
                found.append((row["step"], float(loss)))
                bound = row["step"]
    return thinned(found[::-1])


def thinned(points: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Return MOST_LOSSES points at most, the first and the last among them, evenly over the steps."""
    if len(points) <= MOST_LOSSES:
        return tuple(points)
    first, last = points[0][0], points[-1][0]
    kept: dict[int, tuple[int, float]] = {}
    for point in points:  # the end of a file is read whole and the rest is not: evenly by steps, not by number
        kept[(point[0] - first) * (MOST_LOSSES - 1) // max(1, last - first)] = point
    kept[0] = points[0]
    return tuple(kept.values())


def _row(line: bytes) -> metrics.Row | None:
    row = metrics.row_of(line)
    if row is None or isinstance(row["step"], bool) or not 0 <= row["step"] < 10**15 or not 0 < row["at"] < 1e11:
        return None
    return row


# -- memory/rank-N.jsonl -----------------------------------------------------------------------------------------------


def _samples(directory: Path) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Return the newest sample of each rank, by rank, and the last ones of all since the training began."""
    ranks = sorted(_ranks(directory))
    size = _SAMPLES_BYTES if len(ranks) <= _MANY_RANKS else _FEW_BYTES
    return of_ranks([list(_parsed(pieces.end(path, size))) for _, path in ranks])


def of_ranks(tails: Iterable[list[Sample]]) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Return the newest sample of each rank, and the last ones of all, of lists of one rank each.

    A start with fewer ranks leaves files of an earlier one behind: only ranks of the newest sample's world count.
    """
    tails = [tail for tail in tails if tail]
    if not tails:
        return (), ()
    world = max((tail[-1] for tail in tails), key=lambda sample: sample.time_ms).world_size
    tails = [tail for tail in tails if tail[-1].world_size == world and tail[-1].rank < world]
    recent = [sample for tail in tails for sample in _since_begin(tail)]
    newest = sorted((tail[-1] for tail in tails), key=lambda sample: sample.rank)
    return tuple(newest), tuple(sorted(recent, key=lambda sample: (sample.time_ms, sample.rank)))


def _since_begin(tail: list[Sample]) -> list[Sample]:
    begun = max((index for index, sample in enumerate(tail) if sample.event == "train_begin"), default=0)
    return tail[begun:]


def _ranks(directory: Path) -> Iterator[tuple[int, Path]]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if match := _RANK.match(entry.name):
                    yield int(match[1]), Path(entry.path)
    except OSError:
        return


def _parsed(lines: Iterable[bytes]) -> Iterator[Sample]:
    for line in lines:
        try:
            yield from_json(line.decode())
        except (ValueError, RecursionError, OverflowError):
            continue


def watched(run_dir: Path) -> dict[str, Any]:
    """Return what changes when there is something new to read: the size and time of each file that `read` looks at."""
    paths = [attempt / metrics.FILE for attempt in metrics.attempts(run_dir)[-2:]]
    paths += [path for _, path in _ranks(run_dir / "memory")]
    return {str(path): pieces.stamp(path) for path in paths}
