"""The table of rules, by topic: for each finding why it matters, in which versions of Slurm, and where that is known from."""
