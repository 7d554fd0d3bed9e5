"""What one process of the preflight job finds on its node before it uses torch, and whether the node
can read the dataset and write a checkpoint. Standard library only.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hpctrain.slurm.notations import array
from hpctrain.util.text import integer

_PIECE = 1 << 20


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the node's name: Slurm's, which scontrol accepts, else the host name."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


def process_facts(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Return the facts that differ per process: its usable cores, and the resources of its task."""
    return {
        "cpus": array.compress(os.sched_getaffinity(0)),
        "cpus_per_task": integer(environ.get("SLURM_CPUS_PER_TASK", "")),
        "task": integer(environ.get("SLURM_PROCID", "")),
        "job_nodes": integer(environ.get("SLURM_JOB_NUM_NODES", "")),
    }


def node_facts(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Return the facts that all processes of a node share."""
    return {"cores": os.cpu_count(), "gpus_given": integer(environ.get("SLURM_GPUS_ON_NODE", ""))}


def try_reading(folder: str) -> dict[str, object]:
    """Read the beginning of a file in `folder`; return the error, if any."""
    try:
        first = next((path for path in Path(folder).rglob("*") if path.is_file()), None)
        if first is None:
            return {"path": folder, "error": "it contains no file"}
        with first.open("rb") as stream:
            stream.read(_PIECE)
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
            stream.write(bytes(_PIECE))
            os.fsync(stream.fileno())
    except OSError as error:
        return {"path": folder, "error": error.strerror or str(error)}
    return {"path": folder, "error": None}
