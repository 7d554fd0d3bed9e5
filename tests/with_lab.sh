#!/bin/bash
# Run a test command with the two-node Slurm of tests/lab, and stop that Slurm again if it was started here.
# Where it cannot be started, say so in one line and run the rest; with HPCTRAIN_REQUIRE_LAB, fail.
set -uo pipefail
lab="$(dirname "$0")/lab/lab"

started=no
if ! "$lab" status >/dev/null 2>&1; then
    messages=$(mktemp)
    "$lab" up >/dev/null 2>"$messages"
    code=$?
    if [ "$code" -eq 0 ]; then
        started=yes
    elif [ -n "${HPCTRAIN_REQUIRE_LAB:-}" ] || [ "$code" -ne 3 ]; then
        cat "$messages" >&2
        rm -f "$messages"
        exit 1
    else
        echo "Slurm tests are skipped: $(tail -n 1 "$messages")" >&2
    fi
    rm -f "$messages"
fi
# Tests outside tests/lab ask the real sbatch too; those without the slurm mark never see it (tests/conftest.py).
if "$lab" status >/dev/null 2>&1; then
    eval "$("$lab" env)"
fi
if [ "$started" = yes ]; then
    trap '"$lab" down >/dev/null 2>&1' EXIT
fi
"$@"
