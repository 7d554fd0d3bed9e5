"""A program for the job's own Python (`python -c`): standard library only, no torch, compatible
with old Pythons.

Prints one line of JSON about the interpreter, the relevant packages, and torch's build, which is
read from torch/version.py.
"""

import importlib.util
import json
import os
import platform
import runpy
import sys

MARK = "HPCTRAIN-DOCTOR "
TORCH = {"version": "__version__", "cuda": "cuda", "hip": "hip"}
PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "accelerate",
    "datasets",
    "peft",
    "optuna",
    "nvidia-ml-py",
    "hpctrain",
)


def main() -> None:
    """Print the facts about this Python."""
    found: dict = {  # type: ignore[type-arg]  # Python 3.8 cannot read dict[...] here
        "version": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "prefix": sys.prefix,
        "packages": {},
        "torch": None,
    }
    if sys.version_info >= (3, 8):  # noqa: UP036 - the job's Python may be any version
        found["packages"] = packages()
    found["torch"] = torch_build()
    sys.stdout.write(MARK + json.dumps(found) + "\n")


def packages() -> dict:  # type: ignore[type-arg]  # Python 3.8 cannot read dict[...] here
    """Return the versions of the relevant packages."""
    from importlib import metadata

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def torch_build() -> object:
    """Return the version, CUDA and ROCm of torch's build, without importing torch."""
    try:
        spec = importlib.util.find_spec("torch")
        folder = next(iter(spec.submodule_search_locations or [])) if spec else ""
        found = runpy.run_path(os.path.join(folder, "version.py"))  # noqa: PTH118 - old Pythons
    except Exception:
        return None
    return {name: found.get(key) for name, key in TORCH.items() if "__version__" in found} or None


if __name__ == "__main__":
    main()
