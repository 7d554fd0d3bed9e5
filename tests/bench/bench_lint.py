"""`make bench`: the CPU time of `hpctrain lint` for scripts of 4 MiB, the largest that Slurm takes.

CPU time (user + system of the child process, its start included), not wall time: machines are
shared; the median of the runs. The target is 0.2 s for a script of usual size, and time that is linear in
the length for all others: half a minute for 4 MiB of the most expensive lines.
"""

import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

SIZE = 4 * 1024**2
RUNS = 3
HPCTRAIN = str(Path(sys.executable).with_name("hpctrain"))
GOLDEN = Path(__file__).parents[1] / "golden"
HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\n#SBATCH --cpus-per-task=4\n"


def fill(unit: Callable[[int], str]) -> str:
    """Return a script of SIZE characters made of units that are numbered."""
    parts, length = [HEAD], len(HEAD)
    for index in range(SIZE):
        part = unit(index)
        if length + len(part) > SIZE:
            break
        parts.append(part)
        length += len(part)
    return "".join(parts)


def words(unit: Callable[[str], str]) -> str:
    """Return a script of SIZE characters made of units with a word of letters each, drawn at random
    from a fixed seed.
    """
    draw = random.Random(1)
    return fill(lambda _: unit("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=8))))


def bodies() -> str:
    """Return the commands of all golden scripts, over and over."""
    texts = [file.read_text() for file in sorted(GOLDEN.glob("*/script.sbatch"))]
    kept = [
        "\n".join(line for line in text.split("\n")[1:] if not line.startswith("#SBATCH"))
        for text in texts
    ]
    return fill(lambda index: kept[index % len(kept)])


ROWS: list[tuple[str, Callable[[], str], float]] = [
    ("one golden script", (GOLDEN / "2x4/script.sbatch").read_text, 0.2),
    (
        "50,000 srun lines of a sweep",
        lambda: fill(lambda n: f"srun -N1 -n1 python run.py --seed {n} > {n}.log 2>&1 &\n"),
        30,
    ),
    (
        "torchrun lines with findings",
        lambda: fill(lambda n: f"srun torchrun --nnodes 2 --node_rank $SLURM_NODEID {n}.py\n"),
        30,
    ),
    (
        "bash -c on every line",
        lambda: fill(
            lambda n: f"srun -c4 bash -c 'python a.py --rank $SLURM_PROCID --seed {n}' &\n"
        ),
        30,
    ),
    (
        "if blocks",
        lambda: fill(lambda n: f'if [ -f file_{n} ]; then\n  rm "file_{n}" || exit 1\nfi\n'),
        30,
    ),
    ("two million short lines", lambda: fill(lambda _: ":\n"), 30),
    ("700,000 assignments", lambda: fill(lambda n: f"a={n % 1000}\n"), 30),
    ("comments", lambda: fill(lambda _: "# a comment of some length\n"), 30),
    ("blank lines", lambda: fill(lambda _: "\n"), 30),
    ("directives", lambda: fill(lambda n: f"#SBATCH --comment=c{n}\n"), 30),
    ("small heredocs", lambda: fill(lambda _: "cat > f <<EOF\nline $x of it\nEOF\n"), 30),
    (
        "data in a heredoc",
        lambda: fill(lambda _: "cat > f <<'EOF'\n" + "a line of it with words\n" * 2000 + "EOF\n"),
        30,
    ),
    ("heredocs, none closed", lambda: HEAD + "cat <<A " * (SIZE // 8), 30),
    ("quotes", lambda: HEAD + "echo " + "''" * (SIZE // 2), 30),
    ("quotes of both kinds", lambda: HEAD + "echo " + '"a\'"' * (SIZE // 4), 30),
    ("backslashes", lambda: HEAD + "echo " + "\\" * SIZE, 30),
    ("continued lines", lambda: HEAD + "echo " + "a \\\n" * (SIZE // 4), 30),
    ("one word", lambda: HEAD + "echo " + "x" * SIZE, 30),
    ("one line of words", lambda: HEAD + "echo " + "x " * (SIZE // 2), 30),
    ("one line of commands", lambda: HEAD + "a;" * (SIZE // 2), 30),
    ("nested $(", lambda: HEAD + "echo " + "$(" * (SIZE // 2), 30),
    ('nested "$(', lambda: HEAD + "echo " + '"$(' * (SIZE // 3), 30),
    ("nested ${", lambda: HEAD + "echo " + "${a:-" * (SIZE // 5), 30),
    ("nested $((", lambda: HEAD + "echo " + "$((" * (SIZE // 3), 30),
    ("nested (", lambda: HEAD + "(" * SIZE, 30),
    ("nested {", lambda: HEAD + "{ " * (SIZE // 2), 30),
    ("nested if", lambda: HEAD + "if " * (SIZE // 3), 30),
    (
        "srun lines, random words",
        lambda: words(lambda word: f"srun -N1 -n1 python {word}.py > {word}.log 2>&1 &\n"),
        30,
    ),
    (
        "export and if, random words",
        lambda: words(
            lambda word: f'export A_{word}=1\nif [ -f {word} ]; then\n  rm "{word}" || exit 1\nfi\n'
        ),
        30,
    ),
    ("all golden scripts", bodies, 30),
]


def cpu_s(file: Path) -> float:
    """Return the CPU time of one run in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [HPCTRAIN, "lint", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table, with the target that each row meets or misses."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "job.sbatch")
        for title, make, target in ROWS:
            file.write_text(make())
            seconds = statistics.median(cpu_s(file) for _ in range(RUNS))
            verdict = f"< {target} s: {'met' if seconds < target else 'MISSED'}"
            print(
                f"lint: {title:36} {file.stat().st_size / 2**20:5.2f} MiB {seconds:7.2f} s "
                f" {verdict}"
            )


if __name__ == "__main__":
    main()
