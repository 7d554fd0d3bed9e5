"""`make bench`: how long `hpctrain runs list` takes for 10,000 runs; the target is 3 s.

Wall time and CPU time of the whole command, its start included, the best of the runs: machines are
shared. The files are in the page cache, as the first listing of a fresh directory has put them
there; a file system over a network adds its own answer time for each look.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.runs import make

RUNS = 10_000
TARGET_S = 3.0
TIMES = 3
HPCTRAIN = str(Path(sys.executable).with_name("hpctrain"))


def build(runs: Path) -> None:
    """Make the runs: of two attempts every tenth, with metrics and two checkpoints."""
    for number in range(RUNS):
        directory = make.run(
            runs,
            f"sweep-{number // 1000}_{number % 1000}",
            tag=f"sweep-{number // 1000}",
            index=number % 1000,
        )
        if number % 10 == 0:
            make.attempt(
                directory,
                str(50_000 + number),
                outcome="requeued",
                status=85,
                reason="deadline",
                at=make.AT - 999,
            )
        last = make.attempt(
            directory,
            str(100_000 + number),
            outcome="completed" if number % 4 else "failed",
            status=number % 4 and 1,
        )
        make.metrics(last, *({"step": step, "loss": 5 - step / 50} for step in range(10, 110, 10)))
        for step in (50, 100):
            (directory / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)


def measure(project: Path) -> tuple[float, float]:
    """Return wall and CPU seconds of the fastest listing."""
    best = (float("inf"), float("inf"))
    for _ in range(TIMES):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            [HPCTRAIN, "runs", "list", "--all"], cwd=project, capture_output=True, text=True
        )
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode or len(done.stdout.splitlines()) != RUNS + 1:
            sys.exit(
                f"the listing is wrong: {done.returncode}\n{done.stdout[-500:]}{done.stderr[-500:]}"
            )
        best = min(
            best, (wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        )
    return best


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        project = Path(folder)
        build(project / "runs")
        wall, cpu = measure(project)
        verdict = "met" if wall < TARGET_S else "MISSED"
        print(
            f"runs list, {RUNS} runs {wall:5.2f} s, CPU {cpu:5.2f} s   < {TARGET_S:.0f} s: {verdict}"
        )


if __name__ == "__main__":
    main()
