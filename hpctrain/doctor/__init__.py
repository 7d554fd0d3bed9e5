"""Checks whether the login node, the job's environment and the compute nodes are fit for training.

The probes of the login node are in `login`, each with a time limit. The facts about the job's
environment (`environment`) and about the nodes (`report`) are evaluated by pure functions
(`environment_evaluation`, with rules of `checks.job`; `node_evaluation`). Nothing here imports
torch: a process in the job's environment does (`training.preflight.offline_check`,
`training.preflight.node_check`).
"""

from __future__ import annotations

#: Every finding of `hpctrain doctor` (doctor-…) and `hpctrain doctor --job` (node-…); see
#: docs/findings.md.
IDS = (
    "doctor-environment-broken",
    "doctor-environment-architecture",
    "doctor-package-missing",
    "doctor-versions-disagree",
    "doctor-hpctrain-differs",
    "doctor-launcher-missing",
    "doctor-module-command",
    "doctor-module-unknown",
    "doctor-disk-full",
    "doctor-quota",
    "doctor-offline",
    "doctor-start",
    "doctor-slurm-silent",
    "doctor-no-account",
    "node-silent",
    "node-gpus-missing",
    "node-all-reduce-wrong",
    "node-all-reduce-slow",
    "node-cores-few",
    "node-dataset-unreadable",
    "node-checkpoint-unwritable",
)
