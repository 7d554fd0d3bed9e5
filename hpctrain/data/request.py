"""The request, and its resolution against the files: sources, columns, recipe, and the digests that
decide what can be reused.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

from hpctrain import __version__
from hpctrain.data import forms, readers, sources
from hpctrain.data.encode import DEFAULT_LOSS, EncodeOptions, Encoder, LossOn, Recipe
from hpctrain.data.manifest import NAME as MANIFEST
from hpctrain.data.manifest import tokenizer_fingerprint
from hpctrain.data.readers import SourceRow
from hpctrain.errors import UsageError
from hpctrain.util import shell

#: Increased when the same request gives different pieces, so that pieces of an earlier version are
#: not reused.
FORMAT = 5
_LIBRARIES = ("transformers", "tokenizers")
_LOOKED_AT = 200
_FILES_LOOKED_AT = 8
_SMALLEST_PIECE, _LARGEST_PIECE, _PIECES = 1 << 18, 1 << 26, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRequest(EncodeOptions):
    """One `hpctrain prepare`.

    Attributes:
        paths: data files and directories.
        target: directory of the result.
        tokenizer: local directory; `tokenizer_name`: as the user named it.
        form, columns: see `forms.detect`; detected by default.
        loss_on: None: the form's default.
        pack: put several examples into each row of `max_length` tokens.
        validation: size of the validation split as examples, or as a fraction below 1; 0: none;
            None: 5 %, at most 2000.
        seed: of the validation split, and of the order of packed sequences.
        workers: processes; None: all cores.
        force: replace an earlier result of hpctrain.
    """

    paths: tuple[Path, ...]
    target: Path
    tokenizer: Path
    tokenizer_name: str = ""
    form: forms.Form | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    loss_on: LossOn | None = None
    pack: bool = False
    validation: float | None = None
    seed: int = 0
    workers: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRequest:
    """A request, resolved against its files.

    Attributes:
        request: the request.
        sources: the files, in order.
        stats: bytes and mtime_ns of each file when it was first read.
        recipe: how rows are encoded.
        encoder: of this process.
        fingerprint: of the tokenizer.
        template: the sha256 of the chat template; None if none is applied.
        notes: findings and decisions, to be printed.
        divided: `train` is the only split, so that a validation split can be created.
        pieces_digest: of everything that the finished pieces depend on: data, tokenizer, template
            and libraries; `digest`: of the complete request.
    """

    request: PrepareRequest
    sources: tuple[sources.Source, ...]
    stats: tuple[tuple[int, int], ...]
    recipe: Recipe
    encoder: Encoder
    fingerprint: str
    template: str | None
    notes: tuple[str, ...]
    divided: bool
    pieces_digest: str
    digest: str

    @property
    def piece_bytes(self) -> int:
        """The size of a piece. It depends only on the data, so that the result does not depend on
        the machine.
        """
        size = sum(source.bytes for source in self.sources) // _PIECES
        return min(_LARGEST_PIECE, max(_SMALLEST_PIECE, size))

    def changed_files(self) -> list[str]:
        """Return the files that have changed since they were first read."""
        stats = zip(self.sources, self.stats, strict=True)
        return [str(source.path) for source, stat in stats if _stat(source.path) != stat]


def resolve(request: PrepareRequest) -> ResolvedRequest:
    """Resolve a request: read the start of each file, and the tokenizer.

    Raises:
        UsageError: the form of the files is unclear, the tokenizer cannot be loaded, or options
            conflict.
        OSError: a file cannot be read.
    """
    if request.pack and request.max_length is None:
        raise UsageError(
            "packing needs the length of a row", hint="use --max-length 4096, or --no-pack"
        )
    found = sources.find(request.paths)
    folders = dict.fromkeys(parent for source in found for parent in list(source.path.parents)[:2])
    if prepared := [folder for folder in folders if (folder / MANIFEST).is_file()]:
        raise UsageError(
            f"{prepared[0]} is a prepared dataset, not raw data",
            fix=f"hpctrain prepare --show 3 {shell.quote(prepared[0])}",
            hint="name the files of DATA one by one",
        )
    splits = {source.split for source in found}
    divided = splits <= {None, "train"}
    if request.validation and not divided:
        raise UsageError(
            f"--validation {request.validation:g}: the data has its own splits:"
            f" {', '.join(sorted(split or 'files without a split' for split in splits))}",
            hint="omit --validation: they are kept",
        )
    stats = tuple(_stat(source.path) for source in found)
    rows: list[SourceRow] = []
    for source in found[:_FILES_LOOKED_AT]:
        wanted = _LOOKED_AT if source is found[0] else _LOOKED_AT // _FILES_LOOKED_AT
        found_rows = readers.read_rows(readers.SourcePiece(source=source))
        rows += islice((row for row in found_rows if isinstance(row, SourceRow)), wanted)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = forms.detect(names, rows, form=request.form, named=request.columns)
    recipe = Recipe(
        tokenizer=str(request.tokenizer),
        columns=columns,
        loss_on=request.loss_on or DEFAULT_LOSS[columns.form],
        **{option.name: getattr(request, option.name) for option in fields(EncodeOptions)},
    )
    encoder = Encoder(recipe)
    fingerprint = tokenizer_fingerprint(request.tokenizer)
    if fingerprint is None:
        raise UsageError(
            f"{request.tokenizer} has no tokenizer that can be read",
            fix=f"ls {shell.quote(request.tokenizer)}",
        )
    special = encoder.tokenizer.special_tokens_map
    pieces_digest = _digest(
        {
            "format": FORMAT,
            "hpctrain": __version__,
            "libraries": [importlib.metadata.version(name) for name in _LIBRARIES],
            "sources": [
                [str(source.path.absolute()), source.split, *stat]
                for source, stat in zip(found, stats, strict=True)
            ],
            # The content of these two matters, not their location.
            "recipe": {**asdict(recipe), "tokenizer": fingerprint, "template": encoder.template},
            "special": {name: str(token) for name, token in special.items()},
        }
    )
    text = encoder.template
    return ResolvedRequest(
        request=request,
        sources=found,
        stats=stats,
        recipe=recipe,
        encoder=encoder,
        fingerprint=fingerprint,
        template=None if text is None else hashlib.sha256(text.encode()).hexdigest(),
        notes=(sources.sentence(found), columns.sentence, *encoder.notes),
        divided=divided,
        pieces_digest=pieces_digest,
        digest=_digest([pieces_digest, request.pack, request.validation, request.seed]),
    )


def _stat(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
