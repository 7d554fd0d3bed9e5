"""For each finding a scene that makes it, and one, as near as can be, that must not."""

from dataclasses import replace
from typing import Any

from hpctrain.checks.job.context import (
    AccelerateFacts,
    FolderProblem,
    InputFacts,
    PythonFacts,
    SecretFacts,
)
from hpctrain.clusters.live import Association, LiveQos
from hpctrain.config.spec import Container, Secret, Study
from tests.jobs.check.check_scene import (
    ARGUMENTS,
    AROUND,
    DEBUG,
    DISK,
    GIB,
    HERE,
    SCRIPT,
    Scene,
    config,
    missing,
    partition,
    path,
)

assert AROUND.python is not None
assert AROUND.model is not None
PYTHON: PythonFacts = AROUND.python
assert AROUND.dataset is not None
MODEL: InputFacts = AROUND.model
PREPARED: InputFacts = replace(AROUND.dataset, tokenizer="9c" * 32, tokenizer_name="models/qwen3")
#: 8 billion parameters: 128 GB to train with AdamW in float32.
LARGE = replace(MODEL, config=config("llama-3-8b"))
OFF_SITE: dict[str, Any] = {"live": None}
STUDY = Study(name="lr", file="runs/.studies/lr-0.json", keys=("learning_rate",))
IMAGE = Container(engine="apptainer", image="train.sif", binds=("/work/data:/data",))
AMD = {"a100": {"gpus": 4, "vendor": "rocm", "cpus": 64, "memory": "480G"}}
HUB = InputFacts(where=missing("Qwen/Qwen3-8B"), cached=False)
IDRIS = {
    "nodes": {
        "v100": {"gpus": 4, "select": {"account_suffix": "@v100"}},
        "h100": {"gpus": 4, "select": {"constraint": "h100", "account_suffix": "@h100"}},
    },
    "partitions": {},
    "defaults": {"nodes": "v100"},
    "account": {},
}


def of_python(**changes: Any) -> dict[str, Any]:
    return {"python": replace(PYTHON, **changes)}


def gpus_of_partition(**changes: Any) -> dict[str, Any]:
    return {"partitions": (partition(**changes), DEBUG)}


def storage(**changes: Any) -> dict[str, Any]:
    return {"storage": {"WORK": {"path": "/work/<account>", **changes}}}


def output(**changes: Any) -> dict[str, Any]:
    return {"output": path("runs", filesystem=replace(DISK, **changes))}


