"""Write the GPU figures of docs/performance.md from the files that `run.py` left.

    python bench/gpu/page.py                  # from bench/gpu/results
    python bench/gpu/page.py results/*.json

Each figure has its command, card, driver, versions and date. What was not measured is listed too.
Results of `--tiny` are refused: they are no figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
BEGIN, END = "<!-- GPU figures, written by bench/gpu/page.py -->\n", "<!-- end of GPU figures -->\n"
RESULTS = Path(__file__).resolve().parent / "results"
GIB = 1 << 30


def main(words: Sequence[str] | None = None) -> int:
    """Write the page; exit code 2 for a file that holds no measurements of a GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args(words)
    parts: dict[str, dict[str, Any]] = {}
    for file in arguments.files or sorted(RESULTS.glob("*.json")):
        part = json.loads(file.read_text(encoding="utf-8"))
        if part["tiny"] or part["machine"]["gpu"] is None:
            sys.stderr.write(f"error: {file} was not measured on a GPU\n")
            return 2
        parts[part["part"]] = part
    text = arguments.page.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    arguments.page.write_text(head + BEGIN + section(parts) + END + tail, encoding="utf-8")
    return 0


def section(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the Markdown of all parts."""
    lines: list[str] = []
    for name, function in run.PARTS.items():
        about = (function.__doc__ or "").partition("\n")[0]
        lines += ["", f"### {name}: {about}", ""]
        if name not in parts:
            lines.append(f"**Not measured yet**: `bench/gpu/start {name} --out results`")
            continue
        lines += [source(name, parts[name]), "", "| measurement | figures |", "|---|---|"]
        lines += [
            f"| {title} | {figures(row)} |" for title, row in parts[name]["measurements"].items()
        ]
    return "\n".join([*lines, "", ""])


def source(name: str, part: Mapping[str, Any]) -> str:
    """Return where the figures of a part come from."""
    machine = part["machine"]
    card = machine["gpu"]
    dates = sorted({row["at"][:10] for row in part["measurements"].values() if "at" in row})
    versions = ", ".join(f"{key} {value}" for key, value in machine["versions"].items() if value)
    return (
        f"`bench/gpu/start {name}`; {card['name']}, driver {card['driver_version']}; {versions};"
        f" {' to '.join(dict.fromkeys([*dates[:1], *dates[-1:]]))}"
    )


def figures(row: Mapping[str, Any]) -> str:
    """Return what a measurement found, in words for a table."""
    for state in ("error", "skipped", "pending"):
        if state in row:
            text = str(row[state]).partition("\n")[0].replace("|", "\\|")
            return f"{'failed' if state == 'error' else state}: {text}"
    result = row["result"]
    if not isinstance(result, Mapping):
        return "`" + str(result).replace("|", "\\|") + "`"
    found = [
        f"{title} {form(value)}"
        for title, key, form in FIGURES
        if (value := value_of(result, key)) is not None
    ]
    return "; ".join(found) or "done"


def value_of(result: Mapping[str, Any], path: str) -> Any:
    """Return `result[a][b]` for `a.b`, None where it is not there."""
    found: Any = result
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def gib(count: float) -> str:
    """Return bytes as GiB."""
    return f"{count / GIB:.2f} GiB"


#: What a table shows of a result, where the result has it: title, place, form.
FIGURES = (
    ("useful tokens/s", "useful_tokens_per_s", lambda value: f"{value:,.0f}"),
    ("useful tokens/s", "speed.useful_tokens_per_s", lambda value: f"{value:,.0f}"),
    ("of the matrix product", "mfu", "{:.1%}".format),
    ("MFU", "speed.mfu", "{:.1%}".format),
    ("s a step", "speed.step_s", "{:.4f}".format),
    ("padding", "padding_share", "{:.0%}".format),
    ("peak", "peak_bytes", gib),
    ("predicted", "predicted_allocated", gib),
    ("predicted", "predicted.allocated", gib),
    ("measured", "measured.allocated", gib),
    ("predicted tokens/s", "predicted.tokens_per_s", lambda value: f"{value:,.0f}"),
    ("step s", "step_s", "{:.4f}".format),
    ("busy on the device s", "device_s", "{:.4f}".format),
    ("error", "error", "{:.2e}".format),
    ("error of bfloat16", "error_of_bfloat16", "{:.2e}".format),
    ("torch's peak", "peaks.torch_peak_mib", lambda value: gib(value * run.MIB)),
    ("reserved", "peaks.torch_reserved_mib", lambda value: gib(value * run.MIB)),
    ("NVML's", "peaks.gpu_used_mib", lambda value: gib(value * run.MIB)),
    ("predicted / torch's", "ratio_allocated", "{:.3f}".format),
    ("TFLOP/s", "flops", lambda value: f"{value / 1e12:.0f}"),
    ("TB/s", "bytes_per_s", lambda value: f"{value / 1e12:.2f}"),
    ("same weights", "same_weights", str),
    ("stopped at step", "stopped_at_step", str),
    ("diagnoses", "diagnoses", lambda value: json.dumps(value)[:200]),
    ("steps", "steps", str),
    ("wall s", "wall_s", str),
)

if __name__ == "__main__":
    sys.exit(main())
