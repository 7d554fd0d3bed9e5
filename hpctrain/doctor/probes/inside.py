"""Runs in the job's own Python (`python -c`), whichever that is: standard library only, no torch, and old Pythons must be able to read it.

Prints one line of JSON about the interpreter, the packages that count, and torch's build, which stands in torch/version.py as text.
"""

import importlib
import importlib.util
import json
import os
import platform
import re
import sys

MARK = "HPCTRAIN-DOCTOR "
PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets", "peft", "optuna", "hpctrain")


def main() -> None:
    """Print what this Python is and has."""
    found: dict = {  # type: ignore[type-arg]  # Python 3.8 cannot read dict[...] here
        "version": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "prefix": sys.prefix,
        "packages": {},
        "requires": {},
        "torch": None,
        "problems": None,
    }
    if sys.version_info >= (3, 8):  # noqa: UP036 - the job's Python may be any
        found["packages"], found["requires"] = packages()
    found["torch"] = torch_build()
    if sys.version_info >= (3, 11) and len(sys.argv) > 2:
        found["problems"] = preflight(*sys.argv[1:])
    sys.stdout.write(MARK + json.dumps(found) + "\n")


def packages() -> tuple:  # type: ignore[type-arg]  # Python 3.8 cannot read tuple[...] here
    """Return the versions of the packages that count, and what each demands of the others."""
    from importlib import metadata

    versions, requires = {}, {}
    for name in PACKAGES:
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        versions[name] = found.version
        wanted = [line.split(";")[0].strip() for line in found.requires or [] if ";" not in line]
        requires[name] = [line for line in wanted if re.split(r"[^A-Za-z0-9_-]", line)[0].lower() in PACKAGES]
    return versions, requires


def torch_build() -> object:
    """Return version, CUDA and ROCm of torch's build, without importing torch."""
    try:
        spec = importlib.util.find_spec("torch")
        folder = next(iter(spec.submodule_search_locations or [])) if spec else None
        with open(os.path.join(folder or "", "version.py"), encoding="utf-8") as stream:  # noqa: PTH118, PTH123 - old Pythons
            text = stream.read()
    except (OSError, ImportError, StopIteration, ValueError):
        return None
    pattern = r"^{}(?:\s*:[^=]+)?\s*=\s*['\"]([^'\"]+)['\"]"
    values = {name: re.search(pattern.format(name), text, re.MULTILINE) for name in ("__version__", "cuda", "hip")}
    return {name.strip("_"): match.group(1) if match else None for name, match in values.items()}


def preflight(model: str, dataset: str, split: str = "train", task: str = "sft", from_scratch: str = "") -> object:
    """Return what the training's own checks say of model and dataset; None where this hpctrain does not have them."""
    try:
        checks = importlib.import_module("hpctrain.training.preflight")  # of the job's environment
        needs = checks.model_needs(task, from_scratch=bool(from_scratch))
    except (ImportError, AttributeError):
        return None
    problems = checks.check_model(model or None, needs) + checks.check_dataset(dataset or None, [split])
    return [[problem.what, problem.fix] for problem in problems]


if __name__ == "__main__":
    main()
