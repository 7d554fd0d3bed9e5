"""Checks of a job or a script before it queues."""
