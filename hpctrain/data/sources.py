"""The data files in the given paths: kind, split, compression, and all problems at once.

A text file does not mark where an example ends. A file with empty lines is read by block, others by
line; `unit` overrides this, and `sentence` reports the choice.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final, Literal, cast

from hpctrain.clusters.load import is_file
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.util import shell, stored, text

Kind = Literal["jsonl", "json", "csv", "tsv", "parquet", "text", "arrow"]
TextUnit = Literal["line", "block", "file"]

SPLITS: Final = ("train", "validation", "test")
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
        split: `train`, `validation` or `test`, if the files have splits.
        compressed: by gzip.
        unit: for text, the extent of one example: a line, a block between empty lines, or the file.
    """

    path: Path
    kind: Kind
    bytes: int
    split: str | None = None
    compressed: bool = False
    unit: TextUnit | None = None


def find(paths: Sequence[Path], *, unit: TextUnit | None = None) -> tuple[Source, ...]:
    """Return the files in the paths, in the order of the paths, and by name within a directory.

    Args:
        paths: files, directories of files, directories that `save_to_disk` wrote.
        unit: the extent of one example in a text file; None: detected.

    Raises:
        UsageError: all problems with the paths.
    """
    sources: dict[Path, Source] = {}
    problems: list[str] = [] if paths else ["no data was named"]
    for path in map(stored.expanded, paths):
        try:
            inside = path.is_dir()
            for item, split in _files(path) if inside else [(path, _split(path.name))]:
                source = _source(item, split, unit)
                if source.bytes:
                    sources.setdefault(item.resolve(), source)
                elif not inside:
                    problems.append(f"{item} is empty")
        except HpctrainError as error:
            problems.append(error.what)
        except OSError as error:
            problems.append(f"cannot read {error.filename or path}: {error.strerror or error}")
    if not problems and not sources:
        problems.append(
            f"no data in {', '.join(map(str, paths))}: looked for {', '.join(_BY_NAME)},"
            " compressed or not"
        )
    if problems:
        raise UsageError(
            problems[0] if len(problems) == 1 else f"{len(problems)} problems with the data",
            details=() if len(problems) == 1 else tuple(problems),
            hint="name files or directories of JSONL, JSON, CSV, Parquet or text, or of"
            " save_to_disk; for data on the hub: hf download NAME --repo-type dataset --local-dir DIR",
        )
    return _with_splits(list(sources.values()))


def sentence(sources: Sequence[Source]) -> str:
    """Return a one-line summary of the files."""
    kinds = Counter(_words(source) for source in sources)
    found = "; ".join(f"{text.count(count, 'file')} of {words}" for words, count in kinds.items())
    by_split = Counter(source.split for source in sources if source.split)
    splits = ", ".join(f"{name} {by_split[name]}" for name in SPLITS if by_split[name])
    size = sum(source.bytes for source in sources)
    own = f"; own splits: {splits}" if splits else ""
    return f"data: {found}; {size:,} bytes{own}"


def _words(source: Source) -> str:
    units = {"line": "a line", "block": "between empty lines", "file": "a file"}
    packed = " (gz)" if source.compressed else ""
    unit = f", one example {units[source.unit]}" if source.unit else ""
    return f"{source.kind}{packed}{unit}"


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


def _files(path: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield the data files of a directory, each with the split in its name or directory.

    Raises:
        OSError: a directory cannot be read.
    """
    if is_file(path / "dataset_dict.json"):
        saved = sorted(path.glob("*/state.json"), key=lambda state: state.parent.name != "train")
        found = [(file, state.parent.name) for state in saved for file in state.parent.iterdir()]
    elif is_file(path / "state.json"):
        found = [(file, "") for file in path.iterdir()]
    else:
        yield from ((file, _split(str(file.relative_to(path)))) for file in _data_below(path))
        return
    for file, split in sorted(found, key=lambda each: (each[1] != "train", each[1], each[0])):
        if file.suffix == ".arrow" and not _BESIDE.match(file.name):
            yield file, split or None


def _data_below(path: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise error

    for directory, inner, names in os.walk(path, onerror=fail):
        inner[:] = sorted(name for name in inner if not name.startswith((".", "__")))
        for file in (Path(directory, name) for name in sorted(names)):
            if not _BESIDE.match(file.name) and _suffix(file)[0] in _BY_NAME:
                yield file


def _suffix(path: Path) -> tuple[str, bool]:
    """Return the suffix of the format, and whether the file is compressed."""
    compressed = path.suffix.lower() == ".gz"
    return (path.with_suffix("") if compressed else path).suffix.lower(), compressed


def _source(path: Path, split: str | None, unit: TextUnit | None) -> Source:
    """Return the source of a file.

    Raises:
        HpctrainError: it is not a readable data file.
        OSError: it cannot be opened.
    """
    stored.open_regular(path).close()
    suffix, compressed = _suffix(path)
    kind = _BY_NAME.get(suffix)
    if kind is None or (compressed and kind in ("parquet", "arrow")):
        raise HpctrainError(f"{path} is not data: its name ends with none of {', '.join(_BY_NAME)}")
    source = Source(
        path=path, kind=kind, bytes=path.stat().st_size, split=split, compressed=compressed
    )
    if kind not in ("json", "text"):
        return source
    with opened(path, compressed=compressed) as file:
        beginning = file.read(_BUFFER)
    if kind == "json":
        return replace(source, kind="jsonl" if _is_lines(beginning) else "json")
    blocks = re.search(rb"\S[ \t]*\r?\n[ \t]*\r?\n\s*\S", beginning)
    return replace(source, unit=unit or ("block" if blocks else "line"))


def _is_lines(beginning: bytes) -> bool:
    """Whether the first line is a JSON object that another one follows."""
    first, _, rest = beginning.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")
    try:
        return isinstance(json.loads(first), dict) and rest.lstrip().startswith(b"{")
    except (ValueError, RecursionError):
        return False


def _split(name: str) -> str | None:
    """Return the split in a file name; None if there is none, or several."""
    names = [split for split, words in _SPLIT.items() if words.search(name)]
    return names[0] if len(names) == 1 else None


def _with_splits(sources: list[Source]) -> tuple[Source, ...]:
    """Return the sources with their splits if there are several, including one for training."""
    splits = {source.split for source in sources}
    several = bool(splits - {None, "train"}) and bool(splits & {None, "train"})
    return tuple(
        replace(source, split=(source.split or "train") if several else None) for source in sources
    )
