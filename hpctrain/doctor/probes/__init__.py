"""The probes: each looks at one thing of this machine, within a time limit, and returns facts. None of them judges."""
