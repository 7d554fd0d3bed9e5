"""Names on the Hugging Face hub as local folders, where the network allows; without one, what to type on a machine that has one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpctrain import installed
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: Of a model: its tokenizer and its config, no weights.
_TOKENIZER_FILES = ("*.json", "*.txt", "*.jinja", "*.model", "*.py", "*.tiktoken")
_WEIGHT_INDICES = ("*.safetensors.index.json", "*.bin.index.json")
_DATA_FILES = tuple(
    f"*{end}{packed}"
    for end in (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt", ".arrow")
    for packed in ("", ".gz", ".zst", ".xz", ".bz2")
)


def model_folder(name: str, *, say: Callable[[str], None]) -> Path:
    """Return the folder of a model's tokenizer: the folder of that name, or one that was loaded from the hub.

    Raises:
        UsageError: it is neither.
        HpctrainError: the hub did not give it.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise UsageError(f"--model {name} is a file; a model is a folder", fix=f"--model {shell.quote(folder.parent)}")
    if not _is_name(name):
        raise UsageError(f"there is no model folder '{name}'", fix="--model with a folder, or a name on the hub: OWNER/MODEL")
    local = f"models/{name.partition('/')[2]}"
    return _snapshot(
        name, kind="model", say=say, fix=f"where there is a network: hf download {name} --local-dir {local}; then: --model {local}",
        allow_patterns=list(_TOKENIZER_FILES), ignore_patterns=list(_WEIGHT_INDICES),
    )  # fmt: skip


def data_paths(words: Sequence[str], *, say: Callable[[str], None]) -> tuple[Path, ...]:
    """Return the files and folders of DATA; what is not there and looks like a name on the hub is loaded.

    Raises:
        HpctrainError: the hub did not give it.
    """
    return tuple(_data_path(word, say) for word in words)


def _data_path(word: str, say: Callable[[str], None]) -> Path:
    path = Path(word).expanduser()
    if path.exists() or path.is_symlink() or not _is_name(word) or path.suffix in (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt"):
        return path  # what is not there is said with all other problems of the files
    local = f"data/{word.partition('/')[2]}"
    fix = f"where there is a network: hf download {word} --repo-type dataset --local-dir {local}; then: hpctrain prepare {local}"
    return _snapshot(word, kind="dataset", say=say, fix=fix, allow_patterns=list(_DATA_FILES))


def _is_name(word: str) -> bool:
    """Tell whether a word can only be meant as OWNER/NAME: a folder of the first part would make it a path."""
    return _NAME.fullmatch(word) is not None and not Path(word).parent.is_dir()


def _snapshot(name: str, *, kind: str, say: Callable[[str], None], fix: str, **patterns: Any) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError as error:
        raise HpctrainError(f"cannot import {error.name}", fix=installed.command("prepare")) from error
    say(f"there is no folder {name}: asking the hub for the {kind} of that name")
    disable_progress_bars()
    try:
        return Path(snapshot_download(name, repo_type=kind, **patterns))
    except Exception as error:  # of requests, httpx, the hub and the file system, as it happens
        words = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise HpctrainError(
            f"the {kind} {name} is no local folder, and the hub did not give it", details=(f"  the hub's client said: {words[0]}",), fix=fix
        ) from error
