"""Frames fit the terminal whatever is in them."""

import dataclasses
import io
import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from hpctrain.memory.sample import Sample
from hpctrain.report import live
from hpctrain.report.idle import Idle
from hpctrain.runs.progress import Progress


def sample(rank: int, world: int = 64, **more: Any) -> Sample:
    values: dict[str, Any] = {
        "time_ms": 1_794_600_000_000,
        "step": 10,
        "event": "step",
        "host": f"lrdn{rank // 4 + 1:04}.leonardo.local",
        "rank": rank,
        "world_size": world,
        "local_rank": rank % 4,
        "gpu_index": rank % 4,
        "gpu_used_mib": 60_000 + 100 * rank,
        "gpu_total_mib": 81_559,
        "gpu_utilisation_percent": 97,
        "node_used_mib": 120_345,
        "node_total_mib": 515_000,
        "cgroup_used_mib": 9_000,
        "cgroup_limit_mib": 64_000,
    }
    return Sample(**values | more)


def progress(ranks: int = 64, **more: Any) -> Progress:
    values: dict[str, Any] = {
        "step": 120,
        "max_steps": 1000,
        "epoch": 0.17,
        "loss": 8.2448,
        "eval_loss": 8.19,
        "tokens_per_s": 142_400.0,
        "mfu": 0.412,
        "data_wait": 0.002,
        "step_s": 0.43,
        "losses": tuple((step, 2 + 6 * math.exp(-step / 40)) for step in range(1, 121)),
        "samples": tuple(sample(rank, ranks) for rank in range(ranks)),
    }
    return Progress(**values | more)


IDLE = Idle(
    id="gpu-idle",
    what="the GPU of rank 3 on n1 does nothing",
    cause="likely: it hangs",
    fix="hpctrain logs --rank 3",
    rank=3,
    node="n1",
)
VIEW = live.View(
    title="sft-261121-031508-7f3a",
    job="job 123 on Slurm",
    state="running for 0:03:12 of 2:00:00 on 16 nodes",
    level="run",
    progress=progress(),
    eta_s=800.0,
    fits=True,
    verdict="done in about 13 min; the time limit leaves 1.9 h",
    idle=(IDLE,),
    saved="saved checkpoint-100, 2 min ago",
    clock="04:22:49",
)


def texts(lines: list[live.Line]) -> list[str]:
    return [words for words, _ in lines]


def test_a_frame_of_64_ranks_has_everything_in_80_by_24() -> None:
    lines = texts(live.frame(VIEW, 79, 22))
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 79
    whole = "\n".join(lines)
    for part in (
        "sft-261121-031508-7f3a",
        "job 123 on Slurm   04:22:49",
        "running for 0:03:12 of 2:00:00",
        " 12%  step 120 of 1000, epoch 0.17",
        "done in about 13 min; the time limit leaves 1.9 h",
        "loss 8.245  eval 8.19  tokens/s 142400  MFU 41.2%  data wait 0.2%  step 0.43 s",
        "rank 63 lrdn0016:3 ",
        "host lrdn0001 ",
        "job's limit",
        "the GPU of rank 3 on n1 does nothing",
        "likely: it hangs",
        "fix: hpctrain logs --rank 3",
        "saved checkpoint-100, 2 min ago",
    ):
        assert part in whole, part
    assert "more, less full" in whole


@settings(max_examples=30)
@given(
    st.integers(20, 250),
    st.integers(3, 70),
    st.integers(0, 70),
    st.booleans(),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=200), max_size=4),
)
def test_no_frame_is_larger_than_asked(
    width: int, height: int, ranks: int, bare: bool, words: list[str]
) -> None:
    shown = Progress() if bare else progress(ranks)
    view = dataclasses.replace(
        VIEW,
        progress=shown,
        note="".join(words),
        title="".join(words[:1]) or "x",
    )
    for lines in (
        live.frame(view, width, height),
        live.frame_of_many([view, VIEW], "sweep", width, height),
    ):
        assert len(lines) <= height
        assert all(len(words) <= width for words, _ in lines)


def test_several_runs_have_a_line_each_and_those_that_run_are_seen_first() -> None:
    views = [
        (
            dataclasses.replace(VIEW, title=f"sweep_{index}", level="good", state="completed")
            if index < 40
            else dataclasses.replace(VIEW, title=f"sweep_{index}")
        )
        for index in range(44)
    ]
    views.append(
        dataclasses.replace(
            VIEW,
            title="sweep_44",
            level="wait",
            state="waiting: jobs are ahead",
            progress=Progress(),
            idle=(),
        )
    )
    lines = texts(live.frame_of_many(views, "sweep", 79, 22))
    assert lines[0].startswith("sweep: 4 running, 1 waiting, 40 completed")
    assert len(lines) <= 22
    rows = {line.split()[0]: line for line in lines}
    assert all(str(index) in rows for index in range(40, 45)), (
        "without the name of the sweep, which the head says"
    )
    assert rows["44"].endswith(" jobs are ahead"), "in 80 columns, too"
    assert any(line.startswith("and ") for line in lines)
    row = rows["40"]
    assert row.split()[1] == "running"
    assert "120/1000" in row
    assert "13 min" in row


# -- on a terminal ---------------------------------------------------------------------------------


def painted(lines: list[live.Line], **options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=79, force_terminal=True, highlight=False, **options)
    console.print(live.paint(lines))
    return out.getvalue()


def test_nothing_in_a_note_is_an_order_to_the_terminal() -> None:
    view = dataclasses.replace(VIEW, note="\x1b[2J\x07 gone \x9b31m")
    written = painted(live.frame(view, 79, 22), color_system=None)
    assert not {"\x1b", "\x07", "\x9b"} & set(written)
