"""A training of one's own that tells a study what it finds: a line through points, by gradient
descent, with nothing but Python.
"""

import argparse
import random

from hpctrain.training.trial import Reporter

parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", type=float, required=True)
parser.add_argument("--steps", type=int, default=60)
asked = parser.parse_args()

draw = random.Random(0)  # noqa: S311 - no secret
points = [(x, 3 * x + 1 + draw.gauss(0, 0.1)) for x in (draw.uniform(-1, 1) for _ in range(100))]
trial = Reporter()
slope = offset = 0.0
for step in range(1, asked.steps + 1):
    errors = [(x, slope * x + offset - y) for x, y in points]
    slope -= asked.learning_rate * sum(2 * x * error for x, error in errors) / len(points)
    offset -= asked.learning_rate * sum(2 * error for _, error in errors) / len(points)
    if step % 20 == 0:
        loss = sum((slope * x + offset - y) ** 2 for x, y in points) / len(points)
        print(f"step {step}: loss {loss:.6g}", flush=True)
        if trial.report(step, loss):  # the study has seen better ones
            trial.leave()
