"""The shell library that job scripts source: `.hpctrain/job-VERSION-DIGEST.sh` in the job's working
directory.

The name contains the digest of the content, and an existing file is never rewritten: queued jobs
source it when they start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hpctrain.config.spec import short_digest
from hpctrain.errors import UsageError
from hpctrain.jobs import header
from hpctrain.util import builtin, files, shell, stored

#: The line of a script that sources its library.
_SOURCED = re.compile(
    r"^source (?P<path>.*/\.hpctrain/job-[\w.+-]+-[0-9a-f]{12}\.sh'?) \|\| ", re.MULTILINE
)


def path_in(script: str) -> Path | None:
    """Return the path of the library that a script sources; None if it sources none."""
    found = _SOURCED.search(script)
    if found is None:
        return None
    try:
        words = shell.split(found["path"])
    except ValueError:
        return None
    return Path(words[0]) if len(words) == 1 else None


def ensure(script: str, copies: Iterable[Path] = ()) -> None:
    """Write the library that a script sources, as `missing` returns it.

    Raises:
        UsageError: as `missing`.
        OSError: the library cannot be written, or the project's own functions cannot be read.
    """
    for path, text in missing(script, copies).items():
        files.write_text(path, text)


def missing(script: str, copies: Iterable[Path] = ()) -> dict[Path, str]:
    """Return the path and text of the library that a script sources, if it is missing and the
    project exists here; create its directory.

    Args:
        script: the text of the script.
        copies: directories that may contain the library of an older hpctrain.

    Raises:
        UsageError: the library was edited, or it is missing and belongs to another hpctrain
            version.
        OSError: its directory cannot be created, or the project's own functions cannot be read.
    """
    path = path_in(script)
    if path is None or not path.parent.parent.is_dir():
        return {}
    if path.exists():
        if not _is_whole(path):
            raise UsageError(
                f"{path} was edited, and queued jobs rely on what hpctrain wrote",
                fix=f"mv {shell.quote(path)} {shell.quote(path)}.edited",
            )
        return {}
    own = Path("templates") / header.LIBRARY
    text = stored.read_text(own) if own.is_file() else builtin.templates()[header.LIBRARY]
    if not path.stem.endswith(short_digest(text)):
        kept = next((each / path.name for each in copies if _is_whole(each / path.name)), None)
        if kept is None:
            raise UsageError(
                f"the script needs {path}, which is missing and of another version of hpctrain",
                fix="hpctrain render",
            )
        text = stored.read_text(kept)
    path.parent.mkdir(exist_ok=True)
    return {path: text}


def _is_whole(path: Path) -> bool:
    """Whether the content of the file matches the digest in its name."""
    try:
        return path.stem.endswith(short_digest(stored.read_text(path)))
    except (OSError, UnicodeDecodeError):
        return False
