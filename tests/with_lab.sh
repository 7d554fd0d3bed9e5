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
# The second lab is the one whose jobs are treated badly; the tests that need it start it (tests/lab/README.md).
leave=()
HPCTRAIN_LAB_NUMBER=2 "$lab" status >/dev/null 2>&1 || leave+=(2)
if [ "$started" = yes ]; then
    leave+=(1)
fi
stop() {
    local number
    for number in "${leave[@]}"; do
        HPCTRAIN_LAB_NUMBER=$number "$lab" down >/dev/null 2>&1
    done
}
trap stop EXIT
"$@"
