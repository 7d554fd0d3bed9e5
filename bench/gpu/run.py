"""Measure on one GPU what was never run on one, part by part; each part ends within its minutes.

    python bench/gpu/run.py smoke --out results           # on the GPU machine
    python bench/gpu/run.py all --tiny --out /tmp/results # the same code, toy sizes, on a CPU

A part is a list of measurements. The result of each is written to OUT/PART.json as soon as it is
there, so that what is cut off loses one measurement; started again with the same OUT, the part
goes on with what is missing. A measurement is begun only while the time it may take is left.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(BENCH))

import material  # noqa: E402
import train  # noqa: E402
import varlen  # noqa: E402

HPCTRAIN = (sys.executable, "-m", "hpctrain")
PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets", "peft", "bitsandbytes")
#: Seconds that are left for writing and leaving.
MARGIN_S = 15
MIB = 1 << 20


class Skipped(Exception):  # noqa: N818 - no mistake
    """This machine cannot do it; the message says why."""


@dataclass
class Part:
    """The measurements of one part, and the file that holds them."""

    name: str
    file: Path
    ends_at: float
    tiny: bool
    work: Path
    found: dict[str, Any] = field(default_factory=dict)

    def measure(self, name: str, function: Callable[[], Any], *, seconds: float) -> Any:
        """Run one measurement unless its result is there; return it, None where there is none.

        Args:
            name: of the measurement, unique within the part.
            function: does it and returns what JSON can hold.
            seconds: that it may take on a GPU; it is not begun with less time left.
        """
        known = self.found.get(name, {})
        if "result" in known:
            return known["result"]
        left = self.ends_at - time.monotonic()
        if not self.tiny and left < seconds:
            self._keep(name, {"pending": f"{seconds:.0f} s needed, {max(left, 0):.0f} s were left"})
            return None
        began = time.monotonic()
        sys.stderr.write(f"{self.name}: {name}\n")
        try:
            row: dict[str, Any] = {"result": function()}
        except Skipped as reason:
            row = {"skipped": str(reason)}
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error}"[-4000:]}
        row["seconds"] = round(time.monotonic() - began, 1)
        row["at"] = datetime.now(UTC).isoformat(timespec="seconds")
        self._keep(name, row)
        return row.get("result")

    def _keep(self, name: str, row: dict[str, Any]) -> None:
        self.found[name] = row
        text = json.dumps(
            {
                "schema": 1,
                "part": self.name,
                "tiny": self.tiny,
                "machine": machine(),
                "measurements": self.found,
            },
            indent=1,
        )
        draft = self.file.with_suffix(".draft")
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(self.file)


# -- the machine -----------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Return card, driver and versions, as each file of results has them."""
    asked = ("name", "memory.total", "driver_version", "mig.mode.current")
    smi = output(["nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv,noheader"])
    return {
        "gpu": dict(zip(asked, smi.strip().split(", "), strict=False)) if smi else None,
        "cpu": f"{os.cpu_count()} cores, {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in PACKAGES},
    }


def version_of(package: str) -> str | None:
    """Return a package's installed version, None where it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def has_gpu() -> bool:
    """Whether there is an NVIDIA GPU and a torch that sees it."""
    import torch

    return bool(torch.cuda.is_available())


def output(command: Sequence[str]) -> str:
    """Return what a program prints, nothing where it fails or is missing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def part_machine(part: Part) -> None:
    """Versions, ceilings of the card, and what hpctrain's own probes say."""
    part.measure("matrix product", matrix_product, seconds=40)
    part.measure("copy", copy_rate, seconds=30)
    part.measure("doctor", probes, seconds=90)
    part.measure("mig", lambda: output(["nvidia-smi", "-L"]) or None, seconds=10)


def probes() -> dict[str, Any]:
    """Return what doctor says of each thing it looks at, with what it found amiss."""
    found = verb("doctor", "--json", codes=(0, 1))["probes"]
    return {
        each["probe"]: [each["result"], *(finding["id"] for finding in each["findings"])]
        for each in found
    }


def matrix_product() -> Any:
    """Return the FLOP/s of a large matrix product: bfloat16 on a GPU, float32 on a CPU."""
    return train.last_json([sys.executable, str(train.WORKER), "matmul"])


