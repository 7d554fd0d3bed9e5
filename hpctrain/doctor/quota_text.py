"""What `quota -wp` and `lfs quota -q` print → quotas. Pure.

Both write nine columns: file system, KiB used, quota, limit, grace, files, quota, limit, grace (quota(1), lfs-quota(1)); a star marks what
is over. The hard limit counts; where there is none, the soft one, behind which the grace time runs.
"""

from __future__ import annotations

from hpctrain.doctor.facts import Quota

_COLUMNS = 9


def parse_quota(text: str) -> list[Quota]:
    """Return the quotas in the output of `quota -wp`, which has a header of two lines, or says `none`."""
    rows = [line.split() for line in text.splitlines()]
    return [quota for row in rows if len(row) == _COLUMNS and (quota := _quota(row)) is not None]


def parse_lfs_quota(text: str) -> list[Quota]:
    """Return the quotas in the output of `lfs quota -q`, which breaks the line behind a long path."""
    words = [word for word in text.split() if word]
    rows = [words[at : at + _COLUMNS] for at in range(0, len(words), _COLUMNS)]
    return [quota for row in rows if len(row) == _COLUMNS and (quota := _quota(row)) is not None]


def _quota(row: list[str]) -> Quota | None:
    numbers = [_number(row[at]) for at in (1, 2, 3, 5, 6, 7)]
    used, soft, hard, files, files_soft, files_hard = numbers
    if used is None or files is None:
        return None  # a header
    limit = hard or soft
    return Quota(
        file_system=row[0],
        used=used * 1024,
        limit=limit * 1024 if limit else None,
        files=files,
        files_limit=files_hard or files_soft or None,
    )


def _number(word: str) -> int | None:
    text = word.rstrip("*").strip("[]")
    return int(text) if text.isdecimal() else None
