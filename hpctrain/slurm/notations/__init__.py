"""Parsers and formatters of Slurm's notations, as pure functions.

No clock, no environment, no files, no processes.
"""
