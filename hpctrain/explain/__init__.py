"""Why a job failed: failure rules (data) and the engine that applies them. PURE: text and records in, a diagnosis out.

No clock, environment, files, processes or printing: hpctrain.logs reads, hpctrain.cli.explain brings the facts and prints.
"""
