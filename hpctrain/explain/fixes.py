"""What to do, in the user's own numbers: computed from the samples, the formula of `hpctrain fit`, the record and the config. PURE.

A rule names one of them (`fix:`). Each returns None where the numbers are not known, or where the job has all of it already; then the
rule's remedy is shown. `changes` hold what `hpctrain resubmit --apply-fix` can do by itself: what leaves the training the same one, with
the same global batch, and of a script of one's own what Slurm is asked for alone. The rest is said in the text.

What `case.extra` may hold for them: `run` (its id), `profile` (of the cluster, as a mapping), `time_max_s` (of the partition),
`cpus_per_node`, `accounts`, `partitions` and `qos` (those that are allowed), `torch` (its version). Groups that they look at:

| fix | groups |
|---|---|
| gpu_batch, host_memory, killed, time_limit, save_steps, learning_rate | none |
| fragmentation | variable (`PYTORCH_ALLOC_CONF`, as the message names it) |
| workers | suggested (workers at most, as torch's warning says) |
| cpus | workers |
| time_max | most (a time in Slurm's form) |
| world_size | world_size |
| exclude_node | node |
| offline | repo, or name (of a model or dataset) |
| port | port |
| account, partition, qos | account, partition, qos: what was asked for |
| nccl | none |
| hang | rank |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hpctrain.explain import fixes_gpu, fixes_host, fixes_job, fixes_time
from hpctrain.explain.case import Case
from hpctrain.explain.model import Fix

Remedy = Callable[[Case, Mapping[str, str]], Fix | None]

FIXES: Mapping[str, Remedy] = MappingProxyType(
    {
        "gpu_batch": fixes_gpu.gpu_batch,
        "fragmentation": fixes_gpu.fragmentation,
        "host_memory": fixes_host.host_memory,
        "killed": fixes_host.killed,
        "workers": fixes_host.workers,
        "cpus": fixes_host.cpus,
        "time_limit": fixes_time.time_limit,
        "time_max": fixes_time.time_max,
        "save_steps": fixes_time.save_steps,
        "hang": fixes_time.hang,
        "world_size": fixes_job.world_size,
        "exclude_node": fixes_job.exclude_node,
        "offline": fixes_job.offline,
        "port": fixes_job.port,
        "account": fixes_job.account,
        "partition": fixes_job.partition,
        "qos": fixes_job.qos,
        "nccl": fixes_job.nccl,
        "learning_rate": fixes_job.learning_rate,
    }
)
