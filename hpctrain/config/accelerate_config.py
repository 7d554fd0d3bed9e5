"""What an accelerate config may not say, because it would break the rule of one process to a GPU.

The numbers in it do no harm: the script gives `--num_processes` and `--num_machines` on the command line, where they win
(accelerate 1.15, `_validate_launch_command`). The kind of launch is read from the file, though.
"""

from __future__ import annotations

from hpctrain.yaml12 import Document

#: With anything else, `accelerate launch` starts one process and says nothing.
DISTRIBUTED = ("MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")


def problems(document: Document, file: str) -> list[str]:
    """Return what is wrong with the accelerate config, as `file:line:col: sentence`."""
    found = []
    kind = document.data.get("distributed_type")
    if kind not in DISTRIBUTED:
        allowed = f"{', '.join(DISTRIBUTED[:-1])} or {DISTRIBUTED[-1]}"
        where = _where(document, "distributed_type", file)
        found.append(f"{where}: distributed_type must be {allowed}, not {kind}: accelerate would start one process")
    gpu_ids = document.data.get("gpu_ids")
    if gpu_ids not in (None, "all"):
        reason = "Slurm chooses the GPUs, and two processes would share one"
        found.append(f"{_where(document, 'gpu_ids', file)}: gpu_ids must be all, not {gpu_ids}: {reason}")
    if document.data.get("compute_environment") not in (None, "LOCAL_MACHINE"):
        found.append(f"{_where(document, 'compute_environment', file)}: compute_environment must be LOCAL_MACHINE")
    return found


def _where(document: Document, key: str, file: str) -> str:
    place = document.places.get((key,))
    return str(place) if place is not None else file
