"""The local scheduler: runs the rendered script itself, under bash, on this machine.

`srun` and `scontrol` are stand-ins, first on PATH; the SLURM_* variables are set; N nodes are played here, each by a launcher of
its own that meets the others over TCP. A supervisor in the background holds the job, so that nothing of it outlives it.
"""
