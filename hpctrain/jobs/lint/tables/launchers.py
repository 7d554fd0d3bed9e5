"""The rules about ranks, launchers and where they meet. Data."""

from __future__ import annotations

from hpctrain.jobs.lint.rule import Rule

ROWS = (
    Rule(
        "rank-expanded-early",
        "error",
        "a rank expanded in the batch shell",
        ("SLURM_PROCID, SLURM_NODEID and SLURM_LOCALID are set in the batch shell too, all 0, so every node takes itself for the first."),
        "sbatch(1) OUTPUT ENVIRONMENT VARIABLES; accelerate#2816",
        fixes=True,
    ),
    Rule(
        "rank-not-expanded",
        "error",
        "a rank that no shell expands",
        "srun starts programs without a shell, so the launcher gets the name of the variable and not its value.",
        "srun(1)",
    ),
    Rule(
        "launcher-without-srun",
        "error",
        "a launcher without srun on several nodes",
        "the batch script runs on the first node only; nobody starts the launcher on the others, and the first waits for them.",
        "sbatch(1)",
    ),
    Rule(
        "launchers-per-node",
        "error",
        "several launchers on one node",
        "each launcher starts a process for every GPU of the node, so the GPUs and the port are taken several times.",
        "torchrun and accelerate documentation",
    ),
    Rule(
        "srun-per-node-ignored",
        "warning",
        "srun --ntasks-per-node that the job contradicts",
        "srun inherits the job's number of tasks and ignores its own --ntasks-per-node with a warning (seen on 22.05).",
        "srun(1) --ntasks-per-node",
    ),
    Rule(
        "rank-missing",
        "error",
        "a static rendezvous without a rank",
        "every node calls itself the first, so that the launchers wait for each other until they time out.",
        "torch/distributed/run.py; accelerate/commands/launch.py",
    ),
    Rule(
        "rendezvous-missing",
        "error",
        "several nodes without an address to meet",
        "each node looks for the others on itself, and the launchers time out.",
        "torch/distributed/run.py",
    ),
    Rule(
        "rendezvous-local",
        "error",
        "an address by which each node means itself",
        "every node waits on itself for the others, and the launchers time out.",
        "torch/distributed/run.py",
    ),
    Rule(
        "launcher-alone",
        "warning",
        "each node trains alone",
        "without a number of nodes, each launcher starts a training of its own, all as rank 0 and into the same files.",
        "torch/distributed/run.py; accelerate/commands/launch.py",
    ),
    Rule(
        "nnodes-mismatch",
        "error",
        "the launcher waits for another number of nodes",
        "the rendezvous waits for the missing nodes until it times out, or turns the surplus away.",
        "torch/distributed/run.py",
    ),
    Rule(
        "num-processes",
        "error",
        "accelerate's --num_processes is the total",
        "accelerate divides it by the number of machines, so GPUs stay idle or the start fails.",
        "accelerate/commands/launch.py",
    ),
    Rule(
        "more-processes-than-gpus",
        "error",
        "more processes than GPUs",
        "the surplus processes end with: invalid device ordinal.",
        "torch/distributed/run.py",
    ),
    Rule(
        "accelerate-one-process",
        "error",
        "accelerate starts one process",
        (
            "accelerate launch turns several processes on by --multi_gpu, by a config file, or where it sees several GPUs, "
            "and is silent otherwise."
        ),
        "accelerate 1.15, commands/launch.py",
    ),
    Rule(
        "rdzv-conf-backend",
        "warning",
        "a rendezvous backend inside --rdzv_conf",
        "torch reads the backend from --rdzv_backend alone and ignores the one in --rdzv_conf, so it stays static.",
        "torch/distributed/run.py; accelerate/utils/launch.py",
    ),
    Rule(
        "mpirun-in-srun",
        "error",
        "mpirun inside srun",
        "srun starts it once for each task, and each then starts all tasks again.",
        "srun(1)",
    ),
    Rule(
        "fixed-port",
        "warning",
        "a fixed port",
        "another job, or a leftover of the last, may hold the port on a shared node: address already in use.",
        "torch/distributed/run.py",
        fixes=True,
    ),
    Rule(
        "random-in-task", "error", "a random number in each task", "every task draws another number, so they never meet.", "bash(1) RANDOM"
    ),
    Rule(
        "array-port",
        "warning",
        "a port that an array's tasks share",
        "SLURM_ARRAY_JOB_ID is the same in all tasks of the array; two on one node collide, while SLURM_JOB_ID differs.",
        "sbatch(1) --array",
    ),
    Rule(
        "nodelist-cut",
        "error",
        "the node list cut by text tools",
        "Slurm compresses the list, and node[01-04] is no name of a node.",
        "scontrol(1) show hostnames",
    ),
    Rule(
        "nodelist-unquoted",
        "note",
        "the node list without quotes",
        "node[01-04] is a pattern to the shell, which a file of such a name would replace.",
        "bash(1) Pathname Expansion",
        fixes=True,
    ),
    Rule(
        "scontrol-in-container",
        "warning",
        "a program of Slurm inside a container",
        "images seldom hold Slurm's programs, their configuration and munge.",
        "site documentation",
    ),
    Rule(
        "hostname-address",
        "warning",
        "an address from hostname",
        "hostname may print 127.0.1.1, several addresses, or that of a network that the nodes do not share.",
        "hostname(1); nebius-solutions-library#177",
    ),
    Rule(
        "port-zero",
        "error",
        "port 0 for several machines",
        "accelerate takes 0 for a free port of its own on one machine only; the others cannot know it, and the start fails.",
        "accelerate 1.15, utils/launch.py",
    ),
)
