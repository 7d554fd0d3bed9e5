#!/bin/bash
# The everyday path on a machine without Slurm: what `make demo` runs. Usage: examples/demo.sh [HPCTRAIN] [DIRECTORY]
set -euo pipefail
hpctrain=$(realpath "${1:-$(command -v hpctrain)}")
directory=${2:-demo}

say() { printf '\n$ %s\n' "$*"; }

say hpctrain prepare --demo "$directory"
"$hpctrain" prepare --demo "$directory"

cd "$directory"
say hpctrain render --nodes 2 --gpus 1
"$hpctrain" render --nodes 2 --gpus 1

# Two nodes with a GPU each are played on the CPU where there are not two GPUs.
[ "$(nvidia-smi --list-gpus 2>/dev/null | wc -l)" -ge 2 ] || export ACCELERATE_USE_CPU=true

say hpctrain submit --local --wait
"$hpctrain" submit --local --wait

cat <<MESSAGE

That was the script of a cluster, byte for byte: $directory/sft.sbatch. There you would type:

  hpctrain render --nodes 2 --gpus 4 --partition PARTITION --account ACCOUNT
  sbatch sft.sbatch
  tail -F logs/output_sft.log
  scancel -n sft            # or: hpctrain cancel

Next, here:

  cd $directory
  hpctrain report           # what the run did: one page for a browser
  ${ACCELERATE_USE_CPU:+ACCELERATE_USE_CPU=true }hpctrain submit --local
  hpctrain watch            # that one, while it trains
MESSAGE
