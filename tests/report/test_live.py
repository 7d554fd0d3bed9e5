"""Frames fit the terminal whatever is in them, and the painter writes little and shows the same as a whole frame would."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from typing import Any

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.memory.sample import Sample
from hpctrain.report import live, live_many, live_paint, live_ranks
from hpctrain.report.idle import Idle
from hpctrain.report.live import View
from hpctrain.report.live_paint import Line, Painter
from hpctrain.runs.progress import Progress


def sample(rank: int, world: int = 64, **more: Any) -> Sample:
    values: dict[str, Any] = {
        "time_ms": 1_794_600_000_000, "step": 10, "event": "step", "host": f"lrdn{rank // 4 + 1:04}.leonardo.local", "rank": rank,
        "world_size": world, "local_rank": rank % 4, "gpu_index": rank % 4, "gpu_used_mib": 60_000 + 100 * rank, "gpu_total_mib": 81_559,
        "gpu_utilisation_percent": 97, "node_used_mib": 120_345, "node_total_mib": 515_000, "cgroup_used_mib": 9_000,
        "cgroup_limit_mib": 64_000,
    }  # fmt: skip
    return Sample(**values | more)


def progress(ranks: int = 64, **more: Any) -> Progress:
    values: dict[str, Any] = {
        "step": 120, "max_steps": 1000, "epoch": 0.17, "loss": 8.2448, "eval_loss": 8.19, "tokens_per_s": 142_400.0, "mfu": 0.412,
        "data_wait": 0.002, "step_s": 0.43, "losses": tuple((step, 2 + 6 * math.exp(-step / 40)) for step in range(1, 121)),
        "samples": tuple(sample(rank, ranks) for rank in range(ranks)),
    }  # fmt: skip
    return Progress(**values | more)


IDLE = Idle(
    id="gpu-idle", what="the GPU of rank 3 on n1 does nothing", cause="likely: it hangs", fix="hpctrain logs --rank 3", rank=3, node="n1"
)
VIEW = View(
    title="sft-261121-031508-7f3a", job="job 123 on Slurm", state="running for 0:03:12 of 2:00:00 on 16 nodes", level="run",
    progress=progress(), eta_s=800.0, fits=True, verdict="done in about 13 min; the time limit leaves 1.9 h", idle=(IDLE,),
    saved="saved checkpoint-100, 2 min ago", warnings=("first", "[train] warning: the training waits for its data"), clock="04:22:49",
)  # fmt: skip


def texts(lines: list[Line]) -> list[str]:
    return [live_paint.text(line) for line in lines]


def test_a_frame_of_64_ranks_has_everything_in_80_by_24() -> None:
    lines = texts(live.frame(VIEW, 79, 22))
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 79
    whole = "\n".join(lines)
    for part in (
        "sft-261121-031508-7f3a", "job 123 on Slurm   04:22:49", "running for 0:03:12 of 2:00:00", " 12%  step 120 of 1000, epoch 0.17",
        "done in about 13 min; the time limit leaves 1.9 h",
        "loss 8.2448  eval 8.19  tokens/s 142400  MFU 41.2%  data wait 0.2%  step 0.43 s",
        "64 ranks on 16 nodes",
        "worst: rank 63 on lrdn0016.leonardo.local, GPU 3: 64.7 of 79.6 GiB (81%)", "host lrdn0001 ", "job's limit",
        "the GPU of rank 3 on n1 does nothing", "likely: it hangs", "fix: hpctrain logs --rank 3",
        "warning: the training waits for its data",
        "saved checkpoint-100, 2 min ago",
    ):  # fmt: skip
        assert part in whole, part
    assert sum("lrdn00" in line and "▇" in line for line in lines) >= 3


def test_few_ranks_have_a_line_each() -> None:
    lines = texts(live.frame(dataclasses.replace(VIEW, progress=progress(4), idle=()), 79, 22))
    rows = [line for line in lines if line.startswith("rank ")]
    assert [row[:20].split(" ▕")[0] for row in rows] == [f"rank {rank} lrdn0001:{rank}" for rank in range(4)]
    assert all("GiB" in row and row.endswith("97%") for row in rows)


def test_a_wide_terminal_has_columns() -> None:
    lines = texts(live.frame(VIEW, 199, 60))
    assert sum("rank " in line and line.count("GiB") == 2 for line in lines) == 32


def test_more_nodes_than_there_is_room_for_show_the_fullest() -> None:
    many = progress(1024, samples=tuple(sample(rank, 1024, gpu_used_mib=80_000 if rank == 777 else 10_000) for rank in range(1024)))
    lines = texts(live_ranks.lines(many, 79, 8))
    assert len(lines) <= 8
    assert "1024 ranks on 256 nodes" in lines[0]
    assert any("lrdn0195" in line for line in lines)
    assert any(line.startswith("and ") and "nodes more: memory at most 12%" in line for line in lines)
    assert any("worst: rank 777" in line for line in lines)


def test_without_gpus_the_processes_are_shown() -> None:
    none = dict.fromkeys(("gpu_index", "gpu_used_mib", "gpu_total_mib", "gpu_utilisation_percent"))
    two = progress(2, samples=tuple(sample(rank, 2, rss_mib=2048, host="127.0.0.1", **none) for rank in range(2)))
    lines = texts(live_ranks.lines(two, 79, 5))
    assert lines[0] == "rank 0 127.0.0.1 2.0 GiB  rank 1 127.0.0.1 2.0 GiB"
    assert lines[1].startswith("host 127.0.0.1 ▕")


@pytest.mark.parametrize("plain", [True, False])
@settings(max_examples=30)
@given(
    st.integers(20, 250), st.integers(3, 70), st.integers(0, 70), st.booleans(),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=200), max_size=4),
)  # fmt: skip
def test_no_frame_is_larger_than_asked(  # noqa: PLR0917
    plain: bool, width: int, height: int, ranks: int, bare: bool, words: list[str]
) -> None:
    shown = Progress() if bare else progress(ranks)
    view = dataclasses.replace(VIEW, progress=shown, warnings=tuple(words), notes=tuple(words[:1]), title="".join(words[:1]) or "x")
    for lines in (live.frame(view, width, height, plain=plain), live_many.frame([view, VIEW], "sweep", width, height, plain=plain)):
        assert len(lines) <= height
        assert all(len(live_paint.cells(line, width)) <= width for line in lines)


def test_an_ascii_frame_is_ascii() -> None:
    assert "".join(texts(live.frame(VIEW, 79, 22, plain=True))).isascii()
    assert "".join(texts(live_many.frame([VIEW] * 3, "sweep", 79, 22, plain=True))).isascii()


def test_several_runs_have_a_line_each_and_those_that_run_are_seen_first() -> None:
    views = [
        dataclasses.replace(VIEW, title=f"sweep_{index}", level="good", state="completed") if index < 40
        else dataclasses.replace(VIEW, title=f"sweep_{index}")
        for index in range(44)
    ]  # fmt: skip
    views.append(dataclasses.replace(VIEW, title="sweep_44", level="wait", state="waiting: jobs are ahead", progress=Progress(), idle=()))
    lines = texts(live_many.frame(views, "sweep", 79, 22))
    assert lines[0].startswith("sweep: 4 running, 1 waiting, 40 completed")
    assert len(lines) <= 22
    rows = {line.split()[0]: line for line in lines}
    assert all(str(index) in rows for index in range(40, 45)), "without the name of the sweep, which the head says"
    assert rows["44"].endswith(" jobs are ahead"), "in 80 columns, too"
    assert any(line.startswith("and ") for line in lines)
    row = rows["40"]
    assert row.split()[1] == "running"
    assert "120/1000" in row
    assert "13 min" in row


def test_why_a_point_has_failed_is_seen_in_80_columns() -> None:
    tag = "sft-261122-015320-5a19"
    failed = dataclasses.replace(VIEW, title=f"{tag}_17", level="bad", state="failed with exit code 137")
    lines = texts(live_many.frame([failed, dataclasses.replace(VIEW, title=f"{tag}_18")], tag, 79, 22))
    assert next(line for line in lines if line.startswith("17 ")).endswith(" with exit code 137")
    others = texts(live_many.frame([failed, dataclasses.replace(VIEW, title="another")], "2 runs", 130, 22))
    assert any(line.startswith(f"{tag}_17 failed") for line in others), "runs of several names keep them"


# -- the painter -------------------------------------------------------------------------------------------------------


def shown(screen: pyte.Screen) -> list[str]:
    return [line.rstrip() for line in screen.display]


def painted(screen: pyte.Screen) -> dict[tuple[int, int], tuple[str, str, bool]]:
    return {
        (y, x): (cell.data, cell.fg, cell.bold)
        for y, row in screen.buffer.items()
        for x, cell in row.items()
        if cell.data.strip()
    }  # fmt: skip


def terminal(columns: int, rows: int) -> tuple[pyte.Screen, pyte.Stream]:
    screen = pyte.Screen(columns, rows)
    screen.set_mode(pyte.modes.LNM)  # the terminal driver turns line feeds into new lines
    return screen, pyte.Stream(screen)


signs = st.text(st.sampled_from("ab 漢█⣿~e\u0301"), max_size=30)
lines_ = st.lists(st.lists(st.tuples(signs, st.sampled_from(["", "bold", "red", "bad"])), max_size=3), min_size=1, max_size=9)


@given(st.lists(lines_, min_size=1, max_size=6), st.booleans())
def test_frame_upon_frame_shows_what_the_last_one_says(frames: list[list[Line]], colour: bool) -> None:
    screen, stream = terminal(21, 10)
    stream.feed("$ before\r\n")
    painter = Painter(colour=colour)
    for frame in frames:
        stream.feed(painter.frame(frame, 21, 10))
    stream.feed(painter.end())
    fresh, other = terminal(21, 10)
    highest = max(len(frame) for frame in frames)
    other.feed("$ before\r\n" + "\r\n" * highest + f"\x1b[{highest}A" + Painter(colour=colour).frame(frames[-1], 21, 10))
    assert shown(screen) == shown(fresh)
    assert screen.cursor.y == fresh.cursor.y
    if colour:
        assert painted(screen) == painted(fresh)


def test_a_clock_that_ticks_costs_a_few_bytes() -> None:
    painter = Painter(colour=True)
    painter.frame(live.frame(VIEW, 79, 22), 80, 24)
    assert painter.frame(live.frame(VIEW, 79, 22), 80, 24) == ""
    ticked = painter.frame(live.frame(dataclasses.replace(VIEW, clock="04:22:51"), 79, 22), 80, 24)
    assert 0 < len(ticked) < 40


def test_a_new_size_draws_all_anew() -> None:
    painter = Painter(colour=False)
    screen, stream = terminal(80, 24)
    stream.feed(painter.frame(live.frame(VIEW, 79, 22), 80, 24))
    screen.resize(12, 60)
    small = live.frame(VIEW, 59, 10)
    stream.feed(painter.frame(small, 60, 12))
    assert shown(screen)[: len(small)] == ["".join(sign for sign, _ in live_paint.cells(line, 59)) for line in small]


def test_without_colour_there_is_none() -> None:
    written = Painter(colour=False).frame(live.frame(VIEW, 79, 22), 80, 24)
    assert re.findall(r"\x1b\[[0-9;]*m", written) == []
    assert "\x1b[0;1;31m" in Painter(colour=True).frame(live.frame(VIEW, 79, 22), 80, 24)


def test_nothing_in_a_warning_is_an_order_to_the_terminal() -> None:
    view = dataclasses.replace(VIEW, warnings=("\x1b[2J\x07 gone \x9b31m",))
    written = Painter(colour=False).frame(live.frame(view, 79, 22), 80, 24)
    assert "\x1b[2J" not in written
    assert "\x07" not in written
    assert "\x9b" not in written


def test_random_numbers_never_break_a_frame() -> None:
    chance = random.Random(6)
    for _ in range(200):
        odd = [0.0, math.nan, math.inf, -1.0, 1e300, None, 5]
        values = {name: chance.choice(odd) for name in ("loss", "eval_loss", "tokens_per_s", "mfu", "data_wait", "step_s", "epoch")}
        losses = tuple((step, chance.choice([value for value in odd if value is not None])) for step in range(chance.randrange(5)))
        live.frame(dataclasses.replace(VIEW, progress=progress(3, losses=losses, **values)), 79, 22)
