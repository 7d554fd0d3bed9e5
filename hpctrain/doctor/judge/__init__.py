"""The judges: pure functions from facts to a verdict. No clock, no environment, no files, no processes."""
