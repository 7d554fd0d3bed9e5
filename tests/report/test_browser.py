"""The page in a real browser: it renders, complains about nothing, asks the network for nothing,
and can be used.
"""

import json
import re
from pathlib import Path

import pytest

from hpctrain.report import document, html, model
from hpctrain.report.model import ExternalFacts
from hpctrain.runs import store
from hpctrain.runs.job_state import State
from tests.report import made_runs
from tests.report.browser import Browser

pytestmark = pytest.mark.slow

HOSTILE = (
    '</script><script>window.hit=1</script><img src=x onerror="window.hit=1"> \' " & {{ 7*7 }}'
    " \u202e"
)


def write(runs: Path, to: Path, run_id: str = "pretrain-1") -> Path:
    run = store.read_run(runs, run_id)
    assert run is not None
    to.write_text(
        html.page(
            document.of_run(
                model.gather(
                    run,
                    runs,
                    ExternalFacts(state=State("completed"), owner="me", now=made_runs.AT + 20_000),
                )
            )
        )
    )
    return to


def quiet(chromium: Browser, file: Path) -> None:
    assert chromium.complaints == []
    assert chromium.requests == [file.as_uri()], "the page asked for something"


@pytest.mark.parametrize(
    ("width", "dark"), [(1280, False), (1280, True), (400, False), (400, True)]
)
def test_it_renders_in_every_light_and_width(
    chromium: Browser, eight: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    file = write(eight, tmp_path / "report.html")
    chromium.open(file, width=width, dark=dark)
    quiet(chromium, file)
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width, (
        "it has to be pushed sideways"
    )
    assert chromium.evaluate("document.querySelectorAll('svg.chart').length") >= 10
    ground = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 150) is dark
    small = chromium.evaluate(
        "Math.min(...[...document.querySelectorAll('svg.chart text')].map(t =>"
        " t.getBoundingClientRect().height).filter(Boolean))"
    )
    assert small >= 9, "letters that nobody can read"
    assert len(chromium.screenshot(tmp_path / "page.png")) > 20_000


def test_hovering_says_the_value(chromium: Browser, eight: Path, tmp_path: Path) -> None:
    chromium.open(write(eight, tmp_path / "report.html"), height=6000)
    box = chromium.evaluate(
        "(b => [b.left, b.top, b.width, b.height])(document.querySelector('#loss"
        " .hit').getBoundingClientRect())"
    )
    left, top, wide, high = box
    chromium.mouse("mouseMoved", left + wide / 2, top + high / 2)
    said = chromium.evaluate(
        "document.querySelector('#loss').parentElement.querySelector('.tip').textContent"
    ).split("\n")
    assert re.fullmatch(r"step \d+", said[0])
    step = int(said[0].split()[1])
    assert abs(step - 1005) <= 10, "the middle of 10 to 2000"
    near = min(made_runs_log(eight), key=lambda row: abs(row["step"] - step))
    assert said[1].startswith("train: ")
    assert abs(float(said[1].split()[1]) - near["loss"]) < 1e-3
    assert not chromium.evaluate(
        "document.querySelector('#loss').parentElement.querySelector('.tip').hidden"
    )
    chromium.mouse("mouseMoved", left + wide / 2, top - 40)
    assert chromium.evaluate(
        "document.querySelector('#loss').parentElement.querySelector('.tip').hidden"
    )


def made_runs_log(runs: Path) -> list[dict[str, float]]:
    from hpctrain.runs import history

    return [
        {"step": point.step, "loss": point.values["loss"]}
        for point in history.read(runs / "pretrain-1").of("log")
    ]


