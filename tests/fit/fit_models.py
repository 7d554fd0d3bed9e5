"""Shapes of real models, from their config.json files."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpctrain.fit.shape import ModelShape, read_shape


@dataclass
class Split:
    longest: int


@dataclass
class Data:
    """What fit reads of a prepared dataset."""

    packed: bool = False
    max_length: int | None = None
    labels: tuple[str, ...] = ("no", "yes", "unknown")
    vocabulary: int = 300
    splits: dict[str, Split] = field(default_factory=lambda: {"train": Split(700)})


MODELS = Path(__file__).parent / "models"


def config(name: str, **changes: Any) -> dict[str, Any]:
    return json.loads((MODELS / name / "config.json").read_text()) | changes


def shape(name: str, **changes: Any) -> ModelShape:
    return read_shape(config(name, **changes))
