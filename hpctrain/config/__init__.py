"""What a person writes: the YAML of a job config, the layers it is made of, and where each value came from."""
