"""The local scheduler: runs the rendered script locally, under bash.

`srun`, `scontrol` and `scancel` are shims, first on PATH, and the SLURM_* variables are set. Each
of the N simulated nodes has its own launcher; the launchers connect over TCP. Arrays, requeues,
dependencies and signals work as in Slurm, so a script needs no second version. A background
supervisor holds each job and ends all of its processes.
"""
