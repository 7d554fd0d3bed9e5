"""The tokenizer behind an encoder: loaded once, and asked in a way that never adds a special token twice.

Texts are encoded without special tokens; what the tokenizer would put around a text (BOS, [CLS], an EOS) is learned once and added here,
where it can be seen whether the text has it already.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpctrain.errors import UsageError

_PROBE = "a"


class Tokenizer:
    """A fast tokenizer of transformers.

    Attributes:
        tokenizer: transformers' own.

    Raises:
        UsageError: it cannot be loaded, or is no fast one.
    """

    def __init__(self, name: str, *, trust_remote_code: bool) -> None:
        self.tokenizer: Any = _load(name, trust_remote_code=trust_remote_code)
        if not getattr(self.tokenizer, "is_fast", False):
            raise UsageError(
                f"the tokenizer {name} has no fast version (tokenizer.json), which says where in the text a token is",
                fix="save it with AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER), and give that folder",
            )
        self._backend = copy.deepcopy(self.tokenizer.backend_tokenizer)
        self._backend.no_padding()
        self._backend.no_truncation()
        self._before, self._after = _around(self._backend)
        self._backend = _plain(self._backend)
        self._special = sorted({str(token) for token in self.tokenizer.added_tokens_decoder.values() if str(token).strip()}, key=len)

    def template(self, tools: list[Any] | None) -> str | None:
        """Return the tokenizer's own chat template; None without one."""
        if not self.tokenizer.chat_template:
            return None
        try:
            return str(self.tokenizer.get_chat_template(None, tools))
        except ValueError:  # several by name, and none of them the default
            return None

    def encode(self, texts: Sequence[str], *, offsets: bool) -> list[Any]:
        """Return the encodings of texts, without special tokens but those in the text; None for one that is not valid Unicode."""
        encode = self._backend.encode_batch if offsets else self._backend.encode_batch_fast
        try:
            return list(encode(list(texts), add_special_tokens=False))
        except (TypeError, UnicodeError):  # one of them has half a surrogate pair
            return [encode([text], add_special_tokens=False)[0] if _is_valid(text) else None for text in texts]

    def around(self, ids: array[int]) -> tuple[array[int], array[int]]:
        """Return what the tokenizer puts before and after a text, without what the text has there itself."""
        before, after = self._before, self._after
        if before and ids[: len(before)] == before:
            before = array("i")
        if after and ids[-len(after) :] == after:
            after = array("i")
        return before, after

    def ends_with_eos(self, ids: array[int]) -> bool:
        """Say whether the ids end with the EOS token, or with what the tokenizer puts after it."""
        eos = self.tokenizer.eos_token_id
        return eos is not None and ((eos in self._after and ids[-len(self._after) :] == self._after) or ids[-1:] == array("i", (eos,)))

    def boundaries(self, text: str) -> set[int]:
        """Return the positions in the text at which a token ends, and 0."""
        return {0, *(stop for _, stop in self._backend.encode(text, add_special_tokens=False).offsets)}

    def leading_special(self, text: str) -> str:
        """Return the added token that the text begins with; an empty string without one."""
        return next((token for token in reversed(self._special) if text.startswith(token)), "")

    def has_special(self, text: str) -> bool:
        """Say whether one of the tokenizer's added tokens is in the text."""
        return any(token in text for token in self._special)


def _load(name: str, *, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    path = Path(name).expanduser()
    local = path.is_dir()
    if not local and (path.is_absolute() or name.startswith((".", "~"))):
        raise UsageError(f"there is no folder {name} to read a tokenizer from", fix="give the model's folder, or its name on the hub")
    try:
        return AutoTokenizer.from_pretrained(str(path) if local else name, use_fast=True, trust_remote_code=trust_remote_code)
    except Exception as error:  # transformers raises whatever its readers raise
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(
            f"cannot load the tokenizer {name}",
            details=tuple(f"transformers said: {line}" if i == 0 else line for i, line in enumerate(words[:4])),
            fix="give a folder with tokenizer.json and tokenizer_config.json, or a name on the hub that this machine can reach",
        ) from error


def _around(backend: Any) -> tuple[array[int], array[int]]:
    """Return the ids that the tokenizer puts before and after a text."""
    plain = backend.encode(_PROBE, add_special_tokens=False).ids
    full = backend.encode(_PROBE, add_special_tokens=True).ids
    for at in range(len(full) - len(plain) + 1):
        if full[at : at + len(plain)] == plain:
            return array("i", full[:at]), array("i", full[at + len(plain) :])
    return array("i"), array("i")


def _plain(backend: Any) -> Any:
    """Return the tokenizer without its post-processor, which would leave white space out of the offsets."""
    backend.post_processor = None
    return backend


def _is_valid(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
