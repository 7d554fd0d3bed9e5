r"""Examples for inspection: the first ones of raw data or of a dataset, printed so that the mask can
be checked.

In color, unmasked tokens are green and special tokens underlined. Without color, unmasked tokens
are between ⟦ and ⟧, which are written \u27e6 and \u27e7 where the text contains them. A newline is
shown as ↵, a tab as →, and an invisible space as ·. Reads little, writes nothing.
"""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final

from hpctrain.data import readers
from hpctrain.data.readers import Dropped, SourcePiece
from hpctrain.data.request import ResolvedRequest
from hpctrain.errors import HpctrainError
from hpctrain.terminal import sgr
from hpctrain.util import shell
from hpctrain.util.text import count as counted

OPEN, CLOSE = "⟦", "⟧"
_HEAD, _TAIL = 80, 40
"""Tokens shown from the start and the end of a long run."""
_SHOWN: Final = {"\n": "↵\n", "\t": "→", "\r": "␍", "\x00": "␀", OPEN: "\\u27e6", CLOSE: "\\u27e7"}
_UNSEEN_SPACE = re.compile(r"(?<=\s) | (?=\s)|^ | $")
_ESCAPE = re.compile("\x1b\\[([\\d;]+)m")


@dataclass(frozen=True, slots=True)
class ShownExample:
    """One example: its location, tokens and labels."""

    where: str
    ids: Sequence[int]
    labels: Sequence[int]


# -- raw data --------------------------------------------------------------------------------------


def of_raw_data(resolved: ResolvedRequest, count: int) -> tuple[list[ShownExample], list[Dropped]]:
    """Return the first `count` examples as `prepare` would encode them, and the dropped rows before
    them.

    Raises:
        HpctrainError: no row gives an example, or a file is damaged.
        OSError: a file cannot be read.
    """
    found: list[ShownExample] = []
    dropped: list[Dropped] = []
    pieces = (SourcePiece(source=source) for source in resolved.sources)
    for row in chain.from_iterable(readers.read_rows(piece) for piece in pieces):
        for each in [row] if isinstance(row, Dropped) else resolved.encoder.encode([row]):
            if isinstance(each, Dropped):
                dropped.append(each)
            else:
                labels = each.labels()
                labels[
                    0
                ] = -100  # masked as in the stored dataset: nothing before it can predict it
                found.append(ShownExample(each.where, each.input_ids, labels))
        if len(found) >= count:
            break
    if not found:
        raise HpctrainError(
            f"none of {len(dropped)} rows gives an example",
            hint="use --form and --column ROLE=NAME",
        )
    return found[:count], dropped


# -- a dataset -------------------------------------------------------------------------------------


def of_dataset(folder: Path, count: int) -> list[ShownExample]:
    """Return the first `count` examples of a tokenized dataset: prepare shuffles packed rows.

    Raises:
        HpctrainError: it contains no example, or is damaged.
    """
    import datasets
    from pyarrow import ArrowInvalid

    found: list[ShownExample] = []
    try:
        splits = datasets.load_from_disk(str(folder))
        for name, rows in splits.items():
            for number in range(min(count, len(rows))):
                found += _examples(f"{name}[{number}]", rows[number])
    except (ArrowInvalid, OSError, ValueError) as error:
        raise HpctrainError(
            f"{folder} cannot be read: {error}", fix=f"ls -lR {shell.quote(folder)}"
        ) from error
    if not found:
        raise HpctrainError(f"{folder} holds no example", fix=f"ls {shell.quote(folder)}")
    return found[:count]


def _examples(where: str, row: dict[str, list[int]]) -> list[ShownExample]:
    """Return the examples of a row."""
    ids = row["input_ids"]
    labels, sizes = row.get("labels", ids), row.get("seq_lengths", [len(ids)])
    found: list[ShownExample] = []
    start = 0
    for place, size in enumerate(sizes):
        of_several = f", example {place + 1} of {len(sizes)}" if len(sizes) > 1 else ""
        stop = start + size
        found.append(ShownExample(where + of_several, ids[start:stop], labels[start:stop]))
        start = stop
    return found


