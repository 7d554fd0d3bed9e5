"""What a training reports while it runs: log lines, speed, memory, files."""
