"""The ranks of a run in a few lines: memory and utilisation of every GPU, the worst one named, and the memory of the hosts. PURE.

As long as there is room each rank has a line of its own, in columns where the terminal is wide; else each node is a few characters, one
for each GPU; and where the nodes are too many, the fullest are shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpctrain.memory.sample import Sample
from hpctrain.report import charts
from hpctrain.report.live_paint import Line
from hpctrain.runs.progress import Progress, part_of

#: The width of a rank's line, with its two bars.
_RANK = 68
_FULL = 0.95
"""hpctrain.memory.limits warns from here on."""


def lines(progress: Progress, width: int, most: int, *, plain: bool = False) -> list[Line]:
    """Return `most` lines at most; nothing where there are no samples."""
    samples = progress.samples
    if not samples or most < 1:
        return []
    foot = [*_worst(progress), *_host(samples, width, plain)][:most]
    gpus = [sample for sample in samples if _part(sample) is not None or sample.gpu_utilisation_percent is not None]
    room = most - len(foot)
    if room < 1:
        return foot[:most]
    body = _ranks(gpus, width, room, plain) if gpus else _processes(samples, width, room)
    return body + foot


def _ranks(samples: Sequence[Sample], width: int, room: int, plain: bool) -> list[Line]:
    columns = max(1, (width + 2) // (_RANK + 2))
    if math.ceil(len(samples) / columns) <= room:
        names = [_name(sample) for sample in samples]
        longest = max(map(len, names))
        return _in_columns([_rank(sample, name.ljust(longest), plain) for sample, name in zip(samples, names, strict=True)], columns)
    return _nodes(samples, width, room, plain)


def _name(sample: Sample) -> str:
    return f"rank {sample.rank} {_short(sample.host)}" + (f":{sample.gpu_index}" if sample.gpu_index is not None else "")


def _rank(sample: Sample, name: str, plain: bool) -> Line:
    part, utilisation = _part(sample), sample.gpu_utilisation_percent
    used = "-" if sample.gpu_used_mib is None else f"{sample.gpu_used_mib / 1024:.1f}"
    total = "-" if sample.gpu_total_mib is None else f"{sample.gpu_total_mib / 1024:.0f}"
    return [
        (f"{name} ", ""),
        (charts.bar(part, 14, plain=plain), _style(part)),
        (f" {used:>5}/{total} GiB ", ""),
        (charts.bar(None if utilisation is None else utilisation / 100, 10, plain=plain), ""),
        (f" {'-' if utilisation is None else utilisation:>3}%", ""),
    ]


def _in_columns(cells: Sequence[Line], columns: int) -> list[Line]:
    """Return lines with so many cells in each, filled downwards."""
    height = math.ceil(len(cells) / columns)
    widest = max(sum(len(text) for text, _ in cell) for cell in cells)
    found: list[Line] = []
    for row in range(height):
        line: Line = []
        for cell in cells[row::height]:
            gap = widest + 2 - sum(len(text) for text, _ in line[-len(cell) :]) if line else 0
            line += [(" " * gap, "")] if line else []
            line += cell
        found.append(line)
    return found


# -- folded by node ----------------------------------------------------------------------------------------------------


def _nodes(samples: Sequence[Sample], width: int, room: int, plain: bool) -> list[Line]:
    hosts: dict[str, list[Sample]] = {}
    for sample in samples:
        hosts.setdefault(sample.host, []).append(sample)
    longest = min(14, max(len(_short(host)) for host in hosts))
    for detail in (2, 1, 0):  # as many numbers as there is room for
        cells = [_node(_short(host).ljust(longest), each, plain, detail) for host, each in hosts.items()]
        columns = max(1, (width + 2) // (max(sum(len(text) for text, _ in cell) for cell in cells) + 2))
        if len(cells) <= (room - 1) * columns:
            break
    head = f"{len(samples)} ranks on {len(hosts)} nodes, memory and utilisation of each GPU:"
    shown = (room - 1) * columns
    if room < 2:
        return [[(head.removesuffix(":"), "")]]
    if len(cells) <= shown:
        return [[(head, "")], *_in_columns(cells, columns)]
    # The fullest, and those that rest, in their own order; one line says what is left out.
    shown = max(columns, (room - 2) * columns)
    order = sorted(range(len(cells)), key=lambda index: _urgency(list(hosts.values())[index]), reverse=True)
    kept = sorted(order[:shown])
    hidden = [sample for index in order[shown:] for sample in list(hosts.values())[index]]
    most = max((part for sample in hidden if (part := _part(sample)) is not None), default=None)
    more = f"and {len(cells) - len(kept)} nodes more" + ("" if most is None else f": memory at most {most:.0%}")
    return [[(head, "")], *_in_columns([cells[index] for index in kept], columns), [(more, "")]][: max(room, 2)]


def _node(name: str, samples: Sequence[Sample], plain: bool, detail: int) -> Line:
    """Return a node's GPUs, a character each: memory, and how full the fullest is; utilisation, and its mean."""
    parts = [_part(sample) for sample in samples]
    used = [None if sample.gpu_utilisation_percent is None else sample.gpu_utilisation_percent / 100 for sample in samples]
    most = max((part for part in parts if part is not None), default=None)
    known = [part for part in used if part is not None]
    return [
        (f"{name} ", ""),
        (charts.levels(parts, plain=plain), _style(most)),
        (" " + (("  -%" if most is None else f"{most:4.0%}") + " " if detail else ""), ""),
        (charts.levels(used, plain=plain), ""),
        (" " + ("  -%" if not known else f"{sum(known) / len(known):4.0%}") if detail > 1 else "", ""),
    ]


