"""Where jobs run: one protocol, two implementations (Slurm and this machine), and the pure parsers they share."""
