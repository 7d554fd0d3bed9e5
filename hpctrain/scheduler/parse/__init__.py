"""Slurm's own notations as pure functions: text in, values out. No clock, no environment, no files, no processes."""
