"""Which files the paths mean, what kind each is, and what is wrong with them, all of it at once; nothing is read but their beginnings."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.preparation.sources_open import COMPRESSIONS, open_bytes, said_where
from hpctrain.preparation.sources_types import Kind, Source, TextUnit

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
#: Files beside the data that are not data, in a folder that was not made for us.
_BESIDE = re.compile(
    r"(?i)readme|licen[cs]e|notice|citation|changelog|\.gitattributes|dataset_infos?\.json|dataset_dict\.json|state\.json|manifest"
)
_NO_DATA = {
    ".py",
    ".sh",
    ".yaml",
    ".yml",
    ".lock",
    ".png",
    ".jpg",
    ".jpeg",
    ".svg",
    ".pdf",
    ".html",
    ".sha256",
    ".md5",
    ".crc",
    ".ipynb",
    ".log",
}
#: As the Hub reads names: https://huggingface.co/docs/hub/datasets-file-names-and-splits
_SPLIT = {
    "train": re.compile(r"(?i)(?<![a-z])train(ing)?(?![a-z])"),
    "validation": re.compile(r"(?i)(?<![a-z])(validation|valid|val|dev)(?![a-z])"),
    "test": re.compile(r"(?i)(?<![a-z])(test|testing|eval|evaluation)(?![a-z])"),
}
_BEGINNING = 1 << 20


class _Problem(Exception):  # noqa: N818 - one line of the error; never leaves this module
    pass


def found(paths: Sequence[Path], unit: TextUnit | None) -> tuple[Source, ...]:
    """Return the sources of the paths; see `sources.find`.

    Raises:
        UsageError: all that is wrong with them.
    """
    sources: list[Source] = []
    problems: list[str] = []
    for path in paths:
        for item, split, inside in _files(path.expanduser(), problems):
            try:
                source = _source(item, split, unit, inside=inside)
            except _Problem as problem:
                problems.append(str(problem))
                continue
            if source is not None:
                sources.append(source)
    if not paths:
        problems.append("no data was named")
    if not problems and not sources:
        problems.append(f"no data in {', '.join(str(path) for path in paths)}: looked for {', '.join(_BY_NAME)}, compressed ones too")
    if problems:
        raise UsageError(
            problems[0] if len(problems) == 1 else f"{len(problems)} problems with the data",
            details=() if len(problems) == 1 else tuple(problems),
            fix="name files or folders of JSONL, JSON, CSV, parquet or text, or of save_to_disk",
        )
    return _unique(_with_splits(sources))


def _files(path: Path, problems: list[str]) -> Iterator[tuple[Path, str | None, bool]]:
    """Yield each file of a path, with the split that its folder says, and whether it was found in a folder."""
    try:
        folder = stat.S_ISDIR(path.stat().st_mode)
    except OSError:  # `_source` says why
        folder = False
    if not folder:
        yield path, _split(path.name), False
        return
    if _has(path, "hpctrain.json"):
        problems.append(f"{path} was made by hpctrain prepare: it is tokenised already")
    elif _has(path, "dataset_dict.json"):
        for name in _split_names(path, problems):
            yield from ((file, name, True) for file in _saved(path / name, problems))
    elif _has(path, "state.json") and _has(path, "dataset_info.json"):
        yield from ((file, None, True) for file in _saved(path, problems))
    else:

        def unreadable(error: OSError) -> None:
            problems.append(f"cannot read the folder {error.filename}: {error.strerror}")

        for inner, folders, names in os.walk(path, onerror=unreadable):
            folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
            for name in sorted(names):
                file = Path(inner, name)
                if not name.startswith((".", "_")) and not _BESIDE.match(name) and not _NO_DATA & set(file.suffixes[-1:]):
                    yield file, _split(str(file.relative_to(path))), True


def _has(folder: Path, name: str) -> bool:
    try:
        return stat.S_ISREG((folder / name).stat().st_mode)
    except OSError:
        return False


def _split_names(path: Path, problems: list[str]) -> list[str]:
    try:
        names = json.loads((path / "dataset_dict.json").read_bytes())["splits"]
        return [str(name) for name in names]
    except (OSError, ValueError, KeyError, TypeError) as error:
        problems.append(f"cannot read {path / 'dataset_dict.json'}: {error}")
        return []


def _saved(folder: Path, problems: list[str]) -> list[Path]:
    """Return the Arrow files of a folder that `Dataset.save_to_disk` wrote, in its order."""
    try:
        state = json.loads((folder / "state.json").read_bytes())
        return [folder / Path(str(file["filename"])).name for file in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        problems.append(f"cannot read {folder / 'state.json'}: {error}")
        return []


def _source(path: Path, split: str | None, unit: TextUnit | None, *, inside: bool) -> Source | None:
    """Return the source of a file; None for an empty one in a folder.

    Raises:
        _Problem: it is no data that can be read.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise _Problem(f"{path} is not a regular file")
        with path.open("rb"):
            pass
    except OSError as error:
        link = f" (a link to {os.readlink(path)})" if os.path.islink(path) else ""  # noqa: PTH114, PTH115 - Path.is_symlink raises
        raise _Problem(f"cannot read {path}{link}: {error.strerror}") from error
    if status.st_size == 0:
        if inside:
            return None
        raise _Problem(f"{path} is empty")
    compression = COMPRESSIONS.get(path.suffix.lower())
    beginning = _beginning(path, compression)
    name = path.with_suffix("") if compression else path
    kind = _kind(path, name.suffix.lower(), beginning)
    if kind in ("parquet", "arrow"):
        if compression:
            raise _Problem(f"{path}: a compressed {kind} file is read only after unpacking it")
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise _Problem(f"Arrow opens no file whose name is not UTF-8: {str(path)!a}") from None
        return Source(path=path, kind=kind, bytes=status.st_size, split=split)
    _check_text(path, beginning, whole=len(beginning) < _BEGINNING)
    if kind == "json" and _is_lines(beginning):
        kind = "jsonl"
    own = unit or ("block" if re.search(rb"\S[ \t]*\r?\n[ \t]*\r?\n\s*\S", beginning) else "line")
    return Source(path=path, kind=kind, bytes=status.st_size, split=split, compression=compression, unit=own if kind == "text" else None)


