"""Special tokens that the data itself writes into its text: the tokenizer makes real ones of them.

A user's message that holds `<|im_end|>` ends the turn there, and what comes after it stands outside of every message. Such rows are
counted, not changed: in some data it is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_HEAD = 2
"""Characters by which a place is found that may begin a token; a tokenizer may have thousands of tokens."""


class Specials:
    """Finds the special tokens of a tokenizer in text.

    Args:
        tokens: the special tokens, as they are written.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        written = [token for token in tokens if token.strip()]
        head = min([_HEAD, *map(len, written)])
        by_head: dict[str, set[str]] = {}
        for token in written:
            by_head.setdefault(token[:head], set()).add(token)
        # By head the tokens, and the lengths that they have, longest first: the tokenizer takes the longest one, too.
        self._tokens = {head: (found, sorted(map(len, found), reverse=True)) for head, found in by_head.items()}
        self._heads = re.compile("|".join(map(re.escape, by_head))) if by_head else None

    @classmethod
    def of(cls, tokenizer: Any) -> Specials:
        """Return those of transformers' tokenizer: added tokens that are marked as special, so no `<think>`, which text may say."""
        return cls(str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)

    def written(self, value: Any) -> set[str]:
        """Return the special tokens in a row: in a string, or in all strings of lists and mappings in each other."""
        if isinstance(value, str):
            return self._in_text(value)
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        return {token for part in parts for token in self.written(part)}

    def _in_text(self, text: str) -> set[str]:
        found: set[str] = set()
        match = self._heads.search(text) if self._heads is not None else None
        while match is not None and self._heads is not None:
            at = match.start()
            tokens, lengths = self._tokens[match.group()]
            token = next((text[at : at + length] for length in lengths if text[at : at + length] in tokens), None)
            if token is not None:
                found.add(token)
            match = self._heads.search(text, at + (len(token) if token is not None else 1))
        return found
