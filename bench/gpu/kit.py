"""Gather what travels to a GPU machine without a network: wheels of hpctrain and of whatever its
training needs and that machine lacks.

    python bench/gpu/kit.py --into .gpu-kit              # where pip reaches an index
    python bench/gpu/kit.py --into .gpu-kit --machine FILE

machine.json says what is installed there. Versions are those of constraints.txt. What does not
fit together is said, with exit code 1; so is a kit that is too large.
"""

from __future__ import annotations

import argparse
import email
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 48 << 20
#: What measurements try, beside what the training needs.
CANDIDATES = ("liger-kernel", "bitsandbytes")


def main(words: Sequence[str] | None = None) -> int:
    """Fill the directory, and say what is in it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--machine", type=Path, default=Path(__file__).with_name("machine.json"))
    arguments = parser.parse_args(words)
    machine = json.loads(arguments.machine.read_text(encoding="utf-8"))
    arguments.into.mkdir(parents=True, exist_ok=True)
    for old in arguments.into.glob("*.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    into = ["--no-deps", "--wheel-dir", str(arguments.into)]
    subprocess.run([*pip, "wheel", *into, str(ROOT)], check=True)
    pins = pinned()
    for name in CANDIDATES:
        fetch(name, pins.get(name, ""), arguments.into, machine, pip)
    for wheel in arguments.into.glob("bitsandbytes-*.whl"):
        keep_library(wheel, machine["cuda"])
    problems = fill(arguments.into, machine, pip)
    wheels = sorted(arguments.into.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels)
    for wheel in wheels:
        sys.stdout.write(f"{wheel.stat().st_size / 1e6:7.1f} MB  {wheel.name}\n")
    if size > MOST_BYTES:
        problems.append(f"the kit has {size >> 20} MiB, and {MOST_BYTES >> 20} may travel")
    for problem in problems:
        sys.stderr.write(f"error: {problem}\n")
    return 1 if problems else 0


def fill(folder: Path, machine: dict[str, Any], pip: Sequence[str]) -> list[str]:
    """Fetch what is missing, and what that needs, until nothing is; return what does not fit."""
    there = {canonicalize_name(name): version for name, version in machine["packages"].items()}
    pins = pinned()
    carried: dict[str, str] = {}
    problems: list[str] = []
    todo = list(folder.glob("*.whl"))
    while todo:
        wheel = todo.pop()
        about = metadata_of(wheel)
        carried[canonicalize_name(about["Name"])] = about["Version"]
        extra = "train" if about["Name"] == "hpctrain" else ""
        for text in about.get_all("Requires-Dist") or ():
            need = Requirement(text)
            name = canonicalize_name(need.name)
            marker = {
                "extra": extra,
                "python_version": machine["python"],
                "python_full_version": f"{machine['python']}.0",
            }
            if name == "optuna" or (need.marker is not None and not need.marker.evaluate(marker)):
                continue  # optuna serves `tune` alone
            known = carried.get(name) or there.get(name, "")
            if known is None or (known and need.specifier.contains(known, prereleases=True)):
                continue
            if known and name in carried:
                problems.append(f"{about['Name']} needs {text}, and {known} is carried")
                continue
            if name in ("torch", "triton", "numpy"):
                problems.append(f"{about['Name']} needs {text}, and that machine has {known}")
                continue
            got = fetch(name, pins.get(name, ""), folder, machine, pip)
            if got is None:
                problems.append(f"{about['Name']} needs {text}: there is no wheel of {name}")
            else:
                carried[name] = pins.get(name, "")
                todo.append(got)
    return problems


def fetch(
    name: str, version: str, folder: Path, machine: dict[str, Any], pip: Sequence[str]
) -> Path | None:
    """Download one wheel for that machine's Python; return it, None where there is none."""
    before = set(folder.glob("*.whl"))
    words = ["download", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    words += ["--python-version", machine["python"], "--dest", str(folder)]
    words += [f"--platform={each}" for each in machine["platforms"]]
    wanted = f"{name}=={version}" if version else name
    if subprocess.run([*pip, *words, wanted], check=False).returncode:
        return None
    return next(iter(set(folder.glob("*.whl")) - before), None)


def keep_library(wheel: Path, cuda: str) -> None:
    """Drop the libraries of a wheel of bitsandbytes that are for other versions of CUDA: 40 MB."""
    whole = wheel.rename(wheel.with_suffix(".whole"))
    with (
        zipfile.ZipFile(whole) as content,
        zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as kept,
    ):
        for name in content.namelist():
            if "libbitsandbytes_" not in name or name.endswith((f"_cuda{cuda}.so", "_cpu.so")):
                kept.writestr(name, content.read(name))
    whole.unlink()


def pinned() -> dict[str, str]:
    """Return the versions of constraints.txt."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    found = re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def metadata_of(wheel: Path) -> email.message.Message:
    """Return the METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as content:
        name = next(each for each in content.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(content.read(name))


if __name__ == "__main__":
    sys.exit(main())
