"""What environment variables do: those a script sets, and those of Slurm that it reads.

To add one: a line here. `{value}` is what the script sets it to, as it is written.
"""

from __future__ import annotations

from hpctrain.jobs.explain_script.rows import ENVIRONMENT, LAUNCH, MEET, Row

_HUB = "Hugging Face Hub documentation, environment variables"
_NCCL = "NCCL user guide, environment variables"
_TORCH = "PyTorch documentation"
_RUN = "PyTorch documentation, torch.distributed.run"
_NVIDIA = "CUDA C++ programming guide, environment variables"
_ACC = "accelerate documentation"
_ROCM = "ROCm documentation, environment variables"


def _set(why: str, source: str, section: str = ENVIRONMENT) -> Row:
    return Row(why, source, section)


_RANKS = {
    "MASTER_ADDR": _set(
        "the node where all processes meet at the start. Every process must be told the same one, so it is worked out here, once.",
        _RUN, MEET,
    ),
    "MASTER_PORT": _set(
        "the port there. Made of the job's number it differs between jobs; a fixed one is taken when two jobs share a node.", _RUN, MEET
    ),
    "RANK": _set("this process's number among all, from 0; in the batch shell it would be 0 for everyone.", _RUN, LAUNCH),
    "WORLD_SIZE": _set("the number of processes of the whole training; each must see the same.", _RUN, LAUNCH),
    "LOCAL_RANK": _set(
        "this process's number on its node: it takes the GPU of that number. Without it, each process may train alone.", _RUN, LAUNCH
    ),
    "LOCAL_WORLD_SIZE": _set("the number of processes on this node.", _RUN, LAUNCH),
    "NODE_RANK": _set("this node's number. Right only if each node works it out itself.", _RUN, LAUNCH),
    "GPUS_PER_NODE": _set("the GPUs of a node, kept for later lines; it must match the request to Slurm above.", "bash(1)", ENVIRONMENT),
    "NNODES": _set("the number of nodes, kept for later lines.", "bash(1)", ENVIRONMENT),
}  # fmt: skip
_PYTHON = {
    "PYTHONUNBUFFERED": _set(
        "Python writes each line at once. Without it, the log stays empty for long, and a crash loses the last lines.", "python(1)"
    ),
    "OMP_NUM_THREADS": _set(
        "threads for CPU work in each process. Without it: torchrun sets 1, other programs take every core, and processes fight for them.",
        "OpenMP specification; torchrun",
    ),
    "MKL_NUM_THREADS": _set("threads for Intel's maths library in each process.", "Intel oneMKL developer guide"),
    "TOKENIZERS_PARALLELISM": _set(
        "tokenizers start no threads of their own, which data loader processes would inherit: that can hang, and warns in the log.",
        "huggingface/tokenizers, README",
    ),
    "PYTHONPATH": _set("where Python looks for modules before its own folders: `{value}`.", "python(1)"),
    "PYTHONNOUSERSITE": _set("packages in ~/.local do not count, so that only the environment's versions do.", "python(1)"),
    "PYTHONFAULTHANDLER": _set("a crash in compiled code prints where Python was.", "python(1)"),
    "PATH": _set("where the shell looks for programs: `{value}`.", "bash(1)"),
    "LD_LIBRARY_PATH": _set("where programs look for shared libraries: `{value}`. A wrong one gives puzzling errors.", "ld.so(8)"),
    "TMPDIR": _set("where temporary files go: `{value}`.", "mktemp(1)"),
    "CC": _set("the C compiler, for kernels that are compiled while training.", "Triton and DeepSpeed"),
    "CXX": _set("the C++ compiler, for extensions that are compiled while training.", "PyTorch documentation, cpp_extension"),
    "CUDA_HOME": _set("where the CUDA toolkit lies, for what is compiled while training.", "PyTorch documentation, cpp_extension"),
}  # fmt: skip
_HUGGING_FACE = {
    "HF_HUB_OFFLINE": _set("never asks huggingface.co. Compute nodes often have no internet; without it: long waits for time-outs.", _HUB),
    "HF_DATASETS_OFFLINE": _set("the same for datasets: only what is on disk.", "Hugging Face Datasets documentation, offline"),
    "TRANSFORMERS_OFFLINE": _set("the same for transformers: only what is on disk.", "transformers documentation, offline mode"),
    "HF_HOME": _set(
        "where models and datasets are cached: `{value}`. Without it: ~/.cache, and a small home fills up. Keep it on a shared disk.", _HUB
    ),
    "HF_HUB_CACHE": _set("where downloaded models lie: `{value}`.", _HUB),
    "HF_DATASETS_CACHE": _set("where prepared datasets lie: `{value}`.", "Hugging Face Datasets documentation, cache"),
    "TRANSFORMERS_CACHE": _set("the old name of HF_HOME; newer versions of transformers no longer read it.", "transformers documentation"),
    "HF_TOKEN": _set(
        "your key to huggingface.co. Its value must not stand in a script: others read scripts, and Slurm keeps a copy.", _HUB
    ),
    "HF_HUB_ENABLE_HF_TRANSFER": _set("faster downloads, by a package that must be installed.", _HUB),
    "WANDB_MODE": _set(
        "Weights & Biases: {value}. offline keeps its data on disk until you type `wandb sync`; online needs internet on the nodes.",
        "Weights & Biases documentation, environment variables",
    ),
    "WANDB_PROJECT": _set("the project in Weights & Biases.", "Weights & Biases documentation, environment variables"),
    "WANDB_DIR": _set("where Weights & Biases keeps its files.", "Weights & Biases documentation, environment variables"),
    "WANDB_API_KEY": _set(
        "your key to Weights & Biases. Its value must not stand in a script: others read scripts, and Slurm keeps a copy.",
        "Weights & Biases documentation, environment variables",
    ),
    "ACCELERATE_USE_CPU": _set("accelerate trains on the CPU.", _ACC),
    "ACCELERATE_LOG_LEVEL": _set("how much accelerate says.", _ACC),
}
_GPU = {
    "CUDA_VISIBLE_DEVICES": _set(
        "the GPUs that programs see. Slurm sets it for each job and step; set by hand, it can hide GPUs that the job has.", _NVIDIA
    ),
    "CUDA_DEVICE_ORDER": _set("how GPUs are numbered: PCI_BUS_ID is the order of nvidia-smi.", _NVIDIA),
    "CUDA_LAUNCH_BLOCKING": _set(
        "1: each GPU call waits for its end, so that errors point to their line. Slow: for hunting bugs only.", _NVIDIA
    ),
    "CUDA_DEVICE_MAX_CONNECTIONS": _set("queues to the GPU. Megatron's tensor parallelism wants 1; plain training does not.", _NVIDIA),
    "CUDA_CACHE_PATH": _set("where the CUDA driver keeps compiled kernels.", _NVIDIA),
    "CUDA_CACHE_DISABLE": _set("1: the CUDA driver keeps no compiled kernels; in a shared home, processes block each other.", _NVIDIA),
    "HIP_VISIBLE_DEVICES": _set("the AMD GPUs that programs see.", _ROCM),
    "ROCR_VISIBLE_DEVICES": _set("the AMD GPUs that programs see, below HIP. Slurm sets it.", _ROCM),
    "MIOPEN_USER_DB_PATH": _set("where AMD's MIOpen keeps its tuning data; on a shared disk, processes block each other.", _ROCM),
    "MIOPEN_CUSTOM_CACHE_DIR": _set("where AMD's MIOpen keeps compiled kernels; on a shared disk, processes block each other.", _ROCM),
    "PYTORCH_CUDA_ALLOC_CONF": _set(
        "how PyTorch hands out GPU memory; `expandable_segments:True` wastes less.", f"{_TORCH}, CUDA semantics"
    ),
    "PYTORCH_ALLOC_CONF": _set("how PyTorch hands out GPU memory; `expandable_segments:True` wastes less.", f"{_TORCH}, CUDA semantics"),
    "TRITON_CACHE_DIR": _set(
        "where compiled GPU kernels are kept. In a home shared by all nodes, processes write over each other.", "Triton documentation"
    ),
    "TORCHINDUCTOR_CACHE_DIR": _set("the same for torch.compile.", f"{_TORCH}, torch.compile caching"),
    "TORCH_EXTENSIONS_DIR": _set("the same for extensions that are compiled while training.", f"{_TORCH}, cpp_extension"),
    "TORCH_HOME": _set("where PyTorch keeps downloads.", f"{_TORCH}, torch.hub"),
}
_NETWORK = {
    "NCCL_DEBUG": _set("how much NCCL says in the log; INFO shows which network it took.", _NCCL),
    "NCCL_DEBUG_SUBSYS": _set("of which of NCCL's parts.", _NCCL),
    "NCCL_SOCKET_IFNAME": _set(
        "the network interface by which GPUs first find each other: names that begin with `{value}` (a leading = means exactly). "
        "A wrong name ends the job at its start.",
        _NCCL,
    ),
    "GLOO_SOCKET_IFNAME": _set("the same for gloo, which carries CPU traffic.", f"{_TORCH}, torch.distributed"),
    "NCCL_IB_DISABLE": _set("1: no InfiniBand. Then all traffic takes the slow network: for hunting faults only.", _NCCL),
    "NCCL_IB_HCA": _set("the InfiniBand cards that NCCL uses: `{value}`.", _NCCL),
    "NCCL_IB_TIMEOUT": _set("how patient InfiniBand is: 4.096 microseconds x 2^{value}.", _NCCL),
    "NCCL_P2P_DISABLE": _set("1: GPUs of a node do not talk directly. Slow: for hunting faults only.", _NCCL),
    "NCCL_SHM_DISABLE": _set("1: no shared memory between the processes of a node. Slow: for hunting faults only.", _NCCL),
    "NCCL_NET": _set("the network NCCL must use; if it is missing the job stops, in place of training slowly.", _NCCL),
    "NCCL_NET_GDR_LEVEL": _set("how close GPU and network card must be for direct transfers.", _NCCL),
    "NCCL_CROSS_NIC": _set("whether a ring may use different network cards on different nodes.", _NCCL),
    "NCCL_TIMEOUT": _set("not a variable of NCCL; PyTorch's time-out is given in the script (init_process_group, ddp_timeout).", _NCCL),
    "NCCL_ASYNC_ERROR_HANDLING": _set("the name before PyTorch 2.2; now TORCH_NCCL_ASYNC_ERROR_HANDLING.", f"{_TORCH}, torch.distributed"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": _set(
        "what PyTorch does when NCCL fails; its default (3) ends the process.", f"{_TORCH}, ProcessGroupNCCL"
    ),
    "TORCH_NCCL_BLOCKING_WAIT": _set("1: a collective that takes too long raises an error in Python.", f"{_TORCH}, ProcessGroupNCCL"),
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": _set("after so many silent seconds PyTorch ends a hanging process.", f"{_TORCH}, ProcessGroupNCCL"),
    "TORCH_DISTRIBUTED_DEBUG": _set("how much torch.distributed checks; DETAIL is slow.", f"{_TORCH}, torch.distributed"),
    "TORCH_CPP_LOG_LEVEL": _set("how much PyTorch's C++ side says.", f"{_TORCH}, torch.distributed"),
    "NCCL_PROTO": _set("the protocols NCCL may use: `{value}`; ^ means all but these.", _NCCL),
    "FI_CXI_DEFAULT_CQ_SIZE": _set(
        "room for completed transfers on Slingshot's cards; too little stalls large jobs.", "libfabric, fi_cxi(7)"
    ),
    "FI_CXI_RX_MATCH_MODE": _set(
        "who matches messages on Slingshot: the card, or `software`; `hybrid` changes over when the card is full.", "libfabric, fi_cxi(7)"
    ),
    "FI_MR_CACHE_MONITOR": _set("how libfabric notices memory that was given back; `{value}` here.", "libfabric, fi_mr(3)"),
    "MPICH_GPU_SUPPORT_ENABLED": _set("1: MPI itself moves GPU memory. torch uses NCCL or RCCL, so 0.", "Cray MPICH, mpi(3)"),
    "FI_PROVIDER": _set("the network that libfabric uses: `{value}`.", "libfabric documentation"),
}
_FSDP = "accelerate documentation, FSDP"
_ZERO = "accelerate documentation, DeepSpeed"
_SHARDING = {
    "ACCELERATE_USE_FSDP": _set(
        "FSDP: parameters, gradients and optimizer are split over the GPUs. Without it: DDP, all of it on each.", _FSDP
    ),
    "FSDP_VERSION": _set("FSDP's version {value}; 2 is the newer one.", _FSDP),
    "FSDP_AUTO_WRAP_POLICY": _set("in which pieces the model is split; TRANSFORMER_BASED_WRAP: layer by layer.", _FSDP),
    "FSDP_RESHARD_AFTER_FORWARD": _set(
        "true: a layer's parameters are given back after its forward pass. Less memory, more traffic.", _FSDP
    ),
    "FSDP_OFFLOAD_PARAMS": _set("whether parameters lie in host memory in between: slow, for models that fit in no other way.", _FSDP),
    "FSDP_STATE_DICT_TYPE": _set(
        "SHARDED_STATE_DICT: each process writes its part of a checkpoint; FULL_STATE_DICT: the first writes all.", _FSDP
    ),
    "FSDP_CPU_RAM_EFFICIENT_LOADING": _set(
        "only the first process of all reads the model. Without it, each holds a copy in host memory.", _FSDP
    ),
    "FSDP_SYNC_MODULE_STATES": _set("and hands it to the others.", _FSDP),
    "FSDP_ACTIVATION_CHECKPOINTING": _set("whether activations are computed anew in place of kept: less GPU memory, slower.", _FSDP),
    "ACCELERATE_USE_DEEPSPEED": _set(
        "DeepSpeed: its ZeRO stages split the training's state over the GPUs. Without it: DDP, all of it on each.", _ZERO
    ),
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": _set("what is split: 1 the optimizer, 2 gradients too, 3 parameters too. Here: {value}.", _ZERO),
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": _set("the model is split already while it is made: no process ever holds all of it.", _ZERO),
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": _set("the whole model is gathered when it is saved, so that others can load it.", _ZERO),
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": _set(
        "where the optimizer's state lies: none is on the GPU; cpu and nvme are slower.", _ZERO
    ),
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": _set("where parameters lie: none is on the GPU; cpu and nvme are slower.", _ZERO),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": _set("steps whose gradients are added up before the weights change: {value}.", _ZERO),
    "ACCELERATE_GRADIENT_CLIPPING": _set("gradients are cut to this length: {value}; auto is what the training says.", _ZERO),
}
_SLURM = {
    "SLURM_MPI_TYPE": _set("how srun prepares MPI: `{value}`. torch needs none of it.", "srun(1)"),
    "SRUN_CPUS_PER_TASK": _set(
        "cores for each task of srun. Only Slurm 22.05 to 23.02 need it: there srun does not take --cpus-per-task over from the job. "
        "`srun --cpus-per-task` is right everywhere.",
        "srun(1), release notes of 22.05 and 23.11",
    ),
    "SLURM_EXPORT_ENV": _set("what srun passes on of this shell's variables; ALL is everything.", "srun(1)"),
    "SLURM_CPU_BIND": _set("how srun binds tasks to cores.", "srun(1)"),
}
_HPCTRAIN = {
    "HPCTRAIN_WORLD_SIZE": _set(
        "the number of processes this script was made for. The training compares and stops if fewer came: "
        "else it would train something else, silently.",
        "hpctrain",
    ),
    "HPCTRAIN_SHARDING": _set(
        "how the training's state is split over the GPUs: `{value}`. The training compares it with what the launcher says.", "hpctrain"
    ),
    "HPCTRAIN_RUN_DIR": _set("a directory of this job's own for checkpoints and results; the job's number keeps runs apart.", "hpctrain"),
}

