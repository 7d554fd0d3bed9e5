"""The data files in the given paths: kind, split, compression, and all problems at once.

A text file does not mark where an example ends. A file with empty lines is read by block, others by
line; `sentence` reports the choice.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final, Literal, cast

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.util import shell, stored, text

Kind = Literal["jsonl", "json", "csv", "tsv", "parquet", "text", "arrow"]

_HINT = (
    "name files or directories of JSONL, JSON, CSV, Parquet or text, or of save_to_disk; for data"
    " on the hub: hf download NAME --repo-type dataset --local-dir DIR"
)
_BUFFER = 1 << 20
_BY_NAME: Final[dict[str, Kind]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonlines": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".arrow": "arrow",
}
#: Files that are not data although their suffix is that of data.
_BESIDE = re.compile(
    r"(?i)readme|licen[cs]e|notice|citation|changelog|dataset_infos?\.json|dataset_dict\.json"
    r"|state\.json|manifest|cache-|[._]"
)
#: Split names as on the Hub: https://huggingface.co/docs/hub/datasets-file-names-and-splits
_SPLIT = {
    "train": re.compile(r"(?i)(?<![a-z])train(ing)?(?![a-z])"),
    "validation": re.compile(r"(?i)(?<![a-z])(validation|valid|val|dev)(?![a-z])"),
    "test": re.compile(r"(?i)(?<![a-z])(test|testing|eval|evaluation)(?![a-z])"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One data file.

    Attributes:
        path: as found.
        kind: the file format.
        bytes: size on disk.
        split: `train`, `validation` or `test`, or the name in a directory of `save_to_disk`, if the
            files have splits.
        compressed: by gzip.
        blocks: of text: an example is a block between empty lines, not a line.
    """

    path: Path
    kind: Kind
    bytes: int
    split: str | None = None
    compressed: bool = False
    blocks: bool = False


def find(paths: Sequence[Path]) -> tuple[Source, ...]:
    """Return the files in the paths, in the order of the paths, and by name within a directory.

    Args:
        paths: files, directories of files, directories that `save_to_disk` wrote.

    Raises:
        UsageError: a path is not data or cannot be read, or there is none.
    """
    sources: dict[Path, Source] = {}
    for path in map(stored.expanded, paths):
        # save_to_disk: the splits are the directories, such as train_sft and train_gen.
        is_saved = (path / "dataset_dict.json").is_file()
        try:
            for item, name in _data_below(path) if path.is_dir() else [(path, path.name)]:
                named = [split for split, words in _SPLIT.items() if words.search(name)]
                split = named[0] if len(named) == 1 else None
                source = _source(item, name.partition("/")[0] if is_saved else split)
                if item is path and not source.bytes:
                    raise UsageError(f"{path} is empty", hint=_HINT)
                sources.setdefault(item.resolve(), source)
        except OSError as error:
            what = f"cannot read {error.filename or path}: {error.strerror or error}"
            raise UsageError(what, hint=_HINT) from error
    found = [source for source in sources.values() if source.bytes]
    if not found:
        raise UsageError(
            f"no data in {', '.join(map(str, paths))}: looked for {', '.join(_BY_NAME)},"
            " compressed or not",
            hint=_HINT,
        )
    # Splits count if there are several, including one for training.
    splits = {source.split or "train" for source in found}
    several = len(splits) > 1 and "train" in splits
    return tuple(
        replace(source, split=(source.split or "train") if several else None) for source in found
    )


def sentence(sources: Sequence[Source]) -> str:
    """Return a one-line summary of the files."""
    kinds = Counter(
        source.kind + " by block" * source.blocks + " (gz)" * source.compressed
        for source in sources
    )
    found = "; ".join(f"{text.count(count, 'file')} of {kind}" for kind, count in kinds.items())
    by_split = Counter(source.split for source in sources if source.split)
    splits = ", ".join(f"{name} {count}" for name, count in sorted(by_split.items()))
    size = sum(source.bytes for source in sources)
    return f"data: {found}; {size:,} bytes" + f"; own splits: {splits}" * bool(splits)


@contextmanager
def opened(path: Path, *, compressed: bool) -> Iterator[IO[bytes]]:
    """Open the file as a stream of decompressed bytes.

    Raises:
        HpctrainError: a compressed file is truncated or damaged.
        OSError: it cannot be opened.
    """
    try:
        with gzip.open(path) if compressed else path.open("rb", buffering=_BUFFER) as file:
            yield cast("IO[bytes]", file)
    except (EOFError, zlib.error, OSError) as error:
        # For bad data, gzip raises an OSError without errno.
        if isinstance(error, OSError) and (error.errno is not None or not compressed):
            raise
        raise HpctrainError(
            f"{path} is damaged or ends early: the rest of it cannot be decompressed",
            details=(f"{type(error).__name__}: {error}",),
            fix=f"gzip -t {shell.quote(path)}",
        ) from error


# -- which files -----------------------------------------------------------------------------------


def _data_below(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the data files of a directory, each with its relative path, which may name a split.

    Raises:
        OSError: a directory cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    for directory, inner, names in os.walk(path, onerror=fail):
        inner[:] = sorted(name for name in inner if not name.startswith((".", "__")))
        for file in (Path(directory, name) for name in sorted(names)):
            if not _BESIDE.match(file.name) and _suffix(file)[0] in _BY_NAME:
                yield file, str(file.relative_to(path))


def _suffix(path: Path) -> tuple[str, bool]:
    compressed = path.suffix.lower() == ".gz"
    return (path.with_suffix("") if compressed else path).suffix.lower(), compressed


def _source(path: Path, split: str | None) -> Source:
    suffix, compressed = _suffix(path)
    kind = _BY_NAME.get(suffix)
    if kind is None or (compressed and kind in ("parquet", "arrow")):
        raise UsageError(
            f"{path} is not data: its name ends with none of {', '.join(_BY_NAME)}", hint=_HINT
        )
    stored.open_regular(path).close()
    beginning = b""
    if kind in ("json", "text"):
        with opened(path, compressed=compressed) as file:
            beginning = file.read(_BUFFER).removeprefix(b"\xef\xbb\xbf")
    if kind == "json" and re.match(rb"\s*\{[^\n]*\}\s*\n\s*\{", beginning):
        kind = "jsonl"
    return Source(
        path=path,
        kind=kind,
        bytes=path.stat().st_size,
        split=split,
        compressed=compressed,
        blocks=kind == "text"
        and re.search(rb"\S[ \t]*\r?\n[ \t]*\r?\n\s*\S", beginning) is not None,
    )
