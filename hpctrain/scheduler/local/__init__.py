"""The local scheduler: runs the rendered script itself, under bash, on this machine.

`srun`, `scontrol`, `scancel` and `squeue` are stand-ins, first on PATH; the SLURM_* variables are set; N nodes are played here, each by a
launcher of its own that meets the others over TCP. Arrays, requeues, dependencies and signals are played as Slurm has them, so that one
script needs no second form. A supervisor in the background holds each job, so that nothing of it outlives it.
"""
