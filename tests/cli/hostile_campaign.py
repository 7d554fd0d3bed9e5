"""A campaign of damaged records, odd answers of Slurm and odd words: every command, in a process
with a limit of time and memory.

    python tests/cli/hostile_campaign.py --seed 1 --seconds 600

Prints JSON: how many calls there were, and what went wrong: a mistake (an exception that nobody
expected), a hang, or too much memory.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.cli import hostile_world
from tests.cli.hostile_world import World

#: Seconds and KiB that a command may take.
SECONDS, ADDRESSES_KIB = 60, 3_000_000
BOMB = "[" * 100_000
NESTED = json.loads("[" * 200 + "]" * 200)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 17, 2**63, -(2**70), 1e308, float("nan"), float("inf"), 0.5),
    *("", " ", "²", "1_²", "-1", "9" * 4000, "x" * 100_000, "\x1b]0;t\x07", "a\nb", "\ud800"),
    *("/dev/zero", "~nouser/x", "../..", "1-4000000", "1003_[0-4000000%2]", "%A_%a_%999999999j"),
    *("NaN", "{}", [], {}, [None], ["²"], [{}], {"a": 1}, {"": []}, NESTED),
)
WORDS = (
    *("²", "1_²", "٣", "9" * 5000, "1_" + "9" * 5000, "1_[0-4000000]", "1_[", "_", "-", "", " "),
    *(
        "\udcff",
        "~nouser/x",
        "/dev/zero",
        "/dev/stdin",
        "..",
        "/",
        "*",
        "[",
        "a\nb",
        "\x1b]0;t\x07",
    ),
    *("x" * 100_000, "1003_1", "%s", "99999999", "90000001_0", "--", "fifo", "runs/pretrain-1"),
)
#: They read no records.
SLOW = {"doctor", "fit", "lint", "clusters", "render", "init"}


def changed(chance: random.Random, value: Any) -> Any:
    """Return a JSON value of which one part has another value, or is gone."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.1:
        return chance.choice(VALUES)
    key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
    copy: Any = value.copy()
    if chance.random() < 0.1:
        del copy[key]
    else:
        copy[key] = changed(chance, value[key])
    return copy


def damage(chance: random.Random, path: Path) -> None:
    """Damage a record: one of its values, or the whole file."""
    if path.suffix in (".json", ".jsonl") and chance.random() < 0.75:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        at = chance.randrange(len(lines))
        lines[at] = json.dumps(changed(chance, json.loads(lines[at])))
        path.write_text("\n".join(lines) + "\n")
        return
    path.unlink()
    contents = (
        "",
        BOMB,
        "[]",
        '{"schema": 1, "plan": ' + BOMB,
        '{"schema": 1, "job_i',
        "9" * 10_000,
    )
    make = chance.choice(("text", "directory", "fifo", "link"))
    if make == "text":
        path.write_text(chance.choice(contents))
    elif make == "directory":
        path.mkdir()
    elif make == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(chance.choice(("/dev/zero", str(path))))


def misanswer(chance: random.Random, answers: Path) -> None:
    """Change fields of one of Slurm's answers."""
    path = chance.choice(sorted({*answers.glob("s*.txt"), *answers.glob("[cnpuq]*.txt")}))
    fields = path.read_text().replace("|", "\x1f").split("\x1f")
    for _ in range(chance.choice((1, 3, 30))):
        fields[chance.randrange(len(fields))] = str(chance.choice(VALUES))
    text = ("|" if "|" in path.read_text() else "\x1f").join(fields)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


def call(world: World, words: list[str]) -> str:
    """Type a command; return what went wrong, if anything."""
    limited = ["bash", "-c", f'ulimit -v {ADDRESSES_KIB}; exec "$@"', "bash"]
    argv = [*limited, sys.executable, "-P", "-m", "hpctrain", "--debug", *words]
    try:
        done = subprocess.run(
            argv,
            cwd=world.project,
            env=world.environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "hang"
    said = done.stderr.decode(errors="replace")
    is_mistake = "this is a mistake in hpctrain" in said or "MemoryError" in said
    return said[-500:] if is_mistake or done.returncode not in (0, 1, 2, 3, 130) else ""


def campaign(world: World, *, seed: int, seconds: float) -> dict[str, Any]:
    """Run commands on damaged worlds until the time is up."""
    chance, local = random.Random(seed), world.make()
    names = (*hostile_world.RUNS, *hostile_world.JOBS, *local, f"{local[1]}_1")
    lines = [line for line in hostile_world.lines(names) if line[0] not in SLOW]
    template = world.place.with_name("template")
    shutil.copytree(world.place, template, symlinks=True)
    wrong: list[dict[str, Any]] = []
    until, calls = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        kind = chance.choice(("records", "records", "slurm", "words"))
        shutil.rmtree(world.place)
        shutil.copytree(template, world.place, symlinks=True)
        damaged = chance.sample(world.records(), 3) if kind == "records" else []
        for path in damaged:
            damage(chance, path)
        if kind == "slurm":
            misanswer(chance, world.answers)
        os.mkfifo(world.project / "fifo")
        for _ in range(4):
            words = chance.choice(lines) + ([chance.choice(WORDS)] if kind == "words" else [])
            calls += 1
            if problem := call(world, words):
                about = {"words": [word[:60] for word in words], "files": list(map(str, damaged))}
                wrong.append({"kind": kind, "problem": problem} | about)
    return {"calls": calls, "wrong": wrong}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hpctrain-hostile-") as folder:
        there = World(Path(folder) / "world")
        print(json.dumps(campaign(there, seed=asked.seed, seconds=asked.seconds), indent=1))
