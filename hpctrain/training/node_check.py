"""The program of the preflight job (`hpctrain doctor --job`): every rank says what it has, and all of them try the network together.

Started by the user's own launcher in the place of the training, so it meets what the training would meet. It judges nothing: each fact
is one line of JSON on standard output (`hpctrain.doctor.lines`), written as soon as it is known, so that a node that hangs later has
already said what it is. GPUs that were asked for and that torch cannot use are said, and the rest is tried on the CPU.

    python node_check.py [TRAINING_ARGUMENTS] --doctor-gpus 4 --doctor-dataset DIR --doctor-checkpoint DIR

The training's own arguments may stand in front; they mean nothing here.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":
    # Started by its path: the room `training` must not stand in front of other packages, and the environment may have no hpctrain.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from hpctrain.doctor import lines, nccl_log
from hpctrain.doctor.probes import disk, node
from hpctrain.training.process import leave, own_rank, say

MIB = 1 << 20
#: Seconds for all of it, imports included; a network that does not answer is a finding, not a hang.
LIMIT_S = 150.0
_CONNECT_S = 60
_SIZES = (1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
#: Seconds for one group's all-reduces, all sizes together.
_SPEED_S = 12.0


class Stage:
    """What this process is doing, for the line that is written when it never ends."""

    def __init__(self) -> None:
        self.name = "start"
        self._timer = threading.Timer(LIMIT_S, self._give_up)
        self._timer.daemon = True
        self._timer.start()

    def _give_up(self) -> None:
        tell("failed", stage=self.name, said=f"no answer within {LIMIT_S:.0f} s of the start")
        os._exit(1)


def tell(kind: str, **values: object) -> None:
    """Write one line, with the rank and the node that say it."""
    say(lines.line(kind, rank=own_rank(), host=node.name(), **values))


def main(argv: list[str] | None = None) -> NoReturn:
    """Look, measure, and end the process: 0 everything was tried, 1 something could not be."""
    asked = _arguments(sys.argv[1:] if argv is None else argv)
    stage = Stage()
    try:
        _check(asked, stage)
        code = 0
    except Exception as error:
        tell("failed", stage=stage.name, said=f"{type(error).__name__}: {error}")
        code = 1
    leave(code)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="node_check", allow_abbrev=False)
    parser.add_argument("--doctor-gpus", dest="gpus", type=int, default=0, help="GPUs of each node that the job asked for")
    parser.add_argument("--doctor-mem", dest="mem", action="store_true", help="the job asked for memory itself")
    parser.add_argument("--doctor-dataset", dest="dataset", help="folder to read from")
    parser.add_argument("--doctor-checkpoint", dest="checkpoint", help="folder to write into; default: $HPCTRAIN_RUN_DIR/checkpoints")
    return parser.parse_known_args(argv)[0]


def _check(asked: argparse.Namespace, stage: Stage) -> None:
    local_rank = int(os.environ.get("LOCAL_RANK") or 0)
    first = local_rank == 0
    stage.name = "looking at the node"
    tell("rank", local_rank=local_rank, world=_world(), gpus_asked=asked.gpus, mem_asked=asked.mem, **node.process_facts())
    if first:
        _tell_node()
    stage.name = "import torch"
    import torch
    import torch.distributed as dist

    visible = 0 if _on_cpu() else int(torch.cuda.device_count())
    _tell_torch(torch, visible)
    stage.name = "connecting the ranks"
    _connect(dist)
    members = _members(dist)
    stage.name = "comparing clocks"
    _clocks(torch, dist, members)
    stage.name = "all-reduce"
    usable = [None] * _world()
    dist.all_gather_object(usable, asked.gpus > 0 and visible > local_rank)
    _all_reduce(torch, dist, members, on_gpu=all(usable))
    stage.name = "reading the dataset"
    dist.barrier()  # all nodes at the same time, as in the training
    if first and asked.dataset:
        tell("read", **disk.read_speed(asked.dataset))
    stage.name = "writing a checkpoint"
    dist.barrier()
    checkpoint = asked.checkpoint or (os.environ["HPCTRAIN_RUN_DIR"] + "/checkpoints" if os.environ.get("HPCTRAIN_RUN_DIR") else None)
    if first and checkpoint:
        tell("write", **disk.write_speed(checkpoint))
    stage.name = "waiting for the other ranks"
    dist.barrier()
    tell("done")


def _tell_node() -> None:
    devices, driver = node.gpus()
    tell("node", driver=driver, gpus=len(devices), **node.node_facts())
    for device in devices:
        tell("gpu", **device)


def _tell_torch(torch: Any, visible: int) -> None:
    nccl = None
    if torch.version.cuda or torch.version.hip:
        try:
            nccl = ".".join(map(str, torch.cuda.nccl.version()))
        except Exception:  # a build without it
            nccl = None
    tell(
        "torch",
        version=torch.__version__,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        nccl=nccl,
        python=sys.version.split()[0],
        visible=visible,
        on_cpu=_on_cpu(),
        threads=torch.get_num_threads(),
    )


def _on_cpu() -> bool:
    return os.environ.get("ACCELERATE_USE_CPU", "").strip().lower() in ("1", "true", "yes")


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE") or 1)


def _connect(dist: Any) -> None:
    """Connect all ranks over gloo, which needs no GPU: what is agreed upon goes over it, whatever the GPUs do."""
    if _world() == 1 and "MASTER_ADDR" not in os.environ:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return
    dist.init_process_group("gloo", timeout=timedelta(seconds=_CONNECT_S))


def _members(dist: Any) -> dict[str, list[int]]:
    """Return the ranks of each node, in order of rank."""
    hosts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, node.name())
    members: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    return members


def _clocks(torch: Any, dist: Any, members: dict[str, list[int]]) -> None:
    """Tell by how much each node's clock is ahead of the first node's.

    As NTP does: a question and an answer, the answer's clock taken to be that of the middle; of ten, the quickest pair, because its
    middle is known best. The error is at most half of its round trip.
    """
    rank = dist.get_rank()
    for leader in [ranks[0] for ranks in members.values()][1:]:
        best: tuple[int, int] | None = None
        for _ in range(10):
            there = torch.zeros(1, dtype=torch.int64)
            if rank == leader:
                asked, tick = time.time_ns(), time.perf_counter_ns()
                dist.send(there, 0)
                dist.recv(there, 0)
                trip = time.perf_counter_ns() - tick
                ahead = asked + trip // 2 - int(there.item())
                best = (trip, ahead) if best is None or trip < best[0] else best
            elif rank == 0:
                dist.recv(there, leader)
                dist.send(torch.tensor([time.time_ns()]), leader)
        if best is not None:
            tell("clock", ahead_s=best[1] / 1e9, error_s=best[0] / 2e9)


def _all_reduce(torch: Any, dist: Any, members: dict[str, list[int]], *, on_gpu: bool) -> None:
    """Measure the all-reduce of each node for itself, where it has several ranks, and of all ranks together."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == 1:
        return
    log = Path(tempfile.gettempdir()) / f"hpctrain-nccl-{os.getpid()}"
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or 0))
        os.environ.update({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV", "NCCL_DEBUG_FILE": str(log)})
    wanted = [(host, ranks) for host, ranks in members.items() if len(members) > 1 and len(ranks) > 1]
    try:
        for name, ranks in [*wanted, ("all", list(range(world)))]:
            # Every rank has to take part in making every group.
            handle = dist.new_group(ranks, backend="nccl" if on_gpu else "gloo", timeout=timedelta(seconds=_CONNECT_S))
            if rank in ranks:
                Group(torch, dist, handle, name, ranks, "cuda" if on_gpu else "cpu").measure()
        _tell_network(on_gpu=on_gpu, log=log)
    finally:
        log.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that reduce together; `name` is a node's, or `all`."""

    torch: Any
    dist: Any
    handle: Any
    name: str
    ranks: list[int]
    device: str

    def measure(self) -> None:
        """All-reduce float32 of growing size until the time is used up, and tell each size's bus bandwidth.

        That is 2 (n - 1) / n times size / time: what each rank's link carries. All ranks decide alike, because they decide by a time that
        has itself been all-reduced.
        """
        left, count = _SPEED_S, len(self.ranks)
        for size in _SIZES:
            data = self.torch.full((size // 4,), float(self.ranks.index(self.dist.get_rank()) + 1), device=self.device)
            self.dist.all_reduce(data, group=self.handle)
            right = self._worst(0.0 if bool((data == count * (count + 1) / 2).all()) else 1.0) == 0.0
            data.zero_()
            once = self._timed(data, 1)
            repeats = max(1, min(20, int(left / 4 / max(once, 1e-6))))
            seconds = self._timed(data, repeats) / repeats
            left -= once * 2 + seconds * repeats
            if self.dist.get_rank() == self.ranks[0]:
                bandwidth = size / seconds * 2 * (count - 1) / count
                backend = "nccl" if self.device == "cuda" else "gloo"
                tell(
                    "all_reduce", group=self.name, ranks=count, bytes=size, seconds=seconds, bandwidth=bandwidth, right=right,
                    backend=backend,
                )  # fmt: skip
            if left < seconds * 12:  # the next size is four times as large: twice for the trial, once for the measurement
                break

    def _timed(self, data: Any, repeats: int) -> float:
        """Return the seconds that the slowest rank needed for all repeats."""
        self.dist.barrier(group=self.handle)
        self._finish()
        began = time.perf_counter()
        for _ in range(repeats):
            self.dist.all_reduce(data, group=self.handle)
        self._finish()
        return self._worst(time.perf_counter() - began)

    def _worst(self, value: float) -> float:
        """Return the largest value of all ranks."""
        shared = self.torch.tensor([value], device=self.device)
        self.dist.all_reduce(shared, op=self.dist.ReduceOp.MAX, group=self.handle)
        return float(shared.item())

    def _finish(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def _tell_network(*, on_gpu: bool, log: Path) -> None:
    """Tell over what the data went: NCCL's own word, or for gloo the interface of the connections that this process has."""
    if on_gpu:
        text = log.read_text(errors="replace") if log.exists() else ""
        found = nccl_log.parse(text)
        tell("network", transport=found.transport, devices=list(found.devices)[:16], bootstrap=found.bootstrap)
        return
    port = os.environ.get("MASTER_PORT", "")
    tell("network", transport="gloo", devices=node.interfaces_in_use(int(port) if port.isdecimal() else None), bootstrap=None)


if __name__ == "__main__":
    main()
