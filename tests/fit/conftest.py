"""Makes bench/fit/fit_tracked.py importable, which needs torch."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "fit"))
