"""Decode a log line, remove terminal sequences and launchers' labels, and parse its time.

Most lines are plain: they need one decoding and one character check in C, and no regex.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from hpctrain.util.text import integer

#: Maximum displayed length of a line, including the mark of the cut.
MOST = 4000
_HEAD, _TAIL = 2900, 1000

_OSC = re.compile(
    "\x1b\\][^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\\\|\x9c)|\x1b[PX^_][^\x1b\x9c]{0,4096}(?:\x1b\\\\|\x9c)"
)
_TO_THE_FIRST_COLUMN = re.compile("\x1b\\[(?:[01]?G|[12]?K|[0-9;]*[AFHJ])")
_ESCAPE = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|[ -/]+[0-~]|[0-Z\\\\^-~])")
#: Control characters and bidirectional overrides (hpctrain.errors), except tab and carriage return;
#: lone surrogates.
_CONTROL = re.compile(
    "[\x00-\x08\n-\x0c\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
#: Progress bars: tqdm with and without a total; rich and pip; wget, apptainer and keras.
_AMOUNT = r"[0-9.,:]+ ?[kKMGTP]?i?[bB]?"
_BAR = re.compile(
    r"(?:[^|\r%\[\]{}]{0,80}: ?)?[ ]{0,4}[0-9]{1,3}(?:\.[0-9]+)?%\|[ #0-9\u2588-\u258f.=>-]{0,200}"
    rf"(?:\| ?{_AMOUNT}/(?:{_AMOUNT}|\?) ?(?:\[[^\]\r]{{1,200}}\]?)?)?"
    rf"|(?:[^|\r%\[\]{{}}]{{0,80}}: ?)?{_AMOUNT}(?:it|ex|examples)? ?\[[0-9:]+,"
    r" +[^\]\r]{1,80}/s[^\]\r]{0,80}\]"
    r"|[^\u2501\u2578\u257a\r]{0,80}[\u2501\u2578\u257a]{3,}[^\r\u2501]{0,100}"
    r"|[^\[\]\r]{0,120}\[(?:=+>?|>|#+)[ .\-]*\](?: ?[0-9.]{1,6} ?%| - ETA:? ?[0-9:]+s?| ?"
    + _AMOUNT
    + r"/s)[^\r]{0,60}"
    r"|[^\[\]\r%]{0,80}[0-9]{1,3}% ?\[[=>+ ]+\][^\r]{0,80}"
)
#: A bar followed on the same line by another process's output: `37%|███▋ | 37/100 [00:10<00:20,
#: 3.1it/s]{'loss': …`.
_BAR_IN_FRONT = re.compile(
    r"[^|\r%\[\]{}]{0,80}?[ ]{0,4}[0-9]{1,3}(?:\.[0-9]+)?%\|[^|\r]{0,200}"
    rf"\| ?{_AMOUNT}/(?:{_AMOUNT}|\?) ?\[[^\]\r]{{1,200}}\](?=.)"
)
_DIGITS = re.compile(r"[0-9]+(?:\.[0-9]+)?")

#: A process number from here on is a process id, not a rank.
_PIDS = 1000
#: Labels at the start of a line: of Lightning, torchrun and torch, srun, mpirun, and Open MPI; and
#: the time that a container runtime puts before each line.
_LABEL = re.compile(
    r"\[(?P<word>[A-Za-z_-]{1,30}?): ?(?P<of_word>[0-9]{1,6})\] ?"
    r"|\[(?P<role>[A-Za-z_-]{1,30})(?P<of_role>[0-9]{1,6})\]:[ ]?"
    r"| {0,5}(?P<task>[0-9]{1,6}):(?: |\Z)"
    r"|\[1,(?P<of_job>[0-9]{1,6})\]<std(?:out|err)> ?: ?"
    r"|\[(?P<host>[A-Za-z][A-Za-z0-9.-]{0,62}):(?P<of_host>[0-9]{1,6})\]:?[ ]?"
    r"|20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-9:]{8}\.[0-9]{6,9}Z (?:std(?:out|err) [FP] )?"
    # Of Ray and vLLM: the process id tells the processes of a node apart.
    r"|\([A-Za-z][\w.: =-]{0,60}?\bpid=(?P<pid>[0-9]{1,8})(?:, ip=[0-9.]+)?\) ?"
    # The head that vLLM writes before each line of a traceback.
    r"|ERROR [01][0-9]-[0-3][0-9] [0-9:]{8} \[?[\w./]{1,60}:[0-9]{1,6}\](?: |\Z)"
    # Of systemd's journal.
    r"|[A-Z][a-z]{2} [ 0-3][0-9] [0-9:]{8} [\w.-]{1,63} [\w.@-]{1,60}\[[0-9]{1,8}\]: ?"
)
_LABELS = re.compile(r"(?: {0,5}[0-9]{1,6}: |\[[A-Za-z_-]{1,30}[0-9]{1,6}\]: ?)+")
_NODE = re.compile(
    r"(?!slurmstepd-)(?!(?:fp|bf|int|uint|float|sm|utf|sha|md|gfx|cuda|rocm|step|epoch|line|iter|layer|rank|python|pid|version)[-_]?[0-9])(?!(?:gpu|cpu)[-_]?(?:[0-9]|[1-9][0-9]):)"
    r"([a-z][a-z0-9]{0,30}(?:-[a-z0-9]{1,20}){0,4}(?<![0-9])(?:[0-9]{2,8}|-[0-9]{1,6})"
    r"|[0-9]{1,3}(?:\.[0-9]{1,3}){3}): "
)
#: Lines that name their process without a label at the start.
_MENTIONS = (
    (
        "slurmstepd-",
        re.compile(r"^slurmstepd-(?P<node>[\w.-]+): (?:error: )?(?:task (?P<rank>[0-9]+): )?"),
    ),
    (
        "task",
        re.compile(
            r"^(?:srun: )?(?:error: )?(?!error: )(?P<node>[A-Za-z][\w.-]*): task (?P<rank>[0-9]+): "
        ),
    ),
    ("[Rank ", re.compile(r"\[Rank (?P<rank>[0-9]{1,6})\]")),
    (
        "[memory]",
        re.compile(
            r"^\[memory\].*? host=(?P<node>[^\s\"]+) rank=(?P<rank>[0-9]+)/[0-9]+"
            r" local=(?P<local>[0-9]+)"
        ),
    ),
    (
        "NCCL",
        re.compile(r"^(?P<node>[A-Za-z][\w.-]*):[0-9]+:[0-9]+ \[(?P<local>[0-9]{1,3})\] NCCL "),
    ),
)
_FIRST_OF_A_LABEL = frozenset("[( 0123456789EJFMASOND")


class Label(NamedTuple):
    """What a line reveals about the process that wrote it; unknown values are None.

    Attributes:
        rest: the line after the labels.
        rank: of all processes; local_rank: on its node.
    """

    rest: str
    rank: int | None = None
    node: str | None = None
    local_rank: int | None = None


def clean(raw: bytes | str) -> str:
    """Return one line for display: decoded as UTF-8; no NULs, escape sequences, or
    control characters.

    Of text overwritten with carriage returns, only superseded progress bars are removed. Tabs stay.
    A line of more than 4000 characters keeps its two ends, with a mark for the omitted length.
    Idempotent.
    """
    if isinstance(raw, bytes):
        raw = raw.replace(b"\0", b"").decode("utf-8", "replace")
    text = raw.strip("\r\n").rstrip(" ")
    if text.isprintable() and len(text) <= MOST and "%|" not in text:
        return text
    text = plain(text)
    for _ in range(8):  # after removing a bar, another bar or a label may follow
        labels = _LABELS.match(text)  # a label is not overwritten by a bar
        behind = labels.end() if labels else 0
        shorter = text[:behind] + _without_debris(text[behind:])
        if shorter == text:
            break
        text = shorter
    if len(text) <= MOST:
        return text
    missing = len(text) - _HEAD - _TAIL
    return f"{text[:_HEAD]} [... {missing} characters left out ...] {text[-_TAIL:]}"


def label(line: str) -> Label:
    """Parse launchers' labels at the start of a cleaned line, and return the rest of it.

    Supported: srun --label (`3: `), torchrun and accelerate (`[default3]:`, and `[rank3]:` of torch
    itself), Lightning (`[rank: 3] `), mpirun (`[1,3]<stdout>:`), `[node01:3] `, pdsh and DeepSpeed
    (`node01: `), and combinations. Lines of Slurm, NCCL and hpctrain that name their process
    elsewhere are not shortened.
    """
    rank: int | None = None
    task: int | None = None
    node: str | None = None
    local: int | None = None
    pid: str | None = None
    while line[:1] in _FIRST_OF_A_LABEL and (match := _LABEL.match(line)):
        role, process = match["word"] or match["role"], match["task"] or match["of_job"]
        if role is not None:
            number = int(match["of_word"] or match["of_role"])
            if role.lower() == "rank":
                rank = number
            elif match["word"]:
                break
            else:
                local = number
        elif process is not None:
            if task is not None or rank is not None:
                break  # `3: 12: text`: the second is the program's own
            task = int(process)
        elif match["host"] is not None:
            node, number = match["host"], int(match["of_host"])
            # Open MPI itself writes `[node01:48213] *** …`, its process id.
            rank = number if number < _PIDS else rank
        pid = match["pid"] or pid
        line = line[match.end() :]
    if rank is None and local is None:
        rank = task  # else the launcher starts one task per node
    local = int(pid) if local is None and pid else local
    if node is None and (match := _NODE.match(line)):
        inner = label(line[match.end() :])
        rank, local = _known(rank, inner.rank), _known(local, inner.local_rank)
        return Label(inner.rest, rank, match[1], local)
    return _mentioned(Label(line, rank, node, local))


def _mentioned(known: Label) -> Label:
    line = known.rest
    for word, pattern in _MENTIONS:
        if word in line and (match := pattern.search(line)):
            found = match.groupdict()
            rank, local = (integer(found.get(name) or "") for name in ("rank", "local"))
            return Label(
                line,
                _known(known.rank, rank),
                (known.node or found.get("node")),
                _known(known.local_rank, local),
            )
    return known


def around(line: str, at: int, most: int) -> str:
    """Return a line, or the part of it around a position, in at most `most` characters."""
    if len(line) <= most:
        return line
    begin = max(0, min(at - 60, len(line) - most))
    end = begin + most - 2
    return f"{'…' * (begin > 0)}{line[begin:end]}{'…' * (end + 2 < len(line))}"


def progress_bar(line: str) -> bool:
    """Whether a cleaned line is only a progress bar."""
    if "%" not in line and "/s" not in line and "\u2501" not in line and "ETA" not in line:
        return False
    return len(line) <= 600 and _BAR.fullmatch(line.strip()) is not None


def _known(first: int | None, second: int | None) -> int | None:
    return second if first is None else first


def plain(text: str) -> str:
    """Remove escape sequences and control characters other than carriage returns."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", _TO_THE_FIRST_COLUMN.sub("\r", _OSC.sub("", text)))
    return _CONTROL.sub("", text)


