"""Texts that are close to a mistake, and are none: a rule fires only when the text proves it."""

from __future__ import annotations

import pytest

from hpctrain.jobs.lint import IDS, lint

HEAD = "#!/bin/bash\n#SBATCH --time=01:00:00\n"
TWO = HEAD + "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n"
MEET = '--rdzv_backend c10d --rdzv_id 1 --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT"'

CASES = [
    ("no-shebang", "# a library that other scripts source\nf() { :; }\n", "helpers.sh"),
    ("dos-line-ends", HEAD + "printf 'a\\r\\n'\n"),
    ("unreadable-shell", HEAD + "echo it\\'s \"fine \\\" here\" # don't worry\n"),
    ("unreadable-shell", HEAD + "cat <<'EOF'\n\"unbalanced ' $(\nEOF\n"),
    ("unreadable-shell", "#!/usr/bin/env python3\n#SBATCH --time=1\nprint(\"it's\")\n"),
    ("directive-after-command", HEAD + "true\n# see #SBATCH --nodes=2 above\n#SBATCHX\n##SBATCH --nodes=2\n"),
    ("directive-after-command", HEAD + 'cat > x <<EOF\n#SBATCH --nodes=2\nEOF\necho "\n#SBATCH --nodes=2\n"\n'),
    ("directive-indented", HEAD + "true\n  #SBATCH --nodes=2\n"),
    ("directive-case", HEAD + "# sbatch takes this script\n#sbatch\n"),
    ("directive-space", HEAD + "# SBATCH lines stand above\n"),
    ("directive-misspelt", HEAD + "#PATCH --level 2\n#BATCHES --of 3\n#PBS -l nodes=2\n"),
    ("directive-variable", HEAD + "#SBATCH --output=%u_%j.log --comment='$HOME' --job-name=cost5$\n"),
    ("directive-hash", HEAD + "#SBATCH --nodes=2 # two\n#SBATCH --job-name='a#b'\n#SBATCH --comment=a\\#b\n"),
    ("unknown-option", HEAD + "#SBATCH --tres-per-task=gres/gpu:1 --oom-kill-step=1 --stepmgr --cluster=a --tasks-per-node=2 --job=x\n"),
    ("site-option", HEAD + "#SBATCH --container-image=img --ear=on --uenv=pytorch\n"),
    ("directive-twice", HEAD + "#SBATCH --nodes=2\n#SBATCH -N2\n#SBATCH hetjob\n#SBATCH --nodes=4\n"),
    ("directive-twice", HEAD + "#SBATCH --mail-type=END\n#SBATCH --mail-type=FAIL\n"),  # tried: sbatch adds them up
    ("two-gpu-dialects", HEAD + "#SBATCH --gpus-per-node=4 --gres=nvme:100 --gpus=8\n"),
    ("gpus-is-total", HEAD + "#SBATCH --nodes=1 --gpus=4\n"),
    ("gpus-is-total", HEAD + "#SBATCH --nodes=2 --gpus=8 --gpus-per-node=4\n"),
    ("gpus-per-task-without-tasks", HEAD + "#SBATCH --nodes=1 --gpus-per-task=1\n"),  # tried: sbatch takes it
    ("gpus-per-task-without-tasks", HEAD + "#SBATCH --gpus=4 --gpus-per-task=1\n"),
    ("gpus-per-task-hides", HEAD + "#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-task=1\nsrun bash -c 'LOCAL_RANK=0 python t.py'\n"),
    ("exclusive-without-gpus", HEAD + "#SBATCH --exclusive --mem=0\nsrun --gpus-per-node=4 torchrun --standalone t.py\n"),
    ("exclusive-without-gpus", HEAD + "#SBATCH --exclusive --mem=0\nsrun ./mpi_solver\n"),
    ("exclusive-without-mem", HEAD + "#SBATCH --exclusive=user\n"),
    ("mem-twice", HEAD + "#SBATCH --mem=1G\n#SBATCH hetjob\n#SBATCH --mem-per-cpu=1G\n"),
    ("ntasks-and-per-node", HEAD + "#SBATCH --nodes=2 --ntasks=8 --ntasks-per-node=4\n"),
    ("invalid-time", HEAD.replace("01:00:00", "1-12") + "#SBATCH --time-min=UNLIMITED\n"),
    ("invalid-mem", HEAD + "#SBATCH --mem=16GB --tmp=1G\n"),
    ("invalid-signal", HEAD + "#SBATCH --signal=R:INT\n"),
    ("missing-time", "#!/bin/bash\n#SBATCH -N 1 -t 10\n"),
    ("missing-time", "#!/bin/bash\necho a script without directives takes them from the command line\n"),
    ("array-size", HEAD + "#SBATCH --array=0-999%1500,1000:2000\n"),
    ("array-output", HEAD + "#SBATCH --array=0-3 --output=a_%j.log --error=/dev/null\n"),
    ("requeue-truncates", HEAD + "#SBATCH --requeue --open-mode=append\n"),
    ("requeue-truncates", HEAD + "#SBATCH --requeue --no-requeue\n"),
    ("log-directory-too-late", HEAD + "#SBATCH --output=logs/%j.out\nmkdir -p results logs/tensorboard\n"),
    ("job-name-in-path", HEAD + "#SBATCH --job-name=a/b --output=%j.log\n"),
    ("rank-expanded-early", TWO + f"srun bash -c 'torchrun --nnodes 2 --node_rank \"$SLURM_NODEID\" {MEET} t.py'\n"),
    ("rank-expanded-early", TWO + 'echo "rank $SLURM_PROCID"; srun echo "$SLURM_PROCID"\n[ "$SLURM_PROCID" = 0 ] && date\n'),
    ("rank-expanded-early", TWO + 'srun bash -c "echo $SLURM_PROCID"\n'),
    ("rank-expanded-early", TWO + "srun bash -c \"x='a'; export RANK=\\$SLURM_PROCID; python t.py\"\n"),
    ("rank-expanded-early", TWO + "srun python t.py --local_rank $SLURM_LOCALID\n"),  # one task per node: 0 is right
    ("rank-expanded-early", HEAD + "#SBATCH --nodes=1\n#SBATCH --ntasks=1\nsrun torchrun --node_rank $SLURM_NODEID --nnodes 1 t.py\n"),
    (
        "rank-expanded-early",  # srun starts this file
        "#!/bin/bash\ntorchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr $MASTER_ADDR t.py\n",
    ),
    ("rank-expanded-early", TWO + 'if [ -n "$INNER" ]; then torchrun --node_rank $SLURM_NODEID t.py; else INNER=1 srun bash "$0"; fi\n'),
    (
        "rank-expanded-early",
        TWO + "R=$SLURM_NODEID\nsrun bash -c 'R=$SLURM_NODEID; torchrun --nnodes 2 --node_rank $R --master_addr a t.py'\n",
    ),
    ("rank-expanded-early", TWO + "srun bash <<'X'\ntorchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr a t.py\nX\n"),
    ("rank-expanded-early", TWO + "srun -N1 -n1 python t.py --rank $SLURM_PROCID\n"),
    ("rank-not-expanded", TWO + "srun bash -c 'torchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr a t.py'\n"),
    ("launcher-without-srun", TWO + "f() { torchrun --nnodes 2 t.py; }\nexport -f f\nsrun bash -c f\n"),
    ("launcher-without-srun", TWO + "which torchrun; command -v accelerate; echo torchrun --nnodes 2\npip install accelerate\n"),
    ("launcher-without-srun", HEAD + "#SBATCH --nodes=1-4\ntorchrun --standalone t.py\n"),
    ("launcher-without-srun", TWO + 'for h in a b; do ssh $h torchrun --nnodes 2 t.py & done\n'),
    ("launcher-without-srun", TWO + "srun -N1 -n1 -r1 bash worker.sh &\ntorchrun --nnodes=2 --node_rank=0 t.py\nwait $!\n"),
    ("launcher-without-srun", TWO + "torchrun --nnodes=2 --node_rank=$SLURM_NODEID t.py &\nsrun -N1 -n1 -r1 ./worker.sh\nwait $!\n"),
    ("launcher-without-srun", TWO + "srun -N1 -n1 --relative=1 ./daemon.sh\ntorchrun --nnodes=2 --node_rank=0 t.py\n"),
    ("launcher-without-srun", TWO + "ssh -f node2 ./worker.sh\ntorchrun --nnodes=2 --node_rank=0 t.py\n"),
    ("launcher-without-srun", TWO + "torchrun --standalone prepare.py\nsrun python t.py\n"),
    ("launcher-without-srun", TWO + "torchrun --nnodes=1 prepare.py\nsrun python t.py\n"),
    ("launcher-without-srun", TWO + "deepspeed -H hosts --num_gpus 4 t.py\n"),
    ("launcher-without-srun", TWO + "deepspeed --launcher slurm --num_nodes 2 t.py\n"),
    (
        "launchers-per-node",
        HEAD + f"#SBATCH --nodes=2 --ntasks-per-node=4\nsrun -n 2 --ntasks-per-node=1 torchrun --nnodes 2 --nproc_per_node 4 {MEET} t.py\n",
    ),
    (
        "launchers-per-node",
        HEAD + "#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-node=4\ntorchrun --standalone --nproc_per_node 4 t.py\n",
    ),
    ("srun-per-node-ignored", TWO + "srun --ntasks-per-node=1 hostname\n"),
    ("rank-missing", TWO + f"srun torchrun --nnodes 2 {MEET} t.py\n"),
    ("rank-missing", TWO + "srun accelerate launch --config_file c.yaml --num_machines 2 --main_process_ip $A t.py\n"),
    ("rank-missing", TWO + 'srun torchrun --nnodes 2 --master_addr $A $EXTRA t.py\n'),
    ("rendezvous-missing", TWO + "export PET_RDZV_ENDPOINT=$A:1 PET_RDZV_BACKEND=c10d\nsrun torchrun --nnodes 2 t.py\n"),
    ("rendezvous-local", TWO + "srun -N1 -n1 torchrun --nnodes 1 --rdzv_endpoint localhost:0 --rdzv_backend c10d t.py\n"),
    ("rendezvous-local", TWO + f"export MASTER_ADDR=$(hostname)\nsrun torchrun --nnodes 2 {MEET} t.py\n"),
    ("launcher-alone", TWO + "srun -N 1 -n 1 torchrun --standalone t.py\n"),
    ("launcher-alone", TWO + "srun torchrun $ARGS t.py\n"),
    ("nnodes-mismatch", TWO + f'srun torchrun --nnodes "$SLURM_NNODES" {MEET} t.py\nsrun torchrun --nnodes 1:4 {MEET} t.py\n'),
    ("num-processes", TWO + "N=2\nG=4\nsrun accelerate launch --num_machines $N --num_processes $((N * G)) --config_file c t.py\n"),
    ("num-processes", HEAD + "#SBATCH --nodes=1 --gpus-per-node=4\naccelerate launch --multi_gpu --num_processes 3 t.py\n"),
    ("num-processes", TWO + "srun accelerate launch --num_machines 2 --num_processes $WORLD --config_file c t.py\n"),
    ("more-processes-than-gpus", TWO + f"srun torchrun --nnodes 2 --nproc_per_node gpu {MEET} t.py\n"),
    ("accelerate-one-process", TWO + "accelerate launch --num_processes 4 t.py; accelerate config; accelerate env\n"),
    ("rdzv-conf-backend", TWO + f"srun torchrun --nnodes 2 --rdzv_conf is_host=1,timeout=900 {MEET} t.py\n"),
    ("mpirun-in-srun", TWO + "srun -n 1 mpirun -np 8 ./x\nmpirun srun_test\n"),
    ("fixed-port", TWO + "export MASTER_PORT=${MASTER_PORT:-29500}\nPORT=80\n"),
    ("fixed-port", HEAD + "#SBATCH --nodes=1 --exclusive --mem=0\nexport MASTER_PORT=29500\n"),
    ("fixed-port", TWO + "torchrun --nnodes=1 --rdzv_endpoint=localhost:0 t.py; torchrun --standalone --master_port 29500 t.py\n"),
    ("random-in-task", TWO + f"export MASTER_PORT=$((20000 + RANDOM % 1000))\nsrun torchrun --nnodes 2 {MEET} t.py\n"),
    ("random-in-task", TWO + "srun torchrun --nnodes 2 --rdzv_backend c10d --rdzv_id $RANDOM --rdzv_endpoint $A:1234 t.py\n"),
    ("array-port", HEAD + "#SBATCH --array=0-3\nMASTER_PORT=$((20000 + (SLURM_ARRAY_JOB_ID + SLURM_ARRAY_TASK_ID) % 9000))\n"),
    ("nodelist-cut", TWO + 'h=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)\necho "$SLURM_JOB_NODELIST" | tee nodes\n'),
    ("nodelist-cut", HEAD + '#SBATCH --nodes=1\nh=$(echo "$SLURM_NODELIST" | cut -d, -f1)\n'),
    (
        "nodelist-unquoted",
        TWO + 'x=$SLURM_JOB_NODELIST\nexport Y=$SLURM_NODELIST\n[[ $SLURM_JOB_NODELIST == a* ]]\necho "${SLURM_JOB_NODELIST}"\n',
    ),
    ("scontrol-in-container", TWO + "apptainer exec i.sif python t.py\nscontrol show hostnames a\n"),
    ("hostname-address", TWO + "hostname -i\nH=$(hostname -s)\n"),
    ("pipefail-missing", TWO + "set -o pipefail\nsrun python t.py | tee log\n"),
    ("pipefail-missing", TWO + "date | tee log\nsrun python t.py > log 2>&1\nbash -o pipefail -c 'srun python t.py | tee log'\n"),
    ("pipefail-missing", "#!/bin/bash -eo pipefail\n#SBATCH --time=1\nsrun python t.py | tee log\n"),
    ("nounset-before-activation", TWO + "set -e\nmodule load cuda\nset -u\n. venv/bin/activate\n"),
    ("nounset-before-activation", TWO + "set -u\nf() { module load x; }\nset +u; conda activate a; set -u\n"),
    ("wait-without-pid", TWO + 'tar xf a.tar &\nwait\npython t.py &\nwait "$!"\n'),
    ("source-activate", TWO + "source venv/bin/activate\nsource /opt/conda/bin/activate base\n"),
    ("conda-not-initialised", "#!/bin/bash -l\n#SBATCH --time=1\nconda activate a\n"),
    ("conda-not-initialised", TWO + 'source "$(conda info --base)/etc/profile.d/conda.sh"\nconda activate a\n'),
    ("conda-not-initialised", TWO + "module load anaconda\nconda activate a\nconda run -n b python t.py\n"),
    ("conda-not-initialised", TWO + 'eval "$(micromamba shell hook --shell bash)"\nmicromamba activate a\n'),
    ("sh-shebang", "#!/bin/sh\n#SBATCH --time=1\nif [ -d a ]; then . b; fi\nx=$(date) && echo \"$x\"\n"),
    ("script-directory", TWO + 'cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")}"\necho "$0 started"\n'),
    ("script-directory", TWO + 'if [ -z "$SLURM_JOB_ID" ]; then cd "$(dirname "$0")"; sbatch "$0"; exit; fi\n'),
    ("script-directory", "#!/bin/bash\ncd \"$(dirname \"$0\")\" && sbatch job.sbatch\n"),
    ("signal-not-to-batch", TWO + "#SBATCH --signal=USR1@60\ntrap 'echo bye' EXIT\nsrun bash -c 'trap stop USR1; python t.py & wait'\n"),
    ("trap-in-foreground", TWO + "#SBATCH --signal=B:USR1@60\ntrap stop USR1\nsrun python t.py &\nwait $!\npython report.py &\nwait $!\n"),
    ("trap-in-foreground", TWO + "#SBATCH --signal=B:USR1@60\nsrun python t.py\n"),
    ("usr1-kills-launcher", TWO + "#SBATCH --signal=B:USR1@60\ntrap 'touch stop' USR1\nsrun torchrun --nnodes 2 t.py &\nwait $!\n"),
    ("usr1-kills-launcher", TWO + "trap 'kill -TERM $pid' USR1\nsrun accelerate launch --config_file c t.py &\npid=$!\nwait $pid\n"),
    ("requeue-whole-array", HEAD + '#SBATCH --array=0-3\nscontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"\n'),
    ("requeue-whole-array", TWO + 'scontrol requeue "$SLURM_JOB_ID"\n'),
    ("restart-count-unset", TWO + 'set -u\necho "${SLURM_RESTART_COUNT:-0}"\n'),
    ("restart-count-unset", TWO + '[ -n "$SLURM_RESTART_COUNT" ] && echo again\n[[ $SLURM_RESTART_COUNT -gt 2 ]] && exit\n'),
    ("srun-cpus-per-task", TWO + "#SBATCH -c 8\nexport SRUN_CPUS_PER_TASK=8\nsrun python t.py\n"),
    ("srun-cpus-per-task", TWO + "srun python t.py\n"),
    ("kill-on-bad-exit-value", TWO + "srun -K1 python 1\nsrun --kill-on-bad-exit python t.py\nsrun -K ./0\n"),
    ("srun-unbuffered", TWO + "srun python -u t.py\n"),
    ("export-drops-environment", TWO + "srun --export=ALL,A=1 python t.py\nsrun --export ALL python t.py\n"),
    ("export-drops-environment", HEAD + "#SBATCH --export=NONE\nmodule load x\npython t.py\n"),
    ("sbatch-output-parsed", TWO + "j=$(sbatch --parsable a | cut -d';' -f1)\nsbatch b | tee -a submitted\n"),
    (
        "polling-loop",
        TWO + "for j in 1 2; do scontrol show job $j; done\nwhile sleep 60; do squeue --me; done\nuntil [ -e x ]; do sleep 1; done\n",
    ),
    ("polling-loop", TWO + 'while read -r h; do echo "$h"; done < <(scontrol show hostnames a)\n'),
    (
        "slurm-variable-unset",
        TWO + 'n=${SLURM_CPUS_PER_TASK:-4}\nsrun bash -c \'echo $SLURM_CPUS_PER_TASK; export A=$SLURM_CPUS_PER_TASK\'\n',
    ),
    ("slurm-variable-unset", TWO + 'if [ -n "$SLURM_CPUS_PER_TASK" ]; then export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK; fi\n'),
    ("slurm-variable-unset", TWO + "export W=$SLURM_NTASKS P=$SLURM_NTASKS_PER_NODE G=$SLURM_GPUS_PER_NODE\necho $SLURM_CPUS_PER_TASK\n"),
    ("slurm-variable-unset", "#!/bin/bash\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\n"),
    ("pythonbuffered", TWO + "export PYTHONUNBUFFERED=1\n# PYTHONBUFFERED=1 is no variable\n"),
    ("old-nccl-name", TWO + "export NCCL_DEBUG=INFO TORCH_NCCL_BLOCKING_WAIT=1\n"),
    ("flight-recorder-off", TWO + "export TORCH_FR_BUFFER_SIZE=0 TORCH_NCCL_ASYNC_ERROR_HANDLING=1\n"),
    ("gloo-interface", TWO + "export NCCL_SOCKET_IFNAME=^lo,docker\npython t.py --backend gloo\n"),
    ("gloo-interface", TWO + "export NCCL_SOCKET_IFNAME=ib0\n"),
    ("pet-variable", TWO + 'unset "${!PET_@}"\n'),
    ("shared-compiler-cache", TWO + 'export TRITON_CACHE_DIR=$HOME/.triton/$SLURMD_NODENAME TORCH_EXTENSIONS_DIR=/tmp/x\n'),
    ("dotenv-xargs", TWO + "export A=$(cat token.env_name)x B=\"$(cat .env)\"\nset -a; . .env\n"),
    ("environment-in-log", TWO + "env | grep SLURM\nprintenv HOME\nenv > e.txt\nx=$(env)\nenv A=1 python t.py\n"),
    ("port-zero", HEAD + "accelerate launch --num_machines 1 --main_process_port 0 t.py\n"),
    ("port-zero", TWO + "srun accelerate launch --num_machines 2 --main_process_port $PORT t.py\n"),
    ("output-pattern", HEAD + "#SBATCH --output=100%%t_%j.log --error=%x.%u.err\nsrun --output=%t.log python t.py\n"),
    ("wait-ends-script", TWO + "set -e\ntrap 'touch stop' USR1\npython t.py &\nwait $! || status=$?\n"),
    ("wait-ends-script", TWO + "set -e\ntrap 'rm -f x' EXIT\npython t.py &\nwait $!\n"),
    ("wait-ends-script", TWO + "trap 'touch stop' USR1\npython t.py &\nwait $!\n"),
    ("wait-ends-script", TWO + "set -e\nbye() { touch stop; exit 1; }\ntrap bye USR1\npython t.py &\nwait $!\n"),
    ("wait-ends-script", TWO + "set -e\ntrap '' USR1\npython t.py &\nwait $!\n"),
    ("kill-first-node", HEAD + "#SBATCH --nodes=1\npkill -USR1 -f t.py\n"),
    ("kill-first-node", TWO + "pkill -USR1 srun\nkill -USR1 $(pgrep -P $$)\nkill -USR1 $pid\npkill -f monitor.sh\n"),
    ("kill-first-node", TWO + "srun bash -c 'pkill -USR1 -f t.py'\n"),
    ("format-widths", TWO + "sinfo -o %G\nsqueue -h -O JobID:20,Name:40\nsacct -o JobID\n"),
    ("secret-in-script", TWO + "export HF_TOKEN=hf_your_token_goes_here_xxxxxxxxxxxxxx OPENAI=sk-xxxxxxxxxxxxxxxxxxxxxxxxxxx\n"),
    ("secret-in-script", TWO + "export HF_TOKEN=$(cat ~/.hf) COMMIT=0123456789abcdef0123456789abcdef01234567\n"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}-{index}" for index, case in enumerate(CASES)])
def test_a_near_miss_is_silent(case: tuple[str, ...]) -> None:
    id_, text, *file = case
    assert id_ in IDS
    assert [one for one in lint(text, file[0] if file else "x.sbatch") if one.id == id_] == []


def test_a_comment_leaves_findings_out() -> None:
    text = HEAD + "export PYTHONBUFFERED=1 PET_X=1{}\nexport PYTHONBUFFERED=2\n"
    assert [one.id for one in lint(text.format(""), "x")] == ["pythonbuffered", "pet-variable", "pythonbuffered"]
    assert [one.id for one in lint(text.format("  # hpctrain: ignore=pythonbuffered"), "x")] == ["pet-variable", "pythonbuffered"]
    assert [one.id for one in lint(text.format("  # hpctrain: ignore=pet-variable,pythonbuffered"), "x")] == ["pythonbuffered"]
    above = HEAD + "# hpctrain: ignore=pythonbuffered\nexport PYTHONBUFFERED=1\nexport PYTHONBUFFERED=2\n"
    assert [one.line for one in lint(above, "x")] == [5]
