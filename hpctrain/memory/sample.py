"""One memory sample, and the two texts it becomes: a line for people and a JSON object for machines.

Pure: no clock, no environment, no files, no printing. `format_line` and `parse_line` are exact inverses, and so are
`to_json` and `from_json`: sizes are quantised once, to whole MiB, when a sensor reads them, so the line, the JSON
object and the sample in memory all say the same number.

    [memory] 2026-11-20T21:08:03.123Z step=10 event=step host=node01 rank=3/8 local=3 | torch allocated=12605M
    peak=15380M reserved=17920M | gpu 3 "NVIDIA A100-SXM4-64GB" GPU-5a... used=18400/65536M util=97% | process rss=1204M
    children=310M | node used=120345/515000M | cgroup used=9000/64000M

It is always one line (wrapped here). `M` is MiB, `-` is "not known", and a whole group that is not known is its name
and one `-`, as in `gpu -`. A launcher may put its own label in front (`srun --label`: `3: `; torchrun: `[default3]:`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

Event = Literal["train_begin", "first_step", "step", "evaluate", "save", "train_end"]
EVENTS: tuple[Event, ...] = get_args(Event)

MARK = "[memory]"
"""The word every sample's line starts with."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, where ISO-8601 with four digits ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one rank saw at one moment. Sizes are whole MiB (2**20 bytes); what could not be read is None.

    Raises:
        ValueError: a number is negative, the event is not one of EVENTS, or the time is after the year 9999.
    """

    time_ms: int
    """Milliseconds since 1970-01-01 UTC."""
    step: int
    """Optimizer steps finished."""
    event: Event
    host: str
    rank: int
    world_size: int
    local_rank: int
    torch_allocated_mib: int | None = None
    """Held by tensors now."""
    torch_peak_mib: int | None = None
    """The most that tensors ever held in this process."""
    torch_reserved_mib: int | None = None
    """Held by torch's caching allocator."""
    gpu_index: int | None = None
    """The physical index, as nvidia-smi counts on this node; for a MIG device the index of the GPU it is a part of."""
    gpu_name: str | None = None
    gpu_uuid: str | None = None
    """With its prefix, `GPU-` or `MIG-`."""
    gpu_used_mib: int | None = None
    """Used on the device by all processes."""
    gpu_total_mib: int | None = None
    gpu_utilisation_percent: int | None = None
    """Share of the driver's last sampling period in which a kernel ran; MIG devices have none."""
    rss_mib: int | None = None
    """Resident memory of this process."""
    children_rss_mib: int | None = None
    """Resident memory of its descendants, added up; pages they share count once for each."""
    node_used_mib: int | None = None
    """MemTotal - MemAvailable."""
    node_total_mib: int | None = None
    cgroup_used_mib: int | None = None
    """Charged to the limiting cgroup, without the file cache, which the kernel drops before it kills anything."""
    cgroup_limit_mib: int | None = None
    """The smallest memory limit among this process's cgroup and its parents; None when there is none."""

    def __post_init__(self) -> None:
        """Refuse what the line could not carry."""
        if self.event not in EVENTS:
            raise ValueError(f"event must be one of {', '.join(EVENTS)}, not {self.event!r}")
        if self.time_ms > _LAST_MS:
            raise ValueError(f"time_ms must be before the year 10000, not {self.time_ms}")
        for name in _INTEGERS:
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must not be negative, not {value}")


_TEXTS = frozenset({"event", "host", "gpu_name", "gpu_uuid"})
_NAMES = tuple(field.name for field in fields(Sample))
_INTEGERS = tuple(name for name in _NAMES if name not in _TEXTS)
_REQUIRED = _NAMES[:7]

# -- the line ----------------------------------------------------------------------------------------------------------

_BARE = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*")
_TEXT = r'(?:-|[A-Za-z0-9_.][A-Za-z0-9_.-]*|"(?:[^"\\\n]|\\.)*")'
_LINE = re.compile(
    re.escape(MARK)
    + r" (?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})Z step=(?P<step>\d+) event=(?P<event>[a-z_]+)"
    + rf" host=(?P<host>{_TEXT}) rank=(?P<rank>\d+)/(?P<world_size>\d+) local=(?P<local_rank>\d+)"
    + r" \| torch (?:-|allocated=(?P<torch_allocated_mib>-|\d+M) peak=(?P<torch_peak_mib>-|\d+M)"
    + r" reserved=(?P<torch_reserved_mib>-|\d+M))"
    + rf" \| gpu (?:-|(?P<gpu_index>-|\d+) (?P<gpu_name>{_TEXT}) (?P<gpu_uuid>{_TEXT})"
    + r" used=(?P<gpu_used_mib>-|\d+)/(?P<gpu_total_mib>-|\d+)M util=(?P<gpu_utilisation_percent>-|\d+)%)"
    + r" \| process (?:-|rss=(?P<rss_mib>-|\d+M) children=(?P<children_rss_mib>-|\d+M))"
    + r" \| node (?:-|used=(?P<node_used_mib>-|\d+)/(?P<node_total_mib>-|\d+)M)"
    + r" \| cgroup (?:-|used=(?P<cgroup_used_mib>-|\d+)/(?P<cgroup_limit_mib>-|\d+)M)"
    + r"\s*$",
    re.ASCII,
)


