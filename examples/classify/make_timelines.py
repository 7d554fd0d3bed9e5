"""Make timelines to try: visits as events, and whether someone comes back within a month.

Nothing in them is of a real person.

    python make_timelines.py visits.jsonl [ROWS] [SEED]

Who had a high test and was given no drug for it comes back nine times in ten; all others once in
ten.
"""

import json
import random
import sys
from pathlib import Path

COMMON = [f"visit:{kind}" for kind in ("home", "clinic", "phone")] + [
    f"code:{number}" for number in range(40)
]


def patient(draw: random.Random) -> tuple[list[str], str]:
    """Return one patient's events, oldest first, and the label."""
    events = [draw.choice(COMMON) for _ in range(draw.randint(8, 40))]
    places = draw.sample(range(len(events)), 2)
    high, treated = draw.random() < 0.7, draw.random() < 0.4
    if high:
        events[places[0]] = "test:high"
    if treated:
        events[places[1]] = "drug:given"
    back = draw.random() < (0.9 if high and not treated else 0.1)
    return events, "back" if back else "well"


def main() -> None:
    """Write the file."""
    path, rows, seed, *_ = [*sys.argv[1:], *("visits.jsonl", "4000", "0")[len(sys.argv) - 1 :]]
    draw = random.Random(int(seed))  # noqa: S311 - an example, not a secret
    with Path(path).open("w", encoding="utf-8") as stream:
        for number in range(int(rows)):
            events, label = patient(draw)
            stream.write(json.dumps({"patient": number, "events": events, "label": label}) + "\n")
    print(path)


if __name__ == "__main__":
    main()
