"""Why a job failed: failure rules (data) and the engine that applies them.

PURE: text and records in, a diagnosis out. No clock, environment or file is read, and nothing is
printed: hpctrain.jobs.explanation collects the facts.
"""
