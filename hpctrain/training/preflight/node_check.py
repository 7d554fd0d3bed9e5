"""The program of the preflight job (`hpctrain doctor --job`): every rank reports its hardware, and
all ranks test the network together.

The user's launcher starts it instead of the training, so it runs under the same conditions. It only
collects facts: each is one line of JSON on standard output (`hpctrain.logs.preflight`), written
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

from hpctrain.logs import preflight
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
    say(preflight.line(kind, rank=own_rank(), host=node_name(), **values))


def main(argv: list[str] | None = None) -> NoReturn:
    """Run all tests and exit: 0 if all of them ran, 1 if one could not."""
    parser = argparse.ArgumentParser(prog="node_check", allow_abbrev=False)
    parser.add_argument(
        "--doctor-gpus", dest="gpus", type=int, default=0, help="GPUs per node of the job"
    )
    parser.add_argument("--doctor-dataset", dest="dataset", help="folder to read from")
    parser.add_argument(
        "--doctor-checkpoint",
        dest="checkpoint",
        help="folder to write into; default: $HPCTRAIN_RUN_DIR/checkpoints",
    )
    asked = parser.parse_known_args(sys.argv[1:] if argv is None else argv)[0]
    doing = ["start"]

    def give_up() -> None:
        tell("failed", stage=doing[-1], said=f"no answer within {LIMIT_S:.0f} s of the start")
        os._exit(1)

    timer = threading.Timer(LIMIT_S, give_up)
    timer.daemon = True
    timer.start()
    code = 0
    try:
        _run(asked, doing)
    except Exception as error:
        tell("failed", stage=doing[-1], said=f"{type(error).__name__}: {error}")
        code = 1
    leave(code)


def _run(asked: argparse.Namespace, doing: list[str]) -> None:
    doing.append("looking at the node")
    tell(
        "rank",
        gpus_asked=asked.gpus,
        cpus=array.compress(os.sched_getaffinity(0)),
        cpus_per_task=_number("SLURM_CPUS_PER_TASK"),
        job_nodes=_number("SLURM_JOB_NUM_NODES"),
    )
    if _local_rank() == 0:
        tell("node", gpus_given=_number("SLURM_GPUS_ON_NODE"))
    doing.append("import torch")
    import torch

    visible = 0 if cpu_requested() else int(torch.cuda.device_count())
    tell(
        "torch",
        version=torch.__version__,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        visible=visible,
        on_cpu=cpu_requested(),
    )
    doing.append("connecting the ranks")
    members = _connected()
    doing.append("all-reduce")
    _all_reduce(members, on_gpu=asked.gpus > 0 and visible > _local_rank())
    run_dir = os.environ.get("HPCTRAIN_RUN_DIR")
    checkpoint = asked.checkpoint or (f"{run_dir}/checkpoints" if run_dir else None)
    for stage, kind, folder, access in (
        ("reading the dataset", "read", asked.dataset, read_from),
        ("writing a checkpoint", "write", checkpoint, write_to),
    ):
        doing.append(stage)
        if _local_rank() == 0 and folder:
            tell(kind, path=folder, error=error_of(access, folder))
    doing.append("waiting for the other ranks")
    torch.distributed.barrier()
    tell("done")


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK") or 0)


def _number(variable: str) -> int | None:
    return integer(os.environ.get(variable, ""))


def error_of(access: Callable[[str], None], folder: str) -> str | None:
    """Return the error of an access to a folder, if any."""
    try:
        access(folder)
    except OSError as error:
        return error.strerror or str(error)
    return None


def read_from(folder: str) -> None:
    """Read the beginning of a file in `folder`.

    Raises:
        OSError: it cannot be read, or contains no file.
    """
    first = next((path for path in Path(folder).rglob("*") if path.is_file()), None)
    if first is None:
        raise OSError("it contains no file")
    with first.open("rb") as stream:
        stream.read(MIB)


def write_to(folder: str) -> None:
    """Write to a new file in `folder`, or in its nearest existing parent.

    The file is unnamed, so nothing remains even if this process is killed.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(folder).absolute()
    place = next(each for each in (path, *path.parents) if each.exists())
    with tempfile.TemporaryFile(prefix=".hpctrain-doctor-", dir=place, buffering=0) as stream:
        stream.write(bytes(MIB))
        os.fsync(stream.fileno())


def _connected() -> dict[str, list[int]]:
    """Connect all ranks over gloo, which works without GPUs, for coordination. Return the ranks of
    each node, in order of rank.
    """
    import torch.distributed as dist

    if "MASTER_ADDR" not in os.environ and (_number("WORLD_SIZE") or 1) == 1:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("gloo", timeout=timedelta(seconds=_CONNECT_S))
    hosts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, node_name())
    members: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    return members


def _all_reduce(members: dict[str, list[int]], *, on_gpu: bool) -> None:
    import torch
    import torch.distributed as dist

    world = dist.get_world_size()
    usable: list[Any] = [None] * world
    dist.all_gather_object(usable, on_gpu)
    if world == 1:
        return
    log = Path(tempfile.gettempdir()) / f"hpctrain-nccl-{os.getpid()}"
    device, backend = ("cuda", "nccl") if all(usable) else ("cpu", "gloo")
    if device == "cuda":
        torch.cuda.set_device(_local_rank())
        os.environ.update(
            {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV", "NCCL_DEBUG_FILE": str(log)}
        )
    groups = {host: ranks for host, ranks in members.items() if 1 < len(ranks) < world}
    try:
        for name, ranks in {**groups, "all": list(range(world))}.items():
            # Every rank must take part in creating every group.
            group = dist.new_group(ranks, backend=backend, timeout=timedelta(seconds=_CONNECT_S))
            if dist.get_rank() in ranks:
                _measure(group, name, ranks, device=device)
        transport: str | None = backend
        devices: list[str] = []
        if device == "cuda":
            text = log.read_text(errors="replace") if log.exists() else ""
            found = preflight.nccl_network(text, node_name())
            transport, devices = found.transport, list(found.devices)[:16]
        tell("network", transport=transport, devices=devices)
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

    def finish() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    count = len(ranks)
    for size in _SIZES:
        own = float(ranks.index(dist.get_rank()) + 1)
        data = torch.full((size // 4,), own, device=device)
        dist.all_reduce(data, group=group)
        right = worst(0.0 if bool((data == count * (count + 1) / 2).all()) else 1.0) == 0.0
        data.zero_()
        dist.barrier(group=group)
        began = finish()
        for _ in range(_REPEATS):
            dist.all_reduce(data, group=group)
        seconds = worst(finish() - began) / _REPEATS
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


if __name__ == "__main__":
    main()
