"""Slurm's time limits: `90` (minutes), `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`, `UNLIMITED`.

Source: sbatch(1), --time.
"""

from __future__ import annotations

import re

_GRAMMAR = re.compile(
    r"""(?:(?P<days>\d+)-(?P<d_hours>\d+)(?::(?P<d_minutes>\d+)(?::(?P<d_seconds>\d+))?)?
      | (?P<hours>\d+):(?P<h_minutes>\d+):(?P<h_seconds>\d+)
      | (?P<minutes>\d+)(?::(?P<seconds>\d+))?)\Z""",
    re.VERBOSE | re.ASCII,
)
_UNLIMITED = {"unlimited", "infinite"}

DAY = 86_400
#: A year: Slurm would take more, no site would.
MAX_SECONDS = 366 * DAY


def parse(text: str) -> int | None:
    """Return the seconds in `text`, or None for no limit (`UNLIMITED`).

    Raises:
        ValueError: `text` is none of Slurm's forms.
    """
    stripped = text.strip()
    if stripped.lower() in _UNLIMITED:
        return None
    match = _GRAMMAR.match(stripped)
    if match is None:
        raise ValueError(f"{text!r} is not a time limit; Slurm's forms are MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS")
    part = {name: int(value) for name, value in match.groupdict(default="0").items()}
    hours = part["hours"] + part["d_hours"]
    minutes = part["minutes"] + part["h_minutes"] + part["d_minutes"]
    seconds = part["seconds"] + part["h_seconds"] + part["d_seconds"]
    return part["days"] * DAY + hours * 3600 + minutes * 60 + seconds


def parse_reported(text: str) -> int | None:
    """Return the seconds in a time that squeue or sacct printed, None where it says that it does not know or has no limit."""
    # sacct prints fractions of seconds in CPU times: 00:01.234
    try:
        return parse(text.strip().partition(".")[0])
    except ValueError:
        # N/A, Partition_Limit, INVALID, and whatever word the next version has: one odd row must not hide all the others.
        return None


def format(seconds: int) -> str:  # noqa: A001 - read as duration.format
    """Return `seconds` as Slurm prints it: `HH:MM:SS`, or `D-HH:MM:SS` from one day on."""
    days, rest = divmod(seconds, DAY)
    hours, rest = divmod(rest, 3600)
    clock = f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
