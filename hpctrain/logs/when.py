"""The time that a line of a log says. PURE, but for the time zone: a time without one is one of this machine's zone.

Logs of one job may not agree on the zone: Slurm and Python's logging write local time, the [memory] line UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache

#: How far into a line a time is looked for: one further behind is of something that the line tells of.
_WITHIN = 120
_CLOCK = re.compile(r":[0-5][0-9]:[0-6][0-9]")
_TIME = re.compile(
    # 2026-11-22 04:10:00,123; 2026-11-22T04:10:00.123+01:00
    r"(?<![0-9])(?P<year>20[0-9]{2})[-/](?P<month>[01][0-9])[-/](?P<day>[0-3][0-9])[T ](?P<clock>[0-2][0-9]:[0-5][0-9]:[0-6][0-9])"
    r"(?:[.,](?P<part>[0-9]{1,9}))?(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})?"
    # 11/22/2026 04:10:00 of the examples of transformers
    r"|(?<![0-9])(?P<us_month>[01][0-9])/(?P<us_day>[0-3][0-9])/(?P<us_year>20[0-9]{2}) (?P<us_clock>[0-2][0-9]:[0-5][0-9]:[0-6][0-9])"
    # E1122 04:10:00.123456 of glog, and so of torch: it says no year
    r"|(?<![A-Za-z0-9])[IWEFVC](?P<g_month>[01][0-9])(?P<g_day>[0-3][0-9]) (?P<g_clock>[0-2][0-9]:[0-5][0-9]:[0-6][0-9])"
    r"(?:\.(?P<g_part>[0-9]{1,9}))?"
)


def of(line: str, *, year: int | None = None) -> float | None:
    """Return the seconds since the epoch that a cleaned line says, near its beginning; None where it says no time.

    Args:
        line: cleaned.
        year: of a time that says none, as torch's do; None leaves these out.
    """
    if _CLOCK.search(line, 0, _WITHIN) is None:
        return None
    match = _TIME.search(line, 0, _WITHIN)
    if match is None:
        return None
    said = match.groupdict()
    if said["year"]:
        parts = said["year"], said["month"], said["day"], said["clock"], said["zone"]
    elif said["us_year"]:
        parts = said["us_year"], said["us_month"], said["us_day"], said["us_clock"], None
    elif year is not None:
        parts = str(year), said["g_month"], said["g_day"], said["g_clock"], None
    else:
        return None
    minute = _minute(parts[0], parts[1], parts[2], parts[3][:5], parts[4])
    part = said["part"] or said["g_part"]
    return None if minute is None else minute + int(parts[3][6:]) + (float(f"0.{part}") if part else 0.0)


@lru_cache(maxsize=256)
def _minute(year: str, month: str, day: str, clock: str, zone: str | None) -> float | None:
    try:
        return datetime(
            int(year), int(month), int(day), int(clock[:2]), int(clock[3:]), tzinfo=_zone(zone)
        ).timestamp()  # fmt: skip
    except ValueError:  # the 31st of February
        return None


def _zone(text: str | None) -> timezone | None:
    if text is None:
        return None
    if text == "Z":
        return UTC
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))
