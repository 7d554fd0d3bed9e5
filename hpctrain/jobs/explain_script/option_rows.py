"""What the options of the programs that start a training do: srun, torchrun, accelerate, python, containers, and the training's own.

To add one: a line here, without leading dashes, `_` and `-` alike. `flag=True`: it takes no value.
"""

from __future__ import annotations

from hpctrain.jobs.explain_script.rows import Row

_SRUN = "srun(1)"
_RUN = "torchrun --help (torch 2.13)"
_ACC = "accelerate launch --help (1.15)"
_APP = "apptainer exec --help"
_PY = "python(1)"
_TRL = "transformers documentation, TrainingArguments"
_SFT = "TRL documentation, SFTConfig and ScriptArguments"


def _flag(why: str, source: str) -> Row:
    return Row(why, source, flag=True)


#: srun's own; what is not here means what it means to sbatch, for this step.
SRUN: dict[str, Row] = {
    "nodes": Row("on {it} of the job.", _SRUN, reading="nodes"),
    "ntasks": Row("{it} in all.", _SRUN, reading="tasks"),
    "ntasks-per-node": Row("{it} on each node. torchrun and accelerate want one, srun alone one to a GPU.", _SRUN, reading="tasks"),
    "cpus-per-task": Row(
        "{it}. Said again here because srun of Slurm 22.05 and 23.02 does not take it over from the job: one core for all.",
        "srun(1), release notes of 22.05 and 23.11",
        reading="cores_of_task",
    ),
    "kill-on-bad-exit": Row("{it}.", _SRUN, reading="kill"),
    "wait": Row("so many seconds after the first task has ended, the others are ended: {value}.", _SRUN),
    "label": _flag("each line of output begins with its task's number.", _SRUN),
    "unbuffered": _flag("output is shown at once; this sets up a terminal, which can garble long lines.", _SRUN),
    "cpu-bind": Row("how tasks are bound to cores: `{value}`.", _SRUN),
    "exact": _flag("the step takes only the cores and GPUs it asks for, and leaves the rest to other steps.", _SRUN),
    "overlap": _flag("may share cores and GPUs with other steps of this job.", _SRUN),
    "exclusive": _flag("shares no cores and GPUs with other steps of this job.", _SRUN),
    "mpi": Row("how MPI programs find each other: `{value}`. torch does not need it.", _SRUN),
    "pty": _flag("gives the first task a terminal.", _SRUN),
    "jobid": Row("runs within the job {value}.", _SRUN),
    "het-group": Row("which parts of a heterogeneous job take part: {value}.", _SRUN),
    "relative": Row("counts nodes from number {value} of the job on.", _SRUN),
    "immediate": _flag("starts at once, or not at all.", _SRUN),
    "preserve-env": _flag("keeps this shell's SLURM_NNODES and SLURM_NTASKS.", _SRUN),
    "multi-prog": _flag("different programs for different tasks, as a file says.", _SRUN),
    "accel-bind": Row("binds tasks to the GPUs and cards that are close: `{value}`.", _SRUN),
    "task-prolog": Row("runs this before each task: `{value}`.", _SRUN),
    "task-epilog": Row("runs this after each task: `{value}`.", _SRUN),
    "threads": Row("threads of srun itself that start tasks.", _SRUN),
    "bcast": Row("copies the program to each node first.", _SRUN),
    "bcast-exclude": Row("leaves these directories out of that copy: `{value}`.", _SRUN),
    "send-libs": Row("copies the program's libraries too.", _SRUN),
    "compress": Row("compresses that copy.", _SRUN),
    "prolog": Row("runs this once before the step: `{value}`.", _SRUN),
    "epilog": Row("runs this once after the step: `{value}`.", _SRUN),
    "msg-timeout": Row("how long srun waits for an answer of the nodes, in seconds: {value}.", _SRUN),
    "slurmd-debug": Row("how much Slurm's daemons on the nodes say: {value}. For administrators.", _SRUN),
    "debugger-test": _flag("for debuggers alone.", _SRUN),
    "disable-status": _flag("Ctrl-C reaches the tasks at once.", _SRUN),
    "quit-on-interrupt": _flag("one Ctrl-C ends the step.", _SRUN),
    "no-allocate": _flag("runs without an allocation. Only for administrators.", _SRUN),
    "export": Row("{it}.", _SRUN, reading="export_step"),
    "output": Row("stdout of the tasks goes to this file; %t is the task's number, %N the node's name.", _SRUN),
    "error": Row("stderr of the tasks goes to this file; %t is the task's number, %N the node's name.", _SRUN),
    "input": Row("what the tasks read from stdin.", _SRUN),
    "mem": Row("{it} on each node for this step.", _SRUN, reading="memory"),
    "time": Row("{it} for this step.", _SRUN, reading="time_limit"),
    "gres": Row("for this step: {it}.", _SRUN, reading="gres"),
    "gpus-per-node": Row("for this step, on each node: {it}.", _SRUN, reading="gpus"),
    "gpus": Row("for this step, in total: {it}.", _SRUN, reading="gpus"),
    "job-name": Row("the step's name.", _SRUN),
    "nodelist": Row("on these nodes of the job: `{value}`.", _SRUN),
    "chdir": Row("starts in the directory `{value}`.", _SRUN),
}
TORCHRUN: dict[str, Row] = {
    "nnodes": Row("the number of nodes: {value}. torchrun waits until so many have come.", _RUN),
    "nproc-per-node": Row("processes on each node: {value}, one to a GPU.", _RUN),
    "rdzv-backend": Row("how nodes find each other; c10d needs nothing but an address, and no node numbers.", _RUN),
    "rdzv-id": Row("the meeting's name; the job's number keeps two jobs apart that use one address.", _RUN),
    "rdzv-endpoint": Row("where the nodes meet: the same address and port on every node.", _RUN),
    "rdzv-conf": Row(
        "details of the meeting: {value}. `is_host` says which node holds it; without it torch guesses from host names.", _RUN
    ),
    "standalone": _flag("all on this one node, on any free port: jobs that share the node never meet.", _RUN),
    "max-restarts": Row("how often torchrun starts failed processes again: {value}.", _RUN),
    "monitor-interval": Row("how often torchrun looks after its processes, in seconds.", _RUN),
    "node-rank": Row("this node's number: {value}. It must differ from node to node; c10d does not need it.", _RUN),
    "master-addr": Row("the first node's address, for the static way to meet.", _RUN),
    "master-port": Row("the port there, for the static way to meet.", _RUN),
    "local-addr": Row("this node's own address.", _RUN),
    "log-dir": Row("each process writes its log into this directory.", _RUN),
    "redirects": Row("which outputs of the processes go into files.", _RUN),
    "tee": Row("which outputs go into files and to the screen: {value} (3: both stdout and stderr).", _RUN),
    "role": Row("a name for these processes in the log.", _RUN),
    "start-method": Row("how processes are started.", _RUN),
    "module": _flag("the training is a Python module, not a file.", _RUN),
    "no-python": _flag("the training is a program of its own, not a Python file.", _RUN),
    "run-path": _flag("runs the file within torchrun's own Python.", _RUN),
    "local-ranks-filter": Row("shows the output of these processes of a node alone: {value}.", _RUN),
    "signals-to-handle": Row("signals that torchrun hands on to the processes. Others end torchrun alone, and orphan them.", _RUN),
    "shutdown-timeout": Row("seconds between SIGTERM and SIGKILL for the processes.", _RUN),
    "numa-binding": Row("binds processes to the cores close to their GPU.", _RUN),
}
ACCELERATE: dict[str, Row] = {
    "config-file": Row("where accelerate reads the rest of its settings: `{value}`. What stands on this command line wins.", _ACC),
    "num-machines": Row("the number of nodes: {value}.", _ACC),
    "num-processes": Row("the TOTAL number of processes over all nodes, not for each node: {value}.", _ACC),
    "machine-rank": Row("this node's number: {value}. It must be expanded on the node; in the batch shell it is 0 for all.", _ACC),
    "main-process-ip": Row("the node where all meet: {value}, the same on every node.", _ACC),
    "main-process-port": Row("the port there: {value}. 0 is any free port, and works on one node only.", _ACC),
    "rdzv-backend": Row("how nodes find each other; c10d needs no node numbers. accelerate's default is static.", _ACC),
    "rdzv-conf": Row(
        "details of the meeting: {value}. `is_host` says which node holds it; without it torch guesses from host names.", _ACC
    ),
    "multi-gpu": _flag("several processes, one to a GPU. Without it (and without a config file that says so) one process may start.", _ACC),
    "mixed-precision": Row("the number format of the computation: {value}.", _ACC),
    "dynamo-backend": Row("torch.compile: {value}.", _ACC),
    "same-network": _flag("the nodes are in one network.", _ACC),
    "use-fsdp": _flag("FSDP: parameters, gradients and optimizer are split over the GPUs.", _ACC),
    "use-deepspeed": _flag("DeepSpeed: its ZeRO stages split the training's state over the GPUs.", _ACC),
    "zero-stage": Row("what DeepSpeed splits: 1 optimizer, 2 gradients too, 3 parameters too. Here: {value}.", _ACC),
    "deepspeed-config-file": Row("DeepSpeed's settings: `{value}`.", _ACC),
    "deepspeed-multinode-launcher": Row("`standard`: accelerate starts on each node itself, as srun does it.", _ACC),
    "gradient-accumulation-steps": Row("steps whose gradients are added up before the weights change: {value}.", _ACC),
    "num-cpu-threads-per-process": Row("OMP_NUM_THREADS of each process: {value}.", _ACC),
    "gpu-ids": Row("which GPUs: {value}. Slurm has already chosen, so leave it out.", _ACC),
    "max-restarts": Row("how often failed processes are started again: {value}.", _ACC),
    "role": Row("a name for these processes in the log.", _ACC),
    "tee": Row("which outputs go into files and to the screen: {value}.", _ACC),
    "module": _flag("the training is a Python module, not a file.", _ACC),
    "no-python": _flag("the training is a program of its own, not a Python file.", _ACC),
    "cpu": _flag("trains on the CPU.", _ACC),
    "debug": _flag("checks that tensors have equal shapes on all processes. Slow.", _ACC),
    "fsdp-version": Row("1 or 2: FSDP2 is the newer one. Here: {value}.", _ACC),
    "zero3-init-flag": Row("ZeRO-3 splits the model already while it is loaded.", _ACC),
    "zero3-save-16bit-model": Row("ZeRO-3 gathers the whole model when it is saved.", _ACC),
}
PYTHON: dict[str, Row] = {
    "u": _flag("unbuffered: each line reaches the log at once.", _PY),
    "m": _flag("what follows is a module, found as `import` would.", _PY),
    "P": _flag("the script's own directory does not count as a place for modules.", _PY),
    "O": _flag("without asserts.", _PY),
    "B": _flag("writes no .pyc files.", _PY),
    "I": _flag("isolated: no PYTHON… variables, no packages in ~/.local.", _PY),
    "s": _flag("packages in ~/.local do not count.", _PY),
    "E": _flag("PYTHON… variables do not count.", _PY),
    "c": Row("a program in one line.", _PY),
    "X": Row("a special switch of Python: {value}.", _PY),
    "W": Row("which warnings are shown: {value}.", _PY),
}
CONTAINER: dict[str, Row] = {
    "nv": _flag("NVIDIA's driver libraries of the node come along. Without it: no GPU in the container.", _APP),
    "rocm": _flag("AMD's driver libraries of the node come along. Without it: no GPU in the container.", _APP),
    "bind": Row("directories of the node that the container sees: `{value}`.", _APP),
    "B": Row("directories of the node that the container sees: `{value}`.", _APP),
    "pwd": Row("the directory in the container where the command starts: `{value}`.", _APP),
    "cwd": Row("the directory in the container where the command starts: `{value}`.", _APP),
    "env": Row("variables set in the container: `{value}`.", _APP),
    "home": Row("the home directory in the container: `{value}`.", _APP),
    "no-home": _flag("the container does not see your home directory.", _APP),
    "cleanenv": _flag("none of this shell's variables come along.", _APP),
    "contain": _flag("the container sees only a minimal /dev, /tmp and home.", _APP),
    "writable-tmpfs": _flag("changes to the container's files are kept in memory, and lost.", _APP),
    "overlay": Row("changes to the container's files go to `{value}`.", _APP),
    "unsquash": _flag("unpacks the image first.", _APP),
}
#: Options of the training: of transformers and TRL, which most training scripts take over.
TRAINING: dict[str, Row] = {
    "model-name-or-path": Row("the model to start from: `{value}`.", _SFT),
    "dataset-name": Row("the data to train on: `{value}`.", _SFT),
    "output-dir": Row("where checkpoints go: `{value}`.", _TRL),
    "max-steps": Row("stops after {value} steps; a step is one change of the weights.", _TRL),
    "num-train-epochs": Row("how often the data is gone through: {value}.", _TRL),
    "learning-rate": Row("how far each step moves the weights: {value}.", _TRL),
    "per-device-train-batch-size": Row("samples for each GPU and pass: {value}. Too many: CUDA out of memory.", _TRL),
    "per-device-eval-batch-size": Row("samples for each GPU and pass of an evaluation: {value}.", _TRL),
    "gradient-accumulation-steps": Row("passes before the weights change: {value}. Batch = samples x passes x GPUs.", _TRL),
    "gradient-checkpointing": Row("computes activations anew in place of keeping them: less GPU memory, slower.", _TRL),
    "max-length": Row("longer samples are cut to {value} tokens.", _SFT),
    "packing": Row("several short samples in one sequence: no time is spent on padding.", _SFT),
    "bf16": Row("computes in bfloat16: half the memory of float32.", _TRL),
    "seed": Row("the seed of all random numbers: {value}.", _TRL),
    "warmup-steps": Row("the learning rate rises over this many steps (below 1: this share of them): {value}.", _TRL),
    "lr-scheduler-type": Row("how the learning rate falls: {value}.", _TRL),
    "weight-decay": Row("pulls weights towards zero: {value}.", _TRL),
    "logging-steps": Row("a line in the log every {value} steps.", _TRL),
    "save-steps": Row("a checkpoint every {value} steps: at worst so many are lost.", _TRL),
    "save-strategy": Row("when checkpoints are written: {value}.", _TRL),
    "save-total-limit": Row("keeps the last {value} checkpoints.", _TRL),
    "eval-strategy": Row("when it is evaluated: {value}.", _TRL),
    "eval-steps": Row("an evaluation every {value} steps.", _TRL),
    "report-to": Row("where curves are sent: {value}.", _TRL),
    "run-name": Row("the run's name there: {value}.", _TRL),
    "resume-from-checkpoint": Row("goes on from a checkpoint: {value}.", _TRL),
    "optim": Row("the optimizer: {value}.", _TRL),
    "deepspeed": Row("DeepSpeed's settings: `{value}`.", _TRL),
    "fsdp": Row("FSDP, which splits the training's state over the GPUs: {value}.", _TRL),
    "dataloader-num-workers": Row("processes that load data, for each GPU: {value}. Each wants a core.", _TRL),
    "use-peft": Row("trains a small adapter (LoRA), not all weights.", "TRL documentation, ModelConfig"),
    "config": Row("reads its settings from `{value}`.", _SFT),
    "ddp-timeout": Row("seconds until a hanging collective is an error: {value}.", _TRL),
}
