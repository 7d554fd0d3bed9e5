"""The pipeline from raw data to a tokenized dataset: tokenize pieces of the source on all cores,
split and pack the examples, save with `datasets`.

`.NAME.preparing`, a directory next to the result, contains the work in progress:

    lock                held by the one command that works here
    pieces-DIGEST/      the pieces of one request: NUMBER.arrow (token ids, mask and key of each
                        example), NUMBER.json (its counts, written last: such a piece is finished)
    splits/, result/    the dataset on its way

Running the same command again continues from the finished pieces. The result does not depend on the
number of processes. Disk: about 20 bytes per token until the result is in place, then 8. Prints
nothing.
"""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hpctrain import __version__
from hpctrain.data import packing, readers
from hpctrain.data.encode import Encoded, Encoder
from hpctrain.data.manifest import (
    BATCH,
    DatasetManifest,
    Split,
    expected_longest,
    histogram,
    read_manifest,
)
from hpctrain.data.manifest import NAME as MANIFEST
from hpctrain.data.readers import Dropped, SourcePiece, SourceRow
from hpctrain.data.request import PrepareRequest, ResolvedRequest, resolve
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.util import files, shell

#: Default validation split, if the source has no splits: this fraction of the examples, up to this
#: number.
DEFAULT_FRACTION, DEFAULT_MOST = 0.05, 2000
#: Average tokens of one window: the examples that are packed together, in memory (about 40 bytes
#: per token).
WINDOW_TOKENS = 1 << 22
#: Minimum sequences per window, so that a partly filled last one matters little.
WINDOW_ROWS = 128
#: With fewer examples there is no validation split by default.
_FEWEST = 20
_BATCH_ROWS, _BATCH_CHARACTERS = 256, 1 << 21


#: Called with the stage (`tokenizing` or `writing`), the progress and the total: bytes of the
#: source, or examples.
Progress = Callable[[str, int, int], None]


@dataclass(kw_only=True)
class RowCounts:
    """Counts of the examples of one or several pieces.

    Attributes:
        numbers: `read` from the source; `examples` kept and their `tokens`; `truncated` ones of
            these, and `context_turns` (see `DatasetManifest`).
        dropped: reason to number of examples; `first`: to the first of them,
            `FILE:LINE: detail`.
    """

    numbers: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def drop(self, row: Dropped) -> None:
        """Count a dropped example."""
        self.dropped[row.reason] += 1
        self.first.setdefault(row.reason, f"{row.where}: {row.detail}" if row.detail else row.where)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareSummary:
    """The result of `prepare`.

    Attributes:
        folder: the dataset's directory.
        manifest: its manifest.
        seconds: duration of this command.
        pieces, reused: number of pieces, and of those that an earlier command finished.
        already_there: the result existed for the same request.
        workers: number of processes.
    """

    folder: Path
    manifest: DatasetManifest
    seconds: float
    pieces: int = 0
    reused: int = 0
    already_there: bool = False
    workers: int = 0


def prepare(
    request: PrepareRequest,
    *,
    progress: Progress = lambda *_: None,
    say: Callable[[str], None] = lambda _: None,
) -> PrepareSummary:
    """Prepare the dataset.

    Args:
        request: the request.
        progress: see `Progress`.
        say: called with each sentence about findings and decisions.

    Raises:
        UsageError: the request is invalid; nothing was written.
        HpctrainError: a disk is full, a worker was killed, a file changed; finished pieces are
            kept.
        OSError: another file system error.
    """
    began = time.monotonic()
    target = request.target
    refuse_to_replace(target)
    resolved = resolve(request)
    for note in resolved.notes:
        say(note)
    old = read_manifest(target)
    if old is not None and old.settings.get("request") == resolved.digest:
        return PrepareSummary(
            folder=target, manifest=old, seconds=time.monotonic() - began, already_there=True
        )
    if old is not None and not request.force:
        raise UsageError(
            f"{target} exists, prepared from other data or with other options",
            hint=f"use --to {shell.quote(f'{target}_2')}, or --force to replace it",
        )
    with _work_folder(target) as work:
        run = _Preparation(resolved, work, progress, say)
        with run.explained():
            manifest = run.work()
            refuse_to_replace(target)  # it may have been created meanwhile
            if target.exists():
                target.rename(work / "old")
            (work / "result").rename(target)
            shutil.rmtree(work, ignore_errors=True)
        return PrepareSummary(
            folder=target,
            manifest=manifest,
            seconds=time.monotonic() - began,
            pieces=len(run.pieces),
            reused=run.reused,
            workers=run.workers,
        )


