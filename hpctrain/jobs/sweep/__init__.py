"""Sweeps: what varies → points → the table that array tasks read, and the arrays that run it.

Pure. `config.sweep` reads what a person writes. The modules, in the order in which they are used: `model` (values), `expand` (points),
`group` (which points share a script), `table` (a line for each point), `array` (indices, and arrays that Slurm takes).
"""

from hpctrain.jobs.sweep.array import ArrayPart, arrays, selected
from hpctrain.jobs.sweep.expand import expand
from hpctrain.jobs.sweep.group import Group, groups
from hpctrain.jobs.sweep.model import Distribution, Point, Random, Sweep
from hpctrain.jobs.sweep.table import Table, read_point, swept_arguments, table

__all__ = [
    "ArrayPart", "Distribution", "Group", "Point", "Random", "Sweep", "Table", "arrays", "expand", "groups", "read_point",
    "selected", "swept_arguments", "table",
]  # fmt: skip
