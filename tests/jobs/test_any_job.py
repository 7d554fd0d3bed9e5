"""Any valid job renders to a script that bash reads, that Slurm reads as meant, and in which no value is more than a value."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpctrain.jobs import render
from hpctrain.scheduler.parse import directives

