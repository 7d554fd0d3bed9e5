"""The stand-in for `scontrol` in a local job: `scontrol show hostnames [HOSTLIST]`."""

from __future__ import annotations

import os
import sys

from hpctrain.scheduler.parse import hostlist


def main() -> int:
    """Print one host name on each line, as the real scontrol does."""
    words = sys.argv[1:]
    if words[:2] not in (["show", "hostnames"], ["show", "hostname"]) or len(words) > 3:
        sys.stderr.write(f"scontrol: error: the local scheduler knows `scontrol show hostnames` only, not: {' '.join(words)}\n")
        return 1
    text = words[2] if len(words) == 3 else os.environ.get("SLURM_JOB_NODELIST", "")
    try:
        hosts = hostlist.expand(text)
    except ValueError as error:
        sys.stderr.write(f"scontrol: error: {error}\n")
        return 1
    sys.stdout.write("".join(f"{host}\n" for host in hosts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
