"""The live view of a run, and its report as an HTML page."""
