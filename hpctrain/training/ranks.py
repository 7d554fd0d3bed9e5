"""The processes of one training, and how they agree: on a gloo group of their own, so that no GPU waits for it."""

from __future__ import annotations

import datetime
from typing import Any


class Ranks:
    """All processes of a training; create it in all of them, when the process group is there. One process agrees with itself.

    Args:
        timeout_s: how long one waits for the others, in seconds, before it fails.
    """

    def __init__(self, timeout_s: float = 1800.0) -> None:
        from torch import distributed

        self._group: Any = None
        self.rank, self.size = 0, 1
        if distributed.is_available() and distributed.is_initialized():
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        if self.size > 1:
            self._group = distributed.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout_s))

    def highest(self, *values: int) -> list[int]:
        """Return, for each value, the highest of all ranks."""
        if self._group is None:
            return list(values)
        import torch

        tensor = torch.tensor(values, dtype=torch.int64)
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX, group=self._group)
        return [int(value) for value in tensor.tolist()]

    def share(self, value: Any) -> Any:
        """Return rank 0's value; what the others pass is not looked at."""
        if self._group is None:
            return value
        import torch

        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, group=self._group, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""
        if self._group is None:
            return [value]
        from torch import distributed

        found = [None] * self.size
        distributed.all_gather_object(found, value, group=self._group)
        return found