VARIABLES: dict[str, Row] = {**_RANKS, **_PYTHON, **_HUGGING_FACE, **_GPU, **_NETWORK, **_SHARDING, **_SLURM, **_HPCTRAIN}

#: For names that have no row of their own: the beginning of the name → who reads it.
FAMILIES: tuple[tuple[str, str], ...] = (
    ("TORCH_NCCL_", "PyTorch's NCCL backend"), ("NCCL_", "NCCL, NVIDIA's library for traffic between GPUs"),
    ("RCCL_", "RCCL, AMD's library for traffic between GPUs"), ("TORCH_", "PyTorch"), ("TORCHINDUCTOR_", "torch.compile"),
    ("PYTORCH_", "PyTorch"), ("TRITON_", "Triton, which compiles GPU kernels"), ("CUDA_", "CUDA"), ("HIP_", "AMD's HIP"),
    ("HSA_", "AMD's ROCm"), ("MIOPEN_", "AMD's MIOpen"), ("HF_", "the Hugging Face libraries"), ("TRANSFORMERS_", "transformers"),
    ("ACCELERATE_", "accelerate"), ("FSDP_", "accelerate"), ("DS_", "DeepSpeed"), ("WANDB_", "Weights & Biases"), ("OMP_", "OpenMP"),
    ("MKL_", "Intel's maths library"), ("GLOO_", "gloo, which carries CPU traffic"), ("UCX_", "UCX, a network library"),
    ("FI_", "libfabric, a network library"), ("OMPI_", "Open MPI"), ("MPICH_", "MPICH"), ("PMIX_", "PMIx"), ("SLURM_", "Slurm's commands"),
    ("SBATCH_", "sbatch"), ("SRUN_", "srun"), ("PET_", "torchrun (defaults of its options)"), ("APPTAINER", "Apptainer"),
    ("SINGULARITY", "Singularity"), ("VLLM_", "vLLM"), ("HPCTRAIN_", "hpctrain"), ("PYTHON", "Python"), ("LD_", "the loader of programs"),
)  # fmt: skip

