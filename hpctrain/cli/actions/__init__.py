"""Implementations of the commands with many options; imported late, so that `--help` is fast."""
