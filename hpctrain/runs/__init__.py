"""Runs: their directories, what happened in them, their checkpoints, and the code that they ran.

Plain files only, safe on Lustre, GPFS and NFS: each file has one writer, is written under another name and renamed into place, and no
lock decides anything. Knows no scheduler: what a scheduler says comes in as values. Never imports torch: the login node reads runs too.
"""
