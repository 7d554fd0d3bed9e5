"""Started by torchrun with two processes: rank 1's file reaches the directory late, or never, after
it was seen by rank 1.
"""

import json
import sys
import threading
from pathlib import Path

from torch import distributed

from hpctrain.training.process import Ranks, leave
from hpctrain.training.survival import ResilienceContext, saving

STEP = 4


class Late(saving.Attempt):
    """Where the directory of another node is seen late: the file is away when rank 0 looks, and
    comes after `seconds`.
    """

    seconds: float

    def listed(self) -> dict[str, int]:
        found = super().listed()
        if self.ranks.rank == 1:
            path = self.writing / "shards" / "one.bin"
            away = path.rename(self.final.parent.parent / "away.bin")
            if self.seconds >= 0:
                threading.Timer(self.seconds, away.rename, [path]).start()
        return found


def main(directory: Path, seconds: float, wait_s: float) -> None:
    distributed.init_process_group("gloo")
    ranks = Ranks(60)
    attempt = Late(
        ranks, directory / "checkpoints" / f"checkpoint-{STEP}", STEP, "1.0", wait_s=wait_s
    )
    attempt.seconds = seconds
    attempt.begin()
    folder = attempt.writing / ("shards" if ranks.rank else "")
    folder.mkdir(exist_ok=True)
    (folder / ("one.bin" if ranks.rank else "model.safetensors")).write_bytes(b"x" * 1000)
    told = "saved"
    try:
        survival = ResilienceContext(run_id="r", attempt="1.0")
        attempt.finish(step=STEP, needed=("model.safetensors",), survival=survival)
    except saving.SaveError as error:
        told = error.render()
    (directory / f"told-{ranks.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    code = 1
    try:
        main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
        code = 0
    finally:
        leave(code)
