"""Job configs: the YAML format, the layers that are merged, and the origin of each value."""
