"""`make bench`: the CPU time of commands that are typed often, and of the largest sweep, beside a
named alternative in the same run.

CPU time (user + system of the child process), not wall time: machines are shared. The median of
some runs.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 21
ROOT = Path(__file__).parents[2]
HPCTRAIN = str(Path(sys.executable).with_name("hpctrain"))
#: 10,000 combinations.
SWEEP = {name: list(range(size)) for name, size in (("a", 20), ("b", 25), ("c", 20))}
ROWS = [
    ("python -c pass", [sys.executable, "-c", "pass"], None),
    ("hpctrain --help", [HPCTRAIN, "--help"], 60),
    (
        "hpctrain render (config.yaml, 2 x 4)",
        [HPCTRAIN, "render", "--nodes", "2", "--gpus", "4"],
        200,
    ),
    ("hpctrain check --no-slurm", [HPCTRAIN, "check", "--no-slurm"], 300),
    ("hpctrain lint", [HPCTRAIN, "lint", str(ROOT / "tests/golden/2x4/script.sbatch")], 200),
    (
        "hpctrain submit --dry-run, 10,000 points",
        [HPCTRAIN, "submit", "--dry-run", "--config", "sweep.json"],
        2000,
    ),
    (
        "accelerate launch --help (for comparison)",
        [str(Path(sys.executable).with_name("accelerate")), "launch", "--help"],
        None,
    ),
]


def cpu_ms(argv: list[str], cwd: str) -> float:
    """Return the CPU time of one run in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> int:
    """Print the table; 1 where a target is missed."""
    missed = 0
    with tempfile.TemporaryDirectory() as project:
        Path(project, "config.yaml").write_text((ROOT / "config.yaml").read_text())
        sweep = {"launcher": "srun", "script": "train.py", "sweep": {"grid": SWEEP}}
        Path(project, "sweep.json").write_text(json.dumps(sweep))
        Path(project, "train.py").touch()
        os.environ["HPCTRAIN_STATE_DIR"] = project
        baseline = None
        print(f"{'':44} {'median':>9} {'min':>9} {'x python':>9}  target")
        for title, argv, target in ROWS:
            if not Path(argv[0]).exists():
                print(f"{title:44} {'absent':>9}")
                continue
            times = [
                cpu_ms(argv, project) for _ in range(RUNS if target or baseline is None else 3)
            ]
            median = statistics.median(times)
            baseline = baseline or median
            verdict = (
                "" if target is None else f"< {target} ms: {'met' if median < target else 'MISSED'}"
            )
            missed += target is not None and median >= target
            print(
                f"{title:44} {median:6.0f} ms {min(times):6.0f} ms {median / baseline:8.1f}x "
                f" {verdict}"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
