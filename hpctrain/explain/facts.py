"""What no single line says: facts that are proved by samples, metrics, the record and the config together. PURE.

A rule names one of them (`fact:`). Each returns None where it does not hold, or where too little is known to tell. Groups that a rule's
sentences may use, where they are known:

| fact | groups |
|---|---|
| gpu_shared | ranks (`0, 1`), count, gpu, node, rank |
| gpu_never_used | gpus (of the job), ranks (how many), step |
| memory_on_one_gpu | gpu, node, used, others (how many) |
| oom_moment | moment (`the first step`, `an evaluation`, `a save`, `a step`), step, peak, total |
| cgroup_full | used, limit, percent, node, what (`the job's cgroup`, `the node`), step |
| host_memory_climbs | rank, node, rate (`12 MiB a step`), reached (the step), step, limit, what |
| hang | step, quiet (`41 min`), since, usual, rank, node (of the one that fell silent first) |
| slow | step, max_steps, step_s, left (`1 h 20 min`), limit (`04:00:00`) |
| requeue_loop | count, step, reason; of a log alone: requeues, span, job |
| silent_log | step, file |
| lost_heartbeat | node, step, others (the step that they reached), quiet |
| world_size_wrong | world_size, expected, product (`2 nodes x 4 GPUs = 8 processes`) |
| failed_node | node, nodes, state |
| cancelled_by_root | |
| step_cancelled | |
| cancelled_by | who (`user 1007 (anna), and not tom`) |
| never_started | state, exit_code (`0:53`), reason, elapsed |
| no_log_directory | directory |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hpctrain.explain import facts_gpu, facts_host, facts_job, facts_time
from hpctrain.explain.case import Case
from hpctrain.explain.facts_found import Found

__all__ = ["FACTS", "Fact", "Found"]

Fact = Callable[[Case], Found | None]

FACTS: Mapping[str, Fact] = MappingProxyType(
    {
        "gpu_shared": facts_gpu.gpu_shared,
        "gpu_never_used": facts_gpu.gpu_never_used,
        "memory_on_one_gpu": facts_gpu.memory_on_one_gpu,
        "oom_moment": facts_gpu.oom_moment,
        "cgroup_full": facts_host.cgroup_full,
        "host_memory_climbs": facts_host.host_memory_climbs,
        "hang": facts_time.hang,
        "slow": facts_time.slow,
        "requeue_loop": facts_time.requeue_loop,
        "silent_log": facts_time.silent_log,
        "lost_heartbeat": facts_time.lost_heartbeat,
        "world_size_wrong": facts_job.world_size_wrong,
        "failed_node": facts_job.failed_node,
        "cancelled_by_root": facts_job.cancelled_by_root,
        "cancelled_by": facts_job.cancelled_by,
        "step_cancelled": facts_job.step_cancelled,
        "never_started": facts_job.never_started,
        "no_log_directory": facts_job.no_log_directory,
    }
)
