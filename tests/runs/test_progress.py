"""Where a run stands, read from the ends of its files, and from its log where there are none."""

import math
from pathlib import Path
from typing import Any

import pytest

from hpctrain.memory.sample import Sample, format_line, to_json
from hpctrain.runs import progress
from hpctrain.runs.progress import Progress, Speed
from tests.runs import make

AT = make.AT
SPEED: dict[str, Any] = {
    "event": "speed",
    "max_steps": 1000,
    "tokens_per_s": 2000.0,
    "useful_tokens_per_s": 1500.0,
    "mfu": 0.4,
    "data_wait": 0.01,
    "step_s": 0.5,
    "eta_s": 400.0,
}


def sample(rank: int = 0, *, world: int = 1, at: float = AT, step: int = 10, **more: Any) -> Sample:
    return Sample(
        **{
            "time_ms": round(at * 1000),
            "step": step,
            "event": "step",
            "host": "n1",
            "rank": rank,
            "world_size": world,
            "local_rank": rank,
        }
        | more
    )


def samples(run: Path, rank: int, *all_: Sample, tail: str = "") -> None:
    path = run / "memory" / f"rank-{rank}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(to_json(each) + "\n" for each in all_) + tail)


def read_lines(lines: list[str]) -> Progress:
    said = progress.Lines()
    for line in lines:
        said.add(line)
    return said.progress()


def test_the_newest_rows_say_where_it_stands(tmp_path: Path) -> None:
    run = make.run(tmp_path)
    attempt = make.attempt(run)
    make.metrics(
        attempt,
        {"event": "begin", "step": 0},
        {"step": 10, "loss": 3.0, "epoch": 0.1, "at": AT + 10},
        {"step": 20, "loss": 2.5, "epoch": 0.2, "at": AT + 20},
        {**SPEED, "step": 20, "at": AT + 20},
        {"event": "evaluate", "step": 20, "eval_loss": 2.4, "at": AT + 24},
        {"event": "save", "step": 20, "at": AT + 25},
    )
    found = progress.read(run)
    assert (found.step, found.max_steps, found.at, found.epoch) == (20, 1000, AT + 25, 0.2)
    assert (found.loss, found.eval_loss, found.losses) == (2.5, 2.4, ((10, 3.0), (20, 2.5)))
    assert (found.tokens_per_s, found.mfu, found.data_wait, found.step_s) == (
        1500.0,
        0.4,
        0.01,
        0.5,
    )
    assert found.eta_s == pytest.approx(395.0)  # five seconds have gone since it was measured
    assert (found.attempt, found.saved_step, found.saved_at) == ("123.0", 20, AT + 25)


def test_steps_that_are_done_again_count_once(tmp_path: Path) -> None:
    run = make.run(tmp_path)
    make.metrics(
        make.attempt(run),
        *({"step": step, "loss": 9.0, "at": AT + step} for step in range(10, 90, 10)),
        {**SPEED, "step": 80},
    )
    later = make.attempt(run, restart=1, at=AT + 500)
    make.metrics(later, {"event": "begin", "step": 40, "at": AT + 510})
    started = progress.read(run)
    assert started.step == 40
    assert [step for step, _ in started.losses] == [10, 20, 30, 40]
    assert started.max_steps == 1000
    assert started.tokens_per_s is None  # of another start
    assert started.eta_s is None
    make.metrics(
        later, {"step": 50, "loss": 1.0, "at": AT + 520}, {"step": 60, "loss": 0.5, "at": AT + 530}
    )
    found = progress.read(run)
    assert found.losses == ((10, 9.0), (20, 9.0), (30, 9.0), (40, 9.0), (50, 1.0), (60, 0.5))
    assert (found.attempt, found.step) == ("123.1", 60)
    assert found.step_s == pytest.approx(1.0)


# -- samples ---------------------------------------------------------------------------------------


def test_the_worst_rank_is_the_one_whose_gpu_is_the_fullest(tmp_path: Path) -> None:
    run = make.run(tmp_path)
    for rank in range(64):
        used = 70_000 if rank == 37 else 60_000
        samples(
            run,
            rank,
            *(
                sample(
                    rank, world=64, at=AT + each, step=each, gpu_used_mib=used, gpu_total_mib=80_000
                )
                for each in range(50)
            ),
        )
    found = progress.read(run)
    assert [each.rank for each in found.samples] == list(range(64))
    assert {each.step for each in found.samples} == {49}
    assert found.worst.rank == 37
    assert len(found.recent) > 64 * 5
    assert [each.time_ms for each in found.recent] == sorted(each.time_ms for each in found.recent)


