"""What a line of a log says: decoded, without what only a terminal understands, and without what launchers put in front. PURE.

Most lines are plain: those cost one decoding and one look of C's at their characters, and no regex.
"""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

#: The most characters of a line that anybody is shown, the mark of the cut included.
MOST = 4000
_HEAD, _TAIL = 2900, 1000
#: Of a longer line only the two ends are looked at. A line of a progress bar without an end has its news at its end.
_MOST_BYTES = 1 << 20
_ENDS_BYTES = 1 << 18
_GOING_ON = bytes(range(0x80, 0xC0))

_OSC = re.compile("\x1b\\][^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\\\|\x9c)|\x1b[PX^_][^\x1b\x9c]{0,4096}(?:\x1b\\\\|\x9c)")
_TO_THE_FIRST_COLUMN = re.compile("\x1b\\[(?:[01]?G|[12]?K|[0-9;]*[AFHJ])")
_ESCAPE = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|[ -/]+[0-~]|[0-Z\\\\^-~])")
#: What a terminal obeys, or what turns the direction of writing (hpctrain.errors), but tab and carriage return; surrogates are no text.
_CONTROL = re.compile("[\x00-\x08\n-\x0c\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
#: The state of a bar: of tqdm with a total, and without one; of rich and pip; of wget, apptainer and keras.
_AMOUNT = r"[0-9.,:]+ ?[kKMGTP]?i?[bB]?"
_BAR = re.compile(
    r"(?:[^|\r%\[\]{}]{0,80}: ?)?[ ]{0,4}[0-9]{1,3}(?:\.[0-9]+)?%\|[ #0-9\u2588-\u258f.=>-]{0,200}"
    rf"(?:\| ?{_AMOUNT}/(?:{_AMOUNT}|\?) ?(?:\[[^\]\r]{{1,200}}\]?)?)?"
    rf"|(?:[^|\r%\[\]{{}}]{{0,80}}: ?)?{_AMOUNT}(?:it|ex|examples)? ?\[[0-9:]+, +[^\]\r]{{1,80}}/s[^\]\r]{{0,80}}\]"
    r"|[^\u2501\u2578\u257a\r]{0,80}[\u2501\u2578\u257a]{3,}[^\r\u2501]{0,100}"
    r"|[^\[\]\r]{0,120}\[(?:=+>?|>|#+)[ .\-]*\](?: ?[0-9.]{1,6} ?%| - ETA:? ?[0-9:]+s?| ?" + _AMOUNT + r"/s)[^\r]{0,60}"
    r"|[^\[\]\r%]{0,80}[0-9]{1,3}% ?\[[=>+ ]+\][^\r]{0,80}"
)
#: A bar in front of something that another wrote behind it, without a new line: `37%|███▋ | 37/100 [00:10<00:20,  3.1it/s]{'loss': …`.
_BAR_IN_FRONT = re.compile(
    r"[^|\r%\[\]{}]{0,80}?[ ]{0,4}[0-9]{1,3}(?:\.[0-9]+)?%\|[^|\r]{0,200}"
    rf"\| ?{_AMOUNT}/(?:{_AMOUNT}|\?) ?\[[^\]\r]{{1,200}}\](?=.)"
)
_DIGITS = re.compile(r"[0-9]+(?:\.[0-9]+)?")

_ROLE = re.compile(r"\[([A-Za-z_-]{1,30}?): ?([0-9]{1,6})\] ?|\[([A-Za-z_-]{1,30})([0-9]{1,6})\]:[ ]?")
_HOST_AND_RANK = re.compile(r"\[([A-Za-z][A-Za-z0-9.-]{0,62}):([0-9]{1,6})\]:?[ ]?")
#: A number of a process that is as large is its id, and no rank.
_PIDS = 1000
_SRUN = re.compile(r" {0,5}([0-9]{1,6}):(?: |\Z)")
_LABELS = re.compile(r"(?: {0,5}[0-9]{1,6}: |\[[A-Za-z_-]{1,30}[0-9]{1,6}\]: ?)+")
_MPIRUN = re.compile(r"\[1,([0-9]{1,6})\]<std(?:out|err)> ?: ?")
_NODE = re.compile(
    r"(?!slurmstepd-)(?!(?:fp|bf|int|uint|float|sm|utf|sha|md|gfx|cuda|rocm|step|epoch|line|iter|layer|rank|python|pid|version)[-_]?[0-9])(?!(?:gpu|cpu)[-_]?[0-9]{1,2}:)"
    r"([a-z][a-z0-9]{0,30}(?:-[a-z0-9]{1,20}){0,4}(?<![0-9])(?:[0-9]{2,8}|-[0-9]{1,6})): "
)
#: Lines that name their process without a label in front.
_MENTIONS = (
    ("slurmstepd-", re.compile(r"^slurmstepd-(?P<node>[\w.-]+): (?:error: )?(?:task (?P<rank>[0-9]+): )?")),
    ("task", re.compile(r"^(?:srun: )?(?:error: )?(?P<node>[A-Za-z][\w.-]*): task (?P<rank>[0-9]+): ")),
    ("[Rank ", re.compile(r"\[Rank (?P<rank>[0-9]{1,6})\]")),
    ("[memory]", re.compile(r"^\[memory\].*? host=(?P<node>[^\s\"]+) rank=(?P<rank>[0-9]+)/[0-9]+ local=(?P<local>[0-9]+)")),
    ("NCCL", re.compile(r"^(?P<node>[A-Za-z][\w.-]*):[0-9]+:[0-9]+ \[(?P<local>[0-9]{1,3})\] NCCL ")),
)
_FIRST_OF_A_LABEL = frozenset("[ 0123456789")


class Label(NamedTuple):
    """What a line says of the process that wrote it; what it does not say is None.

    Attributes:
        rest: the line behind the labels.
        rank: of all processes; local_rank: on its node.
    """

    rest: str
    rank: int | None = None
    node: str | None = None
    local_rank: int | None = None


def _as_latin_1(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error("hpctrain.logs", _as_latin_1)


def clean(raw: bytes | str) -> str:
    """Return one line as a person reads it: UTF-8, and Latin-1 where it is none; no NULs, escape sequences, or control characters.

    Of what carriage returns wrote over, states of progress bars go but for the last; of anything else nothing is lost. Tabs stay. A line of
    more than 4000 characters keeps its two ends, and a mark between them says how much is gone. Cleaning twice is cleaning once.
    """
    text, missing = _decoded(raw)
    if text.isprintable() and len(text) <= MOST and "%|" not in text:
        return text
    text = _plain(text)
    for _ in range(8):  # what is left behind a bar that goes may be one, or a label
        behind = match.end() if (match := _LABELS.match(text)) else 0  # what a bar writes over begins behind a label
        shorter = text[:behind] + _without_debris(text[behind:])
        if shorter == text:
            break
        text = shorter
    return _cut(text, missing)


def label(line: str) -> Label:
    """Return what launchers put in front of a cleaned line, and the rest of it.

    srun --label (`3: `), torchrun and accelerate (`[default3]:`, and `[rank3]:` of torch itself), Lightning (`[rank: 3] `), mpirun
    (`[1,3]<stdout>:`), `[node01:3] `, pdsh and DeepSpeed (`node01: `), and several of them. Lines of Slurm, NCCL and hpctrain that name
    their process within keep all of their text.
    """
    rank: int | None = None
    task: int | None = None
    node: str | None = None
    local: int | None = None
    while line[:1] in _FIRST_OF_A_LABEL:
        if match := _ROLE.match(line):
            role, number = match[1] or match[3], int(match[2] or match[4])
            if role.lower() == "rank":
                rank = number
            elif match[3] is None:
                break
            else:
                local = number
        elif (match := _SRUN.match(line)) or (match := _MPIRUN.match(line)):
            if task is not None or rank is not None:
                break  # `3: 12: text`: the second is the program's own
            task = int(match[1])
        elif match := _HOST_AND_RANK.match(line):
            node = match[1]
            rank = int(match[2]) if int(match[2]) < _PIDS else rank  # Open MPI itself writes `[node01:48213] *** …`, its process id
        else:
            break
        line = line[match.end() :]
    if rank is None and local is None:
        rank = task  # else it is a launcher's task, one to a node
    if node is None and (match := _NODE.match(line)):
        inner = label(line[match.end() :])
        return Label(inner.rest, _known(rank, inner.rank), match[1], _known(local, inner.local_rank))
    return _mentioned(Label(line, rank, node, local))


def _mentioned(known: Label) -> Label:
    """Return a label with what the line itself says of its process."""
    line = known.rest
    for word, pattern in _MENTIONS:
        if word in line and (match := pattern.search(line)):
            found = match.groupdict()
            said = {name: int(found[name]) for name in ("rank", "local") if found.get(name) is not None}
            rank, local = _known(known.rank, said.get("rank")), _known(known.local_rank, said.get("local"))
            return Label(line, rank, known.node or found.get("node"), local)
    return known


def around(line: str, at: int, most: int) -> str:
    """Return a line, or the part of it around a place, in `most` characters."""
    if len(line) <= most:
        return line
    begin = max(0, min(at - 60, len(line) - most))
    return f"{'…' if begin else ''}{line[begin : begin + most - 2]}{'…' if begin + most < len(line) else ''}"


def progress_bar(line: str) -> bool:
    """Whether a cleaned line is a state of a progress bar and nothing else."""
    if "%" not in line and "/s" not in line and "\u2501" not in line and "ETA" not in line:
        return False
    return len(line) <= 600 and _BAR.fullmatch(line.strip()) is not None


def _known(first: int | None, second: int | None) -> int | None:
    return second if first is None else first


def _decoded(raw: bytes | str) -> tuple[str, int]:
    """Return the text, and how much was left out between its two ends."""
    missing = max(0, len(raw) - 2 * _ENDS_BYTES) if len(raw) > _MOST_BYTES else 0
    if isinstance(raw, str):
        return (_joined(raw[:_ENDS_BYTES], raw[-_ENDS_BYTES:]) if missing else raw).strip("\r\n"), missing
    if b"\0" in raw:
        raw = raw.replace(b"\0", b"")
    if missing:  # the bytes of one character stay together: 0x80 to 0xbf go on with one that began before
        head, rest = raw[:_ENDS_BYTES].rstrip(_GOING_ON), raw[-_ENDS_BYTES:].lstrip(_GOING_ON)
        return _joined(*(end.decode("utf-8", "hpctrain.logs") for end in (head, rest))).strip("\r\n"), missing
    return raw.decode("utf-8", "hpctrain.logs").strip("\r\n"), missing


def _joined(head: str, rest: str) -> str:
    """Return the two ends of a line as two states of it; half a state on either side of the cut goes."""
    if "\r" in head[-2000:] and "\r" in rest[:2000]:
        return head[: head.rindex("\r")] + rest[rest.index("\r") :]
    return f"{head}\r{rest}"


def _plain(text: str) -> str:
    if "\x1b" in text:
        text = _ESCAPE.sub("", _TO_THE_FIRST_COLUMN.sub("\r", _OSC.sub("", text)))
    if "\b" in text:
        text = _without_backspaces(text)
    return _CONTROL.sub("", text)


def _without_backspaces(text: str) -> str:
    kept: list[str] = []
    for character in text:
        if character != "\b":
            kept.append(character)
        elif kept and kept[-1] != "\r":
            kept.pop()
    return "".join(kept)


def _without_debris(text: str) -> str:
    """Return a line without states of progress that a later one replaced."""
    kept: list[str] = []
    last_bar = ""
    previous = ""
    for written in text.split("\r"):
        part = _without_bars_in_front(written).rstrip() if "%|" in written else written.rstrip()
        if not part:
            continue
        if progress_bar(part):
            last_bar = part
            continue
        shape = _DIGITS.sub("0", part)
        if shape == previous:
            kept[-1] = part  # a counter
        else:
            kept.append(part)
        previous = shape
    return " ".join(kept) if kept else last_bar


def _without_bars_in_front(text: str) -> str:
    while (match := _BAR_IN_FRONT.match(text)) and text[match.end() :].strip():
        text = text[match.end() :]
    return text


def _cut(text: str, missing: int) -> str:
    if len(text) <= MOST:
        return text
    return f"{text[:_HEAD]} [... {len(text) - _HEAD - _TAIL + missing} characters left out ...] {text[-_TAIL:]}"
