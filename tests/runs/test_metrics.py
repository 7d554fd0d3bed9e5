"""What a run logged, read over all of its attempts."""

import json
from pathlib import Path
from typing import Any

from hpctrain.runs import history


def row(event: str, step: int, at: float, **values: float) -> dict[str, Any]:
    return {"event": event, "step": step, "epoch": None, "at": at, **values}


def write(
    run: Path,
    attempt: str,
    rows: list[dict[str, Any]],
    *,
    started: float | None = None,
    tail: str = "",
) -> Path:
    folder = run / "attempts" / attempt
    folder.mkdir(parents=True)
    if started is not None:
        (folder / "start.json").write_text(json.dumps({"schema": 1, "at": started}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows) + tail)
    return folder / "metrics.jsonl"


def losses(run: Path) -> list[tuple[int, float]]:
    return [(each["step"], each["loss"]) for each in history.read_rows(run) if "loss" in each]


def test_a_start_from_nothing_replaces_everything_and_order_is_by_time(tmp_path: Path) -> None:
    """Attempt 10 began before attempt 9 by name, and 99 has no start.json."""
    write(tmp_path, "10.0", [row("begin", 0, 5), row("log", 1, 6, loss=1)], started=5)
    write(tmp_path, "9.0", [row("begin", 0, 8), row("log", 1, 9, loss=2)], started=8)
    write(tmp_path, "99.0", [row("begin", 1, 12), row("log", 2, 13, loss=3)])
    assert losses(tmp_path) == [(1, 2), (2, 3)]


def test_several_starts_in_one_file(tmp_path: Path) -> None:
    """Outside Slurm all starts of a run have the same name."""
    rows = [
        row("begin", 0, 1),
        row("log", 1, 2, loss=1),
        row("log", 2, 3, loss=2),
        row("begin", 1, 4),
        row("log", 2, 5, loss=3),
    ]
    write(tmp_path, "local.0", rows)
    assert losses(tmp_path) == [(1, 1), (2, 3)]


def test_nothing_there_and_nonsense(tmp_path: Path) -> None:
    assert list(history.read_rows(tmp_path / "nowhere")) == []
    file = write(tmp_path, "1.0", [row("begin", 0, 1)])
    nonsense = [
        b"\xff\xfe\n",
        b"[1]\n",
        b'{"event": "log"}\n',
        b'{"event": "else", "step": 1, "at": 1}\n',
        b"[" * 100_000 + b"\n",
        b"\n",
    ]
    file.write_bytes(
        b"".join(nonsense)
        + file.read_bytes()
        + b'{"event": "log", "step": 1, "at": 2, "epoch": null}'
    )
    assert [each["event"] for each in history.read_rows(tmp_path)] == ["begin"]
