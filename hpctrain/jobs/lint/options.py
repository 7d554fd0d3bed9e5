"""The options of sbatch and srun: which take a value. Data; sources: sbatch(1) and srun(1) of Slurm 20.11 to 25.11."""

from __future__ import annotations

#: sbatch's long options that need a value.
SBATCH_WITH_VALUE = frozenset({
    "account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster-constraint", "clusters", "cluster", "comment",
    "constraint", "consolidate-segments", "container", "container-id", "core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu",
    "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution", "error", "exclude", "export", "export-file", "extra",
    "extra-node-info", "gid",
    "gpu-bind", "gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "input",
    "job-name", "jobid", "kill-on-invalid-dep", "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu",
    "mem-per-gpu", "mincores", "mincpus", "minsockets", "minthreads", "network", "nodefile", "nodelist", "nodes", "ntasks",
    "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "ntasks-per-tres", "open-mode", "output", "partition",
    "power", "prefer", "priority", "profile", "qos", "reservation", "segment", "signal", "sockets-per-node", "switches", "tasks",
    "tasks-per-node", "thread-spec", "threads-per-core", "time", "time-min", "tmp", "tres-bind", "tres-per-job", "tres-per-task", "uid",
    "wait-all-nodes", "wckey", "workdir", "wrap",
})  # fmt: skip
#: Those whose value, if any, stands behind `=`.
SBATCH_OPTIONAL = frozenset({"exclusive", "get-user-env", "nice", "no-kill", "oom-kill-step", "propagate", "resv-ports"})
SBATCH_FLAGS = frozenset({
    "contiguous", "help", "hold", "ignore-pbs", "immediate", "no-requeue", "overcommit", "oversubscribe", "parsable", "quiet", "reboot",
    "requeue", "share", "spread-job", "spread-segments", "stepmgr", "test-only", "usage", "use-min-nodes", "verbose", "version", "wait",
})  # fmt: skip
SBATCH = SBATCH_WITH_VALUE | SBATCH_OPTIONAL | SBATCH_FLAGS
#: Older names that sbatch still takes.
ALIASES = {"tasks": "ntasks", "tasks-per-node": "ntasks-per-node", "workdir": "chdir", "cluster": "clusters", "share": "oversubscribe"}
#: What other schedulers, or habit, call an option → sbatch's name.
OTHER_NAMES = {
    "walltime": "time", "wall-time": "time", "timelimit": "time", "time-limit": "time", "queue": "partition", "name": "job-name",
    "jobname": "job-name", "memory": "mem", "email": "mail-user", "mail": "mail-user", "gpu": "gpus-per-node", "ngpus": "gpus-per-node",
    "num-gpus": "gpus", "num-nodes": "nodes", "nnodes": "nodes", "num-tasks": "ntasks", "cores": "cpus-per-task", "cpus": "cpus-per-task",
    "ncpus": "cpus-per-task", "out": "output", "err": "error", "stdout": "output", "stderr": "error", "project": "account",
    "depend": "dependency", "cwd": "chdir", "gpu-per-node": "gpus-per-node", "tasks-per-gpu": "ntasks-per-gpu",
}  # fmt: skip

#: srun's short options that need a value in the same or the next word.
SRUN_SHORT_WITH_VALUE = {
    "A": "account", "B": "extra-node-info", "c": "cpus-per-task", "C": "constraint", "d": "dependency", "D": "chdir", "e": "error",
    "G": "gpus", "i": "input", "J": "job-name", "L": "licenses", "m": "distribution", "M": "clusters", "n": "ntasks", "N": "nodes",
    "o": "output", "p": "partition", "q": "qos", "r": "relative", "S": "core-spec", "t": "time", "T": "threads", "w": "nodelist",
    "W": "wait", "x": "exclude",
}  # fmt: skip
SRUN_SHORT_FLAGS = {
    "E": "preserve-env", "H": "hold", "k": "no-kill", "l": "label", "O": "overcommit", "Q": "quiet", "s": "oversubscribe",
    "u": "unbuffered", "v": "verbose", "X": "disable-status", "Z": "no-allocate",
}  # fmt: skip
#: srun's short options with an optional value, which must stand in the same word.
SRUN_SHORT_OPTIONAL = {"I": "immediate", "K": "kill-on-bad-exit"}
#: srun's long options that need a value, beyond those of sbatch; pyxis' are among them.
SRUN_WITH_VALUE = (SBATCH_WITH_VALUE - {"array", "wrap", "wait-all-nodes", "parsable"}) | {
    "accel-bind", "bcast-exclude", "container-image", "container-mounts", "container-name", "container-save", "container-workdir",
    "container-env", "cpu-bind", "epilog", "het-group", "max-threads", "mpi", "multi-prog-file", "ntasks-per-tres", "pack-group", "prolog",
    "relative", "slurmd-debug", "task-epilog", "task-prolog", "threads", "treewidth", "wait",
}  # fmt: skip
#: Options of plugins that many sites have (pyxis, EAR, NVIDIA MPS): not sbatch's own, and no slip.
PLUGINS = frozenset({
    "container-entrypoint", "container-env", "container-image", "container-mount-home", "container-mounts", "container-name",
    "container-readonly", "container-remap-root", "container-save", "container-workdir", "container-writable", "ear", "ear-policy",
    "ear-verbose", "edf", "environment", "no-container-entrypoint", "no-container-mount-home", "no-container-remap-root", "nvmps", "uenv",
    "view", "x11",
})  # fmt: skip
