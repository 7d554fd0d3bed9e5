r"""Examples for inspection: the first ones of raw data or of a dataset, printed so that the mask can
be checked.

Unmasked tokens are between ⟦ and ⟧, which are written \u27e6 and \u27e7 where the text contains
them. A newline is shown as ↵, a tab as →. Reads little, writes nothing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from hpctrain.data import readers
from hpctrain.data.readers import Dropped, SourcePiece
from hpctrain.data.request import ResolvedRequest
from hpctrain.errors import HpctrainError
from hpctrain.util import shell
from hpctrain.util.text import count as counted

OPEN, CLOSE = "⟦", "⟧"
#: Tokens shown from the start and the end of a long run.
_HEAD, _TAIL = 80, 40
_SHOWN: Final = {"\n": "↵\n", "\t": "→", OPEN: "\\u27e6", CLOSE: "\\u27e7"}


class ShownExample(NamedTuple):
    """One example: its location, tokens and labels."""

    where: str
    ids: Sequence[int]
    labels: Sequence[int]


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
        (each,) = [row] if isinstance(row, Dropped) else resolved.encoder.encode([row])
        if isinstance(each, Dropped):
            dropped.append(each)
            continue
        # Masked as in the stored dataset: nothing before the first token can predict it.
        found.append(ShownExample(each.where, each.input_ids, [-100, *each.labels()[1:]]))
        if len(found) == count:
            break
    if not found:
        raise HpctrainError(
            f"none of {len(dropped)} rows gives an example",
            hint="use --form and --column ROLE=NAME",
        )
    return found, dropped


def of_dataset(folder: Path, count: int) -> list[ShownExample]:
    """Return the first `count` examples of a tokenized dataset: prepare shuffles packed rows.

    Raises:
        HpctrainError: it contains no example, or is damaged.
    """
    import datasets
    from pyarrow import ArrowInvalid

    found: list[ShownExample] = []
    try:
        for name, rows in datasets.load_from_disk(str(folder)).items():
            for number in range(min(count, len(rows))):
                ids, start = rows[number]["input_ids"], 0
                labels = rows[number].get("labels", ids)
                sizes = rows[number].get("seq_lengths", [len(ids)])
                for place, size in enumerate(sizes, 1):
                    part = slice(start, start + size)
                    of_several = f", example {place} of {len(sizes)}" * (len(sizes) > 1)
                    found.append(
                        ShownExample(f"{name}[{number}]{of_several}", ids[part], labels[part])
                    )
                    start += size
    except (ArrowInvalid, OSError, ValueError) as error:
        raise HpctrainError(
            f"{folder} cannot be read: {error}", fix=f"ls -lR {shell.quote(folder)}"
        ) from error
    if not found:
        raise HpctrainError(f"{folder} holds no example", fix=f"ls {shell.quote(folder)}")
    return found[:count]


def lines(tokenizer: Any, input_ids: Sequence[int], labels: Sequence[int]) -> list[str]:
    """Return the lines of one example, with a summary as the last line; the middle of a long run is
    replaced by a count.

    Args:
        tokenizer: the transformers tokenizer.
        input_ids: token ids.
        labels: the same, -100 where masked.
    """
    ids, shown, start = list(input_ids), "", 0
    runs = [(on, len(list(run))) for on, run in groupby(label != -100 for label in labels)]
    for unmasked, size in runs:
        stop = start + size
        gap = size - _HEAD - _TAIL
        words = _text(tokenizer, ids, start, start + _HEAD if gap > 0 else stop)
        if gap > 0:
            words += f" ⋯ {gap:,} tokens ⋯ {_text(tokenizer, ids, stop - _TAIL, stop)}"
        shown += f"{OPEN}{words}{CLOSE}" if unmasked else words
        start = stop
    count = sum(size for unmasked, size in runs if unmasked)
    part = f"{100 * count / len(ids):.0f} %" if ids else "-"
    stretches = counted(sum(unmasked for unmasked, _ in runs), "stretch", "stretches")
    summary = f"{len(ids):,} tokens, {count:,} unmasked ({part}) in {stretches}"
    return [f"  {line}".rstrip() for line in (*shown.splitlines(), summary)]


def _text(tokenizer: Any, ids: Sequence[int], start: int, stop: int) -> str:
    """Return the visible text of a range of tokens, decoded in context: some tokenizers drop a
    leading space.
    """
    before = max(0, start - 8)  # enough for a character of several tokens
    context, whole, alone = (
        str(
            tokenizer.decode(
                list(ids[first:end]), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )
        for first, end in ((before, start), (before, stop), (start, stop))
    )
    is_within = start > before and whole.startswith(context)
    text = whole[len(context) :] if is_within else alone
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(
        _SHOWN.get(sign)
        or (
            sign.encode("unicode_escape").decode() if unicodedata.category(sign) in hidden else sign
        )
        for sign in text
    )