#: What Slurm sets: name → what it is. Source: sbatch(1) and srun(1), output environment variables.
SLURM: dict[str, str] = {
    "SLURM_JOB_ID": "the job's number", "SLURM_JOBID": "the job's number (old name)", "SLURM_JOB_NAME": "the job's name",
    "SLURM_JOB_NODELIST": "the job's nodes in short form, node[01-02]: `scontrol show hostnames` spells them out",
    "SLURM_NODELIST": "the job's nodes in short form (old name)", "SLURM_JOB_NUM_NODES": "the number of nodes",
    "SLURM_NNODES": "the number of nodes", "SLURM_NTASKS": "the number of tasks; set only where --ntasks or --ntasks-per-… is asked for",
    "SLURM_NTASKS_PER_NODE": "tasks on each node; set only where --ntasks-per-node is asked for",
    "SLURM_CPUS_PER_TASK": "cores of each task; set only where --cpus-per-task is asked for", "SLURM_CPUS_ON_NODE": "cores on this node",
    "SLURM_GPUS_ON_NODE": "GPUs of the job on this node (from Slurm 21.08)",
    "SLURM_GPUS_PER_NODE": "GPUs of each node; set only where --gpus-per-node is asked for, not with --gres",
    "SLURM_ARRAY_JOB_ID": "the array's number, the same for all its jobs", "SLURM_ARRAY_TASK_ID": "this job's number in the array",
    "SLURM_ARRAY_TASK_COUNT": "how many jobs the array has", "SLURM_SUBMIT_DIR": "the directory where sbatch was typed",
    "SLURM_RESTART_COUNT": "how often the job was requeued; unset on the first run", "SLURMD_NODENAME": "this node's name",
    "SLURM_JOB_END_TIME": "when the time limit ends the job, in seconds since 1970 (from Slurm 23.02)",
    "SLURM_JOB_PARTITION": "the partition", "SLURM_JOB_ACCOUNT": "the account", "SLURM_MEM_PER_NODE": "memory of each node, in MiB",
    "SLURM_JOB_GPUS": "the GPUs of the job on this node, by number", "SLURM_TMPDIR": "a local directory of the job, at some sites",
}  # fmt: skip
#: The number of a task: what it is within a task, and that it is 0 in the script's own shell, whatever the task.
RANKS: dict[str, str] = {
    "SLURM_PROCID": "the task's number among all, from 0", "SLURM_NODEID": "the node's number in the job, from 0",
    "SLURM_LOCALID": "the task's number on its node, from 0",
}  # fmt: skip
