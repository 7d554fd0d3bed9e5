"""The page: what is hostile stays text, and single values can be seen."""

import json
from html.parser import HTMLParser
from pathlib import Path

from hpctrain.report import document, html, model
from hpctrain.runs import store
from hpctrain.runs.job_state import State
from tests.report import made_runs

HOSTILE = (
    '</script><script>window.hit=1</script><img src=x onerror="window.hit=1"> \' " & {{ 7*7 }}'
    " \u202e"
)


class Page(HTMLParser):
    """The elements of a page, their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(runs: Path, run_id: str = "pretrain-1") -> str:
    run = store.read_run(runs, run_id)
    assert run is not None
    given = model.ExternalFacts(state=State("completed"), owner="me", now=made_runs.AT + 20_000)
    return html.page(document.of_run(model.gather(run, runs, given)))


def test_what_is_hostile_stays_text(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    run = made_runs.gpu_run(runs, ranks=2, steps=200, restarts=0)
    path = run / "attempts" / "4711.0"
    start = json.loads((path / "start.json").read_text())
    made_runs.write(path / "start.json", start | {"host": HOSTILE})
    environment = {"python": HOSTILE, "packages": [HOSTILE], "versions": {HOSTILE: HOSTILE}}
    made_runs.write(path / "environment.json", environment)
    samples = run / "memory" / "rank-1.jsonl"
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    samples.write_text(
        "".join(json.dumps(row | {"host": HOSTILE, "gpu_name": HOSTILE}) + "\n" for row in lines)
    )
    launch = runs / ".launches" / "pretrain-1"
    config = {"job_name": HOSTILE, "training": {"run_name": HOSTILE}}
    origins = {"job_name": HOSTILE, "training.run_name": "x"}
    made_runs.write(launch / "config.json", {"schema": 1, "config": config, "origins": origins})
    made_runs.write(launch / "code.json", {"commit": HOSTILE, "branch": HOSTILE, "digest": HOSTILE})
    logs = tmp_path / "logs"
    logs.mkdir()
    (run / "script.sbatch").write_text(f"#!/bin/bash\n#SBATCH --output={logs}/out_%j.log\n")
    (logs / "out_4711.log").write_text(
        f"{HOSTILE}\n" + "y" * 10_000_000 + f"\n\0\x1b[31m{HOSTILE}\n"
    )
    page = page_of(runs)
    seen = Page(page)
    assert not seen.tags & {"script", "img", "link", "iframe"}
    assert not [name for name in seen.attributes if name.startswith("on")]
    assert seen.text.count("window.hit=1</script>") >= 6, "shown as the text that it is"
    assert "\u202e" not in page
    assert "{{ 7*7 }}" in seen.text
    assert len(page) < 1_000_000
