"""What each sbatch option asks for: long name without dashes → sentence.

Source of all rows: sbatch(1) of Slurm 22.05 to 26.05, unless a row says otherwise.

To add one: a line here. `{it}` is the value in words (`reading`, a function of readings.py), `{value}` the value as it is written.
"""

from __future__ import annotations

from hpctrain.jobs.explain_script.rows import ASKED, LOGS, Row


def _asked(why: str, reading: str | None = None, source: str = "sbatch(1)") -> Row:
    return Row(why, source, ASKED, reading)


def _logs(why: str, reading: str | None = None, source: str = "sbatch(1)") -> Row:
    return Row(why, source, LOGS, reading)


#: Who pays, where, and what the job is called.
_WHO = {
    "job-name": _asked("the name that squeue and sacct show, and %x in file names. Without it: the name of the script's file."),
    "account": _asked("the project `{value}` is charged. Without it: your default account; where you have none, sbatch refuses the job."),
    "partition": _asked("{it}. Without it: the site's default partition, which may have no GPUs.", "partition"),
    "qos": _asked("the quality of service `{value}`: it sets limits and priority. Without it: the default of your account."),
    "reservation": _asked(
        "runs on nodes that were set aside under the name `{value}`, and only there. Without it, Slurm keeps off those nodes."
    ),
    "chdir": _asked("the job starts in this directory, wherever sbatch was typed. Without it: the directory in which sbatch was typed."),
    "comment": _asked("a remark that travels with the job; squeue and sacct can show it. Slurm does nothing with it."),
    "wckey": _asked("a label for the accounting, next to the account. Some sites ask for one."),
    "licenses": _asked("waits until these licences are free, and holds them while the job runs: `{value}`."),
    "clusters": _asked("submits to this cluster; of several, to the one where the job would start first: `{value}`."),
}
#: How much of what.
_HOW_MUCH = {
    "nodes": _asked("{it} for this job. Without it, Slurm takes as few nodes as the tasks need: often one.", "nodes"),
    "ntasks": _asked(
        "{it} over all nodes: srun will start that many copies of its command. Without it: one task on each node.",
        "tasks",
    ),
    "ntasks-per-node": _asked(
        "{it} on each node: srun will start that many copies of its command there. Without it: one. With --ntasks it is only a maximum.",
        "tasks",
    ),
    "ntasks-per-socket": _asked("at most {it} on each socket (processor chip). For use with --ntasks.", "tasks"),
    "ntasks-per-core": _asked("at most {it} on each core.", "tasks"),
    "ntasks-per-gpu": _asked("{it} for each GPU, as many as --gpus or --ntasks say.", "tasks"),
    "cpus-per-task": _asked(
        "{it} for each task, to load data and to feed the GPUs. Without it: one core, and the GPUs wait for data.", "cores"
    ),
    "cpus-per-gpu": _asked("{it} for each GPU. Excludes --cpus-per-task.", "cores"),
    "gres": _asked("{it}. Without it: no GPU; programs then see none, or train on the CPU.", "gres"),
    "gpus": _asked("{it} in total, over all nodes. How many each node gives is up to Slurm, unless --nodes and the total fix it.", "gpus"),
    "gpus-per-node": _asked(
        "{it} on each node (per node, not in total{product}). The same as --gres=gpu:N; both together are an error from Slurm 26.05 on.",
        "gpus",
    ),
    "gpus-per-task": _asked(
        "{it} for each task, and each task sees only its own. torchrun and accelerate want one task for a node that sees all of them.",
        "gpus",
    ),
    "gpus-per-socket": _asked("{it} for each socket (processor chip).", "gpus"),
    "mem": _asked(
        "{it} on each node; GPU memory is not counted. Without it: the site's default, which can be small. "
        "What uses more is killed: OUT_OF_MEMORY.",
        "memory",
    ),
    "mem-per-cpu": _asked("{it} for each core. Excludes --mem and --mem-per-gpu.", "memory"),
    "mem-per-gpu": _asked("{it} for each GPU. Excludes --mem and --mem-per-cpu.", "memory"),
    "tmp": _asked("only nodes with at least {it} of local disk for temporary files.", "size"),
    "exclusive": _asked(
        "{it}: all its cores and GPUs, but only the memory that is asked for (--mem=0: all). You are charged for the whole node.",
        "exclusive",
    ),
    "oversubscribe": _asked("lets other jobs use the same cores. Not for training."),
    "overcommit": _asked("lets several tasks share one core. Not for training: they wait for each other."),
    "tres-per-task": _asked("for each task: `{value}`."),
}
#: Which nodes.
_WHICH = {
    "constraint": _asked("only nodes with {it}: features that the site gave them (`sinfo -o '%n %f'` lists them).", "features"),
    "prefer": _asked("rather nodes with {it}, but others will do.", "features"),
    "cluster-constraint": _asked("only clusters of the federation with {it}.", "features"),
    "batch": _asked("this script itself runs on a node with {it}, the first such of the job.", "features"),
    "nodelist": _asked("these nodes must be part of the job: `{value}`. It waits until they are free, so rather leave it out."),
    "nodefile": _asked("the same as --nodelist, with the names in the file `{value}`."),
    "exclude": _asked("never on these nodes: `{value}`. The usual way around a node that is broken."),
    "contiguous": _asked("the nodes must stand side by side. Waits longer; --switches is often what is meant."),
    "switches": _asked(
        "the nodes hang on at most {it}, so that traffic between GPUs takes short ways; the time behind @ is how long to wait for such.",
        "switches",
    ),
    "segment": _asked("nodes in blocks of {value} that stand close together.", source="sbatch(1), from Slurm 24.05"),
    "spread-job": _asked("over as many nodes as possible."),
    "use-min-nodes": _asked("of a range of nodes, the smallest number that will do."),
    "mincpus": _asked("only nodes with at least {it}.", "cores"),
    "extra-node-info": _asked("only nodes with at least so many sockets:cores:threads: `{value}`."),
    "sockets-per-node": _asked("only nodes with at least {value} sockets (processor chips)."),
    "cores-per-socket": _asked("only nodes with at least {it} to a socket.", "cores"),
    "threads-per-core": _asked("threads of each core that the job uses: {value}. 1 leaves hyper-threads idle."),
    "core-spec": _asked("keeps {it} of each node free for the system. They are charged, and the node is yours alone.", "cores"),
    "thread-spec": _asked("keeps {value} threads of each node free for the system. The node is yours alone."),
    "reboot": _asked("reboots the nodes first. Few sites allow it."),
    "delay-boot": _asked("waits {value} minutes for nodes that already have the features, before it lets others reboot."),
}
#: When, and for how long.
_WHEN = {
    "time": _asked(
        "{it}; then Slurm sends SIGTERM, and SIGKILL after KillWait (30 s unless the site says otherwise). "
        "Without it: the partition's default, which can be minutes. Shorter jobs start sooner.",
        "time_limit",
        "sbatch(1), slurm.conf(5)",
    ),
    "time-min": _asked("may be cut to {it} if it starts sooner that way.", "time_limit"),
    "begin": _asked("does not start before: {value}."),
    "deadline": _asked("is removed if it cannot end before: {value}."),
    "dependency": _asked("{it}. A condition that can no longer come true leaves the job in the queue for ever.", "dependency"),
    "kill-on-invalid-dep": _asked("what happens when its dependency can never come true: `yes` cancels it, `no` leaves it in the queue."),
    "array": _asked("{it}. Each has its own $SLURM_ARRAY_TASK_ID, and its own nodes.", "array"),
    "requeue": _asked(
        "if a node fails or a more urgent job takes the nodes, the job goes back into the queue and runs from its first line again: "
        "with checkpoints it goes on, without it begins anew."
    ),
    "no-requeue": _asked("if a node fails, the job ends. With --requeue it would go back into the queue."),
    "signal": _asked("{it}: time to save a checkpoint. Without it, SIGTERM is the first that the job hears.", "signal"),
    "hold": _asked("stays in the queue until you release it: scontrol release JOB_ID."),
    "nice": _asked("lowers its priority, by {value}; 100 where nothing is said."),
    "priority": _asked("its priority. Only for administrators."),
    "no-kill": _asked("goes on when one of its nodes fails. Not for training: the other ranks wait for the lost ones."),
    "wait-all-nodes": _asked("1: starts only when all nodes have booted. 0: as soon as the first has."),
    "mail-type": _asked("mails you {it}.", "mail_type"),
    "mail-user": _asked("the address for those mails. Without it: your user name on the cluster."),
}
#: Files and what comes along from your shell.
_FILES = {
    "output": _logs("stdout of the job goes here{it}. Without it: slurm-JOBID.out in the job's directory.", "pattern"),
    "error": _logs("stderr (warnings, tracebacks) goes here{it}. Without it: into the same file as stdout.", "pattern"),
    "open-mode": _logs("{it}", "open_mode"),
    "input": _logs("what commands read from stdin. Without it: nothing (/dev/null)."),
    "export": _asked("{it}. Without it: all of them (ALL).", "export"),
    "export-file": _asked("reads further variables from the file `{value}`."),
    "get-user-env": _asked("takes the variables of a fresh login."),
    "propagate": _asked("your shell's limits (ulimit) that the job gets too: {value}. A small limit on locked memory stops InfiniBand."),
}
#: How tasks are placed, bound and measured.
_BINDING = {
    "distribution": _asked(
        "how tasks are dealt out to nodes and cores: `{value}` (block: neighbours together; cyclic: in turn). "
        "With torchrun and accelerate one task is a node, so it hardly matters."
    ),
    "hint": _asked("{it}.", "hint"),
    "gpu-bind": _asked("which GPUs a task may use: `{value}`. Bound tasks cannot see each other's GPUs, which slows NCCL down."),
    "tres-bind": _asked("binds tasks to GPUs: `{value}`. Bound tasks cannot see each other's GPUs, which slows NCCL down."),
    "mem-bind": _asked("binds tasks to memory: `{value}`."),
    "gres-flags": _asked("how GPUs and cores belong together: `{value}` (enforce-binding: only cores close to the GPUs)."),
    "cpu-freq": _asked("the frequency of the cores: `{value}`."),
    "gpu-freq": _asked("the frequency of the GPUs: `{value}`."),
    "power": _asked("power management: `{value}`."),
    "network": _asked("a setting of the site's network: `{value}`."),
    "profile": _asked("records a profile of: {value}. sh5util turns it into a file."),
    "acctg-freq": _asked("how often Slurm measures memory and the like, in seconds: `{value}`."),
    "container": _asked("runs in the OCI container `{value}`."),
    "container-id": _asked("the name of that container: `{value}`.", source="sbatch(1), from Slurm 23.02"),
    "bb": _asked("a burst buffer, fast storage for the time of the job: `{value}`."),
    "bbf": _asked("a burst buffer as the file `{value}` describes it."),
    "mcs-label": _asked("the group whose jobs may share the nodes: `{value}`."),
    "resv-ports": _asked("sets network ports aside for the job.", source="sbatch(1), from Slurm 22.05"),
    "stepmgr": _asked(
        "job steps are managed on the job's first node, which spares Slurm's controller.", source="sbatch(1), from Slurm 24.05"
    ),
    "extra": _asked("free text that the site's plugins may read: `{value}`.", source="sbatch(1), from Slurm 23.02"),
    "admin-comment": _asked("a remark that only administrators may set."),
    "oom-kill-step": _asked("when one task runs out of memory, its whole step ends.", source="sbatch(1), from Slurm 24.11"),
}
#: What sbatch itself does.
_SBATCH = {
    "parsable": _asked("sbatch prints the job's number alone, for scripts. Belongs on the command line."),
    "quiet": _asked("sbatch prints less."),
    "verbose": _asked("sbatch prints more."),
    "wait": _asked("sbatch returns only when the job has ended, with its exit code."),
    "test-only": _asked("nothing is submitted: sbatch only says when the job would start. Not for a script that is meant to run."),
    "ignore-pbs": _asked("#PBS and #BSUB lines do not count."),
    "wrap": _asked("a one-line job without a script. Not for a script."),
    "help": _asked("sbatch prints its help, and nothing is submitted."),
    "usage": _asked("sbatch prints its usage, and nothing is submitted."),
    "version": _asked("sbatch prints its version, and nothing is submitted."),
    "uid": _asked("submits for another user. Only for administrators."),
    "gid": _asked("submits for another group. Only for administrators."),
}
#: What NVIDIA's pyxis adds to sbatch and srun, and the Container Engine of CSCS.
_PYXIS = {
    "container-image": _asked("runs in the container image `{value}`.", source="pyxis (NVIDIA/pyxis), README"),
    "container-mounts": _asked("directories of the host that the container sees: `{value}`.", source="pyxis (NVIDIA/pyxis), README"),
    "container-workdir": _asked("the directory in the container where the command starts.", source="pyxis (NVIDIA/pyxis), README"),
    "container-name": _asked("keeps the container under the name `{value}` for later steps.", source="pyxis (NVIDIA/pyxis), README"),
    "container-mount-home": _asked("the container sees your home directory.", source="pyxis (NVIDIA/pyxis), README"),
    "no-container-mount-home": _asked("the container does not see your home directory.", source="pyxis (NVIDIA/pyxis), README"),
    "container-writable": _asked("the container's files can be changed.", source="pyxis (NVIDIA/pyxis), README"),
    "container-readonly": _asked("the container's files cannot be changed.", source="pyxis (NVIDIA/pyxis), README"),
    "container-env": _asked("variables of the host that win over those of the image: `{value}`.", source="pyxis (NVIDIA/pyxis), README"),
    "environment": _asked("runs in the container that the file `{value}` describes.", source="CSCS documentation, Container Engine"),
}

DIRECTIVES: dict[str, Row] = {**_WHO, **_HOW_MUCH, **_WHICH, **_WHEN, **_FILES, **_BINDING, **_SBATCH, **_PYXIS}
#: Names that sbatch still takes for another one.
SYNONYMS = {"tasks": "ntasks", "tasks-per-node": "ntasks-per-node", "workdir": "chdir", "share": "oversubscribe"}
