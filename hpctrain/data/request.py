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

FORMAT = 5
"""Increased when the same request gives different pieces, so that pieces of an earlier version are
not reused.
"""
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
        notes: findings and decisions, to be printed.
    """

    request: PrepareRequest
    sources: tuple[sources.Source, ...]
    stats: tuple[tuple[int, int], ...]
    recipe: Recipe
    encoder: Encoder
    fingerprint: str
    notes: tuple[str, ...]

    @property
    def piece_bytes(self) -> int:
        """The size of a piece. It depends only on the data, so that the result does not depend on
        the machine.
        """
        return min(
            _LARGEST_PIECE,
            max(_SMALLEST_PIECE, sum(source.bytes for source in self.sources) // _PIECES),
        )

    @property
    def divided(self) -> bool:
        """Whether `train` is the only split, so that a validation split can be created."""
        return {source.split for source in self.sources} <= {None, "train"}

    @property
    def template(self) -> str | None:
        """The sha256 of the chat template; None if none is applied."""
        text = self.encoder.template
        return None if text is None else hashlib.sha256(text.encode()).hexdigest()

    def changed_files(self) -> list[str]:
        """Return the files that have changed since they were first read."""
        return [
            str(source.path)
            for source, stat in zip(self.sources, self.stats, strict=True)
            if _stat(source.path) != stat
        ]

    @property
    def pieces_digest(self) -> str:
        """The digest of everything that the finished pieces depend on: data, tokenizer, template
        and libraries.
        """
        recipe = asdict(self.recipe)
        del recipe["tokenizer"], recipe["template"]  # their content matters, not their location
        special = self.encoder.tokenizer.special_tokens_map
        depends = {
            "format": FORMAT,
            "hpctrain": __version__,
            "libraries": [importlib.metadata.version(name) for name in _LIBRARIES],
            "sources": [
                [str(source.path.absolute()), source.split, *stat]
                for source, stat in zip(self.sources, self.stats, strict=True)
            ],
            "recipe": recipe,
            "fingerprint": self.fingerprint,
            "template": self.encoder.template,
            "special": {name: str(token) for name, token in special.items()},
        }
        return _digest(depends)

    @property
    def digest(self) -> str:
        """The digest of the complete request."""
        asked = self.request
        return _digest([self.pieces_digest, asked.pack, asked.validation, asked.seed])


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
    _refuse_prepared(found)
    stats = tuple(_stat(source.path) for source in found)
    rows = _first_rows(found)
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
    notes = (sources.sentence(found), columns.sentence, *encoder.notes)
    resolved = ResolvedRequest(
        request=request,
        sources=found,
        stats=stats,
        recipe=recipe,
        encoder=encoder,
        fingerprint=fingerprint,
        notes=notes,
    )
    if request.validation and not resolved.divided:
        has = ", ".join(sorted({source.split or "files without a split" for source in found}))
        raise UsageError(
            f"--validation {request.validation:g}: the data has its own splits: {has}",
            hint="omit --validation: they are kept",
        )
    return resolved


def _refuse_prepared(found: tuple[sources.Source, ...]) -> None:
    folders = dict.fromkeys(parent for source in found for parent in list(source.path.parents)[:2])
    if prepared := [folder for folder in folders if (folder / MANIFEST).is_file()]:
        raise UsageError(
            f"{prepared[0]} is a prepared dataset, not raw data",
            fix=f"hpctrain prepare --show 3 {shell.quote(prepared[0])}",
            hint="name the files of DATA one by one",
        )


def _stat(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _first_rows(found: tuple[sources.Source, ...]) -> tuple[SourceRow, ...]:
    rows: list[SourceRow] = []
    for source in found[:_FILES_LOOKED_AT]:
        wanted = _LOOKED_AT if source is found[0] else _LOOKED_AT // _FILES_LOOKED_AT
        found_rows = readers.read_rows(readers.SourcePiece(source=source))
        rows += islice((row for row in found_rows if isinstance(row, SourceRow)), wanted)
    return tuple(rows)


def _digest(value: Any) -> str:
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, ensure_ascii=True, default=str).encode()
    ).hexdigest()
