"""The program of the preflight job (`hpctrain doctor --job`): every rank reports its hardware, and
all ranks test the network together.

The user's launcher starts it instead of the training, so it runs under the same conditions. It only
collects facts: each is one line of JSON on standard output (`hpctrain.doctor.report`), written
immediately, so that a node that hangs later has already reported. Requested GPUs that torch cannot
use are reported, and the other tests run on the CPU.

    python node_check.py [TRAINING_ARGUMENTS] --doctor-gpus 4 --doctor-dataset DIR
    --doctor-checkpoint DIR

The training's own arguments may come first; they are ignored.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":
    # Started by its path: its directory must not shadow other packages, and hpctrain may not be
    # installed in this environment.
    sys.path[:] = [
        entry
        for entry in sys.path
        if Path(entry or ".").resolve() != Path(__file__).resolve().parent
    ]
    sys.path.append(str(Path(__file__).resolve().parents[3]))

from hpctrain.doctor import report
from hpctrain.memory.sample import node_name
from hpctrain.slurm.notations import array
from hpctrain.training.process import cpu_requested, leave, own_rank, say
from hpctrain.util.text import integer

MIB = 1 << 20
#: Time limit in seconds, including imports: a dead network is a finding, not a hang.
LIMIT_S = 150.0
_CONNECT_S = 60
#: Bytes of the all-reduced tensors: the result is verified on the small one too.
_SIZES = (1 * MIB, 64 * MIB)
_REPEATS = 5


def tell(kind: str, **values: object) -> None:
    """Write one line, with the rank and node."""
    say(report.line(kind, rank=own_rank(), host=node_name(), **values))


def main(argv: list[str] | None = None) -> NoReturn:
    """Run all tests and exit: 0 if all of them ran, 1 if one could not."""
    asked = _arguments(sys.argv[1:] if argv is None else argv)
    doing = ["start"]

    def give_up() -> None:
        tell("failed", stage=doing[-1], said=f"no answer within {LIMIT_S:.0f} s of the start")
        os._exit(1)

    timer = threading.Timer(LIMIT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        for stage, step in _steps(asked):
            doing.append(stage)
            step()
        code = 0
    except Exception as error:
        tell("failed", stage=doing[-1], said=f"{type(error).__name__}: {error}")
        code = 1
    leave(code)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="node_check", allow_abbrev=False)
    parser.add_argument(
        "--doctor-gpus",
        dest="gpus",
        type=int,
        default=0,
        help="GPUs per node that the job requests",
    )
    parser.add_argument("--doctor-dataset", dest="dataset", help="folder to read from")
    parser.add_argument(
        "--doctor-checkpoint",
        dest="checkpoint",
        help="folder to write into; default: $HPCTRAIN_RUN_DIR/checkpoints",
    )
    return parser.parse_known_args(argv)[0]


def _steps(asked: argparse.Namespace) -> list[tuple[str, Callable[[], None]]]:
    first = _local_rank() == 0
    members: dict[str, list[int]] = {}

    def connect() -> None:
        members.update(_connected())

    def read() -> None:
        if first and asked.dataset:
            tell("read", **try_reading(asked.dataset))

    def write() -> None:
        run_dir = os.environ.get("HPCTRAIN_RUN_DIR")
        folder = asked.checkpoint or (f"{run_dir}/checkpoints" if run_dir else None)
        if first and folder:
            tell("write", **try_writing(folder))

    def done() -> None:
        from torch import distributed

        distributed.barrier()
        tell("done")

    return [
        ("looking at the node", lambda: _tell_node(asked, whole=first)),
        ("import torch", _tell_torch),
        ("connecting the ranks", connect),
        ("all-reduce", lambda: _all_reduce(members, gpus=asked.gpus)),
        ("reading the dataset", read),
        ("writing a checkpoint", write),
        ("waiting for the other ranks", done),
    ]


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK") or 0)


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE") or 1)


def _tell_node(asked: argparse.Namespace, *, whole: bool) -> None:
    tell(
        "rank",
        gpus_asked=asked.gpus,
        cpus=array.compress(os.sched_getaffinity(0)),
        cpus_per_task=_number("SLURM_CPUS_PER_TASK"),
        job_nodes=_number("SLURM_JOB_NUM_NODES"),
    )
    if whole:
        tell("node", gpus_given=_number("SLURM_GPUS_ON_NODE"))


def _number(variable: str) -> int | None:
    return integer(os.environ.get(variable, ""))


def try_reading(folder: str) -> dict[str, object]:
    """Read the beginning of a file in `folder`; return the error, if any."""
    try:
        first = next((path for path in Path(folder).rglob("*") if path.is_file()), None)
        if first is None:
            return {"path": folder, "error": "it contains no file"}
        with first.open("rb") as stream:
            stream.read(MIB)
    except OSError as error:
        return {"path": folder, "error": error.strerror or str(error)}
    return {"path": folder, "error": None}


def try_writing(folder: str) -> dict[str, object]:
    """Write to a new file in `folder`, or in its nearest existing parent; return the error, if any.

    The file is unnamed, so nothing remains even if this process is killed.
    """
    path = Path(folder).absolute()
    try:
        place = next(each for each in (path, *path.parents) if each.exists())
        with tempfile.TemporaryFile(prefix=".hpctrain-doctor-", dir=place, buffering=0) as stream:
            stream.write(bytes(MIB))
            os.fsync(stream.fileno())
    except OSError as error:
        return {"path": folder, "error": error.strerror or str(error)}
    return {"path": folder, "error": None}


def _tell_torch() -> None:
    import torch

    tell(
        "torch",
        version=torch.__version__,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        visible=_visible(),
        on_cpu=cpu_requested(),
    )


def _visible() -> int:
    import torch

    return 0 if cpu_requested() else int(torch.cuda.device_count())


def _connected() -> dict[str, list[int]]:
    """Connect all ranks over gloo, which works without GPUs, for coordination. Return the ranks of
    each node, in order of rank.
    """
    import torch.distributed as dist

    if _world() == 1 and "MASTER_ADDR" not in os.environ:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("gloo", timeout=timedelta(seconds=_CONNECT_S))
    hosts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, node_name())
    members: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    return members


def _all_reduce(members: dict[str, list[int]], *, gpus: int) -> None:
    import torch
    import torch.distributed as dist

    world = dist.get_world_size()
    usable: list[Any] = [None] * world
    dist.all_gather_object(usable, gpus > 0 and _visible() > _local_rank())
    if world == 1:
        return
    on_gpu = all(usable)
    log = Path(tempfile.gettempdir()) / f"hpctrain-nccl-{os.getpid()}"
    if on_gpu:
        torch.cuda.set_device(_local_rank())
        os.environ.update(
            {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV", "NCCL_DEBUG_FILE": str(log)}
        )
    wanted = [
        (host, ranks) for host, ranks in members.items() if len(members) > 1 and len(ranks) > 1
    ]
    try:
        for name, ranks in [*wanted, ("all", list(range(world)))]:
            # Every rank must take part in creating every group.
            group = dist.new_group(
                ranks, backend="nccl" if on_gpu else "gloo", timeout=timedelta(seconds=_CONNECT_S)
            )
            if dist.get_rank() in ranks:
                _measure(group, name, ranks, device="cuda" if on_gpu else "cpu")
        _tell_network(on_gpu=on_gpu, log=log)
    finally:
        log.unlink(missing_ok=True)


def _measure(group: Any, name: str, ranks: list[int], *, device: str) -> None:
    """All-reduce float32 tensors, and report the bus bandwidth for each size.

    Bus bandwidth is 2 (n - 1) / n times size / time, the load of each rank's link.
    """
    import torch
    import torch.distributed as dist

    def worst(value: float) -> float:
        shared = torch.tensor([value], device=device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=group)
        return float(shared.item())

    def finish() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def timed(data: Any, repeats: int) -> float:
        """Return the seconds of the slowest rank for all repeats."""
        dist.barrier(group=group)
        finish()
        began = time.perf_counter()
        for _ in range(repeats):
            dist.all_reduce(data, group=group)
        finish()
        return worst(time.perf_counter() - began)

    count = len(ranks)
    for size in _SIZES:
        own = float(ranks.index(dist.get_rank()) + 1)
        data = torch.full((size // 4,), own, device=device)
        dist.all_reduce(data, group=group)
        right = worst(0.0 if bool((data == count * (count + 1) / 2).all()) else 1.0) == 0.0
        data.zero_()
        seconds = timed(data, _REPEATS) / _REPEATS
        if dist.get_rank() == ranks[0]:
            tell(
                "all_reduce",
                group=name,
                ranks=count,
                bytes=size,
                seconds=seconds,
                bandwidth=size / seconds * 2 * (count - 1) / count,
                right=right,
                backend="nccl" if device == "cuda" else "gloo",
            )


def _tell_network(*, on_gpu: bool, log: Path) -> None:
    if on_gpu:
        text = log.read_text(errors="replace") if log.exists() else ""
        found = report.nccl_network(text, node_name())
        tell("network", transport=found.transport, devices=list(found.devices)[:16])
        return
    tell("network", transport="gloo", devices=[])


if __name__ == "__main__":
    main()