def _beginning(path: Path, compression: str | None) -> bytes:
    try:
        with said_where(path, compression), open_bytes(path, compression) as file:
            return file.read(_BEGINNING)
    except HpctrainError as error:
        raise _Problem(error.what) from error
    except OSError as error:
        raise _Problem(f"cannot read {path}: {error.strerror or error}") from error


def _kind(path: Path, suffix: str, beginning: bytes) -> Kind:
    """Return the kind of a file, by its name, or by how it begins."""
    if suffix in _BY_NAME:
        return _BY_NAME[suffix]
    if beginning.startswith(b"PAR1"):
        return "parquet"
    if beginning.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    start = beginning.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start == b"{" and _is_lines(beginning):
        return "jsonl"
    if start in (b"[", b"{"):
        return "json"
    raise _Problem(f"{path} is of no kind that is known: {suffix or 'its name has no ending'}")


def _check_text(path: Path, beginning: bytes, *, whole: bool) -> None:
    if beginning.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _Problem(f"{path} is UTF-16, and data is read as UTF-8: iconv -f UTF-16 -t UTF-8 {path}")
    try:
        beginning.decode()
    except UnicodeDecodeError as error:
        if whole or error.start < len(beginning) - 4:
            bad = beginning.count(b"\n", 0, error.start) + 1
            alone = len(beginning.decode("utf-8", "ignore").encode()) >= len(beginning) * 0.999
            if alone:  # a few damaged rows are left out, each with its line
                return
            raise _Problem(
                f"{path}:{bad} is not UTF-8 (byte 0x{beginning[error.start]:02x}): iconv -f ISO-8859-1 -t UTF-8 {path}"
            ) from error


def _is_lines(beginning: bytes) -> bool:
    """Say whether a file begins with one JSON object in its first line, and another, or nothing, after it."""
    first, _, rest = beginning.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")
    try:
        value = json.loads(first.decode())
    except (ValueError, RecursionError):
        return False
    rest = rest.lstrip()
    return isinstance(value, dict) and (rest.startswith(b"{") if rest else not _has_rows(value))


def _has_rows(value: dict[str, object]) -> bool:
    """Say whether an object that is the whole file holds a list of objects, which may be rows."""
    return any(isinstance(item, list) and item and isinstance(item[0], dict) for item in value.values())


def _split(name: str) -> str | None:
    """Return the split that a file's name speaks of; None where it speaks of none, or of several."""
    names = [split for split, words in _SPLIT.items() if words.search(name)]
    return names[0] if len(names) == 1 else None


def _with_splits(sources: list[Source]) -> list[Source]:
    """Return the sources with their splits if they are several and one is for training; without, otherwise."""
    splits = {source.split for source in sources}
    named = splits - {None}
    if "train" not in named and not (None in splits and named):
        return [replace(source, split=None) for source in sources]
    if named == {"train"} or not named:
        return [replace(source, split=None) for source in sources]
    return [replace(source, split=source.split or "train") for source in sources]


def _unique(sources: list[Source]) -> tuple[Source, ...]:
    """Return the sources, one that was named twice only once."""
    seen: dict[tuple[int, int], Source] = {}
    for source in sources:
        status = source.path.stat()
        seen.setdefault((status.st_dev, status.st_ino), source)
    return tuple(seen.values())