@pytest.mark.parametrize(
    ("values", "worst"),
    [
        (
            (
                {"gpu_used_mib": 9, "gpu_total_mib": 10},
                {"cgroup_used_mib": 10, "cgroup_limit_mib": 10},
            ),
            0,
        ),
        (
            (
                {"cgroup_used_mib": 9, "cgroup_limit_mib": 10},
                {"cgroup_used_mib": 10, "cgroup_limit_mib": 10},
            ),
            1,
        ),
        (
            (
                {"node_used_mib": 9, "node_total_mib": 10},
                {"node_used_mib": 8, "node_total_mib": 10},
            ),
            0,
        ),
        (({"gpu_used_mib": 9, "gpu_total_mib": 0, "node_used_mib": 1, "node_total_mib": 2}, {}), 0),
    ],
)
def test_where_no_gpu_is_known_the_worst_is_of_the_host(
    values: tuple[dict[str, int], ...], worst: int
) -> None:
    found = Progress(
        samples=tuple(sample(rank, world=2, **each) for rank, each in enumerate(values))
    )
    assert found.worst.rank == worst


def test_ranks_of_an_earlier_larger_start_are_left_out(tmp_path: Path) -> None:
    run = make.run(tmp_path)
    for rank in range(4):
        samples(run, rank, sample(rank, world=4, at=AT))
    for rank in range(2):
        begun = sample(rank, world=2, at=AT + 100, event="train_begin")
        samples(run, rank, sample(rank, world=4, at=AT), begun, sample(rank, world=2, at=AT + 110))
    found = progress.read(run)
    assert [each.rank for each in found.samples] == [0, 1]
    assert {each.world_size for each in found.recent} == {2}


# -- lines of a log --------------------------------------------------------------------------------


def test_a_log_says_what_no_file_does() -> None:
    measured = Speed(step=20, max_steps=100)
    found = read_lines(
        [
            "[default0]: [train] begin: step=0/100",
            "[train] step=10/100 loss=8.2448 grad_norm=3.959 epoch=0.01416 elapsed=4s",
            f"[default1]: {format_line(sample(1, world=2, gpu_used_mib=5, gpu_total_mib=10))}",
            "[train] step=20/100 loss=nan epoch=0.02",
            "[train] step=20/100 eval_loss=7.5",
            progress.format_line(measured),
            "[train] the file stop is there",
        ]
    )
    assert (found.step, found.max_steps, found.epoch, found.eval_loss) == (20, 100, 0.02, 7.5)
    assert found.losses[0] == (10, 8.2448)
    assert math.isnan(found.losses[1][1])
    assert found.worst.rank == 1


def test_a_trainers_dicts_and_bar_are_read() -> None:
    found = read_lines(
        [
            "Map: 100%|██████████| 5644/5644 [00:01<00:00, 4000.00 examples/s]",
            (
                "  0%|          | 0/200 [00:00<?, ?it/s]\r  5%|▌         | 10/200 [00:10<03:10, "
                " 1.00s/it]{'loss': '2.345', 'grad_norm': '0.51', 'learning_rate': '1e-05',"
                " 'epoch': '0.12'}"
            ),
            "{'loss': 2.1, 'learning_rate': 9e-06, 'epoch': 0.24}",
            " 50%|█████     | 5/10 [00:00<00:00, 25.00it/s]",
            "\r 10%|█         | 20/200 [00:20<1:30:00,  2.50it/s]",
            "{'eval_loss': '2.05', 'eval_runtime': '1.2', 'epoch': '0.24'}",
        ]
    )
    assert (found.step, found.max_steps, found.loss, found.eval_loss, found.epoch) == (
        20,
        200,
        2.1,
        2.05,
        0.24,
    )
    assert (found.step_s, found.eta_s) == (0.4, 5400.0)
    assert found.losses == ((10, 2.1),)  # the bar had not moved: two losses of one step


def test_junk_is_no_line() -> None:
    assert (
        read_lines(["", "loss=1", "{'loss': oops}", "100%|█| 1/", "\x00", "[memory] x"])
        == Progress()
    )
