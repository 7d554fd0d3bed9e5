"""Lets the tests of this directory import each other's helpers, as tests are imported without packages."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