def refuse_to_replace(target: Path) -> None:
    """Refuse a target that exists and that `hpctrain prepare` did not create.

    Raises:
        UsageError: the target is such a file or directory.
    """
    problem = ""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        problem = "exists, and is not a directory"
    elif target.is_dir() and any(target.iterdir()) and read_manifest(target) is None:
        problem = "exists, and `hpctrain prepare` did not make it"
    if problem:
        raise UsageError(f"{target} {problem}", hint=f"use --to {shell.quote(f'{target}_2')}")


@contextmanager
def _work_folder(target: Path) -> Iterator[Path]:
    work = target.with_name(f".{target.name}.preparing")
    work.mkdir(parents=True, exist_ok=True)
    busy = UsageError(
        f"another command is preparing {target}",
        hint=f"wait for it, or use --to {shell.quote(f'{target}_2')}",
    )
    try:
        with files.lock(work / "lock"):
            if not (work / "lock").exists():  # the other command has just finished
                raise busy
            yield work
    except files.Locked:
        raise busy from None


# -- one preparation -------------------------------------------------------------------------------


class _Preparation:
    """One preparation in progress.

    Attributes:
        pieces: of the source.
        counts: of the finished pieces, by piece number.
        reused: number of pieces that an earlier command finished.
    """

    def __init__(
        self,
        resolved: ResolvedRequest,
        work: Path,
        progress: Progress,
        say: Callable[[str], None],
    ) -> None:
        self.request, self.resolved = resolved.request, resolved
        self.folder, self.progress, self.say = work, progress, say
        self.pieces = readers.pieces(resolved.sources, target_bytes=resolved.piece_bytes)
        self.workers = max(
            1, min(self.request.workers or len(os.sched_getaffinity(0)), len(self.pieces))
        )
        name = f"pieces-{resolved.pieces_digest[:16]}"
        self.paths = [work / name / f"{at:06d}.arrow" for at in range(len(self.pieces))]
        for path in work.iterdir():
            if path.name not in ("lock", name):
                shutil.rmtree(path)
        (work / name).mkdir(exist_ok=True)
        self.counts: dict[int, RowCounts] = {}
        for number, path in enumerate(self.paths):
            if (found := files.read_json(path.with_suffix(".json"))) is not None:
                kinds = {name: Counter(found[name]) for name in ("numbers", "dropped")}
                self.counts[number] = RowCounts(first=found["first"], **kinds)
        self.reused = len(self.counts)
        if self.reused:
            say(f"continuing: {self.reused} of {len(self.pieces)} pieces are finished")

    def work(self) -> DatasetManifest:
        """Finish the remaining pieces, write the dataset, and return its manifest."""
        self._tokenize()
        total = RowCounts()
        for _, counts in sorted(self.counts.items()):
            total.numbers.update(counts.numbers)
            total.dropped.update(counts.dropped)
            total.first = {**counts.first, **total.first}
        if not total.numbers["examples"]:
            raise HpctrainError(
                f"nothing is left to train on, of {total.numbers['read']:,} examples",
                details=tuple(
                    f"  {count:,} x {reason}; the first: {total.first[reason]}"
                    for reason, count in total.dropped.most_common(5)
                ),
                hint="look at it with --show 3, and set --form and --column ROLE=NAME",
            )
        splits, digest = self._save()
        if different := self.resolved.changed_files():
            raise HpctrainError(
                f"{different[0]} changed while it was read", hint="run the same command again"
            )
        resolved, request = self.resolved, self.request
        recipe = resolved.recipe
        manifest = DatasetManifest(
            sources=tuple(
                {"path": str(source.path.absolute()), "bytes": size, "mtime_ns": changed}
                | ({"split": source.split} if source.split else {})
                for source, (size, changed) in zip(resolved.sources, resolved.stats, strict=True)
            ),
            form=recipe.columns.form,
            columns=dict(recipe.columns.names),
            loss_on=recipe.loss_on,
            tokenizer=resolved.fingerprint,
            tokenizer_name=request.tokenizer_name or str(request.tokenizer),
            template=resolved.template,
            vocabulary=resolved.encoder.vocabulary,
            max_length=request.max_length,
            packed=request.pack,
            splits=splits,
            rows=total.numbers["read"],
            dropped=dict(total.dropped),
            dropped_first=total.first,
            truncated=total.numbers["truncated"],
            context_turns=total.numbers["context_turns"],
            seed=request.seed,
            digest=digest,
            settings={
                "request": resolved.digest,
                "truncation": request.truncation,
                "template": None if request.template is None else str(request.template),
                "template_options": dict(request.template_options),
                "system": request.system,
                "as_chat": request.as_chat,
                "validation": request.validation,
            },
            version=__version__,
        )
        files.write_text(self.folder / "result" / MANIFEST, manifest.to_json())
        return manifest

    def _tokenize(self) -> None:
        """Tokenize the remaining pieces; an exception ends the workers once their pieces are
        finished.

        The workers are forked, as `datasets` forks its own, so that libraries and tokenizer are
        loaded only once.
        """
        done = sum(self.pieces[number].bytes for number in self.counts)
        columns = tuple(dict.fromkeys(self.resolved.recipe.columns.names.values()))
        pool = ProcessPoolExecutor(
            self.workers,
            mp_context=multiprocessing.get_context("fork"),
            initializer=_start_worker,
            initargs=(self.resolved.encoder, columns),
        )
        try:
            jobs: dict[Future[RowCounts], int] = {
                pool.submit(_tokenize_piece, piece, path): number
                for number, (piece, path) in enumerate(zip(self.pieces, self.paths, strict=True))
                if number not in self.counts
            }
            for future in as_completed(jobs):
                number = jobs[future]
                self.counts[number] = future.result()
                done += self.pieces[number].bytes
                self.progress("tokenizing", done, sum(piece.bytes for piece in self.pieces))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _save(self) -> tuple[dict[str, Split], str]:
        import datasets  # imports torch if it is installed

        datasets.disable_progress_bars()
        examples = datasets.concatenate_datasets(
            [datasets.Dataset.from_file(str(path)) for path in self.paths]
        ).with_format("arrow")
        lengths = packing.lengths_of(examples[:]["input_ids"])
        made: dict[str, Any] = {}
        splits: dict[str, Split] = {}
        digest = hashlib.sha256()
        for name, chosen in self._division(examples[:]["key"].to_numpy()).items():
            digest.update(name.encode())
            splits[name] = self._write(name, examples, chosen, lengths, digest)
            made[name] = datasets.Dataset(
                datasets.table.MemoryMappedTable.from_file(str(self._file(name))),
                split=datasets.NamedSplit(name),
                fingerprint=hashlib.sha256(f"{name} {self.resolved.digest}".encode()).hexdigest()[
                    :16
                ],
            )
        datasets.DatasetDict(made).save_to_disk(str(self.folder / "result"))
        return splits, digest.hexdigest()

    def _file(self, split: str) -> Path:
        (self.folder / "splits").mkdir(exist_ok=True)
        return self.folder / "splits" / f"{split}.arrow"

    def _write(self, name: str, examples: Any, chosen: Any, lengths: Any, digest: Any) -> Split:
        """Write the rows of one split to a file, one window in memory at a time; return the split's
        manifest entry.
        """
        # Tokens of a packed sequence; 0: not packed.
        capacity = (self.request.max_length or 0) * self.request.pack
        step = max(1, int(max(WINDOW_TOKENS, WINDOW_ROWS * capacity) / (lengths * chosen).mean()))
        count = trained = longest = 0
        writer: Any = None
        with self._file(name).open("wb") as sink:
            for start in range(0, len(chosen), step):
                part = chosen[start : start + step]
                if not part.any():
                    continue
                table = examples[start : start + step].filter(pa.array(part))
                rows = packing.single_rows(table)
                if capacity:
                    rows = packing.packed_rows(table, capacity, self.request.seed + start)
                count, trained = count + len(rows), trained + packing.update(digest, rows)
                longest = max(longest, int(packing.lengths_of(rows["input_ids"]).max()))
                writer = writer or pa.ipc.new_stream(sink, rows.schema)
                writer.write_table(rows)
                self.progress("writing", min(start + step, len(chosen)), len(chosen))
            writer.close()
        counted = Counter(lengths[chosen].tolist())
        tokens = int(lengths[chosen].sum())
        full = capacity * count or expected_longest(counted, BATCH) * counted.total()
        return Split(
            rows=count,
            examples=counted.total(),
            tokens=tokens,
            trained=trained,
            longest=longest,
            histogram=histogram(counted),
            padded=max(1.0, round(full / tokens, 4)),
        )

    def _division(self, keys: Any) -> dict[str, Any]:
        if not self.resolved.divided:
            names = [piece.source.split or "train" for piece in self.pieces]
            sizes = [self.counts[number].numbers["examples"] for number in range(len(self.pieces))]
            of_examples = np.repeat(np.array(names), sizes)
            usual = [*dict.fromkeys(["train", "validation", *sorted(set(names))])]
            found = {name: of_examples == name for name in usual}
            return {name: chosen for name, chosen in found.items() if chosen.any()}
        asked, count = self.request.validation, len(keys)
        if asked is None:
            wanted = min(DEFAULT_MOST, max(1, round(count * DEFAULT_FRACTION)))
            wanted = wanted if count >= _FEWEST else 0
            self.say(f"validation split: {wanted:,} of {count:,} examples (--validation N)")
        else:
            wanted = int(asked) if asked >= 1 or asked == 0 else max(1, round(count * asked))
        if wanted >= count:
            raise UsageError(
                f"--validation {asked:g} of {count} examples leaves none to train on",
                hint="use --validation 0.05",
            )
        if not wanted:
            return {"train": np.ones(count, dtype=bool)}
        drawn = packing.draws(keys, self.request.seed)
        below = drawn <= np.partition(drawn, wanted - 1)[wanted - 1]
        return {"train": ~below, "validation": below}

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn foreseeable failures into errors that say what is kept and what to do."""
        try:
            yield
        except BrokenProcessPool as error:
            raise HpctrainError(
                "a worker was killed, most likely because memory is exhausted",
                details=(
                    f"{self.workers} workers of about 500 MB each ran; {self._kept_pieces()}",
                ),
                hint=f"run the same command with --workers {max(1, self.workers // 2)}",
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise HpctrainError(
                f"no space is left in {self.folder.parent} ({os.strerror(error.errno).lower()})",
                details=(f"{self._kept_pieces()}; about 20 bytes are needed for each token",),
                hint="free some space, then run the same command again",
            ) from error

    def _kept_pieces(self) -> str:
        return f"{len(self.counts)} of {len(self.pieces)} pieces are finished and kept"


# -- workers ---------------------------------------------------------------------------------------


_worker: dict[str, Any] = {}


def _start_worker(encoder: Encoder, columns: tuple[str, ...]) -> None:
    """Initialize a worker: Ctrl-C ends it without a traceback, and it ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would compete with the processes
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker.update(encoder=encoder, columns=columns)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _tokenize_piece(piece: SourcePiece, path: Path) -> RowCounts:
    """Read a piece, and write its examples to `path` with a file of counts next to it.

    Raises:
        OSError: a file cannot be read or written.
        HpctrainError: the tokenizer or the template fails.
    """
    encoder, columns = _worker["encoder"], _worker["columns"]
    counts, size = RowCounts(), 0
    batch: list[SourceRow] = []
    with path.open("wb") as sink, pa.ipc.new_stream(sink, packing.example_schema()) as writer:

        def flush() -> None:
            kept: list[Encoded] = []
            for example in encoder.encode(batch):
                if isinstance(example, Dropped):
                    counts.drop(example)
                elif not any(stop > 1 for _, stop in example.trained):
                    counts.drop(Dropped("no token to train on", example.where))
                else:
                    kept.append(example)
                    counts.numbers["tokens"] += len(example.input_ids)
                    counts.numbers["truncated"] += example.truncated
                    counts.numbers["context_turns"] += example.context_turns
            counts.numbers["examples"] += len(kept)
            if kept:
                writer.write_table(packing.example_table(kept))
            batch.clear()

        for row in readers.read_rows(piece, columns=columns):
            counts.numbers["read"] += 1
            if isinstance(row, Dropped):
                counts.drop(row)
                continue
            batch.append(row)
            size += len(str(row))
            # Limited by number and size, so that memory does not grow with the file.
            if len(batch) >= _BATCH_ROWS or size >= _BATCH_CHARACTERS:
                flush()
                size = 0
        flush()
    files.write_json(path.with_suffix(".json"), vars(counts))
    return counts
