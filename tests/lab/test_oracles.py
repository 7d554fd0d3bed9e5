"""Slurm itself as the oracle of our parsers and of how we quote: what it reads back is what counts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from conftest_lab import Lab

from hpctrain import data
from hpctrain.jobs import directives as job_directives
from hpctrain.jobs import render
from hpctrain.jobs.spec import JobSpec
from hpctrain.scheduler.parse import directives, duration, hostlist, log_pattern, memory_size, records
