r"""Examples shown as a person can judge their mask: trained tokens marked, special tokens and white space to be seen.

In colour, trained tokens are green and special tokens underlined. Without, trained tokens stand between ⟦ and ⟧, which are written \u27e6
and \u27e7 where the text itself has them. An end of a line is ↵, a tab →, and a space that would not be seen ·.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

OPEN, CLOSE = "⟦", "⟧"
_HEAD, _TAIL = 80, 40
"""Tokens that are shown of a long stretch, from its beginning and from its end."""
_MOST_LINES = 48

_TRAINED, _SPECIAL, _CUT, _PLAIN = "\x1b[32m", "\x1b[4m", "\x1b[2m", "\x1b[0m"
_SHOWN: Final = {"\n": "↵", "\t": "→", "\r": "␍", "\x00": "␀", OPEN: "\\u27e6", CLOSE: "\\u27e7"}


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Tokens beside each other that are shown alike.

    Attributes:
        text: what they say; of a cut, what is said instead.
    """

    text: str
    trained: bool
    special: bool = False
    cut: bool = False


def lines(tokenizer: Any, input_ids: Sequence[int], labels: Sequence[int], *, colour: bool, width: int = 80) -> list[str]:
    """Return the lines of one example, the last of them a summary.

    Args:
        tokenizer: transformers' tokenizer, or an Encoder.
        input_ids: token ids.
        labels: the same, -100 where not trained.
        colour: mark by colour; otherwise by brackets.
        width: columns of the terminal.
    """
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    ids, trained = list(input_ids), [label != -100 for label in labels]
    cells = _cells(_stretches(tokenizer, ids, trained), colour=colour)
    wrapped = _wrapped(cells, width - 2)
    if len(wrapped) > _MOST_LINES:
        hidden = len(wrapped) - _MOST_LINES + 1
        half = _MOST_LINES // 2
        wrapped = [*wrapped[:half], [(f"⋯ {hidden:,} lines ⋯", _CUT if colour else "")], *wrapped[half - _MOST_LINES + 1 :]]
    return [*(f"  {_coloured(line) if colour else ''.join(text for text, _ in line)}".rstrip() for line in wrapped), _summary(trained)]


def _summary(trained: Sequence[bool]) -> str:
    """Return tokens, trained tokens, their share, and in how many stretches they are."""
    count, total = sum(trained), len(trained)
    runs = sum(now and not before for before, now in zip([False, *trained], trained, strict=False))
    share = f"{100 * count / total:.0f} %" if total else "-"
    return f"  {total:,} tokens, {count:,} trained on ({share}) in {runs} stretch{'' if runs == 1 else 'es'}"


# -- tokens to stretches -----------------------------------------------------------------------------------------------


def _stretches(tokenizer: Any, ids: Sequence[int], trained: Sequence[bool]) -> Iterator[_Stretch]:
    """Yield the stretches, long ones with their middle left out."""
    specials = set(tokenizer.all_special_ids) | {
        index for index, token in tokenizer.added_tokens_decoder.items() if not str(token).isspace()
    }
    start = 0
    for at in range(1, len(ids) + 1):
        if at < len(ids) and trained[at] == trained[start] and (ids[at] in specials) == (ids[start] in specials):
            continue
        special = ids[start] in specials
        if at - start <= _HEAD + _TAIL + 10:
            yield _Stretch(_text(tokenizer, ids, start, at), trained[start], special)
        else:
            left_out = at - start - _HEAD - _TAIL
            yield _Stretch(_text(tokenizer, ids, start, start + _HEAD), trained[start], special)
            yield _Stretch(f" ⋯ {left_out:,} tokens ⋯ ", trained[start], cut=True)
            yield _Stretch(_text(tokenizer, ids, at - _TAIL, at), trained[start], special)
        start = at


def _text(tokenizer: Any, ids: Sequence[int], start: int, stop: int) -> str:
    """Return what tokens say where they stand: some tokenizers leave out a space at the beginning of what they are given."""
    before = max(0, start - 8)  # enough for a character of several tokens
    context, whole = (_decoded(tokenizer, ids[before:end]) for end in (start, stop))
    if start > before and whole.startswith(context):
        return whole[len(context) :]
    return _decoded(tokenizer, ids[start:stop])


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


# -- stretches to lines ------------------------------------------------------------------------------------------------


def _cells(stretches: Iterator[_Stretch], *, colour: bool) -> Iterator[tuple[str, str]]:
    r"""Yield what is shown character by character, each with its colour; `\n` alone ends a line."""
    inside = broken = False
    for stretch in stretches:
        if inside and not colour and not stretch.trained:
            yield CLOSE, ""
        if broken:  # after the bracket: what is trained on ends with its line
            yield "\n", ""
            broken = False
        if not inside and not colour and stretch.trained:
            yield OPEN, ""
        inside = stretch.trained
        style = "" if not colour else _CUT if stretch.cut else (_TRAINED if stretch.trained else "") + (_SPECIAL if stretch.special else "")
        if stretch.cut:
            yield stretch.text, style
            continue
        for index, character in enumerate(stretch.text):
            if broken:
                yield "\n", ""
            yield _visible(stretch.text, index, character), style
            broken = character == "\n"
    if inside and not colour:
        yield CLOSE, ""


def _visible(text: str, index: int, character: str) -> str:
    """Return what stands for a character: itself, where it can be seen and cannot act on the terminal."""
    if character == " ":
        around = text[index - 1 : index] if index else "", text[index + 1 : index + 2]
        return "·" if any(side == "" or side.isspace() for side in around) else " "
    if character in _SHOWN:
        return _SHOWN[character]
    kind = unicodedata.category(character)
    if kind in ("Cc", "Cf", "Cs", "Zl", "Zp") or (kind == "Zs" and character != " "):
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return character


def _wrapped(cells: Iterator[tuple[str, str]], width: int) -> list[list[tuple[str, str]]]:
    """Return the cells in lines of at most `width` columns."""
    found: list[list[tuple[str, str]]] = [[]]
    used = 0
    for text, style in cells:
        if text == "\n":
            found.append([])
            used = 0
            continue
        columns = _columns(text)
        if used + columns > width and used:
            found.append([])
            used = 0
        found[-1].append((text, style))
        used += columns
    return found if found[-1] else found[:-1]


def _columns(text: str) -> int:
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _coloured(line: Sequence[tuple[str, str]]) -> str:
    """Return a line with its colours, which end with it."""
    parts: list[str] = []
    now = ""
    for text, style in line:
        if style != now:
            parts.append((_PLAIN if now else "") + style)
            now = style
        parts.append(text)
    return "".join(parts) + (_PLAIN if now else "")
