"""What a run logged, read over all of its attempts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.runs import metrics


def row(event: str, step: int, at: float, **values: float) -> dict[str, Any]:
    return {"event": event, "step": step, "epoch": None, "at": at, **values}


def write(run: Path, attempt: str, rows: list[dict[str, Any]], *, started: float | None = None, tail: str = "") -> Path:
    folder = run / "attempts" / attempt
    folder.mkdir(parents=True)
    if started is not None:
        (folder / "start.json").write_text(json.dumps({"schema": 1, "at": started}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows) + tail)
    return folder / "metrics.jsonl"


def losses(run: Path) -> list[tuple[int, float]]:
    return [(each["step"], each["loss"]) for each in metrics.read(run) if "loss" in each]


def test_a_step_that_was_done_again_counts_once(tmp_path: Path) -> None:
    first = [row("begin", 0, 1), *(row("log", step, 1 + step, loss=step) for step in range(1, 8))]
    second = [row("begin", 4, 20), *(row("log", step, 20 + step, loss=100 + step) for step in range(5, 7))]
    write(tmp_path, "1.1", second, started=19, tail='{"event": "log", "step": 7, "epo')
    write(tmp_path, "1.0", first, started=0)
    # Step 7 of the first start is lost work, though nobody has done it again yet.
    assert losses(tmp_path) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 105), (6, 106)]
    assert [each["event"] for each in metrics.read(tmp_path)].count("begin") == 2
    assert metrics.last(tmp_path) == second[-1]


def test_a_start_from_nothing_replaces_everything_and_order_is_by_time(tmp_path: Path) -> None:
    """Attempt 10 began before attempt 9 by name, and 99 has no start.json."""
    write(tmp_path, "10.0", [row("begin", 0, 5), row("log", 1, 6, loss=1)], started=5)
    write(tmp_path, "9.0", [row("begin", 0, 8), row("log", 1, 9, loss=2)], started=8)
    write(tmp_path, "99.0", [row("begin", 1, 12), row("log", 2, 13, loss=3)])
    assert losses(tmp_path) == [(1, 2), (2, 3)]


def test_several_starts_in_one_file(tmp_path: Path) -> None:
    """Outside Slurm all starts of a run have the same name."""
    rows = [row("begin", 0, 1), row("log", 1, 2, loss=1), row("log", 2, 3, loss=2), row("begin", 1, 4), row("log", 2, 5, loss=3)]
    write(tmp_path, "local.0", rows)
    assert losses(tmp_path) == [(1, 1), (2, 3)]


def test_nothing_there_and_nonsense(tmp_path: Path) -> None:
    assert list(metrics.read(tmp_path / "nowhere")) == []
    assert metrics.last(tmp_path / "nowhere") is None
    file = write(tmp_path, "1.0", [row("begin", 0, 1)])
    nonsense = [b"\xff\xfe\n", b"[1]\n", b'{"event": "log"}\n', b'{"event": "else", "step": 1, "at": 1}\n', b"[" * 100_000 + b"\n", b"\n"]
    file.write_bytes(b"".join(nonsense) + file.read_bytes() + b'{"event": "log", "step": 1, "at": 2, "epoch": null}')
    assert [each["event"] for each in metrics.read(tmp_path)] == ["begin"]
    assert metrics.last(tmp_path) == row("begin", 0, 1)
    (tmp_path / "attempts" / "2.0").mkdir()
    assert metrics.last(tmp_path) == row("begin", 0, 1)


def test_last_of_a_kind_reads_the_end_only(tmp_path: Path) -> None:
    file = write(tmp_path, "1.0", [row("log", step, step, loss=1 / step) for step in range(1, 5000)] + [row("save", 4999, 5000)])
    before = metrics._TAIL_BYTES
    assert file.stat().st_size > 4 * before
    assert metrics.last(tmp_path) == row("save", 4999, 5000)
    assert metrics.last(tmp_path, "log") == row("log", 4999, 4999, loss=1 / 4999)
    assert metrics.last(tmp_path, "begin") is None
    # The beginning of the file is not looked at.
    with file.open("r+b") as stream:
        stream.write(b"\0" * 100_000)
    assert metrics.last(tmp_path, "log") == row("log", 4999, 4999, loss=1 / 4999)


@settings(max_examples=50, deadline=None)
@given(starts=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8)), min_size=1, max_size=5))
def test_the_curve_is_what_the_last_start_saw(tmp_path_factory: Any, starts: list[tuple[int, int]]) -> None:
    """Whatever the starts resumed and did: no step twice, steps in order, and each from the newest start that did it."""
    run = tmp_path_factory.mktemp("run")
    truth: dict[int, float] = {}
    for number, (asked, done) in enumerate(starts):
        begin = min(asked, max(truth, default=0))
        truth = {step: value for step, value in truth.items() if step <= begin}
        new = {step: float(number) for step in range(begin + 1, begin + done + 1)}
        truth |= new
        rows = [row("begin", begin, number * 100), *(row("log", step, number * 100 + step, loss=value) for step, value in new.items())]
        write(run, f"{number}.0", rows)
    assert losses(run) == sorted(truth.items())


def test_it_is_torch_free() -> None:
    code = "import sys; from hpctrain.runs import metrics, environment; print({'torch', 'transformers', 'click'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
