"""A report as one self-contained HTML file: no network, and no external font, script or style.

The template escapes all values from a run. The page's content security policy forbids requests and
scripts.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import itertools
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from hpctrain.report import charts
from hpctrain.report.charts import Chart
from hpctrain.report.document import Block, Document
from hpctrain.util import text

MARK = "hpctrain report"
"""Generator tag at the start of a page, by which it is recognized."""
#: Control characters, bidirectional overrides and lone surrogates; none may be in a page.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def page(document: Document) -> str:
    """Render the page."""
    here = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(here),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["figure"] = figure
    environment.filters["groups"] = _groups
    style = (here / "page.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    html = environment.get_template("page.html.j2").render(
        document=document,
        mark=MARK,
        style=_markup(style),
        style_hash=f"sha256-{digest}",
        footer=(
            f"hpctrain {importlib.metadata.version('hpctrain')}, {text.date(document.at)}. Times are in"
            " the time zone of the machine that wrote this page."
        ),
    )
    return _CONTROL.sub("\ufffd", html)


def _groups(blocks: Iterable[Block]) -> Iterable[tuple[bool, list[Block]]]:
    """Group consecutive blocks by whether they are charts, which are placed side by side."""
    for drawn, found in itertools.groupby(blocks, key=lambda block: isinstance(block, Chart)):
        yield drawn, list(found)


def _markup(html: str) -> Markup:
    """Mark HTML that the template must not escape: generated here, with all external text
    escaped.
    """
    return Markup(html)  # noqa: S704 - our own files and drawings, escaped where they are made


def figure(chart: Chart) -> dict[str, Any]:
    """Return the template variables of a chart."""
    return {
        "id": chart.id,
        "title": chart.title,
        "says": chart.says,
        "svg": _markup(charts.to_svg(chart)),
        "keys": _keys(chart),
    }


def _keys(chart: Chart) -> list[tuple[str, str]]:
    """Return (class of the line, name) for each colored line, and a label for the others."""
    coloured = [line for line in chart.series if line.colour is not None]
    found = [
        (f"line c{(line.colour or 0) % 8}{' strong' * line.emphasis}", line.name)
        for line in coloured
        if len(chart.series) > 1
    ]
    if others := len(chart.series) - len(coloured):
        found.append(("line many", f"{others} others"))
    if not all(math.isfinite(y) for line in chart.series for y in line.y):
        found.append(("bad", "NaN or infinite"))
    kinds = dict.fromkeys("restart" if rule.y is None else "limit" for rule in chart.rules)
    return found + [(f"rule {kind}", kind) for kind in kinds]
