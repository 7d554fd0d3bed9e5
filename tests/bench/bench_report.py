"""`make bench`: what a report of a long run costs: 64 ranks, 100,000 steps logged every 10, samples
every 10 (some 450 MB of files).

Wall and CPU seconds and the most memory of `hpctrain report`, its start included, beside the least
that anything that reads these files can
cost: the same lines through json.loads alone, kept nowhere.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.report import made_runs

RANKS, STEPS = 64, int(os.environ.get("BENCH_STEPS", "100000"))
HPCTRAIN = str(Path(sys.executable).with_name("hpctrain"))
JSON_ALONE = """
import json, pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("*.jsonl"):
    with path.open("rb") as stream:
        for line in stream:
            json.loads(line)
"""


def measure(words: list[str], project: Path) -> tuple[float, float, float]:
    """Return wall seconds, CPU seconds and MiB of the most memory of a command."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        words, cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(words)}: {process.returncode}")
    return time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        project = Path(folder)
        run = made_runs.gpu_run(project / "runs", ranks=RANKS, steps=STEPS, restarts=9)
        size = sum(path.stat().st_size for path in run.rglob("*.jsonl")) / 1e6
        alone = measure([sys.executable, "-c", JSON_ALONE, str(run)], project)
        ours = measure([HPCTRAIN, "report"], project)
        page = (run / "report.html").stat().st_size / 1e3
    print(f"{RANKS} ranks, {STEPS} steps, {size:.0f} MB of files; the page has {page:.0f} kB")
    for name, (wall, cpu, memory) in (("json.loads alone", alone), ("hpctrain report", ours)):
        print(f"{name:17} {wall:6.2f} s wall, {cpu:6.2f} s CPU, {memory:5.0f} MiB")
    print(f"ratio of CPU      {ours[1] / alone[1]:6.2f}")
    print(f"memory < 200 MiB: {'met' if ours[2] < 200 else 'MISSED'}")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
