"""Is this machine fit for training, and are the nodes? Probes gather frozen facts; judges, which are pure, turn facts into findings.

`probes` may look at files and start programs (through `scheduler.process`), each within a time limit. `judge` gets facts as arguments
and knows no clock, environment, file or process. Nothing here imports torch: what torch has to say is said by a process of the job's
own environment (`training.offline_check`, `training.node_check`).
"""

from __future__ import annotations

#: Every finding of `hpctrain doctor` (doctor-…) and `hpctrain doctor --job` (node-…); docs/findings/ID.md says more.
IDS = (
    "doctor-environment-missing",
    "doctor-environment-broken",
    "doctor-environment-architecture",
    "doctor-environment-node-local",
    "doctor-python-old",
    "doctor-package-missing",
    "doctor-versions-disagree",
    "doctor-hpctrain-differs",
    "doctor-torch-build",
    "doctor-launcher-missing",
    "doctor-module-command",
    "doctor-module-unknown",
    "doctor-model-or-data",
    "doctor-disk-full",
    "doctor-inodes",
    "doctor-quota",
    "doctor-offline",
    "doctor-start",
    "doctor-slurm-silent",
    "doctor-no-account",
    "node-silent",
    "node-gpus-missing",
    "node-gpu-errors",
    "node-gpu-throttled",
    "node-gpu-in-use",
    "node-all-reduce-wrong",
    "node-all-reduce-slow",
    "node-interface",
    "node-cores-few",
    "node-cores-shared",
    "node-threads",
    "node-shm-small",
    "node-tmp-small",
    "node-memory-limit",
    "node-dataset-unreadable",
    "node-dataset-slow",
    "node-checkpoint-unwritable",
    "node-checkpoint-slow",
    "node-clock-skew",
    "node-limits",
    "node-versions-differ",
)
