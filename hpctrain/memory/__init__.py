"""Memory samples of GPUs, processes, nodes and jobs, as a log line and as JSON.

Nothing here imports torch, so the login node can read logs with it.
"""

from hpctrain.memory.sample import Event, Sample, format_line, from_json, parse_line, to_json

__all__ = ["Event", "Sample", "format_line", "from_json", "parse_line", "to_json"]
