"""Shapes of real models, from their config.json files."""

import json
from pathlib import Path
from typing import Any

from hpctrain.fit.shape import ModelShape, read_shape

MODELS = Path(__file__).parent / "models"


def config(name: str, **changes: Any) -> dict[str, Any]:
    return json.loads((MODELS / name / "config.json").read_text()) | changes


def shape(name: str, **changes: Any) -> ModelShape:
    return read_shape(config(name, **changes))
