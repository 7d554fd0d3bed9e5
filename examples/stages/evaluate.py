"""The last of the stages in config.yaml: compares the models that the stages before have trained,
on data that they did not learn.

The directory of each earlier stage's run is in the environment, HPCTRAIN_STAGE_NAME; the final
weights are in its `model/`. What is found goes into the directory of this stage's own run.
"""

import argparse
import json
import os
from pathlib import Path

import datasets
import torch
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument(
    "--dataset", required=True
)  # tokenized: input_ids, and labels where -100 means "not learned"
parser.add_argument("--samples", type=int, default=64)
arguments = parser.parse_args()

datasets.disable_caching()
data = datasets.load_from_disk(arguments.dataset)
rows = data["test" if "test" in data else "validation" if "validation" in data else "train"]
rows = rows.select(range(min(arguments.samples, len(rows))))
device = "cuda" if torch.cuda.is_available() else "cpu"

losses = {}
for variable in ("HPCTRAIN_STAGE_WARMUP", "HPCTRAIN_STAGE_REFINE"):
    model = (
        AutoModelForCausalLM.from_pretrained(
            Path(os.environ[variable]) / "model", dtype=torch.float32
        )
        .to(device)
        .eval()
    )
    total, count = 0.0, 0
    for row in rows:
        tokens = torch.tensor([row["input_ids"]], device=device)
        labels = torch.tensor([row.get("labels") or row["input_ids"]], device=device)
        learned = int((labels[:, 1:] != -100).sum())
        if learned:
            with torch.inference_mode():
                total += float(model(input_ids=tokens, labels=labels).loss) * learned
            count += learned
    losses[variable.removeprefix("HPCTRAIN_STAGE_").lower()] = total / count

print(json.dumps({"loss": losses}))
(Path(os.environ["HPCTRAIN_RUN_DIR"]) / "evaluation.json").write_text(
    json.dumps({"loss": losses, "samples": len(rows)}) + "\n"
)
