"""The fingerprint of a tokenizer: equal where two folders turn the same text into the same numbers, with the standard library alone.

The login node's `check` and the training compare it with the one in a dataset's manifest. Reads files and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hpctrain.clusters.load import is_file, read_regular

WHOLE = "tokenizer.json"
#: What stands for a tokenizer that has no tokenizer.json: vocabularies of slow tokenizers, SentencePiece models, Mistral's and OpenAI's.
PARTS = (
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "source.spm", "target.spm", "tekken.json",
    "vocab.json", "merges.txt", "vocab.txt", "added_tokens.json",
)  # fmt: skip
_MAX_BYTES = 500_000_000


def tokenizer_fingerprint(folder: Path) -> str | None:
    """Return the sha256, in hex, of what the tokenizer's files mean; None where the folder has none that can be read.

    Of tokenizer.json: the vocabulary, the merges, the added tokens, and how text is normalised and cut before. Blind to the order of
    keys, to formatting, to the padding and truncation that were set when it was saved, to what is put around a text
    (post_processor) and how ids become text again (decoder), and to fields at their default, which one version of `tokenizers` writes and
    another leaves out.
    """
    folder = Path(folder)
    try:
        if is_file(folder / WHOLE):
            return _of_json(read_regular(folder / WHOLE, _MAX_BYTES))
        parts = {name: read_regular(folder / name, _MAX_BYTES) for name in PARTS if is_file(folder / name)}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not parts:
        return None
    listed = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
    return hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()


def _of_json(text: bytes) -> str:
    content = json.loads(text.decode())
    model = dict(content["model"])
    vocabulary, merges = model.pop("vocab", None), model.pop("merges", None)
    added = sorted(content.get("added_tokens") or [], key=lambda token: int(token["id"]))
    meaning = {
        "model": _without_defaults(model),
        # Unigram's vocabulary is a list of pairs, whose places are the ids.
        "vocab": vocabulary,
        # "a b" in older files, ["a", "b"] in newer ones.
        "merges": [merge.split(" ") if isinstance(merge, str) else merge for merge in merges or []],
        "added": [[token["id"], token["content"], bool(token.get("normalized")), bool(token.get("single_word"))] for token in added],
        "normalizer": _without_defaults(content.get("normalizer")),
        "pre_tokenizer": _without_defaults(content.get("pre_tokenizer")),
    }
    return hashlib.sha256(json.dumps(meaning, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()


#: Fields that are true where they are not written.
_TRUE = ("use_regex", "trim_offsets")


def _without_defaults(value: Any) -> Any:
    """Leave out what says nothing: the defaults of `tokenizers` are null, false and "", but for some fields true, and BPE of a model."""
    if isinstance(value, dict):
        kept = {key: _without_defaults(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if not _says_nothing(key, item)}
    if isinstance(value, list):
        return [_without_defaults(item) for item in value]
    return value


def _says_nothing(key: str, item: Any) -> bool:
    if key in _TRUE:
        return item is True
    return item in (None, False, "") or (key == "type" and item == "BPE")
