"""What logs are full of is made beside the tests, and the cases with what is to be said of them are those of explain."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "explain")]
