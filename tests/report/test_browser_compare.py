"""Pages that are hard to draw: many parameters, many restarts, one sample.

Nothing lies on anything, nothing is cut.
"""

import random
from pathlib import Path

import pytest

from hpctrain.report import compare, document, html, model
from hpctrain.report.model import ExternalFacts
from hpctrain.runs import store
from hpctrain.runs.job_state import State
from tests.report import made_runs
from tests.report.browser import Browser

pytestmark = pytest.mark.slow

#: Texts of a chart that lie on each other, or beyond its edge.
OVER = """[...document.querySelectorAll('svg.chart')].flatMap(svg => {
  const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim()).map(t => [t.textContent, t.getBoundingClientRect()]);
  const box = svg.getBoundingClientRect(), found = [];
  texts.forEach(([name, a], at) => {
    if (a.left < box.left - 1 || a.right > box.right + 1 || a.bottom > box.bottom + 1) found.push(`${svg.id}: ${name} is cut`);
    texts.slice(at + 1).forEach(([other, b]) => {
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3) found.push(`${name} on ${other}`);
    });
  });
  return found;
})"""
OPTIMISERS = ("adamw_torch", "adafactor", "lion_8bit_of_a_very_long_name")


def sweep(runs: Path, tag: str, points: list[dict[str, object]]) -> str:
    """Return the page of a sweep of these points."""
    found, chance = [], random.Random(2)
    for number, values in enumerate(points):
        run = runs / f"{tag}_{number}"
        at, loss = made_runs.AT, 2.1 + chance.random()
        made_runs.write(
            run / "run.json",
            {
                "schema": 1,
                "run_id": run.name,
                "tag": tag,
                "name": tag,
                "created": at,
                "index": number,
            },
        )
        made_runs.write(run / "point.json", {"schema": 1, "values": values})
        made_runs.write(
            run / "attempts" / "1.0" / "start.json",
            {"schema": 1, "job_id": "1", "restart": 0, "at": at},
        )
        rows = "".join(
            f'{{"event": "log", "step": {step}, "at": {at + step}, "loss": {loss + 1 / step}}}\n'
            for step in (1, 2, 3)
        )
        (run / "attempts" / "1.0" / "metrics.jsonl").write_text(
            f'{{"event": "begin", "step": 0, "at": {at}}}\n{rows}'
        )
        read = store.read_run(runs, run.name)
        assert read is not None
        found.append(read)
    given = {run.id: ExternalFacts(state=State("completed"), owner="me") for run in found}
    compared = compare.gather(
        found, runs, given, title=tag, study=None, metric=None, now=made_runs.AT
    )
    return html.page(document.of_comparison(compared))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the pages by their names."""
    chance = random.Random(1)
    many: list[dict[str, object]] = [
        {
            "learning_rate": 10 ** chance.uniform(-5, -2),
            "per_device_train_batch_size": chance.choice([1, 2, 4, 8]),
            "optim": chance.choice(OPTIMISERS),
            "warmup_ratio": chance.uniform(0, 0.2),
            "bf16": chance.choice([True, False]),
            "weight_decay": chance.choice([0, 0.01, 0.1]),
        }
        for _ in range(30)
    ]
    two = [
        {key: point[key] for key in ("learning_rate", "per_device_train_batch_size")}
        for point in many
    ]
    where = tmp_path_factory.mktemp("pages")
    texts = {
        name: sweep(where / "runs", name, points) for name, points in (("many", many), ("two", two))
    }
    for name, restarts, steps in (("restarts", 12, 1300), ("short", 0, 10)):
        made_runs.gpu_run(
            where / "runs", name, ranks=2, steps=steps, restarts=restarts, memory_every=10
        )
        run = store.read_run(where / "runs", name)
        assert run is not None
        given = ExternalFacts(state=State("completed"), owner="me")
        texts[name] = html.page(document.of_run(model.gather(run, where / "runs", given)))
    for name, text in texts.items():
        (where / f"{name}.html").write_text(text)
    return {name: where / f"{name}.html" for name in texts}


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["many", "two", "restarts", "short"])
def test_no_text_lies_on_another(
    chromium: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    chromium.open(pages[name], width=width)
    assert chromium.evaluate(OVER) == []
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    assert chromium.complaints == []


def test_a_single_sample_can_be_seen(pages: dict[str, Path]) -> None:
    text = pages["short"].read_text()
    chart = text[
        text.index('id="host"') if 'id="host"' in text else text.index("Host memory of the job") :
    ]
    assert " dots" in chart[: chart.index("</svg></g>")], "two samples of one moment are no line"
