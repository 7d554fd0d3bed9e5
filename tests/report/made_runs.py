"""Run directories of trainings on GPUs, made by arithmetic: what a report is drawn from, where no
GPU is at hand.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

#: 2026-11-14.
AT = 1_794_600_000.0
TOTAL_MIB = 81_559


def gpu_run(
    runs: Path,
    run_id: str = "pretrain-1",
    *,
    ranks: int = 8,
    steps: int = 2000,
    every: int = 10,
    restarts: int = 2,
    step_s: float = 1.2,
    seed: int = 1,
    outcome: str = "completed",
    tag: str | None = None,
    index: int | None = None,
    rate: float = 3e-4,
    memory_every: int | None = None,
) -> Path:
    """Make a run of several starts; each but the last is killed 70 steps after its last checkpoint,
    and its work done again.
    """
    chance = random.Random(seed)
    run = runs / run_id
    (run / "memory").mkdir(parents=True)
    who = {
        "schema": 1,
        "run_id": run_id,
        "tag": tag or run_id,
        "name": "pretrain",
        "created": AT - 4000,
        "index": index,
        "stage": None,
    }
    write(run / "run.json", who)
    nodes = max(1, ranks // 4)
    samples = [(run / "memory" / f"rank-{rank}.jsonl").open("w") for rank in range(ranks)]
    at, first = AT, 0
    parts = restarts + 1
    for number in range(parts):
        last = number == parts - 1
        resumed = steps * (number + 1) // parts // 100 * 100
        until = steps if last else min(steps, resumed + 70)
        path = run / "attempts" / f"4711.{number}"
        path.mkdir(parents=True)
        write(
            path / "start.json",
            {
                "schema": 1,
                "job_id": "4711",
                "slurm_job_id": "4711",
                "restart": number,
                "host": "n001",
                "at": at,
            },
        )
        write(path / "environment.json", environment(ranks, nodes))
        begun = at + 95
        at = _start(
            path / "metrics.jsonl",
            samples,
            chance,
            at=begun,
            first=first,
            until=until,
            steps=steps,
            every=every,
            step_s=step_s,
            nodes=nodes,
            rate=rate,
            memory_every=memory_every or every,
        )
        if last:
            at += 20
            write(
                path / "end.json",
                {
                    "schema": 1,
                    "at": at,
                    "status": 0 if outcome == "completed" else 1,
                    "reason": outcome,
                    "outcome": outcome,
                },
            )
        first, at = resumed, at + (900 if number == 0 else 5400)
    for stream in samples:
        stream.close()
    write(run / "fit.json", fit(ranks, nodes))
    return run


def _start(
    path: Path,
    samples: list[Any],
    chance: random.Random,
    *,
    at: float,
    first: int,
    until: int,
    steps: int,
    every: int,
    step_s: float,
    nodes: int,
    rate: float,
    memory_every: int,
) -> float:
    ranks = len(samples)
    rows = [{"event": "begin", "step": first, "epoch": 0.0, "at": at}]
    for rank, stream in enumerate(samples):
        stream.write(
            sample(
                rank,
                ranks,
                nodes,
                at=at,
                step=first,
                event="train_begin",
                done=0.0,
                chance=chance,
            )
            + "\n"
        )
    for step in range(first + 1, until + 1):
        at += step_s * (1 + 0.05 * chance.random())
        if step % every == 0:
            rows.append(
                {
                    "event": "log",
                    "step": step,
                    "epoch": step / steps,
                    "at": at,
                    **logged(step, steps, rate, chance),
                }
            )
            rows.append(
                {
                    "event": "speed",
                    "step": step,
                    "epoch": step / steps,
                    "at": at,
                    **speed(step, steps, ranks, chance),
                }
            )
        if step % memory_every == 0:
            for rank, stream in enumerate(samples):
                stream.write(
                    sample(
                        rank,
                        ranks,
                        nodes,
                        at=at,
                        step=step,
                        event="step",
                        done=step / steps,
                        chance=chance,
                    )
                    + "\n"
                )
        if step % 200 == 0:
            at += 9
            rows.append(
                {
                    "event": "evaluate",
                    "step": step,
                    "epoch": step / steps,
                    "at": at,
                    "eval_loss": loss(step, steps, rate) + 0.12,
                }
            )
        if step % 100 == 0:
            at += 6
            rows.append({"event": "save", "step": step, "epoch": step / steps, "at": at})
    if until == steps:
        rows.append({"event": "end", "step": until, "epoch": 1.0, "at": at})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return at


def loss(step: int, steps: int, rate: float) -> float:
    """Return a loss that falls as losses do, lowest where the learning rate is 3e-4."""
    return (
        2.1
        + 0.15 * abs(math.log10(rate / 3e-4))
        + 8.0 * math.exp(-step / steps * 9)
        + 1.1 * math.exp(-step / steps * 2)
    )


def logged(step: int, steps: int, rate: float, chance: random.Random) -> dict[str, float]:
    """Return what the Trainer logs."""
    warm = min(1.0, step / (steps * 0.05))
    return {
        "loss": loss(step, steps, rate) + 0.09 * chance.gauss(0, 1),
        "grad_norm": (
            0.6
            + 2.5 * math.exp(-step / steps * 6)
            + abs(chance.gauss(0, 0.12))
            + (9.0 if step == steps // 20 * 13 else 0.0)
        ),
        "learning_rate": rate * warm * (0.5 + 0.5 * math.cos(math.pi * step / steps)),
    }


def speed(step: int, steps: int, ranks: int, chance: random.Random) -> dict[str, float]:
    """Return a measurement of the speed."""
    slow = 0.6 if chance.random() < 0.01 else 1.0
    tokens = ranks * 7400 * slow * (1 + 0.015 * chance.gauss(0, 1))
    return {
        "max_steps": steps,
        "tokens_per_s": tokens,
        "useful_tokens_per_s": 0.94 * tokens,
        "trained_tokens_per_s": 0.5 * tokens,
        "mfu": 0.41 * slow * (1 + 0.015 * chance.gauss(0, 1)),
        "data_wait": max(0.0, 0.004 + 0.002 * chance.gauss(0, 1)) + (1 - slow) / 3,
        "step_s": 1.2 / slow,
        "peak_mib": 61_400,
        "reserved_mib": 66_000,
        "total_mib": TOTAL_MIB,
        "rank": 3,
        "host_mib": 91_000,
        "eta_s": 1.2 * (steps - step),
    }


def sample(
    rank: int,
    ranks: int,
    nodes: int,
    *,
    at: float,
    step: int,
    event: str,
    done: float,
    chance: random.Random,
) -> str:
    """Return a line of memory/rank-N.jsonl.

    Rank 3 is the fullest; rank 5 of 8, or 37, works half as much as the others.
    """
    node = rank * nodes // ranks
    lazy = rank in (5, 37)
    begun = event != "train_begin"
    used = int(
        (
            58_000
            + 900 * (rank % 5)
            + (9000 if rank == 3 else 0)
            + 4000 * done
            + chance.randrange(600)
        )
        * (1 if begun else 0.3)
    )
    return json.dumps(
        {
            "time_ms": int(1000 * at),
            "step": step,
            "event": event,
            "host": f"n{node + 1:03}",
            "rank": rank,
            "world_size": ranks,
            "local_rank": rank % 4,
            "torch_allocated_mib": used - 6000 if begun else 4000,
            "torch_peak_mib": used - 2500,
            "torch_reserved_mib": used - 1500,
            "gpu_index": rank % 4,
            "gpu_name": "NVIDIA H100 80GB HBM3",
            "gpu_uuid": f"GPU-{rank:08x}",
            "gpu_used_mib": used,
            "gpu_total_mib": TOTAL_MIB,
            "gpu_utilisation_percent": (
                max(0, min(100, int(chance.gauss(45 if lazy else 95, 8 if lazy else 3))))
                if begun
                else 0
            ),
            "rss_mib": 14_000,
            "children_rss_mib": 6_200,
            "node_used_mib": 120_000 + 200 * node,
            "node_total_mib": 1_031_000,
            "cgroup_used_mib": int(78_000 + 9_000 * done + 60 * node + chance.randrange(900)),
            "cgroup_limit_mib": 256_000,
        }
    )


def environment(ranks: int, nodes: int) -> dict[str, Any]:
    """Return an environment.json."""
    return {
        "schema": 1,
        "at": AT,
        "host": "n001",
        "hosts": [f"n{node + 1:03}" for node in range(nodes)],
        "platform": "Linux-5.14-x86_64",
        "python": "3.11.9",
        "world_size": ranks,
        "versions": {"torch": "2.13.0", "transformers": "5.23.0", "trl": "1.16.0"},
        "cuda": "12.8",
        "driver": "570.86.15",
        "nccl": "2.27.3",
        "gpus": ["NVIDIA H100 80GB HBM3"] * 4,
        "slurm": "24.05.4",
        "variables": {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "12"},
        "packages": ["numpy==2.4.6", "torch==2.13.0"],
    }


def fit(ranks: int, nodes: int) -> dict[str, Any]:
    """Return a fit.json."""
    gib = 2**30
    return {
        "schema": 1,
        "layout": {"nodes": nodes, "gpus_per_node": ranks // nodes},
        "shape": None,
        "gpu": "NVIDIA H100 80GB HBM3",
        "gpu_bytes": TOTAL_MIB * 2**20,
        "cluster": None,
        "predicted": {
            "total": int(66.1 * gib),
            "allocated": int(60.2 * gib),
            "reserved": int(63.0 * gib),
            "tokens_per_s": 7100.0 * ranks,
        },
        "measured": {
            "allocated": int(63.4 * gib),
            "reserved": int(66.5 * gib),
            "used": int(70.1 * gib),
            "host": int(84.9 * gib),
            "tokens_per_s": 7400.0 * ranks,
            "useful_tokens_per_s": 6950.0 * ranks,
            "mfu": 0.41,
            "rank": 3,
            "steps": 1999,
            "ended": "completed",
        },
    }


def write(path: Path, value: Any) -> None:
    """Write a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
