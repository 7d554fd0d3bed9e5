"""Runs: their directories, histories, checkpoints, and code snapshots.

Plain files only, safe on Lustre, GPFS and NFS: each file has one writer, is written under a
temporary name and renamed into place. Does not call a scheduler: callers pass job states as values.
Never imports torch, because the login node reads runs, too.
"""
