"""`make bench`: the CPU time of `hpctrain check` without Slurm, beside `hpctrain render` in the
same run.

CPU time (user + system of the child process), not wall time: machines are shared. The median of
some runs; the target is 300 ms, with a profile, a model folder and a virtual environment to look
at.
"""

import json
import os
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 21
TARGET_MS = 300
HPCTRAIN = str(Path(sys.executable).with_name("hpctrain"))
CONFIG = """\
launcher: srun
resources: {nodes: 2, gpus_per_node: 4, account: EUHPC_A06_067}
environment: {venv: PREFIX}
training: {model_name_or_path: model, dataset_name: data}
"""
ROWS = [
    (
        "hpctrain render --to - (for comparison)",
        ["render", "--cluster", "leonardo", "--to", "-"],
        None,
    ),
    ("hpctrain check --no-slurm, no profile", ["check", "--no-slurm"], TARGET_MS),
    (
        "hpctrain check --no-slurm, leonardo",
        ["check", "--no-slurm", "--cluster", "leonardo"],
        TARGET_MS,
    ),
    (
        "hpctrain check --no-slurm --json",
        ["check", "--no-slurm", "--cluster", "leonardo", "--json"],
        TARGET_MS,
    ),
]


def cpu_ms(argv: list[str], cwd: str) -> float:
    """Return the CPU time of one run in milliseconds; findings are no failure here."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr.decode())
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def make(project: Path) -> None:
    """Write a job with a model of eight weight files and a tokenized dataset."""
    (project / "config.yaml").write_text(CONFIG.replace("PREFIX", sys.prefix))
    tensors = {
        f"layer.{number}": {"dtype": "BF16", "shape": [4096, 4096], "data_offsets": [0, 0]}
        for number in range(40)
    }
    header = json.dumps(tensors).encode()
    (project / "model").mkdir()
    for number in range(8):
        (project / "model" / f"model-{number}.safetensors").write_bytes(
            struct.pack("<Q", len(header)) + header
        )
    (project / "model" / "config.json").write_text("{}")
    (project / "model" / "tokenizer.json").write_text("{}")
    (project / "data").mkdir()
    (project / "data" / "state.json").write_text('{"_data_files": []}')
    (project / "data" / "dataset_info.json").write_text('{"features": {"input_ids": {}}}')


def main() -> int:
    """Print the table; 1 where a target is missed."""
    missed = 0
    with tempfile.TemporaryDirectory() as directory:
        make(Path(directory))
        os.environ["HPCTRAIN_STATE_DIR"] = directory
        print(f"{'':44} {'median':>9} {'min':>9}  target")
        for title, words, target in ROWS:
            times = [cpu_ms([HPCTRAIN, *words], directory) for _ in range(RUNS)]
            median = statistics.median(times)
            verdict = (
                "" if target is None else f"< {target} ms: {'met' if median < target else 'MISSED'}"
            )
            missed += target is not None and median >= target
            print(f"{title:44} {median:6.0f} ms {min(times):6.0f} ms  {verdict}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
