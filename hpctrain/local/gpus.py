"""The local GPUs and the jobs that hold them. `local/.gpus/HOST.json` has the owner of each GPU and
is changed under a lock. A job holds its GPUs until it ends.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from hpctrain.errors import UsageError
from hpctrain.local.jobs import LocalJob, root
from hpctrain.local.plan import LocalMachine
from hpctrain.util.files import lock, read_json, write_json
from hpctrain.util.text import is_number

#: Seconds to wait for the lock, which other local jobs hold for milliseconds.
_LOCK_S = 60.0


def this_machine(device: str | None = None) -> LocalMachine:
    """Return cores (in this process's affinity mask), NVIDIA GPUs with the jobs that hold them,
    host and user.

    Args:
        device: the GPUs to use, or `cpu`; None for all.

    Raises:
        UsageError: `device` names a GPU that does not exist.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        gpus = [item for item in _items(visible) if item != "-1"]
    else:
        names = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia*"))
        gpus = sorted((name for name in names if is_number(name)), key=int)
    on_cpu = device == "cpu"
    if device is not None and not on_cpu:
        chosen = list(dict.fromkeys(_items(device)))
        missing = [gpu for gpu in chosen if gpu not in gpus]
        if missing or not chosen:
            here = f"this machine has {', '.join(gpus)}" if gpus else "this machine has none"
            raise UsageError(
                f"there is no GPU {', '.join(missing) or repr(device)}; {here}",
                hint="check CUDA_VISIBLE_DEVICES, or use the CPU: --device cpu",
            )
        gpus = chosen
    busy = held(gpus)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()  # not on macOS
    return LocalMachine(
        cores=len(usable) or os.cpu_count() or 1,
        gpus=tuple(gpu for gpu in gpus if gpu not in busy),
        busy_gpus=tuple(busy),
        host=socket.gethostname(),
        user=getpass.getuser(),
        use_cpu=on_cpu or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"),
        chosen=device is not None and not on_cpu,
    )


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def held(among: Sequence[str]) -> dict[str, str]:
    """Return a mapping of GPU to owner, for the GPUs that a live job holds."""
    owners = {gpu: str(owner) for gpu, owner in (read_json(_owners()) or {}).items()}
    jobs = {owner: LocalJob(root() / owner) for owner in owners.values()}
    live = [name for name, job in jobs.items() if job.path.is_dir() and not job.record().is_final]
    return {gpu: owners[gpu] for gpu in among if owners.get(gpu) in live}


def take(job: LocalJob, count: int, among: Sequence[str]) -> tuple[str, ...] | None:
    """Allocate `count` GPUs to the job, counting those it already holds; None if too few are free.

    Write job.json and supervisor.json first: other jobs take the GPUs of a job that looks dead.
    """
    owner, path = str(job.path.relative_to(root())), _owners()
    with lock(path.with_suffix(".lock"), timeout_s=_LOCK_S):
        owners = held(among)
        mine = [gpu for gpu in among if owners.get(gpu) == owner]
        mine = [*mine, *(gpu for gpu in among if gpu not in owners)][:count]
        if len(mine) < count:
            return None
        write_json(path, {**(read_json(path) or {}), **dict.fromkeys(mine, owner)})
    return tuple(gpu for gpu in among if gpu in mine)


def _owners() -> Path:
    directory = root() / ".gpus"
    directory.mkdir(exist_ok=True)
    return directory / f"{quote(socket.gethostname(), safe='')}.json"
