"""What a resumed run says about the difference between then and now."""

from __future__ import annotations

from typing import Any

import pytest

from hpctrain.runs.environment import differences

OLD: dict[str, Any] = {
    "schema": 1,
    "at": 1.0,
    "host": "node1",
    "hosts": ["node1"],
    "python": "3.11.7",
    "world_size": 4,
    "versions": {"torch": "2.13.0", "transformers": "5.23.0"},
    "cuda": "12.8",
    "driver": "570.86.15",
    "nccl": "2.27.3",
    "gpus": ["NVIDIA H100"] * 4,
    "variables": {"NCCL_ALGO": "Ring", "SLURM_JOB_ID": "1", "OMP_NUM_THREADS": "8"},
    "packages": ["click==8.5.1", "rich==15.0.0", "torch==2.13.0"],
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"host": "node7", "hosts": ["node7"], "at": 2.0}, []),
        ({"versions": {"torch": "2.14.0", "transformers": "5.23.0"}}, ["torch 2.13.0 then, 2.14.0 now"]),
        ({"versions": {"torch": "2.13.0", "transformers": "5.23.0", "peft": "0.21"}}, ["peft not installed then, 0.21 now"]),
        ({"python": "3.12.1", "world_size": 8}, ["Python 3.11.7 then, 3.12.1 now", "world size 4 then, 8 now"]),
        ({"cuda": "12.9", "slurm": "25.05"}, ["CUDA 12.8 then, 12.9 now"]),
        ({"gpus": ["NVIDIA H100", "NVIDIA H200"]}, ["GPUs 4 x NVIDIA H100 then, 1 x NVIDIA H100 and 1 x NVIDIA H200 now"]),
        ({"gpus": []}, ["GPUs 4 x NVIDIA H100 then, none now"]),
        (
            {"variables": {"NCCL_ALGO": "Tree", "SLURM_JOB_ID": "2", "NCCL_PROTO": "LL"}},
            ["NCCL_ALGO Ring then, Tree now", "NCCL_PROTO unset then, LL now", "OMP_NUM_THREADS 8 then, unset now"],
        ),
        ({"packages": ["click==8.6.0", "torch==2.14.0"]}, ["2 other packages changed (click, rich)"]),
        ({"packages": ["click==8.5.1", "rich==15.0.1", "torch==2.13.0"]}, ["1 other package changed (rich)"]),
    ],
)
def test_what_is_another_now(change: dict[str, Any], expected: list[str]) -> None:
    assert differences(OLD, OLD | change) == expected


@pytest.mark.parametrize(
    "other", [{}, {"versions": 3, "gpus": "x", "variables": [], "packages": {}}, {"packages": [1, None], "versions": {"torch": None}}]
)
def test_a_file_of_another_kind_raises_nothing(other: dict[str, Any]) -> None:
    for pair in ((OLD, other), (other, OLD), (other, other)):
        assert all(isinstance(line, str) for line in differences(*pair))


def test_what_is_not_known_is_no_difference() -> None:
    known = {name: value for name, value in OLD.items() if name not in ("driver", "nccl", "variables", "packages")}
    assert differences(known, OLD) == []
