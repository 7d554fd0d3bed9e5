"""Started by torchrun with two processes: rank 1's file reaches the directory late, or never, after it was seen by rank 1."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from torch import distributed

from hpctrain.training import saving
from hpctrain.training.process import leave
from hpctrain.training.ranks import Ranks

STEP = 4


class Late(saving.Attempt):
    """Where the directory of another node is seen late: the file is away when rank 0 looks, and comes after `seconds`."""

    seconds: float

    def listed(self) -> dict[str, int]:
        found = super().listed()
        if self.ranks.rank == 1:
            path = self.place.writing / "shards" / "one.bin"
            away = path.rename(self.place.final.parent.parent / "away.bin")
            if self.seconds >= 0:
                threading.Timer(self.seconds, away.rename, [path]).start()
        return found


def main(directory: Path, seconds: float, wait_s: float) -> None:
    distributed.init_process_group("gloo")
    ranks = Ranks(60)
    attempt = Late(ranks, saving.checkpoint_place(directory / "checkpoints", STEP, "1.0"), wait_s=wait_s)
    attempt.seconds = seconds
    attempt.begin()
    folder = attempt.place.writing / ("shards" if ranks.rank else "")
    folder.mkdir(exist_ok=True)
    (folder / ("one.bin" if ranks.rank else "model.safetensors")).write_bytes(b"x" * 1000)
    told = "saved"
    try:
        attempt.finish(step=STEP, state=None, needed=("model.safetensors",), run_id="r", attempt="1.0")
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