def test_dragging_zooms_every_chart_and_escape_shows_all(
    chromium: Browser, eight: Path, tmp_path: Path
) -> None:
    chromium.open(write(eight, tmp_path / "report.html"), height=6000)
    view = "document.querySelector('#{} .plot').getAttribute('viewBox')"
    before = chromium.evaluate(view.format("loss"))
    left, top, wide, high = chromium.evaluate(
        "(b => [b.left, b.top, b.width, b.height])(document.querySelector('#loss"
        " .hit').getBoundingClientRect())"
    )
    chromium.mouse("mouseMoved", left + wide / 4, top + high / 2)
    chromium.mouse("mousePressed", left + wide / 4, top + high / 2)
    chromium.mouse("mouseMoved", left + wide / 2, top + high / 2)
    chromium.mouse("mouseReleased", left + wide / 2, top + high / 2)
    assert chromium.evaluate(view.format("loss")) != before
    assert chromium.evaluate(view.format("loss")) == chromium.evaluate(view.format("lr"))
    assert chromium.evaluate(view.format("tokens")) == chromium.evaluate(view.format("loss"))
    ticks = chromium.evaluate(
        "[...document.querySelectorAll('#loss .xticks text')].map(t =>"
        " Number(t.textContent.replace(',', '')))"
    )
    assert ticks
    assert all(500 <= tick <= 1010 for tick in ticks)
    chromium.call("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert chromium.evaluate(view.format("loss")) == before
    assert chromium.complaints == []


def test_without_its_script_it_says_the_same(
    chromium: Browser, eight: Path, tmp_path: Path
) -> None:
    file = write(eight, tmp_path / "report.html")
    chromium.open(file)
    with_script = chromium.evaluate(
        "document.querySelector('main').innerText.replaceAll('show all', '').replace(/\\s+/g, ' ')"
    )
    chromium.open(file, script=False)
    # Scripts of the page are off; the protocol's own may still look.
    root = chromium.call("DOM.getDocument")["root"]["nodeId"]
    node = chromium.call("DOM.querySelector", nodeId=root, selector="main")["nodeId"]
    html = chromium.call("DOM.getOuterHTML", nodeId=node)["outerHTML"]
    assert 'class="tip"' not in html
    for word in ("GPU hours", "rank 3", "#SBATCH --mem=", "pretrain", "lost"):
        assert (word in with_script) == (word in html)
    assert html.count('<path class="line') >= 20


def test_what_is_hostile_stays_text(chromium: Browser, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    run = made_runs.gpu_run(runs, ranks=2, steps=200, restarts=0)
    path = run / "attempts" / "4711.0"
    start = json.loads((path / "start.json").read_text())
    made_runs.write(path / "start.json", start | {"host": HOSTILE})
    made_runs.write(
        path / "environment.json",
        {
            "python": HOSTILE,
            "packages": [HOSTILE],
            "variables": {HOSTILE: HOSTILE},
            "versions": {HOSTILE: HOSTILE},
        },
    )
    lines = [
        json.loads(line) for line in (run / "memory" / "rank-1.jsonl").read_text().splitlines()
    ]
    (run / "memory" / "rank-1.jsonl").write_text(
        "".join(json.dumps(row | {"host": HOSTILE, "gpu_name": HOSTILE}) + "\n" for row in lines)
    )
    launch = runs / ".launches" / "pretrain-1"
    config = {"job_name": HOSTILE, "training": {"run_name": HOSTILE}}
    made_runs.write(
        launch / "config.json",
        {"schema": 1, "config": config, "origins": {"job_name": HOSTILE, "training.run_name": "x"}},
    )
    made_runs.write(launch / "code.json", {"commit": HOSTILE, "branch": HOSTILE, "digest": HOSTILE})
    logs = tmp_path / "logs"
    logs.mkdir()
    (run / "script.sbatch").write_text(f"#!/bin/bash\n#SBATCH --output={logs}/out_%j.log\n")
    (logs / "out_4711.log").write_text(
        f"{HOSTILE}\n" + "y" * 10_000_000 + f"\n\0\x1b[31m{HOSTILE}\n"
    )
    file = write(runs, tmp_path / "report.html")
    chromium.open(file)
    quiet(chromium, file)
    assert chromium.evaluate("window.hit") is None
    assert chromium.evaluate("document.querySelectorAll('img').length") == 0
    text = chromium.evaluate("document.body.textContent")
    assert text.count("window.hit=1</script>") >= 6, "shown as the text that it is"
    assert "\u202e" not in text
    assert "49" not in chromium.evaluate("document.querySelector('#s-config').textContent")
    assert file.stat().st_size < 1_000_000
