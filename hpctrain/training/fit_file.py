"""Writes RUN_DIR/fit.json (hpctrain.runs.predicted), and never disturbs the training."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpctrain.runs import predicted


class FitFile:
    """Of one training; only its rank 0 may call it.

    Args:
        run_dir: the run's directory; None: nothing is written.
        cluster: the cluster's name.
    """

    def __init__(self, run_dir: Path | None, cluster: str | None) -> None:
        self._run_dir = run_dir
        self._record: dict[str, Any] = {"layout": None, "shape": None, "gpu": None, "cluster": cluster, "predicted": None, "measured": None}
        self._said = False

    def begin(self, expected: Mapping[str, Any]) -> None:
        """Write what is expected; what an earlier start measured stays, as long as the layout and the GPU are the same."""
        if self._run_dir is None:
            return
        self._record |= expected
        before = predicted.read(self._run_dir)
        if before is not None and all(_plain(self._record[name]) == before.get(name) for name in ("layout", "gpu")):
            self._record["measured"] = before.get("measured")
        self._write()

    def measured(self, values: Mapping[str, Any]) -> None:
        """Write what was measured by now."""
        self._record["measured"] = dict(values)
        self._write()

    def _write(self) -> None:
        if self._run_dir is None:
            return
        try:
            predicted.write(self._run_dir, self._record)
        except (OSError, TypeError, ValueError) as error:
            if not self._said:
                self._said = True
                sys.stderr.write(f"[train] notice: cannot write {self._run_dir / 'fit.json'}: {error}\n")
                sys.stderr.flush()


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back: lists for tuples."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value
