"""The texts of `lint --explain`, as data: sbatch's options, those of srun and the launchers, and
the lines of rendered scripts.

To add an option, add an entry with its long name without dashes. In a sentence, `{it}` is the value
as text (formatted by `reading`), `{value}` the value verbatim.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

HEADER = "what this file is"
ASKED = "what is requested from Slurm"
LOGS = "where it logs"
ENVIRONMENT = "the environment"
RUN = "the run"
MEET = "where the ranks connect"
LAUNCH = "the launch"
NODE = "on each node"
END = "after the launch"


@dataclass(frozen=True, slots=True)
class Sentence:
    """The explanation of one element of a script.

    Attributes:
        why: its effect, and what happens without it.
        source: the manual.
        section: its heading; None: that of the previous line.
        reading: the formatter of the value; None: verbatim.
    """

    why: str
    source: str = "sbatch(1)"
    section: str | None = ASKED
    reading: str | None = None


_srun = partial(Sentence, source="srun(1)", section=None)
_torchrun = partial(Sentence, source="torchrun --help (torch 2.13)", section=None)
_accelerate = partial(Sentence, source="accelerate launch --help (1.15)", section=None)
_own = partial(Sentence, section=ENVIRONMENT)
_line = partial(Sentence, section=None)

#: Texts of values, by reading; the key "" is for no value. `{}` is the value.
VALUES: dict[str, dict[str, str]] = {
    "exclusive": {
        "": "no other job shares its nodes",
        "user": "only your own jobs share its nodes",
        "mcs": "only jobs of your group share its nodes",
    },
    "open_mode": {
        "append": (
            "a job that is requeued continues its log. Without it, the log is emptied, and why the"
            " first run stopped is lost."
        ),
        "truncate": (
            "each start empties the log, also after a requeue: why the first run stopped is lost."
        ),
    },
    "hint": {
        "nomultithread": "one thread on each core; hyper-threads stay idle",
        "multithread": "uses hyper-threads too",
        "compute_bound": "uses all cores, one thread on each",
        "memory_bound": "uses one core of each socket",
    },
    "kill": {
        "0": "when one task fails, the others continue, and often wait for it until the time limit",
        "": (
            "when one task fails, the others are ended too. Without it they wait for it until the"
            " time limit"
        ),
    },
    "export": {
        "ALL": "all variables of the shell where sbatch was typed are passed on",
        "NONE": (
            "none of your shell's variables are passed on, only SLURM_*; srun then needs"
            " --export=ALL to pass on what this script sets"
        ),
    },
    "export_step": {
        "ALL": "this script's variables reach the tasks",
        "NONE": "no variables of this script reach the tasks",
    },
}
#: Texts of values without a text of their own.
OTHERWISE = {
    "export": "of your shell's variables only these are passed on: {}",
    "export_step": "of this script's variables only these reach the tasks: {}",
    "open_mode": "how log files are opened: `{}`.",
    "hint": "a hint on how cores are used: {}",
    "kill": (
        "when one task fails, the others are ended too. Without it they wait for it until the time"
        " limit"
    ),
    "exclusive": "shares its nodes as `{}` says",
    "partition": "the partition `{}`, a set of nodes with its own queue",
    "features": "the features `{}`",
    "nodes": "nodes: {}",
    "tasks": "tasks: {}",
    "cores": "cores: {}",
    "gpus": "GPUs: {}",
    "time_limit": "a time limit of `{}`",
    "array": "an array of jobs of this one script: {}",
    "signal": "sends the signal `{}`",
    "mail_type": "on: {}",
    "memory": "`{}` of host memory",
    "switches": "`{}` switches",
}

#: Options of sbatch and pyxis: long name to explanation.
DIRECTIVES: dict[str, Sentence] = {
    "job-name": Sentence(
        "the name that squeue and sacct show, and %x in file names. Without it: the name"
        " of the script's file."
    ),
    "account": Sentence(
        "the project `{value}` is charged. Without it: your default account; where you"
        " have none, sbatch refuses the job."
    ),
    "partition": Sentence(
        "{it}. Without it: the site's default partition, which may have no GPUs.",
        reading="partition",
    ),
    "qos": Sentence(
        "the quality of service `{value}`: it sets limits and priority. Without it: the"
        " default of your account."
    ),
    "reservation": Sentence(
        "runs on nodes that were set aside under the name `{value}`, and only there."
        " Without it, Slurm keeps off those nodes."
    ),
    "chdir": Sentence(
        "the job starts in this directory, wherever sbatch was typed. Without it: the"
        " directory in which sbatch was typed."
    ),
    "comment": Sentence(
        "a remark that travels with the job; squeue and sacct can show it. Slurm does"
        " nothing with it."
    ),
    "wckey": Sentence("a label for the accounting, next to the account. Some sites ask for one."),
    "licenses": Sentence(
        "waits until these licences are free, and holds them while the job runs: `{value}`."
    ),
    "clusters": Sentence(
        "submits to this cluster; of several, to the one where the job would start first:"
        " `{value}`."
    ),
    "nodes": Sentence(
        "{it} for this job. Without it, Slurm takes as few nodes as the tasks need: often one.",
        reading="nodes",
    ),
    "ntasks": Sentence(
        (
            "{it} over all nodes: srun will start that many copies of its command. Without"
            " it: one task on each node."
        ),
        reading="tasks",
    ),
    "ntasks-per-node": Sentence(
        (
            "{it} on each node: srun will start that many copies of its command there."
            " Without it: one. With --ntasks it is only a maximum."
        ),
        reading="tasks",
    ),
    "ntasks-per-socket": Sentence(
        "at most {it} on each socket (processor chip). For use with --ntasks.", reading="tasks"
    ),
    "ntasks-per-core": Sentence("at most {it} on each core.", reading="tasks"),
    "ntasks-per-gpu": Sentence(
        "{it} for each GPU, as many as --gpus or --ntasks say.", reading="tasks"
    ),
    "cpus-per-task": Sentence(
        (
            "{it} for each task, to load data and to feed the GPUs. Without it: one core, and"
            " the GPUs wait for data."
        ),
        reading="cores",
    ),
    "cpus-per-gpu": Sentence("{it} for each GPU. Excludes --cpus-per-task.", reading="cores"),
    "gres": Sentence(
        (
            "{it} on each node (per node, not in total{product}). Without it: no GPU; programs then"
            " see none, or train on the CPU."
        ),
        reading="gres",
    ),
    "gpus": Sentence(
        (
            "{it} in total, over all nodes. How many each node gives is up to Slurm, unless"
            " --nodes and the total fix it."
        ),
        reading="gpus",
    ),
    "gpus-per-node": Sentence(
        (
            "{it} on each node (per node, not in total{product}). The same as --gres=gpu:N;"
            " both together are an error from Slurm 26.05 on."
        ),
        reading="gpus",
    ),
    "gpus-per-task": Sentence(
        (
            "{it} for each task, and each task sees only its own. torchrun and accelerate"
            " need one task for a node that sees all of them."
        ),
        reading="gpus",
    ),
    "gpus-per-socket": Sentence("{it} for each socket (processor chip).", reading="gpus"),
    "mem": Sentence(
        (
            "{it} on each node; GPU memory is not counted. Without it: the site's default,"
            " which can be small. What uses more is killed: OUT_OF_MEMORY."
        ),
        reading="memory",
    ),
    "mem-per-cpu": Sentence(
        "{it} for each core. Excludes --mem and --mem-per-gpu.", reading="memory"
    ),
    "mem-per-gpu": Sentence(
        "{it} for each GPU. Excludes --mem and --mem-per-cpu.", reading="memory"
    ),
    "tmp": Sentence("only nodes with at least `{value}` of local disk for temporary files."),
    "exclusive": Sentence(
        (
            "{it}: all its cores and GPUs, but only the memory that is requested (--mem=0:"
            " all). You are charged for the whole node."
        ),
        reading="exclusive",
    ),
    "oversubscribe": Sentence("lets other jobs use the same cores. Not for training."),
    "overcommit": Sentence(
        "lets several tasks share one core. Not for training: they wait for each other."
    ),
    "tres-per-task": Sentence("for each task: `{value}`."),
    "constraint": Sentence(
        "only nodes with {it}: features that the site gave them (`sinfo -o '%n %f'` lists them).",
        reading="features",
    ),
    "prefer": Sentence("rather nodes with {it}, but others will do.", reading="features"),
    "cluster-constraint": Sentence(
        "only clusters of the federation with {it}.", reading="features"
    ),
    "batch": Sentence(
        "this script itself runs on a node with {it}, the first such of the job.",
        reading="features",
    ),
    "nodelist": Sentence(
        "these nodes must be part of the job: `{value}`. It waits until they are free, so"
        " rather leave it out."
    ),
    "nodefile": Sentence("the same as --nodelist, with the names in the file `{value}`."),
    "exclude": Sentence(
        "never on these nodes: `{value}`. The usual way around a node that is broken."
    ),
    "contiguous": Sentence(
        "the nodes must be adjacent. Waits longer; --switches is often the better choice."
    ),
    "switches": Sentence(
        (
            "the nodes are connected to at most {it}, so that traffic between GPUs takes short paths;"
            " the time after @ is how long to wait for such nodes."
        ),
        reading="switches",
    ),
    "segment": Sentence(
        "nodes in blocks of {value} that are close together.",
        source="sbatch(1), from Slurm 24.05",
    ),
    "spread-job": Sentence("over as many nodes as possible."),
    "use-min-nodes": Sentence("of a range of nodes, the smallest number that will do."),
    "mincpus": Sentence("only nodes with at least {it}.", reading="cores"),
    "extra-node-info": Sentence(
        "only nodes with at least so many sockets:cores:threads: `{value}`."
    ),
    "sockets-per-node": Sentence("only nodes with at least {value} sockets (processor chips)."),
    "cores-per-socket": Sentence("only nodes with at least {it} to a socket.", reading="cores"),
    "threads-per-core": Sentence(
        "threads of each core that the job uses: {value}. 1 leaves hyper-threads idle."
    ),
    "core-spec": Sentence(
        (
            "keeps {it} of each node free for the system. They are charged, and the node is"
            " yours alone."
        ),
        reading="cores",
    ),
    "thread-spec": Sentence(
        "keeps {value} threads of each node free for the system. The node is yours alone."
    ),
    "reboot": Sentence("reboots the nodes first. Few sites allow it."),
    "delay-boot": Sentence(
        "waits {value} minutes for nodes that already have the features, before it lets"
        " others reboot."
    ),
    "time": Sentence(
        (
            "{it}; then Slurm sends SIGTERM, and SIGKILL after KillWait (30 s unless the site"
            " says otherwise). Without it: the partition's default, which can be minutes."
            " Shorter jobs start sooner."
        ),
        source="sbatch(1), slurm.conf(5)",
        reading="time_limit",
    ),
    "time-min": Sentence("may be cut to {it} if it starts sooner that way.", reading="time_limit"),
    "begin": Sentence("does not start before: {value}."),
    "deadline": Sentence("is removed if it cannot end before: {value}."),
    "dependency": Sentence(
        "waits for `{value}`. A condition that can no longer come true leaves the job in the queue"
        " for ever."
    ),
    "kill-on-invalid-dep": Sentence(
        "what happens when its dependency can never come true: `yes` cancels it, `no`"
        " leaves it in the queue."
    ),
    "array": Sentence(
        "{it}. Each has its own $SLURM_ARRAY_TASK_ID, and its own nodes.", reading="array"
    ),
    "requeue": Sentence(
        "if a node fails or a more urgent job takes the nodes, the job goes back into the"
        " queue and runs from its first line again: with checkpoints it continues, without"
        " it starts from scratch."
    ),
    "no-requeue": Sentence(
        "if a node fails, the job ends. With --requeue it would go back into the queue."
    ),
    "signal": Sentence(
        "{it}: time to save a checkpoint. Without it, SIGTERM is the first that the job hears.",
        reading="signal",
    ),
    "hold": Sentence("stays in the queue until you release it: scontrol release JOB_ID."),
    "nice": Sentence("lowers its priority, by {value}; 100 by default."),
    "priority": Sentence("its priority. Only for administrators."),
    "no-kill": Sentence(
        "the job continues when one of its nodes fails. Not for training: the other ranks wait for"
        " the lost ones."
    ),
    "wait-all-nodes": Sentence(
        "1: starts only when all nodes have booted. 0: as soon as the first has."
    ),
    "mail-type": Sentence("mails you {it}.", reading="mail_type"),
    "mail-user": Sentence(
        "the address for those mails. Without it: your user name on the cluster."
    ),
    "output": Sentence(
        (
            "stdout of the job goes here; %j is the job's number, %x its name. Without it:"
            " slurm-JOBID.out in the job's directory."
        ),
        section=LOGS,
    ),
    "error": Sentence(
        "stderr (warnings, tracebacks) goes here. Without it: into the same file as stdout.",
        section=LOGS,
    ),
    "open-mode": Sentence("{it}", section=LOGS, reading="open_mode"),
    "input": Sentence(
        "what commands read from stdin. Without it: nothing (/dev/null).", section=LOGS
    ),
    "export": Sentence("{it}. Without it: all of them (ALL).", reading="export"),
    "export-file": Sentence("reads further variables from the file `{value}`."),
    "get-user-env": Sentence("takes the variables of a fresh login."),
    "propagate": Sentence(
        "your shell's limits (ulimit) that the job gets too: {value}. A small limit on"
        " locked memory stops InfiniBand."
    ),
    "distribution": Sentence(
        "how tasks are dealt out to nodes and cores: `{value}` (block: neighbors"
        " together; cyclic: in turn). With torchrun and accelerate one task is a node, so"
        " it hardly matters."
    ),
    "hint": Sentence("{it}.", reading="hint"),
    "gpu-bind": Sentence(
        "which GPUs a task may use: `{value}`. Bound tasks cannot see each other's GPUs,"
        " which slows NCCL down."
    ),
    "tres-bind": Sentence(
        "binds tasks to GPUs: `{value}`. Bound tasks cannot see each other's GPUs, which"
        " slows NCCL down."
    ),
    "mem-bind": Sentence("binds tasks to memory: `{value}`."),
    "gres-flags": Sentence(
        "how GPUs and cores belong together: `{value}` (enforce-binding: only cores close"
        " to the GPUs)."
    ),
    "cpu-freq": Sentence("the frequency of the cores: `{value}`."),
    "gpu-freq": Sentence("the frequency of the GPUs: `{value}`."),
    "power": Sentence("power management: `{value}`."),
    "network": Sentence("a setting of the site's network: `{value}`."),
    "profile": Sentence("records a profile of: {value}. sh5util turns it into a file."),
    "acctg-freq": Sentence("how often Slurm measures memory and the like, in seconds: `{value}`."),
    "container": Sentence("runs in the OCI container `{value}`."),
    "container-id": Sentence(
        "the name of that container: `{value}`.", source="sbatch(1), from Slurm 23.02"
    ),
    "bb": Sentence("a burst buffer, fast storage for the time of the job: `{value}`."),
    "bbf": Sentence("a burst buffer as the file `{value}` describes it."),
    "mcs-label": Sentence("the group whose jobs may share the nodes: `{value}`."),
    "resv-ports": Sentence(
        "sets network ports aside for the job.", source="sbatch(1), from Slurm 22.05"
    ),
    "stepmgr": Sentence(
        "job steps are managed on the job's first node, which spares Slurm's controller.",
        source="sbatch(1), from Slurm 24.05",
    ),
    "extra": Sentence(
        "free text that the site's plugins may read: `{value}`.",
        source="sbatch(1), from Slurm 23.02",
    ),
    "admin-comment": Sentence("a remark that only administrators may set."),
    "oom-kill-step": Sentence(
        "when one task runs out of memory, its entire step ends.",
        source="sbatch(1), from Slurm 24.11",
    ),
    "parsable": Sentence(
        "sbatch prints the job's number alone, for scripts. Belongs on the command line."
    ),
    "quiet": Sentence("sbatch prints less."),
    "verbose": Sentence("sbatch prints more."),
    "wait": Sentence("sbatch returns only when the job has ended, with its exit code."),
    "test-only": Sentence(
        "nothing is submitted: sbatch only prints when the job would start. Remove it"
        " to submit the job."
    ),
    "ignore-pbs": Sentence("#PBS and #BSUB lines do not count."),
    "wrap": Sentence("a one-line job without a script. Not for a script."),
    "help": Sentence("sbatch prints its help, and nothing is submitted."),
    "usage": Sentence("sbatch prints its usage, and nothing is submitted."),
    "version": Sentence("sbatch prints its version, and nothing is submitted."),
    "uid": Sentence("submits for another user. Only for administrators."),
    "gid": Sentence("submits for another group. Only for administrators."),
    "container-image": Sentence(
        "runs in the container image `{value}`.", source="pyxis (NVIDIA/pyxis), README"
    ),
    "container-mounts": Sentence(
        "directories of the host that the container sees: `{value}`.",
        source="pyxis (NVIDIA/pyxis), README",
    ),
    "container-workdir": Sentence(
        "the directory in the container where the command starts.",
        source="pyxis (NVIDIA/pyxis), README",
    ),
    "container-name": Sentence(
        "keeps the container under the name `{value}` for later steps.",
        source="pyxis (NVIDIA/pyxis), README",
    ),
    "container-mount-home": Sentence(
        "the container sees your home directory.", source="pyxis (NVIDIA/pyxis), README"
    ),
    "no-container-mount-home": Sentence(
        "the container does not see your home directory.", source="pyxis (NVIDIA/pyxis), README"
    ),
    "container-writable": Sentence(
        "the container's files can be changed.", source="pyxis (NVIDIA/pyxis), README"
    ),
    "container-readonly": Sentence(
        "the container's files cannot be changed.", source="pyxis (NVIDIA/pyxis), README"
    ),
    "container-env": Sentence(
        "variables of the host that win over those of the image: `{value}`.",
        source="pyxis (NVIDIA/pyxis), README",
    ),
    "environment": Sentence(
        "runs in the container that the file `{value}` describes.",
        source="CSCS documentation, Container Engine",
    ),
}

#: srun's options whose meaning differs from sbatch's.
SRUN: dict[str, Sentence] = {
    "nodes": _srun("on {it} of the job.", reading="nodes"),
    "ntasks": _srun("{it} in all.", reading="tasks"),
    "ntasks-per-node": _srun(
        "{it} on each node. torchrun and accelerate need one, srun alone one for each GPU.",
        reading="tasks",
    ),
    "cpus-per-task": _srun(
        (
            "{it}. Said again here because srun of Slurm 22.05 and 23.02 does not take it"
            " over from the job: one core for all."
        ),
        source="srun(1), release notes of 22.05 and 23.11",
        reading="cores",
    ),
    "kill-on-bad-exit": _srun("{it}.", reading="kill"),
    "wait": _srun("so many seconds after the first task has ended, the others are ended: {value}."),
    "label": _srun("each line of output begins with its task's number."),
    "unbuffered": _srun(
        "output is shown at once; this sets up a terminal, which can garble long lines."
    ),
    "cpu-bind": _srun("how tasks are bound to cores: `{value}`."),
    "exact": _srun(
        "the step takes only the cores and GPUs that it requests, and leaves the rest to other steps.",
    ),
    "overlap": _srun("may share cores and GPUs with other steps of this job."),
    "exclusive": _srun("shares no cores and GPUs with other steps of this job."),
    "mpi": _srun("how MPI programs find each other: `{value}`. torch does not need it."),
    "pty": _srun("gives the first task a terminal."),
    "jobid": _srun("runs within the job {value}."),
    "het-group": _srun("which parts of a heterogeneous job take part: {value}."),
    "relative": _srun("counts nodes from number {value} of the job on."),
    "immediate": _srun("starts at once, or not at all."),
    "preserve-env": _srun("keeps this shell's SLURM_NNODES and SLURM_NTASKS."),
    "multi-prog": _srun("different programs for different tasks, as a file says."),
    "accel-bind": _srun("binds tasks to the GPUs and cards that are close: `{value}`."),
    "task-prolog": _srun("runs this before each task: `{value}`."),
    "task-epilog": _srun("runs this after each task: `{value}`."),
    "threads": _srun("threads of srun itself that start tasks."),
    "bcast": _srun("copies the program to each node first."),
    "bcast-exclude": _srun("leaves these directories out of that copy: `{value}`."),
    "send-libs": _srun("copies the program's libraries too."),
    "compress": _srun("compresses that copy."),
    "prolog": _srun("runs this once before the step: `{value}`."),
    "epilog": _srun("runs this once after the step: `{value}`."),
    "msg-timeout": _srun("how long srun waits for an answer of the nodes, in seconds: {value}."),
    "slurmd-debug": _srun(
        "how much Slurm's daemons on the nodes say: {value}. For administrators."
    ),
    "debugger-test": _srun("for debuggers alone."),
    "disable-status": _srun("Ctrl-C reaches the tasks at once."),
    "quit-on-interrupt": _srun("one Ctrl-C ends the step."),
    "no-allocate": _srun("runs without an allocation. Only for administrators."),
    "export": _srun("{it}.", reading="export_step"),
    "output": _srun(
        "stdout of the tasks goes to this file; %t is the task's number, %N the node's name."
    ),
    "error": _srun(
        "stderr of the tasks goes to this file; %t is the task's number, %N the node's name."
    ),
    "input": _srun("what the tasks read from stdin."),
    "mem": _srun("{it} on each node for this step.", reading="memory"),
    "time": _srun("{it} for this step.", reading="time_limit"),
    "gres": _srun("for this step: {it}.", reading="gres"),
    "gpus-per-node": _srun("for this step, on each node: {it}.", reading="gpus"),
    "gpus": _srun("for this step, in total: {it}.", reading="gpus"),
    "job-name": _srun("the step's name."),
    "nodelist": _srun("on these nodes of the job: `{value}`."),
    "chdir": _srun("starts in the directory `{value}`."),
}

#: torchrun's options, with `-` instead of `_`.
TORCHRUN: dict[str, Sentence] = {
    "nnodes": _torchrun(
        "the number of nodes: {value}. torchrun waits until that many have joined."
    ),
    "nproc-per-node": _torchrun("processes on each node: {value}, one per GPU."),
    "rdzv-backend": _torchrun(
        "how nodes find each other; c10d needs nothing but an address, and no node numbers."
    ),
    "rdzv-id": _torchrun(
        "the meeting's name; the job's number keeps two jobs apart that use one address."
    ),
    "rdzv-endpoint": _torchrun("where the nodes meet: the same address and port on every node."),
    "rdzv-conf": _torchrun(
        "details of the meeting: {value}. `is_host` says which node holds it; without it"
        " torch guesses from host names."
    ),
    "standalone": _torchrun(
        "all on this one node, on any free port: jobs that share the node never meet."
    ),
    "max-restarts": _torchrun("how often torchrun starts failed processes again: {value}."),
    "monitor-interval": _torchrun("how often torchrun looks after its processes, in seconds."),
    "node-rank": _torchrun(
        "this node's number: {value}. It must differ from node to node; c10d does not need it."
    ),
    "master-addr": _torchrun("the first node's address, for the static way to meet."),
    "master-port": _torchrun("the port there, for the static way to meet."),
    "local-addr": _torchrun("this node's own address."),
    "log-dir": _torchrun("each process writes its log into this directory."),
    "redirects": _torchrun("which outputs of the processes go into files."),
    "tee": _torchrun(
        "which outputs go into files and to the screen: {value} (3: both stdout and stderr)."
    ),
    "role": _torchrun("a name for these processes in the log."),
    "start-method": _torchrun("how processes are started."),
    "module": _torchrun("the training is a Python module, not a file."),
    "no-python": _torchrun("the training is a program of its own, not a Python file."),
    "run-path": _torchrun("runs the file within torchrun's own Python."),
    "local-ranks-filter": _torchrun(
        "shows the output of these processes of a node alone: {value}."
    ),
    "signals-to-handle": _torchrun(
        "signals that torchrun hands on to the processes. Others end torchrun alone, and"
        " orphan them."
    ),
    "shutdown-timeout": _torchrun("seconds between SIGTERM and SIGKILL for the processes."),
    "numa-binding": _torchrun("binds processes to the cores close to their GPU."),
}

#: Options of accelerate launch, with `-` instead of `_`.
ACCELERATE: dict[str, Sentence] = {
    "config-file": _accelerate(
        "where accelerate reads the rest of its settings: `{value}`. Options on this"
        " command line override them."
    ),
    "num-machines": _accelerate("the number of nodes: {value}."),
    "num-processes": _accelerate(
        "the TOTAL number of processes over all nodes, not for each node: {value}."
    ),
    "machine-rank": _accelerate(
        "this node's number: {value}. It must be expanded on the node; in the batch shell"
        " it is 0 for all."
    ),
    "main-process-ip": _accelerate("the node where all meet: {value}, the same on every node."),
    "main-process-port": _accelerate(
        "the port there: {value}. 0 is any free port, and works on one node only."
    ),
    "rdzv-backend": _accelerate(
        "how nodes find each other; c10d needs no node numbers. accelerate's default is static."
    ),
    "rdzv-conf": _accelerate(
        "details of the meeting: {value}. `is_host` says which node holds it; without it"
        " torch guesses from host names."
    ),
    "multi-gpu": _accelerate(
        (
            "several processes, one per GPU. Without it (and without a config file that says"
            " so) one process may start."
        ),
    ),
    "mixed-precision": _accelerate("the number format of the computation: {value}."),
    "dynamo-backend": _accelerate("torch.compile: {value}."),
    "same-network": _accelerate("the nodes are in one network."),
    "use-fsdp": _accelerate("FSDP: parameters, gradients and optimizer are split over the GPUs."),
    "use-deepspeed": _accelerate(
        "DeepSpeed: its ZeRO stages split the training's state over the GPUs."
    ),
    "zero-stage": _accelerate(
        "what DeepSpeed splits: 1 optimizer, 2 gradients too, 3 parameters too. Here: {value}."
    ),
    "deepspeed-config-file": _accelerate("DeepSpeed's settings: `{value}`."),
    "deepspeed-multinode-launcher": _accelerate(
        "`standard`: accelerate starts on each node itself, as srun does it."
    ),
    "gradient-accumulation-steps": _accelerate(
        "steps whose gradients are added up before the weights change: {value}."
    ),
    "num-cpu-threads-per-process": _accelerate("OMP_NUM_THREADS of each process: {value}."),
    "gpu-ids": _accelerate("which GPUs: {value}. Slurm has already chosen, so leave it out."),
    "max-restarts": _accelerate("how often failed processes are started again: {value}."),
    "role": _accelerate("a name for these processes in the log."),
    "tee": _accelerate("which outputs go into files and to the screen: {value}."),
    "module": _accelerate("the training is a Python module, not a file."),
    "no-python": _accelerate("the training is a program of its own, not a Python file."),
    "cpu": _accelerate("trains on the CPU."),
    "debug": _accelerate("checks that tensors have equal shapes on all processes. Slow."),
    "fsdp-version": _accelerate("1 or 2: FSDP2 is the newer one. Here: {value}."),
    "zero3-init-flag": _accelerate("ZeRO-3 splits the model already while it is loaded."),
    "zero3-save-16bit-model": _accelerate("ZeRO-3 gathers the complete model when it is saved."),
}

#: Variables set in rendered scripts.
OWN_VARIABLES: dict[str, Sentence] = {
    "MASTER_ADDR": _own(
        (
            "the node where all processes connect at the start. Every process needs the"
            " same one, so it is computed here, once."
        ),
        source="PyTorch documentation, torch.distributed.run",
        section=MEET,
    ),
    "MASTER_PORT": _own(
        (
            "the port there. Made of the job's number it differs between jobs; a fixed one is"
            " taken when two jobs share a node."
        ),
        source="PyTorch documentation, torch.distributed.run",
        section=MEET,
    ),
    "RANK": _own(
        "this process's number among all, from 0; in the batch shell it would be 0 for everyone.",
        source="PyTorch documentation, torch.distributed.run",
        section=LAUNCH,
    ),
    "WORLD_SIZE": _own(
        "the number of processes of the training (world size); each must see the same.",
        source="PyTorch documentation, torch.distributed.run",
        section=LAUNCH,
    ),
    "LOCAL_RANK": _own(
        (
            "this process's number on its node: it takes the GPU of that number. Without it,"
            " each process may train alone."
        ),
        source="PyTorch documentation, torch.distributed.run",
        section=LAUNCH,
    ),
    "LOCAL_WORLD_SIZE": _own(
        "the number of processes on this node.",
        source="PyTorch documentation, torch.distributed.run",
        section=LAUNCH,
    ),
    "PET_LOCAL_ADDR": _own(
        "this node's address, for torchrun and accelerate: its own host name may not resolve.",
        source="PyTorch documentation, torch.distributed.run",
        section=LAUNCH,
    ),
    "PYTHONUNBUFFERED": _own(
        (
            "Python writes each line at once. Without it, the log stays empty for long, and a"
            " crash loses the last lines."
        ),
        source="python(1)",
    ),
    "OMP_NUM_THREADS": _own(
        (
            "threads for CPU work in each process. Without it: torchrun sets 1, other"
            " programs take every core, and processes fight for them."
        ),
        source="OpenMP specification; torchrun",
    ),
    "TOKENIZERS_PARALLELISM": _own(
        (
            "tokenizers start no threads of their own, which data loader processes would"
            " inherit: that can hang, and warns in the log."
        ),
        source="huggingface/tokenizers, README",
    ),
    "PYTHONPATH": _own(
        "where Python looks for modules before its own directories: `{value}`.", source="python(1)"
    ),
    "HF_HUB_OFFLINE": _own(
        (
            "never asks huggingface.co. Compute nodes often have no internet; without it:"
            " long waits for time-outs."
        ),
        source="Hugging Face Hub documentation, environment variables",
    ),
    "HF_DATASETS_OFFLINE": _own(
        "the same for datasets: only what is on disk.",
        source="Hugging Face Datasets documentation, offline",
    ),
    "TRANSFORMERS_OFFLINE": _own(
        "the same for transformers: only what is on disk.",
        source="transformers documentation, offline mode",
    ),
    "WANDB_MODE": _own(
        (
            "Weights & Biases: {value}. offline keeps its data on disk until you type `wandb"
            " sync`; online needs internet on the nodes."
        ),
        source="Weights & Biases documentation, environment variables",
    ),
    "ACCELERATE_USE_CPU": _own("accelerate trains on the CPU.", source="accelerate documentation"),
    "CUDA_VISIBLE_DEVICES": _own(
        (
            "the GPUs that programs see. Slurm sets it for each job and step; set by hand, it"
            " can hide GPUs that the job has."
        ),
        source="CUDA C++ programming guide, environment variables",
    ),
    "CUDA_CACHE_DISABLE": _own(
        (
            "1: the CUDA driver keeps no compiled kernels; in a shared home, processes block"
            " each other."
        ),
        source="CUDA C++ programming guide, environment variables",
    ),
    "TRITON_CACHE_DIR": _own(
        (
            "where compiled GPU kernels are kept. In a home shared by all nodes, processes"
            " write over each other."
        ),
        source="Triton documentation",
    ),
    "TORCHINDUCTOR_CACHE_DIR": _own(
        "the same for torch.compile.", source="PyTorch documentation, torch.compile caching"
    ),
    "TORCH_EXTENSIONS_DIR": _own(
        "the same for extensions that are compiled while training.",
        source="PyTorch documentation, cpp_extension",
    ),
    "NCCL_DEBUG": _own(
        "how much NCCL says in the log; INFO shows which network it took.",
        source="NCCL user guide, environment variables",
    ),
    "NCCL_DEBUG_SUBSYS": _own(
        "of which of NCCL's parts.", source="NCCL user guide, environment variables"
    ),
    "NCCL_SOCKET_IFNAME": _own(
        (
            "the network interface by which GPUs first find each other: names that begin with"
            " `{value}` (a leading = means exactly). A wrong name ends the job at its start."
        ),
        source="NCCL user guide, environment variables",
    ),
    "GLOO_SOCKET_IFNAME": _own(
        "the same for gloo, which carries CPU traffic.",
        source="PyTorch documentation, torch.distributed",
    ),
    "NCCL_NET": _own(
        "the network NCCL must use; if it is missing the job stops, instead of training slowly.",
        source="NCCL user guide, environment variables",
    ),
    "NCCL_NET_GDR_LEVEL": _own(
        "how close GPU and network card must be for direct transfers.",
        source="NCCL user guide, environment variables",
    ),
    "NCCL_CROSS_NIC": _own(
        "whether a ring may use different network cards on different nodes.",
        source="NCCL user guide, environment variables",
    ),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": _own(
        "what PyTorch does when NCCL fails; its default (3) ends the process.",
        source="PyTorch documentation, ProcessGroupNCCL",
    ),
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": _own(
        "after so many seconds without progress, PyTorch ends a hanging process.",
        source="PyTorch documentation, ProcessGroupNCCL",
    ),
    "TORCH_DISTRIBUTED_DEBUG": _own(
        "how much torch.distributed checks; DETAIL is slow.",
        source="PyTorch documentation, torch.distributed",
    ),
    "TORCH_CPP_LOG_LEVEL": _own(
        "how much PyTorch's C++ side says.", source="PyTorch documentation, torch.distributed"
    ),
    "NCCL_PROTO": _own(
        "the protocols NCCL may use: `{value}`; ^ means all but these.",
        source="NCCL user guide, environment variables",
    ),
    "FI_CXI_DEFAULT_CQ_SIZE": _own(
        "room for completed transfers on Slingshot's cards; too little stalls large jobs.",
        source="libfabric, fi_cxi(7)",
    ),
    "FI_CXI_RX_MATCH_MODE": _own(
        (
            "who matches messages on Slingshot: the card, or `software`; `hybrid` changes"
            " over when the card is full."
        ),
        source="libfabric, fi_cxi(7)",
    ),
    "FI_MR_CACHE_MONITOR": _own(
        "how libfabric notices memory that was given back; `{value}` here.",
        source="libfabric, fi_mr(3)",
    ),
    "MPICH_GPU_SUPPORT_ENABLED": _own(
        "1: MPI itself moves GPU memory. torch uses NCCL or RCCL, so 0.",
        source="Cray MPICH, mpi(3)",
    ),
    "ACCELERATE_USE_FSDP": _own(
        (
            "FSDP: parameters, gradients and optimizer are split over the GPUs. Without it:"
            " DDP, all of it on each."
        ),
        source="accelerate documentation, FSDP",
    ),
    "FSDP_VERSION": _own(
        "FSDP's version {value}; 2 is the newer one.", source="accelerate documentation, FSDP"
    ),
    "FSDP_AUTO_WRAP_POLICY": _own(
        "in which pieces the model is split; TRANSFORMER_BASED_WRAP: layer by layer.",
        source="accelerate documentation, FSDP",
    ),
    "FSDP_RESHARD_AFTER_FORWARD": _own(
        (
            "true: a layer's parameters are given back after its forward pass. Less memory,"
            " more traffic."
        ),
        source="accelerate documentation, FSDP",
    ),
    "FSDP_OFFLOAD_PARAMS": _own(
        (
            "whether parameters lie in host memory in between: slow, for models that fit in"
            " no other way."
        ),
        source="accelerate documentation, FSDP",
    ),
    "FSDP_STATE_DICT_TYPE": _own(
        (
            "SHARDED_STATE_DICT: each process writes its part of a checkpoint;"
            " FULL_STATE_DICT: the first writes all."
        ),
        source="accelerate documentation, FSDP",
    ),
    "FSDP_CPU_RAM_EFFICIENT_LOADING": _own(
        (
            "only the first process of all reads the model. Without it, each holds a copy in"
            " host memory."
        ),
        source="accelerate documentation, FSDP",
    ),
    "FSDP_SYNC_MODULE_STATES": _own(
        "and hands it to the others.", source="accelerate documentation, FSDP"
    ),
    "FSDP_ACTIVATION_CHECKPOINTING": _own(
        "whether activations are recomputed instead of kept: less GPU memory, slower.",
        source="accelerate documentation, FSDP",
    ),
    "ACCELERATE_USE_DEEPSPEED": _own(
        (
            "DeepSpeed: its ZeRO stages split the training's state over the GPUs. Without it:"
            " DDP, all of it on each."
        ),
        source="accelerate documentation, DeepSpeed",
    ),
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": _own(
        "what is split: 1 the optimizer, 2 gradients too, 3 parameters too. Here: {value}.",
        source="accelerate documentation, DeepSpeed",
    ),
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": _own(
        "the model is split already while it is made: no process ever holds all of it.",
        source="accelerate documentation, DeepSpeed",
    ),
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": _own(
        "the complete model is gathered when it is saved, so that other programs can load it.",
        source="accelerate documentation, DeepSpeed",
    ),
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": _own(
        "where the optimizer state is stored: none is on the GPU; cpu and nvme are slower.",
        source="accelerate documentation, DeepSpeed",
    ),
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": _own(
        "where parameters lie: none is on the GPU; cpu and nvme are slower.",
        source="accelerate documentation, DeepSpeed",
    ),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": _own(
        "steps whose gradients are added up before the weights change: {value}.",
        source="accelerate documentation, DeepSpeed",
    ),
    "ACCELERATE_GRADIENT_CLIPPING": _own(
        "gradients are cut to this length: {value}; auto is what the training says.",
        source="accelerate documentation, DeepSpeed",
    ),
    "SLURM_MPI_TYPE": _own(
        "how srun prepares MPI: `{value}`. torch needs none of it.", source="srun(1)"
    ),
    "SLURM_CPU_BIND": _own("how srun binds tasks to cores.", source="srun(1)"),
    "HPCTRAIN_WORLD_SIZE": _own(
        (
            "the number of processes this script was made for. The training compares and"
            " stops if fewer came: else it would train something else, silently."
        ),
        source="hpctrain",
    ),
    "HPCTRAIN_DATA": _own("where the training finds its dataset: `{value}`.", source="hpctrain"),
    "HPCTRAIN_SHARDING": _own(
        (
            "how the training's state is split over the GPUs: `{value}`. The training"
            " compares it with what the launcher says."
        ),
        source="hpctrain",
    ),
    "HPCTRAIN_RUN_DIR": _own(
        (
            "a directory of this job's own for checkpoints and results; the job's number"
            " keeps runs apart."
        ),
        source="hpctrain",
    ),
}

#: Lines of rendered scripts; the first matching pattern counts.
OWN_LINES: tuple[tuple[str, Sentence], ...] = (
    (
        r"source .*/\.hpctrain/job-",
        _line(
            (
                "loads hpctrain's functions, `fail` and `hpctrain_*`. If the file is missing, the"
                " job ends and the log has the command that writes it."
            ),
            source="hpctrain",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"# >>> hpctrain functions",
        _line(
            "hpctrain's functions, `fail` and `hpctrain_*`, up to the line that begins with # <<<.",
            source="hpctrain",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"hpctrain_start (?P<name>\S+)",
        _line(
            (
                "ends the script where bash, and not sbatch, runs it on a login node. The links"
                " logs/output_{name}.log and logs/error_{name}.log lead to the newest job's logs."
            ),
            source="hpctrain",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"hpctrain_secret (?P<name>\w+) (?P<file>.+)",
        _line(
            (
                "reads `{name}` from a file that only its owner can read; another mode ends the"
                " job. No script, log or copy of Slurm's holds the value."
            ),
            source="hpctrain",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"hpctrain_secret (?P<name>\w+)",
        _line(
            "ends the job unless `{name}` comes from the shell that submitted it.",
            source="hpctrain",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"hpctrain_begin ",
        _line(
            (
                "makes runs/RUN and records this attempt; a requeued job, or one that gets the"
                " name of a run, continues that run."
            ),
            source="hpctrain",
            section=RUN,
        ),
    ),
    (
        r"hpctrain_require (?P<stage>\S+)",
        _line(
            "ends the job unless the stage {stage} has completed.", source="hpctrain", section=RUN
        ),
    ),
    (
        r"hpctrain_notify ",
        _line(
            "which ends of the run are reported, by which program and which webhook.",
            source="hpctrain",
            section=RUN,
        ),
    ),
    (
        r"hpctrain_free_port",
        _line(
            "while something listens at MASTER_PORT, takes the next port; prints the address.",
            source="hpctrain",
            section=MEET,
        ),
    ),
    (
        r"hpctrain_point (?P<how>\w+) (?P<file>\S+)",
        _line(
            "reads the values of this array task from its line in {file}.",
            source="hpctrain",
            section=LAUNCH,
        ),
    ),
    (
        r"hpctrain_study (?P<name>\S+)",
        _line(
            (
                "asks the study {name} which values this trial tries and adds them to the"
                " command; a requeued trial gets the same ones."
            ),
            source="hpctrain",
            section=LAUNCH,
        ),
    ),
    (
        r'source "\$HPCTRAIN_LIBRARY"',
        _line("loads the same functions on this node.", source="hpctrain"),
    ),
    (
        r"hpctrain_node (?P<count>\d+)",
        _line(
            (
                "compares the node's GPUs with {count}, keeps compiler caches on the node's own"
                " disk, and turns SIGTERM and SIGUSR1 into a checkpoint."
            ),
            source="hpctrain",
        ),
    ),
    (
        r"hpctrain_data ",
        _line(
            "copies the dataset to this node's own storage, once; the training reads it there.",
            source="hpctrain",
        ),
    ),
    (
        r"hpctrain_hooks ",
        _line(
            (
                "your own hooks: each runs once on this node before the training; if one fails, so"
                " does the job."
            ),
            source="hpctrain",
        ),
    ),
    (
        r"hpctrain_wait (?:.* )?python -u ",
        _line("starts the training; -u: each line reaches the log at once.", source="python(1)"),
    ),
    (
        r"hpctrain_finish --requeue (?P<most>\d+)",
        _line(
            (
                "records how the attempt ended and hands the exit code to Slurm. After 85 the job"
                " is requeued under its number, at most {most} times."
            ),
            source="hpctrain, scontrol(1)",
            section=END,
        ),
    ),
    (
        r"hpctrain_finish",
        _line(
            (
                "records how the attempt ended and hands the exit code to Slurm; without it, a"
                " training that failed would be COMPLETED."
            ),
            source="hpctrain",
            section=END,
        ),
    ),
    (
        r"set -euo pipefail",
        _line(
            (
                "bash stops at the first command that fails, at a variable that is not set, and"
                " at a failure inside a pipe."
            ),
            source="bash(1)",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"# made by hpctrain ",
        _line(
            (
                "the version of hpctrain that wrote this, and its template; the last number shows"
                " whether the script was edited."
            ),
            source="hpctrain",
            section=HEADER,
        ),
    ),
    (
        r"# make it again: ",
        _line("type this to write the same script again.", source="hpctrain", section=HEADER),
    ),
    (
        r"export HPCTRAIN_STAGE_\w+=",
        _line(
            "where an earlier stage has its run: its checkpoints, and its model.", source="hpctrain"
        ),
    ),
    (
        r"command\+=\(--trial ",
        _line(
            "the training reports each evaluation to the study, and stops when the study decides so.",
            source="hpctrain",
            section=LAUNCH,
        ),
    ),
    (
        r"command\+=\(",
        _line("passes the path of that file to your script.", source="bash(1)", section=LAUNCH),
    ),
    (
        r"command -v (?P<program>[\w.-]+) >/dev/null \|\| fail",
        _line(
            (
                "`{program}` must be found, or the job ends here with a word of what to do:"
                " better than a traceback for each process."
            ),
            source="bash(1)",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"module (?:load|add) (?P<module>\S+) \|\| ",
        _line(
            (
                "makes the software `{module}` available, or ends the job: a module that is"
                " missing would show up as a puzzling error much later."
            ),
            source="module(1)",
            section=ENVIRONMENT,
        ),
    ),
    (
        r'(?:source|\.) "?\$\(conda info --base\)"?/etc/profile\.d/conda\.sh',
        _line(
            "teaches this shell what `conda activate` is; a batch shell does not know it.",
            source="conda documentation",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"conda activate (?P<name>'[^']*'|\S+) \|\| ",
        _line(
            (
                "the Python and the packages of the conda environment {name} come first from here"
                " on, or the job ends here."
            ),
            source="conda documentation",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"(?:source|\.) (?P<file>'[^']*/bin/activate'|\S*/bin/activate)(?: \|\| |\s*$)",
        _line(
            (
                "activates a Python virtual environment: its Python and its packages come first"
                " from here on. Without it: the system's Python."
            ),
            source="Python documentation, venv",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"(?:source|\.) (?P<file>.+) \|\| fail \$?'the hook",
        _line(
            (
                "your own hook: the lines of `{file}` run in this shell before the training"
                " starts; if one fails, so does the job."
            ),
            source="bash(1)",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"(?:source|\.) (?P<file>.+) \|\| echo \$?'warning: the hook",
        _line(
            (
                "your own hook: the lines of `{file}` run in this shell after the training,"
                " whatever came of it."
            ),
            source="bash(1)",
            section=END,
        ),
    ),
    (
        r"pixi=\$\(command -v pixi",
        _line("where the program pixi is.", source="pixi documentation", section=ENVIRONMENT),
    ),
    (
        r'activation=\$\("\$pixi" shell-hook',
        _line(
            (
                "asks pixi for the lines that activate the project's environment; --as-is: as it"
                " is installed, without the internet."
            ),
            source="pixi documentation, shell-hook",
            section=ENVIRONMENT,
        ),
    ),
    (
        r'eval "\$activation"',
        _line(
            "runs those lines: the environment's Python and packages come first from here on.",
            source="pixi documentation, shell-hook",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"\[ -e (?P<image>.+) \] \|\| fail \$?'there is no image",
        _line(
            "the container's image must be there, or the job ends here, and not on every node.",
            source="bash(1)",
            section=ENVIRONMENT,
        ),
    ),
    (
        r'unset .*"\$\{!PET_@\}"',
        _line(
            (
                "removes what may have come along from your shell: PET_* are defaults for every"
                " option of torchrun, and SLURM_EXPORT_ENV says what srun passes on."
            ),
            source="PyTorch documentation, torch.distributed.run; srun(1)",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"(?:export )?\w+=.*scontrol show hostnames?\b",
        _line(
            (
                "the names of the job's nodes. Slurm writes them short, node[01-02]; scontrol"
                " spells them out, a name to a line."
            ),
            source="scontrol(1)",
            section=MEET,
        ),
    ),
    (
        r"export MASTER_ADDR=localhost",
        _line(
            "all processes are on this node.",
            source="PyTorch documentation, torch.distributed.run",
            section=MEET,
        ),
    ),
    (
        r"export MASTER_ADDR=\$\{hosts%%\$'\\n'\*\}",
        _line(
            (
                "the first of those names: the node where all processes connect at the start. Computed"
                " once, so that all get the same."
            ),
            source="PyTorch documentation, torch.distributed.run",
            section=MEET,
        ),
    ),
    (
        r'if getent hosts "\$\{?MASTER_ADDR',
        _line(
            "where the name with that ending is known, it is the same node on the fast network:",
            source="getent(1)",
            section=MEET,
        ),
    ),
    (
        r"MASTER_ADDR\+=",
        _line(
            "all meet there. Without it, they may meet over the slow network, or not at all.",
            source="bash(1)",
            section=MEET,
        ),
    ),
    (
        r"export MASTER_PORT=\$\(\((?P<low>\d+) \+ SLURM_JOB_ID % (?P<span>\d+)\)\)",
        _line(
            "the port there, made of the job's number: two jobs on one node do not take the same.",
            source="PyTorch documentation, torch.distributed.run",
            section=MEET,
        ),
    ),
    (
        r"\w+=\(",
        _line(
            (
                "words for a command below, kept as an array: each stays one word, whatever"
                " blanks are in it."
            ),
            source="bash(1)",
            section=LAUNCH,
        ),
    ),
    (
        r"host=\$\(\(SLURM_NODEID == 0\)\)",
        _line("1 on the first node, 0 on the others: who holds the meeting.", source="bash(1)"),
    ),
    (
        r"export RANK=.*LOCAL_RANK=",
        _line(
            (
                "tells torch which of all processes this one is, and which GPU of the node it"
                " takes. Without LOCAL_RANK, each may train alone."
            ),
            source="PyTorch documentation, torch.distributed.run",
        ),
    ),
    (
        r"module purge",
        _line(
            "unloads all modules, so that those of the submitting shell change nothing here.",
            source="module(1)",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"module reset",
        _line(
            (
                "restores the site's own set of modules, so that those of the submitting shell"
                " change nothing here."
            ),
            source="module(1)",
            section=ENVIRONMENT,
        ),
    ),
    (
        r"module use (?P<path>\S+)",
        _line(("searches `{path}` for modules too."), source="module(1)", section=ENVIRONMENT),
    ),
    (r"if getent hosts", _line("where that name is known to this node:", source="getent(1)")),
    (
        r'cat >"\$HPCTRAIN_RUN_DIR/accelerate\.yaml"',
        _line(
            "writes accelerate's config of this run, from the lines below.",
            source="hpctrain",
            section=LAUNCH,
        ),
    ),
    (r'"\$code"/', _line("your training script, from the code of this run.", source="hpctrain")),
    (
        r"""' task \"\$\{command\[@\]\}\"""",
        _line(("the command above, handed to each task as its arguments."), source="bash(1)"),
    ),
)