def format_line(sample: Sample) -> str:
    """Return the sample as one line of ASCII text, without the line break."""
    when = (_EPOCH + timedelta(milliseconds=sample.time_ms)).replace(tzinfo=None).isoformat(timespec="milliseconds")
    groups = (
        f"{MARK} {when}Z step={sample.step} event={sample.event} host={_quote(sample.host)}"
        f" rank={sample.rank}/{sample.world_size} local={sample.local_rank}",
        _torch_group(sample),
        _gpu_group(sample),
        _process_group(sample),
        _pair_group("node", sample.node_used_mib, sample.node_total_mib),
        _pair_group("cgroup", sample.cgroup_used_mib, sample.cgroup_limit_mib),
    )
    return " | ".join(groups)


def parse_line(line: str) -> Sample | None:
    """Return the sample that a line of a log carries, or None when it carries none.

    What a launcher put in front of it is skipped; a line that was cut short, or has anything behind it, is None.
    """
    # A cheap test first: a log of a million lines has a few thousand samples.
    if MARK not in line or (match := _LINE.search(line)) is None:
        return None
    try:
        return Sample(**{_field(name): _value(name, text) for name, text in match.groupdict().items()})
    except ValueError:
        return None


def _field(group: str) -> str:
    return "time_ms" if group == "time" else group


def _value(group: str, text: str | None) -> Any:
    """Return what one named group of the line stands for."""
    if text is None or text == "-":
        return None
    if group == "time":
        return (datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
    if group in _TEXTS:
        return json.loads(text) if text.startswith('"') else text
    return int(text.removesuffix("M"))


def _quote(text: str | None) -> str:
    """Return a name as it is when it is plain, else as a JSON string: ASCII, with every line break escaped."""
    if text is None:
        return "-"
    return text if _BARE.fullmatch(text) else json.dumps(text)


def _known(value: int | None, unit: str = "") -> str:
    return "-" if value is None else f"{value}{unit}"


def _torch_group(sample: Sample) -> str:
    values = (sample.torch_allocated_mib, sample.torch_peak_mib, sample.torch_reserved_mib)
    if values == (None, None, None):
        return "torch -"
    allocated, peak, reserved = (_known(value, "M") for value in values)
    return f"torch allocated={allocated} peak={peak} reserved={reserved}"


def _gpu_group(sample: Sample) -> str:
    values = (sample.gpu_index, sample.gpu_name, sample.gpu_uuid, sample.gpu_used_mib, sample.gpu_total_mib)
    if values == (None,) * 5 and sample.gpu_utilisation_percent is None:
        return "gpu -"
    return (
        f"gpu {_known(sample.gpu_index)} {_quote(sample.gpu_name)} {_quote(sample.gpu_uuid)}"
        f" used={_known(sample.gpu_used_mib)}/{_known(sample.gpu_total_mib)}M"
        f" util={_known(sample.gpu_utilisation_percent)}%"
    )


def _process_group(sample: Sample) -> str:
    if sample.rss_mib is None and sample.children_rss_mib is None:
        return "process -"
    return f"process rss={_known(sample.rss_mib, 'M')} children={_known(sample.children_rss_mib, 'M')}"


def _pair_group(name: str, used: int | None, total: int | None) -> str:
    if used is None and total is None:
        return f"{name} -"
    return f"{name} used={_known(used)}/{_known(total)}M"


# -- JSON --------------------------------------------------------------------------------------------------------------


def to_json(sample: Sample) -> str:
    """Return the sample as one line of JSON, every field by its name, without the line break."""
    return json.dumps({name: getattr(sample, name) for name in _NAMES})


def from_json(text: str) -> Sample:
    """Return the sample that `to_json` wrote. Keys it does not know are ignored: later versions add some.

    Raises:
        ValueError: the text is not JSON, not an object, lacks a field, or a field has the wrong type.
    """
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("a sample is a JSON object")
    kept = {name: values[name] for name in _NAMES if name in values}
    for name, value in kept.items():
        kind = str if name in _TEXTS else int
        if value is None and name not in _REQUIRED:
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{name} must be {kind.__name__}, not {value!r}")
    if missing := [name for name in _REQUIRED if name not in kept]:
        raise ValueError(f"the sample lacks {', '.join(missing)}")
    return Sample(**kept)
