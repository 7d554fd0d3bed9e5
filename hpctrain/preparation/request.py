"""What is asked for, and what it means once the files were looked at: sources, columns, recipe, and the digests that resuming goes by."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from hpctrain import __version__
from hpctrain.errors import UsageError
from hpctrain.jobs import shell
from hpctrain.preparation import forms, manifest, sources
from hpctrain.preparation.encode import DEFAULT_LOSS, Encoder, LossOn, Recipe, Truncation
from hpctrain.preparation.fingerprint import tokenizer_fingerprint
from hpctrain.preparation.rows import Row

FORMAT = 2
"""Raised when the same request gives other pieces than before: pieces of an earlier hpctrain are not gone on from."""
_LOOKED_AT = 200
_FILES_LOOKED_AT = 8
_SMALLEST_PIECE, _LARGEST_PIECE, _PIECES = 1 << 18, 1 << 26, 512
DEFAULT_SHARE, DEFAULT_MOST = 0.05, 2000
"""Held out where nobody says how much, and nothing in the source is: one in twenty, and no more than these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One `hpctrain prepare`.

    Attributes:
        paths: files and folders of data.
        target: folder of the result.
        tokenizer: local folder; `tokenizer_name`: as the person named it.
        form, columns, unit: see `forms.detect` and `sources.find`; found where not said.
        loss_on: None: the form's default.
        max_length: tokens of an example, and of a packed row, at most; None: no bound.
        truncation, template, template_options, eos, system, as_chat, trust_remote_code: see `encode.Recipe`.
        pack: several examples in a row.
        validation: examples held out, or a share of them less than 1; 0: none; None: DEFAULT_SHARE, at most DEFAULT_MOST.
        seed: of what is held out, and of the order of packed rows.
        dedupe: of equal examples the first stays.
        workers: processes; None: all cores.
        force: an earlier result of hpctrain is replaced.
    """

    paths: tuple[Path, ...]
    target: Path
    tokenizer: Path
    tokenizer_name: str = ""
    form: forms.Form | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    unit: sources.TextUnit | None = None
    loss_on: LossOn | None = None
    max_length: int | None = None
    truncation: Truncation = "keep_start"
    template: Path | None = None
    template_options: Mapping[str, Any] = field(default_factory=dict)
    eos: bool = True
    system: str | None = None
    as_chat: bool = False
    trust_remote_code: bool = False
    pack: bool = False
    validation: float | None = None
    seed: int = 0
    dedupe: bool = False
    workers: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a request means.

    Attributes:
        request: the request.
        sources: the files, in order.
        stats: of each file bytes and mtime_ns, when it was looked at.
        recipe: how rows become tokens.
        encoder: of this process.
        fingerprint: of the tokenizer.
        notes: what was found and decided, to be said aloud.
        rows: the first ones.
    """

    request: Request
    sources: tuple[sources.Source, ...]
    stats: tuple[tuple[int, int], ...]
    recipe: Recipe
    encoder: Encoder
    fingerprint: str
    notes: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def target_bytes(self) -> int:
        """Return the size of a piece: it depends on the data alone, so that the result does not depend on the machine."""
        return min(_LARGEST_PIECE, max(_SMALLEST_PIECE, sum(source.bytes for source in self.sources) // _PIECES))

    @property
    def divided(self) -> bool:
        """Tell whether the source has no split but `train` of its own, so that examples can be held out."""
        return {source.split for source in self.sources} <= {None, "train"}

    @property
    def template(self) -> str | None:
        """Return the sha256 of the chat template; None where none is applied."""
        text = self.encoder.template
        return None if text is None else hashlib.sha256(text.encode()).hexdigest()

    def needed(self) -> tuple[str, ...]:
        """Return the columns that are read."""
        return tuple(dict.fromkeys(self.recipe.columns.names.values()))


def understand(request: Request) -> Meaning:
    """Look at the files and the tokenizer.

    Raises:
        UsageError: what the files are cannot be told, the tokenizer cannot be loaded, or options contradict each other.
        OSError: a file cannot be read.
    """
    if request.pack and request.max_length is None:
        raise UsageError("packing needs the length of a row", fix="--max-length 4096, or --no-pack")
    found = sources.find(request.paths, unit=request.unit)
    _refuse_prepared(found)
    stats = tuple(_stat(source.path) for source in found)
    rows = _first_rows(found)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = forms.detect(names, rows, form=request.form, named=request.columns)
    recipe = Recipe(
        tokenizer=str(request.tokenizer),
        columns=columns,
        loss_on=request.loss_on or DEFAULT_LOSS[columns.form],
        max_length=request.max_length,
        truncation=request.truncation,
        template=None if request.template is None else str(request.template),
        template_options=request.template_options,
        eos=request.eos,
        system=request.system,
        as_chat=request.as_chat,
        trust_remote_code=request.trust_remote_code,
    )
    encoder = Encoder(recipe)
    fingerprint = tokenizer_fingerprint(request.tokenizer)
    if fingerprint is None:
        raise UsageError(f"{request.tokenizer} has no tokenizer that can be read", fix=f"ls {shell.quote(request.tokenizer)}")
    notes = (sources.sentence(found), columns.sentence, *encoder.notes)
    meaning = Meaning(
        request=request, sources=found, stats=stats, recipe=recipe, encoder=encoder, fingerprint=fingerprint, notes=notes, rows=rows
    )
    if request.validation and not meaning.divided:
        has = ", ".join(sorted({source.split or "files without a split" for source in found}))
        raise UsageError(
            f"--validation {request.validation:g}: the data has splits of its own: {has}", fix="leave --validation out: they are kept"
        )
    return meaning


def _refuse_prepared(found: tuple[sources.Source, ...]) -> None:
    """Refuse results of an earlier preparation among the data, as a folder has them into which one was written."""
    folders = dict.fromkeys(parent for source in found for parent in list(source.path.parents)[:2])
    prepared = [folder for folder in folders if (folder / manifest.NAME).is_file()]
    if prepared:
        raise UsageError(
            f"{prepared[0]} was prepared already, and is no raw data",
            details=tuple(f"  and so was {folder}" for folder in prepared[1:]),
            fix=f"name the files of DATA one by one; or look at it: hpctrain prepare --show 3 {shell.quote(prepared[0])}",
        )


def _stat(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _first_rows(found: tuple[sources.Source, ...]) -> tuple[Row, ...]:
    """Return the first rows of the first file, and some of a few others."""
    rows: list[Row] = []
    for source in found[:_FILES_LOOKED_AT]:
        pieces = sources.pieces([source], target_bytes=_SMALLEST_PIECE)
        wanted = _LOOKED_AT if source is found[0] else _LOOKED_AT // _FILES_LOOKED_AT
        readable = (row for piece in pieces for row in sources.read(piece) if isinstance(row, Row))
        rows += islice(readable, wanted)
    return tuple(rows)


def changed(meaning: Meaning) -> list[str]:
    """Return the files that are not what they were when they were looked at."""
    return [str(source.path) for source, stat in zip(meaning.sources, meaning.stats, strict=True) if _now(source.path) != stat]


def _now(path: Path) -> tuple[int, int] | None:
    try:
        return _stat(path)
    except OSError:
        return None


def pieces_digest(meaning: Meaning) -> str:
    """Return the digest of everything that finished pieces depend on: other data, tokenizer, template or libraries make others."""
    tokenizer = meaning.encoder.tokenizer
    recipe = asdict(meaning.recipe)
    del recipe["tokenizer"], recipe["template"]  # what is in them counts, not where they lie
    depends = {
        "format": FORMAT,
        "hpctrain": __version__,
        "libraries": {name: importlib.metadata.version(name) for name in ("transformers", "tokenizers")},
        "sources": [
            [str(source.path.absolute()), source.split, *stat] for source, stat in zip(meaning.sources, meaning.stats, strict=True)
        ],
        "recipe": recipe,
        "fingerprint": meaning.fingerprint,
        "template": meaning.encoder.template,
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
    }
    return _digest(depends)


def rows_digest(meaning: Meaning) -> str:
    """Return the digest of the whole request: what the shards depend on besides the pieces."""
    request = meaning.request
    return _digest([pieces_digest(meaning), request.pack, request.validation, request.seed, request.dedupe])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True, default=str).encode()).hexdigest()