def _urgency(samples: Sequence[Sample]) -> tuple[float, float]:
    return (
        max((part for sample in samples if (part := _part(sample)) is not None), default=0.0),
        -min((sample.gpu_utilisation_percent for sample in samples if sample.gpu_utilisation_percent is not None), default=100),
    )


def _short(host: str) -> str:
    name = host if host[:1].isdigit() else host.partition(".")[0]  # an address has no domain
    return name if len(name) <= 14 else f"{name[:6]}~{name[-7:]}"


# -- processes without a GPU, hosts, and the worst of all ----------------------------------------------------------------


def _processes(samples: Sequence[Sample], width: int, room: int) -> list[Line]:
    cells: list[Line] = []
    for sample in samples:
        if sample.rss_mib is not None:
            workers = f" + {_gib(sample.children_rss_mib)} of its workers" if sample.children_rss_mib else ""
            cells.append([(f"{_name(sample)} {_gib(sample.rss_mib)} GiB{workers}", "")])
    if not cells:
        return []
    columns = max(1, (width + 2) // (max(len(cell[0][0]) for cell in cells) + 2))
    if math.ceil(len(cells) / columns) <= room:
        return _in_columns(cells, columns)
    known = [sample for sample in samples if sample.rss_mib is not None]
    most = max(known, key=lambda sample: sample.rss_mib or 0)
    return [[(f"{len(samples)} processes, each {_gib(most.rss_mib)} GiB at most (rank {most.rank} on {most.host})", "")]]


def _worst(progress: Progress) -> list[Line]:
    sample = progress.worst
    if sample is None or len(progress.samples) < 2:
        return []
    part = _part(sample)
    if part is None:
        return []
    gpu = "" if sample.gpu_index is None else f", GPU {sample.gpu_index}"
    used = f"{_gib(sample.gpu_used_mib)} of {_gib(sample.gpu_total_mib)} GiB"
    return [[(f"worst: rank {sample.rank} on {sample.host}{gpu}: {used} ({part:.0%})", _style(part))]]


def _host(samples: Sequence[Sample], width: int, plain: bool) -> list[Line]:
    """Return the fullest host, and the fullest limit of a job on a node."""
    full, short, bare = (_host_line(samples, length, plain) for length in (24, 12, 0))
    for line in (full, short, bare):
        if sum(len(text) for text, _ in line) <= width:
            return [line] if line else []
    return [bare[:3]]


def _host_line(samples: Sequence[Sample], length: int, plain: bool) -> Line:
    line: Line = []
    several = len({sample.host for sample in samples}) > 1
    for word, used, total in (("host", "node_used_mib", "node_total_mib"), ("job's limit", "cgroup_used_mib", "cgroup_limit_mib")):
        known = [(part, sample) for sample in samples if (part := part_of(getattr(sample, used), getattr(sample, total))) is not None]
        if known:
            part, sample = max(known, key=lambda each: (each[0], -each[1].rank))
            line += [("   ", "")] if line else []
            name = f"{word} {_short(sample.host)}" if several or word == "host" else word
            line += [(f"{name} ", ""), (charts.bar(part, length, plain=plain) + " " if length else "", _style(part))]
            line.append((f"{_gib(getattr(sample, used))}/{_gib(getattr(sample, total))} GiB", ""))
    return line


def _part(sample: Sample) -> float | None:
    return part_of(sample.gpu_used_mib, sample.gpu_total_mib)


def _style(part: float | None) -> str:
    return "bad" if part is not None and part >= _FULL else "green"


def _gib(mib: int | None) -> str:
    return "-" if mib is None else f"{mib / 1024:.1f}" if mib < 100 * 1024 else f"{mib / 1024:.0f}"