# -- printing --------------------------------------------------------------------------------------


def lines(
    tokenizer: Any,
    input_ids: Sequence[int],
    labels: Sequence[int],
    *,
    colour: bool,
    width: int = 80,
) -> list[str]:
    """Return the lines of one example, with a summary as the last line.

    Args:
        tokenizer: the transformers tokenizer.
        input_ids: token ids.
        labels: the same, -100 where masked.
        colour: mark unmasked tokens by color instead of brackets.
        width: columns of the terminal.
    """
    from rich.console import Console
    from rich.text import Text

    ids, trained = list(input_ids), [label != -100 for label in labels]
    shown = Text(overflow="fold")
    stretches = list(_stretches(tokenizer, ids, trained))
    marked = [trained and not colour for _, trained, _ in stretches]
    beside = zip(stretches, marked, [False, *marked], [*marked[1:], False], strict=False)
    for (text, _, style), mark, before, after in beside:
        closes = mark and not after
        body = text.removesuffix("\n") if closes else text
        end = CLOSE + text[len(body) :] if closes else ""
        shown.append(OPEN * (mark and not before) + body + end, style if colour else "")
    paper = io.StringIO()
    Console(
        file=paper,
        width=width - 2,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
    ).print(shown)
    # `_visible` has removed the text's own escape sequences.
    colored = _ESCAPE.sub(lambda found: sgr(*map(int, found[1].split(";"))), paper.getvalue())
    count, total = sum(trained), len(trained)
    runs = sum(now and not before for before, now in zip([False, *trained], trained, strict=False))
    part = f"{100 * count / total:.0f} %" if total else "-"
    summary = f"{total:,} tokens, {count:,} unmasked ({part})"
    return [
        *(f"  {line}".rstrip() for line in colored.splitlines() if line),
        f"  {summary} in {counted(runs, 'stretch', 'stretches')}",
    ]


def _stretches(
    tokenizer: Any, ids: Sequence[int], trained: Sequence[bool]
) -> Iterator[tuple[str, bool, str]]:
    """Yield text, mask and style of runs of tokens with the same style; the middle of a long run is
    replaced by a count.
    """
    specials = set(tokenizer.all_special_ids) | {
        index for index, token in tokenizer.added_tokens_decoder.items() if not str(token).isspace()
    }
    start = 0
    marks = zip(trained, (index in specials for index in ids), strict=True)
    for (unmasked, special), run in groupby(marks):
        stop = start + len(list(run))
        style = ("green " if unmasked else "") + ("underline" if special else "")
        gap = stop - start - _HEAD - _TAIL
        parts = [(start, stop)] if gap <= 10 else [(start, start + _HEAD), (stop - _TAIL, stop)]
        for number, (first, last) in enumerate(parts):
            if number:
                yield f" ⋯ {gap:,} tokens ⋯ ", unmasked, "dim"
            yield _visible(_text(tokenizer, ids, first, last)), unmasked, style
        start = stop


def _text(tokenizer: Any, ids: Sequence[int], start: int, stop: int) -> str:
    """Return the text of a range of tokens, decoded in context: some tokenizers drop a leading
    space.
    """
    before = max(0, start - 8)  # enough for a character of several tokens
    context, whole = (_decoded(tokenizer, ids[before:end]) for end in (start, stop))
    if start > before and whole.startswith(context):
        return whole[len(context) :]
    return _decoded(tokenizer, ids[start:stop])


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(
        tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    )


def _visible(text: str) -> str:
    """Return the text with invisible characters and terminal control characters escaped."""
    return "".join(
        _SHOWN.get(character)
        or (
            character.encode("unicode_escape").decode()
            if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp", "Zs")
            and character != " "
            else character
        )
        for character in _UNSEEN_SPACE.sub("·", text)
    )