def copy_rate() -> dict[str, float]:
    """Return bytes per second of a copy on the device, counting what is read and written."""
    import torch

    device = "cuda" if has_gpu() else "cpu"
    source = torch.empty(
        (2 << 30 if has_gpu() else 16 << 20) // 2, dtype=torch.int16, device=device
    )
    target = torch.empty_like(source)
    for _ in range(3):
        target.copy_(source)
    wait()
    began = time.perf_counter()
    for _ in range(20):
        target.copy_(source)
    wait()
    moved = 2 * 20 * source.numel() * source.element_size()
    return {"bytes_per_s": moved / (time.perf_counter() - began)}


def wait() -> None:
    """Wait for the GPU."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


# -- jobs ------------------------------------------------------------------------------------------


def verb(*words: str, cwd: Path | None = None, codes: Sequence[int] = (0,)) -> Any:
    """Return the JSON that `hpctrain WORDS` prints; its text where it prints none.

    Raises:
        RuntimeError: another exit code than `codes`.
    """
    done = run_verb(cwd, *words)
    if done.returncode not in codes:
        text = f"{done.stdout[-1500:]}{done.stderr[-1500:]}"
        raise RuntimeError(f"hpctrain {shlex.join(words)}: exit code {done.returncode}\n{text}")
    try:
        return json.loads(done.stdout)
    except ValueError:
        return done.stdout


def environment() -> dict[str, str]:
    """Return this environment with the programs beside this Python first on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    cpu = {} if has_gpu() else {"ACCELERATE_USE_CPU": "true"}
    return {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", **cpu}


def project(part: Part, shape: str, *, layers: int | None = None, length: int = 1024) -> Path:
    """Return a directory with a model, chats, and these prepared packed and not; made once."""
    if part.tiny:
        shape, layers, length = "toy", None, 128
    name = f"{shape}{f'-{layers}' if layers else ''}-{length}"
    place = part.work / name
    if not (place / "rows").exists():
        place.mkdir(parents=True, exist_ok=True)
        if not (place / "model" / "config.json").exists():
            material.make_model(place / "model", shape, layers=layers)
        material.make_data(place / "chats.jsonl", 150 if part.tiny else 4000)
        for kind, how in (("packed", "--pack"), ("rows", "--no-pack")):
            words = ["prepare", "chats.jsonl", "--model", "model", "--to", kind, how]
            verb(*words, "--max-length", str(length), "--validation", "0", cwd=place)
    return place


def write_config(place: Path, name: str, training: Mapping[str, Any], **keys: Any) -> None:
    """Write the config of one run; the next one replaces it."""
    config = {
        "job_name": name,
        "launcher": "accelerate",
        "resources": {"nodes": 1, "gpus_per_node": 1 if has_gpu() else 0, "time": 9},
        "training": {"model_name_or_path": "model", "save_strategy": "no", **training},
        **keys,
    }
    text = json.dumps(config, indent=1)  # JSON is YAML
    (place / "config.yaml").write_text(text + "\n", encoding="utf-8")


def job(
    place: Path, name: str, training: Mapping[str, Any], *, fails: bool = False, **keys: Any
) -> dict[str, Any]:
    """Train with the script of a job on this machine; return how it went and what it measured.

    Raises:
        RuntimeError: it failed and was not to (`fails`), or the other way round.
    """
    write_config(place, name, training, **keys)
    began = time.monotonic()
    done = submit(place, name, "--wait")
    if (done.returncode != 0) != fails:
        text = f"{done.stdout[-3000:]}{done.stderr[-1000:]}"
        raise RuntimeError(f"{name}: exit code {done.returncode}\n{text}")
    return {
        "config": {**training, **keys},
        "exit_code": done.returncode,
        "wall_s": round(time.monotonic() - began, 1),
        **measured(place, name),
    }


def submit(place: Path, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Render the config that was written last, and start its script on this machine."""
    verb("render", "--force", cwd=place)
    words = ("submit", "--local", "--no-check", "--no-snapshot", "--run-id", name, *options)
    return run_verb(place, *words, f"{name}.sbatch")


def run_verb(place: Path | None, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `hpctrain WORDS` in a directory, without a terminal."""
    return subprocess.run(
        [*HPCTRAIN, *words],
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def measured(place: Path, name: str) -> dict[str, Any]:
    """Return steps, losses, speed and memory of a run, as its files have them."""
    rows = [
        row
        for file in (place / "runs" / name).glob("attempts/*/metrics.jsonl")
        for row in jsonl(file)
    ]
    samples = [row for file in (place / "runs" / name / "memory").glob("*") for row in jsonl(file)]
    speeds = [row for row in rows if row.get("event") == "speed"]
    losses = [row["loss"] for row in rows if "loss" in row]
    wanted = ("torch_peak_mib", "torch_reserved_mib", "gpu_used_mib", "gpu_total_mib", "rss_mib")
    peaks = {
        key: max((row[key] for row in samples if row.get(key) is not None), default=None)
        for key in (*wanted, "gpu_utilisation_percent")
    }
    return {
        "steps": max((row.get("step", 0) for row in rows), default=0),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "speed": {
            key: speeds[-1].get(key)
            for key in ("tokens_per_s", "useful_tokens_per_s", "mfu", "step_s", "data_wait")
        }
        if speeds
        else None,
        "peaks": peaks,
    }


def jsonl(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one to a line."""
    for line in file.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


# -- smoke -----------------------------------------------------------------------------------------


def part_smoke(part: Part) -> None:
    """The shipped training on the GPU, what is shown of it, and an OOM that is explained."""
    place = part.measure("project", lambda: str(project(part, "0.6b")), seconds=120)
    if place is None:
        return
    here = Path(place)
    training = {"dataset_name": "packed", "max_steps": 20, "logging_steps": 5, "memory_every": 5}
    part.measure("train", lambda: job(here, "smoke", training), seconds=150)
    part.measure("memory line", lambda: memory_line(here, "smoke"), seconds=5)
    part.measure("watch", lambda: watched(here, "smoke"), seconds=30)
    part.measure("report", lambda: reported(here, "smoke"), seconds=30)
    part.measure("out of memory", lambda: out_of_memory(here), seconds=300)


def memory_line(place: Path, name: str) -> str:
    """Return the run's last `[memory]` line.

    Raises:
        RuntimeError: there is none, or on a GPU its torch and NVML parts are empty.
    """
    text = (place / "logs" / f"output_{name}.log").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("[memory]")]
    if not lines or (has_gpu() and re.search(r"\| (torch|gpu) - ", lines[-1])):
        raise RuntimeError(f"no GPU in the line: {lines[-1:]}")
    return lines[-1]


def watched(place: Path, name: str) -> list[str]:
    """Return what `watch` says changed at the end."""
    lines = verb("watch", name, "--json", cwd=place, codes=(0, 1)).splitlines()
    return [json.loads(line)["change"] for line in lines][-2:]


def reported(place: Path, name: str) -> dict[str, Any]:
    """Return what `report` says of the end, of memory and of the time."""
    found = verb("report", name, "--json", cwd=place, codes=(0, 1))
    fit, efficiency = found["fit"], found["efficiency"]
    return {
        "state": found["state"],
        "predicted": {
            key: value for key, value in (fit["predicted"] or {}).items() if key != "host"
        },
        "measured": fit["measured"],
        "seconds": {each["id"]: round(each["seconds"], 1) for each in efficiency["parts"]},
        "next": [each["directive"] for each in efficiency["next"]],
        "notes": efficiency["notes"],
    }


def out_of_memory(place: Path) -> dict[str, Any]:
    """Provoke a CUDA OOM; return its diagnosis, the applied fix, and how the mended run went."""
    if not has_gpu():
        raise Skipped("no GPU")
    training = {
        "dataset_name": "rows",
        "max_steps": 5,
        "per_device_train_batch_size": 1024,
        "activation_checkpointing": False,
        "memory_every": 1,
    }
    first = job(place, "oom", training, fails=True)
    diagnoses = verb("explain", "oom", "--json", cwd=place, codes=(0, 1))["diagnoses"]
    words = ("resubmit", "oom", "--apply-fix", "--yes", "--local", "--wait", "--json")
    fixed = verb(*words, cwd=place)
    return {
        "first": first,
        "diagnoses": [
            {key: each[key] for key in ("id", "certainty", "cause", "fix")} for each in diagnoses
        ],
        "fixes": fixed["fixes"],
        "mended": measured(place, "oom"),
    }


# -- memory ----------------------------------------------------------------------------------------

LORA = {"use_peft": True, "lora_r": 16, "lora_target_modules": "all-linear"}
#: Name, shape, layers (None: all), dataset, options: what `hpctrain fit` is held against.
LAYOUTS: tuple[tuple[str, str, int | None, str, dict[str, Any]], ...] = (
    ("0.6b packed", "0.6b", None, "packed", {}),
    ("0.6b packed, checkpointing", "0.6b", None, "packed", {"activation_checkpointing": True}),
    ("0.6b rows", "0.6b", None, "rows", {}),
    ("0.6b rows, checkpointing", "0.6b", None, "rows", {"activation_checkpointing": True}),
    ("0.6b LoRA packed", "0.6b", None, "packed", LORA),
    (
        "0.6b LoRA rows, checkpointing",
        "0.6b",
        None,
        "rows",
        {**LORA, "activation_checkpointing": True},
    ),
    ("1.7b packed", "1.7b", None, "packed", {}),
    ("1.7b packed, checkpointing", "1.7b", None, "packed", {"activation_checkpointing": True}),
    ("1.7b LoRA rows", "1.7b", None, "rows", LORA),
    ("8b of 6 layers, packed", "8b", 6, "packed", {}),
    (
        "8b of 6 layers, LoRA, checkpointing",
        "8b",
        6,
        "packed",
        {**LORA, "activation_checkpointing": True},
    ),
    ("8b LoRA packed", "8b", None, "packed", LORA),
)


def part_memory(part: Part) -> None:
    """The peak that `hpctrain fit` predicts beside what torch and the driver count."""
    for name, shape, layers, data, options in LAYOUTS[4:6] if part.tiny else LAYOUTS:
        part.measure(
            name,
            lambda shape=shape, layers=layers, data=data, options=options, name=name: peak(
                project(part, shape, layers=layers), name, {"dataset_name": data, **options}
            ),
            seconds=150 if shape == "8b" and layers is None else 80,
        )


def peak(place: Path, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return predicted and measured bytes of one layout, and their ratio."""
    run = "fit-" + re.sub(r"[^a-z0-9]+", "-", name.lower())
    training = {**options, "max_steps": 6, "logging_steps": 1, "memory_every": 1}
    write_config(place, run, training)
    card = ["--gpus", "1"] if has_gpu() else ["--gpus", "1", "--gpu", "h100"]
    asked = verb("fit", "--json", *card, cwd=place, codes=(0, 1))["asked"]
    found = job(place, run, training)
    counted = found["peaks"]["torch_peak_mib"]
    return {
        **found,
        "predicted_bytes": asked["bytes"],
        "predicted_allocated": asked["allocated"],
        "predicted_reserved": asked["reserved"],
        "ratio_allocated": asked["allocated"] / (counted * MIB) if counted else None,
    }


# -- speed -----------------------------------------------------------------------------------------


def part_speed(part: Part) -> None:
    """TRL's defaults beside hpctrain's: mixed lengths, then full and LoRA at 4096 packed."""
    tokens = 2000 if part.tiny else 400_000
    for shape, lora, length, batch in (
        ("0.6b", False, 1024, 8),
        ("1.7b", False, 4096, 2),
        ("8b", True, 4096, 2),
    ):
        if part.tiny and shape == "1.7b":
            continue  # at toy size it is the first once more
        compared(part, shape, tokens, length=length, batch=batch, lora=lora)


def part_kernels(part: Part) -> None:
    """Where a step's time goes, and what each setting gains alone."""
    if has_gpu():
        part.measure("torch_varlen against float32", varlen.errors, seconds=40)
    variants = [
        train.Variant(
            "attention torch_varlen",
            "hpctrain",
            "packed",
            {"model_init_kwargs": {"attn_implementation": varlen.NAME}},
        )
    ] * has_gpu()
    variants += [
        train.Variant(f"attention {each}", "hpctrain", "packed", {"attn_implementation": each})
        for each in ("flex_attention", "sdpa", "flash_attention_2", "flash_attention_3")
        if has_gpu() or each == "sdpa"
    ]
    variants += [each for each in train.OWN_KNOBS if "memory" not in each.name]
    if importlib.util.find_spec("liger_kernel") is not None:
        own = {"use_liger_kernel": True}
        variants.append(train.Variant("Liger's layers", "hpctrain", "packed", own))
    if part.tiny:
        variants = variants[:2]  # the others run the same code, and a CPU compiles for minutes
    tokens = 1000 if part.tiny else 200_000
    compared(part, "0.6b", tokens, length=2048, batch=4, variants=variants, profile=True)


def compared(
    part: Part,
    shape: str,
    tokens: int,
    *,
    length: int,
    batch: int,
    lora: bool = False,
    variants: Sequence[train.Variant] = (),
    profile: bool = False,
) -> None:
    """Measure variants of one training; without `variants` TRL's defaults and hpctrain's. With
    `profile`, profile the first two of all before.
    """
    words = [
        "--shape",
        shape,
        "--max-length",
        str(length),
        "--batch",
        str(batch),
        "--tokens",
        str(tokens),
    ]
    if part.tiny:
        words = ["--shape", "toy", "--max-length", "128", "--batch", "2", "--tokens", str(tokens)]
        words += ["--warmup", "1", "--rows", "150"]
    arguments = train.read_arguments([*words, *(["--lora"] if lora else [])])
    place = part.work / f"speed-{arguments.shape}-{arguments.max_length}"
    title = f"{shape}{' LoRA' if lora else ''}, {length}"
    made = part.measure(
        f"{title}: data",
        lambda: {key: str(value) for key, value in train.make(place, arguments).items()},
        seconds=180 if shape == "8b" else 90,
    )
    ceiling = part.measure("matrix product", matrix_product, seconds=40)
    if made is None or ceiling is None:
        return
    train.FORKS.set_forkserver_preload(train.LIBRARIES)
    chosen = variants or train.variants_of(arguments)[:2]
    for variant in chosen[:2] if profile else ():
        part.measure(
            f"{title}: profile of {variant.name}",
            lambda variant=variant: profiled(variant, made, arguments, place),
            seconds=120,
        )
    for variant in chosen:
        part.measure(
            f"{title}: {variant.name}",
            lambda variant=variant: speed(variant, made, arguments, place, ceiling["flops"]),
            seconds=150 if shape == "8b" else 90,
        )


def profiled(
    variant: train.Variant, made: Mapping[str, str], arguments: argparse.Namespace, place: Path
) -> dict[str, Any]:
    """Return where the time of a variant's steps goes.

    Raises:
        RuntimeError: the variant could not run.
    """
    found = train.run_variant(variant, made, arguments, place, fork=not has_gpu(), profile=True)
    if found is None:
        raise RuntimeError("it could not run; see stderr")
    return found


def speed(
    variant: train.Variant,
    made: Mapping[str, str],
    arguments: argparse.Namespace,
    place: Path,
    flops: float,
) -> dict[str, Any]:
    """Return useful tokens/s, MFU against the measured matrix product, and peak memory.

    Raises:
        RuntimeError: the variant could not run.
    """
    found = train.run_variant(variant, made, arguments, place, fork=not has_gpu())
    if found is None:
        raise RuntimeError("it could not run; see stderr")
    return train.row_of(variant.name, [found], arguments, float(made["context"]), flops)


# -- behaviour -------------------------------------------------------------------------------------


def part_behaviour(part: Part) -> None:
    """What watching costs, resuming to the bit, NaN, QLoRA, FSDP on one rank."""
    place = part.measure("project", lambda: str(project(part, "0.6b")), seconds=120)
    if place is None:
        return
    here = Path(place)
    plain = {"dataset_name": "packed", "max_steps": 10 if part.tiny else 60, "logging_steps": 5}
    for every in (0, 1):
        part.measure(
            f"memory_every {every}",
            lambda every=every: job(here, f"every-{every}", {**plain, "memory_every": every}),
            seconds=100,
        )
    part.measure("resume to the bit", lambda: resumed(here), seconds=200)
    part.measure("NaN", lambda: not_a_number(here, plain), seconds=80)
    part.measure("QLoRA", lambda: quantized(here, plain), seconds=100)
    part.measure(
        "FSDP on one rank",
        lambda: sharded(here, plain),
        seconds=100,
    )


def resumed(place: Path) -> dict[str, Any]:
    """Train at once, and with a stop after the first checkpoint; return whether the weights agree."""
    training = {"dataset_name": "rows", "logging_steps": 1, "seed": 7, "memory_every": 0}
    whole = job(place, "whole", {**training, "max_steps": 60})
    write_config(
        place, "halves", {**training, "max_steps": 60, "save_strategy": "steps", "save_steps": 6}
    )
    submit(place, "halves")
    until = time.monotonic() + 180
    while not list((place / "runs/halves/checkpoints").glob("*-6/*")) and time.monotonic() < until:
        time.sleep(0.2)
    run_verb(place, "cancel", "halves", "--yes")
    run_verb(place, "watch", "halves", "--json")
    stopped = measured(place, "halves")
    again = run_verb(place, "resubmit", "halves", "--local", "--wait")
    digests = {
        name: weights_digest(place / "runs" / name / "model") for name in ("whole", "halves")
    }
    return {
        "whole": whole["exit_code"],
        "resumed": again.returncode,
        "stopped_at_step": stopped["steps"],
        "attempts": len(list((place / "runs/halves/attempts").iterdir())),
        "same_weights": digests["whole"] == digests["halves"] and digests["whole"] is not None,
        "losses": [measured(place, name)["last_loss"] for name in ("whole", "halves")],
    }


def weights_digest(folder: Path) -> str | None:
    """Return the digest of a saved model's weights, None where there are none."""
    files = sorted(folder.glob("*.safetensors"))
    digest = hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files))
    return digest.hexdigest() if files else None


def not_a_number(place: Path, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Train with an absurd learning rate; return the step at which it ended, and the diagnosis."""
    found = job(place, "nan", {**plain, "learning_rate": 1e30}, fails=True)
    diagnoses = verb("explain", "nan", "--json", cwd=place, codes=(0, 1))["diagnoses"]
    return {**found, "diagnoses": [each["id"] for each in diagnoses]}


def sharded(place: Path, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Train with FSDP over one rank."""
    if not has_gpu():
        raise Skipped("no GPU")
    return job(place, "fsdp", {**plain, "max_steps": 5, "memory_every": 1}, sharding="fsdp")


def quantized(place: Path, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Train LoRA over 4-bit weights."""
    if not has_gpu():
        raise Skipped("no GPU")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise Skipped("bitsandbytes is not installed (its wheel is too large to travel)")
    return job(
        place, "qlora", {**plain, **LORA, "load_in_4bit": True, "max_steps": 10, "memory_every": 1}
    )


# -- the command -----------------------------------------------------------------------------------

#: The most valuable first.
PARTS: dict[str, Callable[[Part], None]] = {
    "machine": part_machine,
    "smoke": part_smoke,
    "memory": part_memory,
    "speed": part_speed,
    "kernels": part_kernels,
    "behaviour": part_behaviour,
}


def main(words: Sequence[str] | None = None) -> int:
    """Run parts; exit code 1 where a measurement failed, 3 where one is still to be made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=[*PARTS, "all"])
    parser.add_argument(
        "--out", type=Path, required=True, help="where results are written, and looked for"
    )
    parser.add_argument("--work", type=Path, required=True, help="models and data: 30 GB")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--tiny", action="store_true", help="toy sizes, for a CPU")
    arguments = parser.parse_args(words)
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("HPCTRAIN_STATE_DIR", str(arguments.work.resolve() / "state"))
    ends_at = time.monotonic() + 60 * arguments.minutes - MARGIN_S
    code = 0
    for name in PARTS if arguments.part == "all" else [arguments.part]:
        file = arguments.out / f"{name}.json"
        found = (
            json.loads(file.read_text(encoding="utf-8"))["measurements"] if file.exists() else {}
        )
        part = Part(name, file, ends_at, arguments.tiny, arguments.work.resolve(), found)
        PARTS[name](part)
        for row in part.found.values():
            code = max(code, 1 if "error" in row else 3 if "pending" in row and code != 1 else 0)
        sys.stdout.write(summary(part) + "\n")
    return code


def summary(part: Part) -> str:
    """Return a line for each measurement: its name, and how it went."""
    lines = []
    for name, row in part.found.items():
        state = next(key for key in ("result", "skipped", "error", "pending") if key in row)
        text = json.dumps(row[state])
        lines.append(
            f"{part.name}: {name}: {state}: {text if len(text) < 300 else text[:297] + '...'}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
