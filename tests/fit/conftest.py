"""Makes tests/fit/fit_models.py importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
