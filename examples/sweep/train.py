"""A training script with nothing but Python, to sweep: it fits a line to points with noise, by
gradient descent.

    python train.py --learning_rate 0.1 --steps 50 --seed 1 --bias true

It knows nothing of hpctrain; arguments come as `--key value`. In a job, the result is written into
the directory of the run.
"""

import argparse
import json
import os
import random
from pathlib import Path


def main() -> None:
    """Train, and write result.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning_rate", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--bias", type=lambda word: word == "true", default=True, metavar="true|false"
    )
    arguments = parser.parse_args()

    chance = random.Random(arguments.seed)  # noqa: S311 - noise, and no secret
    points = [(x / 10, 3 * x / 10 + 1 + chance.gauss(0, 0.1)) for x in range(-10, 11)]
    slope, bias = chance.gauss(0, 1), 0.0
    for _ in range(arguments.steps):
        errors = [(slope * x + bias - y, x) for x, y in points]
        slope -= arguments.learning_rate * sum(error * x for error, x in errors) / len(points)
        if arguments.bias:
            bias -= arguments.learning_rate * sum(error for error, _ in errors) / len(points)
    loss = sum((slope * x + bias - y) ** 2 for x, y in points) / len(points)

    run = Path(os.environ.get("HPCTRAIN_RUN_DIR", "."))
    (run / "result.json").write_text(json.dumps(vars(arguments) | {"loss": loss}) + "\n")
    print(f"loss {loss:.4f} with {vars(arguments)}")


if __name__ == "__main__":
    main()
