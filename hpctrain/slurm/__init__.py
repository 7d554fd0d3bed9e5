"""The scheduler protocol (`base`), the Slurm client, and the pure parsers that it shares with
hpctrain.local, the other implementation.
"""
