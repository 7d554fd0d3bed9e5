"""Your own training script with hpctrain's memory lines: TRL's SFTTrainer, one callback more.

    hpctrain prepare --demo demo
    ACCELERATE_USE_CPU=true torchrun --standalone --nproc_per_node 2 examples/sft_train.py
    demo/model demo/dataset

With GPUs leave ACCELERATE_USE_CPU out. `accelerate launch --config_file multi_gpu.yaml` and
`hpctrain submit` start it as it is. Read the samples back with `hpctrain.memory.parse_line`, or
from OUTPUT/memory/rank-*.jsonl.
"""

import os
import sys

import datasets
import torch
from trl import SFTConfig, SFTTrainer

from hpctrain import MemoryCallback

datasets.disable_caching()  # or truncation writes its cache files into the dataset's folder
model, dataset = sys.argv[1:3]
data = datasets.load_from_disk(
    dataset
)  # tokenized: input_ids, and labels where -100 means "not learned"
gpu = torch.cuda.is_available()
args = SFTConfig(
    output_dir=os.environ.get("HPCTRAIN_RUN_DIR", "sft-output"),
    max_steps=int(os.environ.get("MAX_STEPS", "60")),
    per_device_train_batch_size=8,
    learning_rate=2e-3,
    logging_steps=5,
    save_strategy="no",
    bf16=gpu,
    use_cpu=not gpu,
    disable_tqdm=not sys.stdout.isatty(),
    model_init_kwargs={"dtype": "float32"},
)
# Without this, a wrong launch trains one model per process, and each of them thinks that it is rank
# 0.
if args.world_size != int(os.environ.get("WORLD_SIZE", "1")):
    sys.exit(f"only {args.world_size} processes found each other")

trainer = SFTTrainer(
    model=model, args=args, train_dataset=data["train"], callbacks=[MemoryCallback(every=10)]
)
trainer.train()
trainer.save_model()
# Leave together and at once: the interpreter's own way out crashes now and then after a distributed
# training.
if torch.distributed.is_initialized():
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
sys.stdout.flush()
os._exit(0)
