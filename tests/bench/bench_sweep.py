"""`make bench`: the CPU time of planning and rendering sweeps of 10,000 points.

CPU time (user + system of the child process, its start included), not wall time: machines are
shared; the median of the runs. The target is 2 s for each. The bare list is the form that research
code keeps, 12 numbers in each of its points and no two alike. The last row, one job without a
sweep, is there to compare.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

POINTS = 10_000
TARGET_S = 2.0
RUNS = 5
HPCTRAIN = str(Path(sys.executable).with_name("hpctrain"))
GRID = {"learning_rate": 20, "weight_decay": 25, "seed": 20}
ROWS = [
    ("submit --dry-run, grid", ["submit", "--dry-run"], "grid.yaml", TARGET_S),
    ("submit --dry-run, bare JSON list", ["submit", "--dry-run"], "list.yaml", TARGET_S),
    (
        "submit --dry-run --json, bare JSON list",
        ["submit", "--dry-run", "--json"],
        "list.yaml",
        TARGET_S,
    ),
    ("render, grid", ["render", "--force"], "grid.yaml", TARGET_S),
    ("render, bare JSON list", ["render", "--force"], "list.yaml", TARGET_S),
    ("render, one job (for comparison)", ["render", "--force"], "job.yaml", None),
]


def cpu_s(argv: list[str], cwd: str) -> float:
    """Return the CPU time of one run in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode())
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def make(project: Path) -> None:
    """Write the sweeps, each of 10,000 points."""
    axes = ", ".join(
        f"{key}: [{', '.join(str(number / 100) for number in range(count))}]"
        for key, count in GRID.items()
    )
    points = [
        {f"key_{key}": number * key + 0.5 + number / 1000 for key in range(12)}
        for number in range(POINTS)
    ]
    (project / "points.json").write_text(json.dumps(points))
    (project / "train.py").write_text("")
    head = "script: train.py\nlauncher: srun\nresources: {cpus_per_task: 4}\n"
    sweeps = {
        "grid": f"sweep: {{grid: {{{axes}}}}}\n",
        "list": "sweep: points.json\n",
        "job": "",
    }
    for name, text in sweeps.items():
        (project / f"{name}.yaml").write_text(head + text)


def main() -> int:
    """Print the table; 1 where a target is missed."""
    missed = 0
    with tempfile.TemporaryDirectory() as project:
        make(Path(project))
        os.environ["HPCTRAIN_STATE_DIR"] = project
        print(f"{f'{POINTS:,} points':40} {'median':>9} {'min':>9}  target")
        for title, words, config, target in ROWS:
            times = [cpu_s([HPCTRAIN, *words, "--config", config], project) for _ in range(RUNS)]
            median = statistics.median(times)
            verdict = (
                ""
                if target is None
                else f"< {target:g} s: {'met' if median < target else 'MISSED'}"
            )
            missed += target is not None and median >= target
            print(f"{title:40} {median:7.2f} s {min(times):7.2f} s  {verdict}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
