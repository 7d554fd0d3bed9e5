"""The stages of a preparation: tokenise the pieces, decide who is held out, write the shards. Each goes on from what is finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.preparation import assemble, duplicates, plan, provenance, shards, sources, split, tokenised, workers
from hpctrain.preparation.request import DEFAULT_MOST, DEFAULT_SHARE, Meaning
from hpctrain.preparation.work_folder import WorkFolder

HELD_OUT = "validation"
DUPLICATE = "equal to an earlier example"
_FEWEST = 20
"""With fewer examples than these, none is held out where nobody asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a preparation is.

    Attributes:
        stage: `tokenising` or `writing`.
        done, total: bytes of the source, or shards.
        rows, tokens: tokenised so far, those of earlier commands included.
        fresh: tokens that this command tokenised, and `seconds` since it began to.
        fresh_done: of `done`, what this command did.
        memory_mib: resident memory of all processes together.
    """

    stage: str
    done: int
    total: int
    rows: int = 0
    tokens: int = 0
    fresh: int = 0
    fresh_done: int = 0
    seconds: float = 0.0
    memory_mib: int = 0


@dataclass(slots=True)
class Site:
    """What all stages know.

    Attributes:
        meaning: what is asked for.
        folder: where it is done.
        pieces: of the source.
        processes: number of workers.
        progress, say: see `pipeline.prepare`.
        memory: of all processes.
        tallies: of the finished pieces, by number.
        reused: pieces that were finished before.
        fresh: tokens that this command tokenised, in `seconds`.
    """

    meaning: Meaning
    folder: WorkFolder
    pieces: tuple[sources.Piece, ...]
    processes: int
    progress: Callable[[Progress], None]
    say: Callable[[str], None]
    memory: provenance.Memory
    tallies: dict[int, workers.Tally] = field(default_factory=dict)
    reused: int = 0
    fresh: int = 0
    seconds: float = 0.0

    @property
    def capacity(self) -> int | None:
        """Return the tokens of a packed row; None where rows are not packed."""
        return self.meaning.request.max_length if self.meaning.request.pack else None

    def piece_path(self, number: int) -> Path:
        """Return the file of a piece."""
        return self.folder.pieces / f"{number:06d}.arrow"

    def stored(self) -> list[plan.Stored]:
        """Return the pieces; where examples are to be divided, none has a split of its own."""
        divided = self.meaning.divided
        return [
            plan.Stored(number, self.piece_path(number), self.tallies[number].examples, None if divided else piece.source.split or "train")
            for number, piece in enumerate(self.pieces)
        ]

    def total(self) -> workers.Tally:
        """Return what came of all pieces, in their order."""
        whole = workers.Tally()
        for number in range(len(self.pieces)):
            whole.add(self.tallies[number])
        return whole


# -- pieces --------------------------------------------------------------------------------------------------------------


def tokenise(site: Site, executor: ProcessPoolExecutor) -> None:
    """Tokenise the pieces that are not finished.

    Raises:
        OSError: a file system refuses.
        BrokenProcessPool: a worker was killed.
    """
    known = {int(name): workers.Tally(**values) for name, values in site.folder.finished("piece").items()}
    site.tallies, site.reused = {number: known[number] for number in sorted(known) if number < len(site.pieces)}, len(known)
    if known:
        site.say(f"going on: {len(known)} of {len(site.pieces)} pieces are finished")
    sizes = [piece.bytes for piece in site.pieces]
    before = sum(sizes[number] for number in site.tallies)
    now = Progress(
        stage="tokenising",
        done=before,
        total=sum(sizes),
        rows=sum(tally.read for tally in site.tallies.values()),
        tokens=sum(tally.tokens for tally in site.tallies.values()),
    )
    began = time.monotonic()
    for job, tally in workers.as_completed(executor, workers.tokenise, list(_jobs(site)), ahead=2 * site.processes):
        site.folder.finish("piece", str(job.number), job.path, asdict(tally))
        site.folder.alive()
        site.tallies[job.number] = tally
        site.fresh, site.seconds = site.fresh + tally.tokens, time.monotonic() - began
        now = replace(
            now,
            done=now.done + sizes[job.number],
            rows=now.rows + tally.read,
            tokens=now.tokens + tally.tokens,
            fresh=site.fresh,
            fresh_done=now.done + sizes[job.number] - before,
            seconds=site.seconds,
            memory_mib=site.memory.look(),
        )
        site.progress(now)


def _jobs(site: Site) -> Iterator[workers.Job]:
    columns = site.meaning.needed()
    for number, piece in enumerate(site.pieces):
        if number not in site.tallies:
            yield workers.Job(number=number, piece=piece, path=site.piece_path(number), columns=columns)


# -- splits --------------------------------------------------------------------------------------------------------------


def divide(site: Site) -> tuple[plan.Division, int]:
    """Return how the examples are divided, and how many repeat an earlier one.

    Raises:
        HpctrainError: nothing is left to train on.
        UsageError: more is to be held out than there is.
    """
    stored, request = site.stored(), site.meaning.request
    division, repeated = plan.Division(seed=request.seed, held_out=HELD_OUT), 0
    if request.dedupe:
        file = site.folder.path / "duplicates.npy"
        repeated = duplicates.find(stored, file)
        division = replace(division, duplicates=str(file))
    count = sum(piece.examples for piece in stored) - repeated
    if count == 0:
        raise _nothing_left(site.total())
    wanted = _held_out(site, count) if site.meaning.divided else 0
    bound = split.bound(lambda: _draws(stored, division), wanted)
    return replace(division, bound=bound), repeated


def _held_out(site: Site, count: int) -> int:
    asked = site.meaning.request.validation
    if asked is None:
        if count < _FEWEST:
            site.say(f"nothing is held out for validation of {count} examples (--validation N)")
            return 0
        wanted = min(DEFAULT_MOST, max(1, round(count * DEFAULT_SHARE)))
        site.say(f"held out for validation: {wanted:,} of {count:,} examples (--validation N)")
        return wanted
    wanted = int(asked) if asked >= 1 or asked == 0 else max(1, round(count * asked))
    if wanted >= count:
        raise UsageError(f"--validation {asked:g} of {count} examples leaves none to train on", fix="--validation 0.05")
    return wanted


def _draws(stored: Sequence[plan.Stored], division: plan.Division) -> Iterator[Any]:
    first = 0
    for piece in stored:
        examples = tokenised.table(piece.path)
        keep = plan.chosen(examples, plan.Part(piece.number, 0, piece.examples, first, None), division)
        yield split.draws(tokenised.column(examples, "key")[keep], division.seed)
        first += piece.examples


def _nothing_left(tally: workers.Tally) -> HpctrainError:
    what = f"nothing is left to train on, of {tally.read:,} rows"
    details = tuple(f"  {count:,} x {reason}; the first: {tally.first[reason]}" for reason, count in tally.dropped.items())
    return HpctrainError(what, details=details, fix="hpctrain prepare DATA --model FOLDER --show 3, with --form and --column ROLE=NAME")


# -- shards --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Made:
    """One split as it was written: the digest of each shard, and what is in all of them."""

    digests: tuple[str, ...]
    counts: assemble.Counts


def write(site: Site, executor: ProcessPoolExecutor, division: plan.Division) -> dict[str, Made]:
    """Write the shards that are not finished; return the splits, `train` first.

    Raises:
        OSError: a file system refuses.
        BrokenProcessPool: a worker was killed.
    """
    planned = plan.shards(site.stored(), division, capacity=site.capacity)
    finished = site.folder.finished("shard")
    jobs = {_name(shard): _job(site, shard, division) for shard in planned}
    results = {name: (values["digest"], _counts(values["counts"])) for name, values in finished.items() if name in jobs}
    waiting = [job for name, job in jobs.items() if name not in results]
    for job, (counts, digest) in workers.as_completed(executor, assemble.write_shard, waiting, ahead=2 * site.processes):
        name = _name(job.shard)
        site.folder.finish("shard", name, job.path, {"digest": digest, "counts": asdict(counts)})
        site.folder.alive()
        results[name] = (digest, counts)
        site.progress(Progress(stage="writing", done=len(results), total=len(jobs), memory_mib=site.memory.look()))
    return _together(planned, results)


def _name(shard: plan.Shard) -> str:
    return f"{shard.split}/{shards.shard_name(shard.number, shard.of)}"


def _job(site: Site, shard: plan.Shard, division: plan.Division) -> assemble.Job:
    path = site.folder.result / _name(shard)
    path.parent.mkdir(exist_ok=True)
    needed = {part.piece: site.piece_path(part.piece) for window in shard.windows for part in window}
    return assemble.Job(shard=shard, division=division, pieces=needed, path=path, capacity=site.capacity)


def _counts(values: dict[str, Any]) -> assemble.Counts:
    return assemble.Counts(**{**values, "lengths": {int(length): count for length, count in values["lengths"].items()}})


def _together(planned: Sequence[plan.Shard], results: dict[str, tuple[str, assemble.Counts]]) -> dict[str, Made]:
    order = {"train": 0, HELD_OUT: 1}
    made: dict[str, Made] = {}
    for name in sorted(dict.fromkeys(shard.split for shard in planned), key=lambda split_name: (order.get(split_name, 2), split_name)):
        whole, digests = assemble.Counts(), []
        for shard in planned:
            if shard.split == name:
                digest, counts = results[_name(shard)]
                whole.add(counts)
                digests.append(digest)
        made[name] = Made(tuple(digests), whole)
    return made
