"""Stages: what depends on what, and in which order they are submitted. Pure."""

from __future__ import annotations

import re


def variable(name: str) -> str:
    """Return the environment variable that holds the directory of the run of stage `name`: `HPCTRAIN_STAGE_PRETRAIN`."""
    return "HPCTRAIN_STAGE_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