#: id → (level, a scene with it, a near one without it).
CASES: dict[str, tuple[str, Scene, Scene]] = {
    # -- names
    "partition-unknown": (
        "error",
        Scene(spec={"partition": "gpus"}),
        Scene(spec={"partition": "debug", "time_s": 600}),
    ),
    "partition-missing": (
        "error",
        Scene(spec={"partition": None}, profile={"partition_required": True}, **OFF_SITE),
        Scene(spec={"partition": None}, **OFF_SITE),
    ),
    # Slurm compares accounts without case.
    "account-unknown": (
        "error",
        Scene(spec={"account": "proj_c"}),
        Scene(spec={"account": "PROJ_B"}),
    ),
    "account-missing": (
        "error",
        Scene(spec={"account": None}),
        Scene(spec={"account": None}, profile={"account": {"required": False}}),
    ),
    "account-nodes": (
        "error",
        Scene(
            spec={"account": "abc@h100", "partition": None, "qos": None}, profile=IDRIS, **OFF_SITE
        ),
        Scene(
            spec={"account": "abc@h100", "partition": None, "qos": None, "constraint": "h100"},
            profile=IDRIS,
            **OFF_SITE,
        ),
    ),
    "qos-unknown": ("error", Scene(spec={"qos": "debug"}), Scene(spec={"qos": "long"})),
    "qos-missing": (
        "error",
        Scene(spec={"qos": None}, profile={"qos_required": True}),
        Scene(profile={"qos_required": True}),
    ),
    "qos-not-allowed": (
        "error",
        Scene(live=gpus_of_partition(allow_qos=("long",))),
        Scene(live=gpus_of_partition(allow_qos=("normal",))),
    ),
    "directive-forbidden": (
        "error",
        Scene(
            profile={
                "directives": {"forbidden": {"mem": "Slurm will reject any job script with it"}}
            }
        ),
        Scene(
            profile={
                "directives": {
                    "forbidden": {"exclusive": "Slurm will reject any job script with it"}
                }
            }
        ),
    ),
    "directive-discouraged": (
        "warning",
        Scene(
            spec={"sbatch": (("exclusive", None),)},
            profile={"directives": {"discouraged": {"exclusive": "only when needed"}}},
        ),
        Scene(profile={"directives": {"discouraged": {"exclusive": "only when needed"}}}),
    ),
    "directive-required": (
        "error",
        Scene(profile={"directives": {"required": ["comment"]}}),
        Scene(
            spec={"sbatch": (("comment", "x"),)}, profile={"directives": {"required": ["comment"]}}
        ),
    ),
    # -- how much
    "time-limit": ("error", Scene(spec={"time_s": 86_401}), Scene(spec={"time_s": 86_400})),
    "nodes-limit": ("error", Scene(spec={"nodes": 65}), Scene(spec={"nodes": 64})),
    "gpus-limit": (
        "error",
        Scene(spec={"nodes": 3}, live={"qos": (LiveQos(name="normal", gpus_max=8),)}),
        Scene(spec={"nodes": 2}, live={"qos": (LiveQos(name="normal", gpus_max=8),)}),
    ),
    # -- GPUs
    "gpu-dialect": (
        "error",
        Scene(
            profile={
                "gpu_request": {"dialect": "none"},
                "directives": {"forbidden": {"gres": "Slurm will reject any job with it"}},
            }
        ),
        Scene(profile={"gpu_request": {"dialect": "gpus-per-node", "also": ["gres"]}}),
    ),
    "gpus-per-node": (
        "error",
        Scene(spec={"gpus_per_node": 8, "cpus_per_gpu": 8}),
        Scene(spec={"gpus_per_node": 4}),
    ),
    "gpus-unused": (
        "warning",
        Scene(spec={"gpus_per_node": 1, "nodes": 8}, live=gpus_of_partition(exclusive=True)),
        Scene(spec={"gpus_per_node": 1, "nodes": 8}),
    ),
    "gpu-memory": (
        "error",
        Scene(around={"model": LARGE}),
        Scene(around={"model": LARGE}, spec={"sharding": "fsdp"}),
    ),
    # -- cores and memory
    "cores-limit": ("error", Scene(spec={"cpus_per_task": 65}), Scene(spec={"cpus_per_task": 64})),
    "cores-few": ("warning", Scene(spec={"cpus_per_task": 3}), Scene(spec={"cpus_per_task": 4})),
    "memory-limit": (
        "error",
        Scene(spec={"mem_bytes": 481 * GIB}),
        Scene(spec={"mem_bytes": 480 * GIB}),
    ),
    "memory-too-small": (
        "error",
        Scene(
            spec={"mem_bytes": None, "cpus_per_gpu": 1},
            live=gpus_of_partition(default_memory_per_cpu=1000 * 1024**2),
        ),
        Scene(
            spec={"mem_bytes": None, "cpus_per_gpu": 16},
            live=gpus_of_partition(default_memory_per_cpu=1000 * 1024**2),
        ),
    ),
    "node-share": (
        "warning",
        Scene(spec={"mem_bytes": 479 * GIB, "gpus_per_node": 1}),
        Scene(spec={"mem_bytes": 170 * GIB, "gpus_per_node": 1}),
    ),
    # -- files
    "model-folder": (
        "error",
        Scene(
            around={
                "model": replace(
                    MODEL,
                    problems=(
                        FolderProblem(what="'models/m' has no config.json", fix="ls models/m"),
                    ),
                )
            }
        ),
        Scene(
            spec={"script": "train.py"},
            around={"model": replace(HUB, cached=True), "script": SCRIPT},
        ),
    ),
    "dataset-folder": (
        "error",
        Scene(spec={"arguments": ARGUMENTS[:2]}, around={"dataset": None}),
        Scene(
            spec={"arguments": (*ARGUMENTS[:2], "--config", "sft.yaml")}, around={"dataset": None}
        ),
    ),
    "dataset-tokenizer": (
        "error",
        Scene(around={"model": replace(MODEL, tokenizer="3b" * 32), "dataset": PREPARED}),
        Scene(around={"model": replace(MODEL, tokenizer="9c" * 32), "dataset": PREPARED}),
    ),
    "script-missing": (
        "error",
        Scene(
            spec={"script": "train.py"},
            around={"script": missing("train.py")},
        ),
        Scene(spec={"script": "train.py"}, around={"script": SCRIPT}),
    ),
    "script-syntax": (
        "error",
        Scene(
            spec={"script": "train.py"},
            around={"script": SCRIPT, "syntax": "3:7: expected ':'"},
        ),
        Scene(spec={"script": "train.py"}, around={"script": SCRIPT}),
    ),
    "accelerate-config": (
        "error",
        Scene(
            spec={"accelerate_config": "mine.yaml"},
            around={"accelerate": AccelerateFacts(where=missing("mine.yaml"))},
        ),
        Scene(around={"accelerate": AccelerateFacts(where=missing("multi_gpu.yaml"))}),
    ),
    "hook-missing": (
        "error",
        Scene(spec={"before": ("setup.sh",)}, around={"hooks": (missing("setup.sh"),)}),
        Scene(spec={"before": ("setup.sh",)}, around={"hooks": (path("setup.sh", is_dir=False),)}),
    ),
    # -- places
    "chdir-missing": ("error", Scene(around={"chdir": missing(HERE)}), Scene()),
    "chdir-not-writable": (
        "error",
        Scene(around={"chdir": path(HERE, writable=False)}),
        Scene(around={"chdir": path(HERE, writable=None)}),
    ),
    "output-not-writable": (
        "error",
        Scene(around={"output": path("runs", writable=False)}),
        Scene(around={"output": missing("runs", writable=True)}),
    ),
    # 0.6 billion parameters: 6.7 GiB with the optimizer's state.
    "output-space": (
        "error",
        Scene(around=output(free=5 * GIB, limit="lfs quota")),
        Scene(around=output(free=14 * GIB)),
    ),
    "path-not-shared": (
        "warning",
        Scene(around={"chdir": path("/tmp/sft")}),
        Scene(around={"chdir": path("/tmpfs_of_all/sft")}),
    ),
    # -- the environment
    "environment-missing": (
        "error",
        Scene(around=of_python(lacks="bin/python")),
        Scene(around={}),
    ),
    "environment-lacks": (
        "error",
        Scene(
            around=of_python(
                packages=dict.fromkeys(
                    {"torch", "transformers", "accelerate", "datasets", "hpctrain"}, ""
                )
            )
        ),
        Scene(around=of_python(packages=None)),
    ),
    "launcher-missing": (
        "warning",
        Scene(spec={"venv": None}, around={"python": None, "launcher_on_path": None}),
        Scene(spec={"venv": None}, around={"python": None}),
    ),
    "torch-build": (
        "error",
        Scene(around=of_python(torch="cpu")),
        Scene(around={**of_python(torch="rocm")}, profile={"nodes": AMD}),
    ),
    "module-purge": (
        "error",
        Scene(spec={"module_start": "purge"}, profile={"modules": {"never_purge": "true"}}),
        Scene(spec={"module_start": "reset"}, profile={"modules": {"never_purge": "true"}}),
    ),
    "container-missing": (
        "error",
        Scene(
            spec={"container": IMAGE, "venv": None},
            around={"python": None, "image": missing("train.sif")},
        ),
        Scene(
            spec={"container": IMAGE, "venv": None},
            around={"python": None, "image": path("train.sif", is_dir=False)},
        ),
    ),
    "container-gpu": (
        "error",
        Scene(
            spec={"container": IMAGE, "venv": None}, around={"python": None}, profile={"nodes": AMD}
        ),
        Scene(
            spec={"container": IMAGE.replace(gpu_libraries="rocm"), "venv": None},
            around={"python": None},
            profile={"nodes": AMD},
        ),
    ),
    # -- the network
    "hub-name": (
        "error",
        Scene(
            spec={"script": "train.py", "arguments": ("--model_name_or_path", "Qwen/Qwen3-8B")},
            around={"model": HUB, "dataset": None, "script": SCRIPT},
        ),
        Scene(
            spec={"script": "train.py", "arguments": ("--model_name_or_path", "Qwen/Qwen3-8B")},
            around={"model": replace(HUB, cached=True), "dataset": None, "script": SCRIPT},
        ),
    ),
    "push-to-hub": (
        "error",
        Scene(spec={"arguments": (*ARGUMENTS, "--push_to_hub", "true")}),
        Scene(spec={"arguments": (*ARGUMENTS, "--push_to_hub=False")}),
    ),
    # -- secrets and the shell
    "secret-in-config": (
        "error",
        Scene(spec={"env": (("WANDB_API_KEY", "0123456789abcdef" * 2 + "01234567"),)}),
        Scene(
            spec={
                "env": (
                    ("PAD_TOKEN", "<|endoftext|>_and_more"),
                    ("TOKENIZERS_PARALLELISM", "a" * 40),
                )
            }
        ),
    ),
    "secret-missing": (
        "error",
        Scene(
            spec={"secrets": (Secret(name="HF_TOKEN"),)},
            around={"secrets": (SecretFacts(name="HF_TOKEN"),)},
        ),
        Scene(
            spec={"secrets": (Secret(name="HF_TOKEN"),)},
            around={"secrets": (SecretFacts(name="HF_TOKEN", in_shell=True),)},
        ),
    ),
    "secret-file-open": (
        "error",
        Scene(
            around={
                "secrets": (
                    SecretFacts(
                        name="HF_TOKEN",
                        file=path("/work/proj_b/token", is_dir=False, mode=0o644),
                    ),
                )
            }
        ),
        Scene(
            around={
                "secrets": (
                    SecretFacts(
                        name="HF_TOKEN",
                        file=path("/work/proj_b/token", is_dir=False, mode=0o600),
                    ),
                )
            }
        ),
    ),
    # -- arguments
    "argument-removed": (
        "error",
        Scene(spec={"arguments": (*ARGUMENTS, "--warmup_ratio", "0.1")}),
        Scene(
            spec={"arguments": (*ARGUMENTS, "--warmup_ratio", "0.1"), "script": "train.py"},
            around={"script": SCRIPT},
        ),
    ),
    "argument-value": (
        "error",
        Scene(spec={"arguments": (*ARGUMENTS, "--attn_implementation", "nope")}),
        Scene(
            spec={
                "arguments": (*ARGUMENTS, "--attn_implementation", "sdpa", "--max_steps", "1_000")
            }
        ),
    ),
    "argument-unknown": (
        "error",
        Scene(spec={"arguments": (*ARGUMENTS, "--learnig_rate", "1e-4")}),
        Scene(
            spec={"arguments": (*ARGUMENTS, "--learnig_rate", "1e-4"), "script": "train.py"},
            around={"script": SCRIPT},
        ),
    ),
    "adapter-not-asked": (
        "error",
        Scene(spec={"arguments": (*ARGUMENTS, "--lora_r", "16")}),
        Scene(spec={"arguments": (*ARGUMENTS, "--lora_r", "16", "--use_peft", "false")}),
    ),
    "no-checkpoints": (
        "warning",
        Scene(spec={"arguments": (*ARGUMENTS, "--save_strategy", "no")}),
        Scene(spec={"arguments": (*ARGUMENTS, "--save_strategy", "no"), "time_s": 3600}),
    ),
    "tune-no-evaluation": (
        "error",
        Scene(spec={"study": STUDY, "array": "0-3%2"}),
        Scene(
            spec={
                "study": STUDY,
                "array": "0-3%2",
                "arguments": (*ARGUMENTS, "--eval_strategy", "epoch"),
            }
        ),
    ),
    "signal-kills": (
        "error",
        Scene(spec={"sbatch": (("signal", "USR1@120"),)}),
        Scene(spec={"sbatch": (("signal", "TERM@120"),)}),
    ),
}
#: Associations of a user with one account, for the tests.
ONE_ACCOUNT = (Association(account="proj_b", qos=("normal",), default_qos="normal"),)
