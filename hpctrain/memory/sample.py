"""One memory sample, and its two forms: a log line for people and a JSON object for programs.

No clock, no files, no printing. `format_line` and `parse_line` are exact inverses, and so are
`to_json` and `from_json`: sizes are quantized once, to whole MiB, when a sensor reads them, so the
line, the JSON object and the sample in memory have the same number.

    [memory] 2026-11-20T21:08:03.123Z step=10 event=step host=node01 rank=3/8 local=3 | torch
    allocated=12605M peak=15380M reserved=17920M | gpu 3 "NVIDIA A100-SXM4-64GB" GPU-5a...
    used=18400/65536M util=97% | process rss=1204M children=310M | node used=120345/515000M | cgroup
    used=9000/64000M

It is always one line (wrapped here). `M` is MiB and `-` is "unknown"; an unknown group is its name
and one `-`, as in `gpu -`. A launcher may add a label in front (`srun --label`: `3: `; torchrun:
`[default3]:`).
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

from hpctrain.util.stored import made

Event = Literal["train_begin", "first_step", "step", "evaluate", "save", "train_end"]
EVENTS: tuple[Event, ...] = get_args(Event)

#: The prefix of every sample's line.
MARK = "[memory]"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The memory of one rank at one time.

    Sizes are whole MiB (2**20 bytes); what could not be read is None.

    Attributes:
        time_ms: milliseconds since 1970-01-01 UTC.
        step: optimizer steps finished.
        torch_allocated_mib: held by tensors now; torch_peak_mib: the most held by tensors in this
            process so far; torch_reserved_mib: held by torch's caching allocator.
        gpu_index: the physical index, as in nvidia-smi on this node; for a MIG device the index of
            its GPU.
        gpu_uuid: with its prefix, `GPU-` or `MIG-`.
        gpu_used_mib: used on the device by all processes.
        gpu_utilisation_percent: fraction of the driver's last sampling period in which a kernel
            ran; MIG devices have none.
        rss_mib: resident memory of this process.
        children_rss_mib: resident memory of its descendants, added up; shared pages count once for
            each.
        node_used_mib: MemTotal - MemAvailable.
        cgroup_used_mib: charged to the limiting cgroup, without the file cache, which the kernel
            drops before it kills anything.
        cgroup_limit_mib: the smallest memory limit of this process's cgroup and its parents; None
            if there is none.
    """

    time_ms: int
    step: int
    event: Event
    host: str
    rank: int
    world_size: int
    local_rank: int
    torch_allocated_mib: int | None = None
    torch_peak_mib: int | None = None
    torch_reserved_mib: int | None = None
    gpu_index: int | None = None
    gpu_name: str | None = None
    gpu_uuid: str | None = None
    gpu_used_mib: int | None = None
    gpu_total_mib: int | None = None
    gpu_utilisation_percent: int | None = None
    rss_mib: int | None = None
    children_rss_mib: int | None = None
    node_used_mib: int | None = None
    node_total_mib: int | None = None
    cgroup_used_mib: int | None = None
    cgroup_limit_mib: int | None = None


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the node's name: Slurm's (SLURMD_NODENAME), which scontrol accepts, else the host
    name.
    """
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


_TEXTS = frozenset({"event", "host", "gpu_name", "gpu_uuid"})
_NAMES = tuple(field.name for field in fields(Sample))

# -- the line --------------------------------------------------------------------------------------

_BARE = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*")
_TEXT = r'(?:-|[A-Za-z0-9_.][A-Za-z0-9_.-]*|"(?:[^"\\\n]|\\.)*")'
_LINE = re.compile(
    re.escape(MARK) + r" (?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})Z step=(?P<step>\d+)"
    r" event=(?P<event>"
    + "|".join(EVENTS)
    + ")"
    + rf" host=(?P<host>{_TEXT}) rank=(?P<rank>\d+)/(?P<world_size>\d+) local=(?P<local_rank>\d+)"
    + r" \| torch (?:-|allocated=(?P<torch_allocated_mib>-|\d+M) peak=(?P<torch_peak_mib>-|\d+M)"
    + r" reserved=(?P<torch_reserved_mib>-|\d+M))"
    + rf" \| gpu (?:-|(?P<gpu_index>-|\d+) (?P<gpu_name>{_TEXT}) (?P<gpu_uuid>{_TEXT})"
    + r" used=(?P<gpu_used_mib>-|\d+)/(?P<gpu_total_mib>-|\d+)M"
    r" util=(?P<gpu_utilisation_percent>-|\d+)%)"
    + r" \| process (?:-|rss=(?P<rss_mib>-|\d+M) children=(?P<children_rss_mib>-|\d+M))"
    + r" \| node (?:-|used=(?P<node_used_mib>-|\d+)/(?P<node_total_mib>-|\d+)M)"
    + r" \| cgroup (?:-|used=(?P<cgroup_used_mib>-|\d+)/(?P<cgroup_limit_mib>-|\d+)M)"
    + r"\s*$",
    re.ASCII,
)


def format_line(sample: Sample) -> str:
    """Return the sample as one line of ASCII text, without the line break."""
    when = _EPOCH + timedelta(milliseconds=sample.time_ms)
    text = {name: _shown(getattr(sample, name)) for name in _NAMES}
    mib = {name: shown if shown == "-" else f"{shown}M" for name, shown in text.items()}
    groups = {
        "torch": f"allocated={mib['torch_allocated_mib']} peak={mib['torch_peak_mib']}"
        f" reserved={mib['torch_reserved_mib']}",
        "gpu": f"{text['gpu_index']} {text['gpu_name']} {text['gpu_uuid']}"
        f" used={text['gpu_used_mib']}/{text['gpu_total_mib']}M"
        f" util={text['gpu_utilisation_percent']}%",
        "process": f"rss={mib['rss_mib']} children={mib['children_rss_mib']}",
        "node": f"used={text['node_used_mib']}/{text['node_total_mib']}M",
        "cgroup": f"used={text['cgroup_used_mib']}/{text['cgroup_limit_mib']}M",
    }
    prefixes = {"process": ("rss", "children")}
    head = (
        f"{MARK} {when.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
        f" step={sample.step} event={sample.event} host={text['host']}"
        f" rank={sample.rank}/{sample.world_size} local={sample.local_rank}"
    )
    parts = [head]
    for group, shown in groups.items():
        names = [name for name in _NAMES if name.startswith(prefixes.get(group, group + "_"))]
        known = any(getattr(sample, name) is not None for name in names)
        parts.append(f"{group} {shown if known else '-'}")
    return " | ".join(parts)


def parse_line(line: str) -> Sample | None:
    """Return the sample in a log line, or None if it has none.

    A launcher's prefix is skipped; a truncated line, or one with text after the sample, gives None.
    """
    # A cheap test first: a log of a million lines has a few thousand samples.
    if MARK not in line or (match := _LINE.search(line)) is None:
        return None
    try:
        return Sample(
            **{
                "time_ms" if name == "time" else name: _value(name, text)
                for name, text in match.groupdict().items()
            }
        )
    except ValueError:
        return None


def _value(group: str, text: str | None) -> Any:
    if text is None or text == "-":
        return None
    if group == "time":
        return (datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH) // timedelta(
            milliseconds=1
        )
    if group in _TEXTS:
        return json.loads(text) if text.startswith('"') else text
    return int(text.removesuffix("M"))


def _shown(value: str | int | None) -> str:
    """Return a value as it is in the line; other names than plain ones are JSON strings: ASCII,
    with every line break escaped.
    """
    if value is None:
        return "-"
    return (
        json.dumps(value) if isinstance(value, str) and not _BARE.fullmatch(value) else str(value)
    )


# -- JSON ------------------------------------------------------------------------------------------


def to_json(sample: Sample) -> str:
    """Return the sample as one line of JSON, every field by its name, without the line break."""
    return json.dumps({name: getattr(sample, name) for name in _NAMES})


def from_json(text: str) -> Sample:
    """Return the sample that `to_json` wrote.

    Unknown keys are ignored: later versions add some.

    Raises:
        ValueError: the text is not JSON, not an object, lacks a field, or a field has the wrong
            type.
    """
    return from_value(json.loads(text))


def from_value(values: Any) -> Sample:
    """Return the sample in a decoded JSON value; errors as in `from_json`."""
    if (sample := made(Sample, values)) is None:
        raise ValueError("it is no memory sample: a field is missing, or has the wrong type")
    return sample


#: The fraction of a limit above which a warning is printed.
NEAR = 0.95


def near_limits(sample: Sample) -> dict[Literal["gpu", "host"], str]:
    """Return a warning for each kind of memory that reached more than 95 % of its limit.

    gpu: torch's peak, plus device memory outside of torch's allocator (CUDA, NCCL, other
        processes), against the device's memory. The allocator's cache does not count, because
        unused blocks are given back.
    host: the cgroup's usage against its limit, or the node's usage if there is no limit.
    """
    found: dict[Literal["gpu", "host"], str] = {}
    total = sample.gpu_total_mib
    if total and sample.torch_peak_mib is not None:
        outside = max(0, (sample.gpu_used_mib or 0) - (sample.torch_reserved_mib or 0))
        need = sample.torch_peak_mib + outside
        if need > NEAR * total:
            parts = f"torch's peak {sample.torch_peak_mib}M and {outside}M outside of torch"
            found["gpu"] = f"{parts} are {need / total:.1%} of the GPU's {total}M"
    for name, used, limit in (
        ("the cgroup", sample.cgroup_used_mib, sample.cgroup_limit_mib),
        ("the node", sample.node_used_mib, sample.node_total_mib),
    ):
        if used is None or not limit:
            continue
        if used > NEAR * limit:
            found["host"] = f"{name} uses {used}M, {used / limit:.1%} of its {limit}M"
        break
    return found
