"""Helpers for all packages: files, text, processes; nothing specific to training."""
