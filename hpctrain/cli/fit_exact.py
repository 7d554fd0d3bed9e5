"""`hpctrain fit --exact`: torch's own count of the asked layout's memory, in a process of its own, so that this one stays free of torch."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict, replace
from typing import Any

import click

from hpctrain import installed
from hpctrain.cli.fit_facts import Question
from hpctrain.errors import HpctrainError
from hpctrain.fit import memory
from hpctrain.scheduler import process

#: Seconds; a model of 8 billion parameters takes about one minute.
_TIMEOUT_S = 900.0
_MOST_LINES = 5
#: Reads a layout from the command line and prints what comes of it. `-P` keeps modules of the user's directory out of its way.
_PROGRAM = """
import json, sys
from dataclasses import asdict
from hpctrain.errors import HpctrainError
from hpctrain.fit.layout import Layout, Lora
from hpctrain.training.fit_exact import exact
values = json.loads(sys.argv[2])
lora = values.pop("lora")
lora = lora and Lora(rank=lora["rank"], targets=tuple(lora["targets"]), dropout=lora["dropout"])
try:
    print(json.dumps(asdict(exact(json.loads(sys.argv[1]), Layout(lora=lora, **values), labels=int(sys.argv[3])))))
except HpctrainError as error:
    print(json.dumps({"error": error.what, "details": error.details, "fix": error.fix}))
"""


def count(question: Question) -> dict[str, Any]:
    """Return `peak` (bytes that torch's allocator gives out), `parts` and `moments` of the asked layout, and `formula`, which has the same.

    Of several processes one is counted. With fsdp it is one of them all, as torch's fake process group plays the others; with ddp and
    DeepSpeed, whose buckets fake tensors cannot fill, it is a process alone, by both: what the sharding divides, and what it needs itself,
    is left to the formula then. `processes` says of how many.

    Raises:
        HpctrainError: torch is not installed here, or the layout is none that can be run with fake tensors.
    """
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        raise HpctrainError("--exact counts with torch and transformers, which are not installed here", fix=installed.command("train"))
    counted = question.layout
    if counted.sharding != "fsdp":
        counted = replace(counted, nodes=1, gpus_per_node=1, sharding="ddp")
    click.echo("counting with fake tensors; a large model takes a minute", err=True)
    argv = [sys.executable, "-P", "-c", _PROGRAM, json.dumps(question.config), json.dumps(asdict(counted)), str(question.shape.labels)]
    ended = process.run(argv, timeout=_TIMEOUT_S)
    try:
        found = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        said = tuple(ended.stderr.splitlines()[-_MOST_LINES:])
        raise HpctrainError("torch's count failed", details=said, fix="hpctrain fit, without --exact") from error
    if "error" in found:
        fix = found["fix"] or "hpctrain fit, without --exact"
        raise HpctrainError(f"--exact: {found['error']}", details=tuple(found["details"]), fix=fix)
    return {**found, "formula": memory.gpu_memory(question.shape, counted).allocated, "processes": counted.processes}
