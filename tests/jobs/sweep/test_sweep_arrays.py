"""Indices and arrays: every point once, in arrays that Slurm takes."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.config.sweep import arrays, selected
from hpctrain.errors import UsageError

LIBRARY = Path(__file__).parents[3] / "templates" / "job.sh"


def tasks(spec: str) -> list[int]:
    """Return what Slurm makes of a list without steps (sbatch(1), --array)."""
    found = []
    for item in spec.partition("%")[0].split(","):
        first, _, last = item.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


@settings(deadline=None)
@given(
    st.sets(st.integers(0, 5000), min_size=1, max_size=300),
    st.integers(1, 2000),
    st.none() | st.integers(1, 50),
)
def test_every_point_is_in_one_array_that_slurm_takes(
    indices: set[int], size: int, throttle: int | None
) -> None:
    parts = arrays(list(indices), size, throttle)
    found = [part.offset + index for part in parts for index in tasks(part.spec)]
    assert found == sorted(indices)
    for part in parts:
        assert max(tasks(part.spec)) <= size - 1
        assert part.count == len(tasks(part.spec))
        assert re.fullmatch(r"[0-9,-]+" + (f"%{throttle}" if throttle else ""), part.spec)
    assert (parts[0].offset == 0) == (min(indices) < size)


def test_a_sweep_beyond_max_array_size_is_several_arrays() -> None:
    assert [(part.offset, part.spec) for part in arrays(range(2500), 1001, 4)] == [
        (0, "0-1000%4"),
        (1001, "0-1000%4"),
        (2002, "0-497%4"),
    ]
    assert [(part.offset, part.spec) for part in arrays(range(1001), 1001)] == [(0, "0-1000")]
    assert [(part.offset, part.spec) for part in arrays([0, 3, 7, 8, 9, 5000], 1001)] == [
        (0, "0,3,7-9"),
        (5000, "0"),
    ]
    assert arrays([], 1001) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0,3,7-9", [0, 3, 7, 8, 9]),
        ("9", [9]),
        ("0-9:3", [0, 3, 6, 9]),
        ("3,1-4", [1, 2, 3, 4]),
        ("0-1,1", [0, 1]),
    ],
)
def test_a_part_is_taken_by_the_indices_of_points(text: str, found: list[int]) -> None:
    assert selected(text, 10) == (found, None)
    assert selected(f"{text}%3", 10) == (found, 3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "1-",
        "-1",
        "3-1",
        "0-9:0",
        "1,,2",
        "10",
        "0-10",
        "1%0",
        "1%",
        "1%x",
        "٣",
        "1;2",
        "99999999999999999999",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as error:
        selected(text, 10)
    assert error.value.fix or error.value.hint


@pytest.mark.parametrize(("offset", "point"), [(0, 2), (1001, 1003)])
def test_a_task_is_a_point_of_the_whole_sweep(offset: int, point: int, tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text(
        'source "$1"; hpctrain_begin sft T --array "$2"; echo "$index $run $job"'
    )
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "job.sbatch", str(LIBRARY), str(offset)],
        env={
            "PATH": os.environ["PATH"],
            "SLURM_JOB_ID": "77",
            "SLURM_ARRAY_JOB_ID": "70",
            "SLURM_ARRAY_TASK_ID": "2",
            "SLURM_JOB_END_TIME": "1",
        },
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == f"{point} T_{point} 70_2"
    record = json.loads((tmp_path / "runs" / f"T_{point}" / "run.json").read_text())
    assert (record["index"], record["tag"]) == (point, "T")
