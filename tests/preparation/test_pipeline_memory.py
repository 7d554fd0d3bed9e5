"""The memory of the whole preparation is bounded, however large the file: by a limit of the
kernel's, not by a reading of ours.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.preparation.prepare_made import chats, model

pytestmark = [pytest.mark.torch, pytest.mark.slow]

MEASURE = """
import json, resource, sys
from pathlib import Path
import psutil
from hpctrain.data import pipeline
from hpctrain.data.request import PrepareRequest

def data_mib(pid):  # private memory that can be written: what RLIMIT_DATA bounds
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmData:")[2].split()[0]) / 1024

def look(*now):
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        peaks.append(data_mib(process.pid))

if __name__ == "__main__":
    pipeline.WINDOW_TOKENS = 1 << 19  # both files have several windows
    limit = int(sys.argv[4])
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit << 20, limit << 20))
        try:
            bytearray(limit << 20)
        except MemoryError:
            pass
        else:
            sys.exit("the limit does not bound anything")
    peaks = []
    paths, model, target = (Path(sys.argv[1]),), Path(sys.argv[2]), Path(sys.argv[3])
    asked = PrepareRequest(paths=paths, target=target, tokenizer=model, max_length=256, workers=2, validation=0.1)
    made = pipeline.prepare(asked, progress=look)
    print(json.dumps([made.manifest.splits["train"].tokens, max(peaks)]))
"""


@pytest.mark.extended
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Seven times the file in the memory that each process needs for the small one, and a quarter
    of what the larger result takes more.

    Not the resident memory: pages of mapped files count in that, and the kernel takes them back
    when it wants.
    """
    (tmp_path / "run.py").write_text(MEASURE)
    model_folder = model(tmp_path / "model")
    content = chats(tmp_path / "chats.jsonl", 6000).read_bytes()

    def measured(copies: int, limit: int) -> tuple[int, float]:
        file = tmp_path / f"{copies}.jsonl"
        file.write_bytes(content * copies)
        words = [
            str(tmp_path / "run.py"),
            str(file),
            str(model_folder),
            str(tmp_path / f"{copies}"),
        ]
        done = subprocess.run([sys.executable, *words, str(limit)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        tokens, data = json.loads(done.stdout)
        return tokens, data

    few, data_small = measured(3, 0)
    growth = 6 * few * 8 / (1 << 20)  # what the larger dataset takes more: ids and labels, in MiB
    assert growth > 80
    many, _ = measured(21, int(data_small + growth / 4))
    assert many == pytest.approx(7 * few, rel=0.01)