def _without_debris(text: str) -> str:
    """Remove progress bars that a later one replaced."""
    kept: list[str] = []
    last_bar = previous = ""
    for written in text.split("\r"):
        part = written
        while (match := _BAR_IN_FRONT.match(part)) and part[match.end() :].strip():
            part = part[match.end() :]
        part = part.rstrip()
        if progress_bar(part):
            last_bar = part
        elif part:
            shape = _DIGITS.sub("0", part)
            kept[len(kept) - (shape == previous) :] = [part]  # the newest of a counter
            previous = shape
    return " ".join(kept) if kept else last_bar


# -- the time of a line ----------------------------------------------------------------------------
# A time without a zone is in local time. Logs of one job may differ: Slurm and Python's logging
# write local time, the [memory] line UTC.

#: Characters at the start of a line that are searched for its time: a later one belongs to the
#: message.
_WITHIN = 120
_CLOCK = re.compile(r":[0-5][0-9]:[0-6][0-9]")
_TIME = re.compile(
    # 2026-11-22 04:10:00,123; 2026-11-22T04:10:00.123+01:00
    r"(?<![0-9])(?P<year>20[0-9]{2})[-/](?P<month>[01][0-9])[-/](?P<day>[0-3][0-9])[T"
    r" ](?P<clock>[0-2][0-9]:[0-5][0-9]:[0-6][0-9])"
    r"(?:[.,](?P<part>[0-9]{1,9}))?(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})?"
    # 11/22/2026 04:10:00 in the examples of transformers
    r"|(?<![0-9])(?P<us_month>[01][0-9])/(?P<us_day>[0-3][0-9])/(?P<us_year>20[0-9]{2})"
    r" (?P<us_clock>[0-2][0-9]:[0-5][0-9]:[0-6][0-9])"
    # E1122 04:10:00.123456 of glog, and so of torch: without a year
    r"|(?<![A-Za-z0-9])[IWEFVC](?P<g_month>[01][0-9])(?P<g_day>[0-3][0-9])"
    r" (?P<g_clock>[0-2][0-9]:[0-5][0-9]:[0-6][0-9])"
    r"(?:\.(?P<g_part>[0-9]{1,9}))?"
)


def time_of(line: str, *, year: int | None = None) -> float | None:
    """Return the time near the start of a cleaned line, in seconds since the epoch; None if there
    is none.

    Args:
        line: cleaned.
        year: for times without a year, such as torch's; None ignores these.
    """
    if _CLOCK.search(line, 0, _WITHIN) is None:
        return None
    match = _TIME.search(line, 0, _WITHIN)
    if match is None:
        return None
    said = match.groupdict()
    day = [said[name] or said[f"us_{name}"] or said[f"g_{name}"] for name in ("month", "day")]
    clock = said["clock"] or said["us_clock"] or said["g_clock"]
    of_year = said["year"] or said["us_year"] or year
    minute = _minute(f"{of_year}-{'-'.join(day)}T{clock[:5]}{said['zone'] or ''}")
    part = said["part"] or said["g_part"] or 0
    return None if minute is None else minute + int(clock[6:]) + float(f"0.{part}")


@lru_cache(maxsize=256)
def _minute(at: str) -> float | None:
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:  # e.g. February 31
        return None
