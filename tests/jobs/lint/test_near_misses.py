"""Texts that are close to a mistake, and are none: a rule fires only when the text proves it."""

import pytest

from hpctrain.checks.script import IDS, lint

HEAD = "#!/bin/bash\n#SBATCH --time=01:00:00\n"
TWO = HEAD + "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n"
MEET = '--rdzv_backend c10d --rdzv_id 1 --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT"'

CASES = [
    ("no-shebang", "# a library that other scripts source\nf() { :; }\n", "helpers.sh"),
    ("dos-line-ends", HEAD + "printf 'a\\r\\n'\n"),
    ("unreadable-shell", HEAD + 'echo it\\\'s "fine \\" here" # don\'t worry\n'),
    ("unreadable-shell", HEAD + "cat <<'EOF'\n\"unbalanced ' $(\nEOF\n"),
    ("unreadable-shell", '#!/usr/bin/env python3\n#SBATCH --time=1\nprint("it\'s")\n'),
    (
        "directive-after-command",
        HEAD + "true\n# see #SBATCH --nodes=2 above\n#SBATCHX\n##SBATCH --nodes=2\n",
    ),
    (
        "directive-after-command",
        HEAD + 'cat > x <<EOF\n#SBATCH --nodes=2\nEOF\necho "\n#SBATCH --nodes=2\n"\n',
    ),
    ("directive-misspelt", HEAD + "true\n  #SBATCH --nodes=2\n"),
    ("directive-misspelt", HEAD + "# sbatch takes this script\n#sbatch\n"),
    ("directive-misspelt", HEAD + "#PATCH --level 2\n#BATCHES --of 3\n#PBS -l nodes=2\n"),
    (
        "directive-variable",
        HEAD + "#SBATCH --output=%u_%j.log --comment='$HOME' --job-name=cost5$\n",
    ),
    (
        "unknown-option",
        HEAD + "#SBATCH --tres-per-task=gres/gpu:1 --oom-kill-step=1 --stepmgr --cluster=a"
        " --tasks-per-node=2 --job=x\n",
    ),
    (
        "directive-twice",
        HEAD + "#SBATCH --nodes=2\n#SBATCH -N2\n#SBATCH hetjob\n#SBATCH --nodes=4\n",
    ),
    (
        "directive-twice",
        HEAD + "#SBATCH --mail-type=END\n#SBATCH --mail-type=FAIL\n",
    ),  # tried: sbatch adds them up
    ("two-gpu-dialects", HEAD + "#SBATCH --gpus-per-node=4 --gres=nvme:100 --gpus=8\n"),
    ("gpus-is-total", HEAD + "#SBATCH --nodes=1 --gpus=4\n"),
    ("exclusive-options", HEAD + "#SBATCH --mem=1G\n#SBATCH hetjob\n#SBATCH --mem-per-cpu=1G\n"),
    ("ntasks-and-per-node", HEAD + "#SBATCH --nodes=2 --ntasks=8 --ntasks-per-node=4\n"),
    ("invalid-value", HEAD.replace("01:00:00", "1-12") + "#SBATCH --time-min=UNLIMITED\n"),
    ("invalid-value", HEAD + "#SBATCH --mem=16GB --tmp=1G\n"),
    ("log-overwritten", HEAD + "#SBATCH --array=0-3 --output=a_%j.log --error=/dev/null\n"),
    ("requeue-truncates", HEAD + "#SBATCH --requeue --open-mode=append\n"),
    ("requeue-truncates", HEAD + "#SBATCH --requeue --no-requeue\n"),
    # tests/jobs/lint is there, above the directory of the script
    ("log-directory", HEAD + "#SBATCH -o lint/%j.out\n", f"{__file__}.sbatch"),
    (
        "log-directory",
        HEAD
        + "#SBATCH -o logs/%j.out\nif [ -z $SLURM_JOB_ID ]; then mkdir logs; sbatch $0; exit; fi\n",
    ),
    (
        "rank-expanded-early",
        TWO + f"srun bash -c 'torchrun --nnodes 2 --node_rank \"$SLURM_NODEID\" {MEET} t.py'\n",
    ),
    (
        "rank-expanded-early",
        TWO
        + 'echo "rank $SLURM_PROCID"; srun echo "$SLURM_PROCID"\n[ "$SLURM_PROCID" = 0 ] && date\n',
    ),
    ("rank-expanded-early", TWO + 'srun bash -c "echo $SLURM_PROCID"\n'),
    (
        "rank-expanded-early",
        TWO + "srun bash -c \"x='a'; export RANK=\\$SLURM_PROCID; python t.py\"\n",
    ),
    (
        "rank-expanded-early",
        TWO + "srun python t.py --local_rank $SLURM_LOCALID\n",
    ),  # one task per node: 0 is right
    (
        "rank-expanded-early",
        HEAD
        + "#SBATCH --nodes=1\n#SBATCH --ntasks=1\nsrun torchrun --node_rank $SLURM_NODEID --nnodes"
        " 1 t.py\n",
    ),
    (
        "rank-expanded-early",  # srun starts this file
        (
            "#!/bin/bash\ntorchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr $MASTER_ADDR"
            " t.py\n"
        ),
    ),
    (
        "rank-expanded-early",
        TWO
        + 'if [ -n "$INNER" ]; then torchrun --node_rank $SLURM_NODEID t.py; else INNER=1 srun bash'
        ' "$0"; fi\n',
    ),
    (
        "rank-expanded-early",
        TWO + "R=$SLURM_NODEID\nsrun bash -c 'R=$SLURM_NODEID; torchrun --nnodes 2 --node_rank $R"
        " --master_addr a t.py'\n",
    ),
    (
        "rank-expanded-early",
        TWO + "srun bash <<'X'\ntorchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr a"
        " t.py\nX\n",
    ),
    ("rank-expanded-early", TWO + "srun -N1 -n1 python t.py --rank $SLURM_PROCID\n"),
    (
        "rank-not-expanded",
        TWO + "srun bash -c 'torchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr a t.py'\n",
    ),
    (
        "launcher-without-srun",
        TWO + "f() { torchrun --nnodes 2 t.py; }\nexport -f f\nsrun bash -c f\n",
    ),
    (
        "launcher-without-srun",
        TWO + "which torchrun; command -v accelerate; echo torchrun --nnodes 2\npip install"
        " accelerate\n",
    ),
    ("launcher-without-srun", HEAD + "#SBATCH --nodes=1-4\ntorchrun --standalone t.py\n"),
    ("launcher-without-srun", TWO + "for h in a b; do ssh $h torchrun --nnodes 2 t.py & done\n"),
    (
        "launcher-without-srun",
        TWO
        + "srun -N1 -n1 -r1 bash worker.sh &\ntorchrun --nnodes=2 --node_rank=0 t.py\nwait $!\n",
    ),
    (
        "launcher-without-srun",
        TWO
        + "torchrun --nnodes=2 --node_rank=$SLURM_NODEID t.py &\nsrun -N1 -n1 -r1 ./worker.sh\nwait"
        " $!\n",
    ),
    (
        "launcher-without-srun",
        TWO + "srun -N1 -n1 --relative=1 ./daemon.sh\ntorchrun --nnodes=2 --node_rank=0 t.py\n",
    ),
    (
        "launcher-without-srun",
        TWO + "ssh -f node2 ./worker.sh\ntorchrun --nnodes=2 --node_rank=0 t.py\n",
    ),
    ("launcher-without-srun", TWO + "torchrun --standalone prepare.py\nsrun python t.py\n"),
    ("launcher-without-srun", TWO + "torchrun --nnodes=1 prepare.py\nsrun python t.py\n"),
    ("launcher-without-srun", TWO + "deepspeed -H hosts --num_gpus 4 t.py\n"),
    ("launcher-without-srun", TWO + "deepspeed --launcher slurm --num_nodes 2 t.py\n"),
    (
        "launchers-per-node",
        HEAD
        + "#SBATCH --nodes=2 --ntasks-per-node=4\nsrun -n 2 --ntasks-per-node=1 torchrun --nnodes"
        f" 2 --nproc_per_node 4 {MEET} t.py\n",
    ),
    (
        "launchers-per-node",
        HEAD + "#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-node=4\ntorchrun --standalone"
        " --nproc_per_node 4 t.py\n",
    ),
    ("rendezvous-missing", TWO + f"srun torchrun --nnodes 2 {MEET} t.py\n"),
    (
        "rendezvous-missing",
        TWO + "srun accelerate launch --config_file c.yaml --num_machines 2 --main_process_ip $A"
        " t.py\n",
    ),
    ("rendezvous-missing", TWO + "srun torchrun --nnodes 2 --master_addr $A $EXTRA t.py\n"),
    (
        "rendezvous-missing",
        TWO
        + "export PET_RDZV_ENDPOINT=$A:1 PET_RDZV_BACKEND=c10d\nsrun torchrun --nnodes 2 t.py\n",
    ),
    (
        "rendezvous-address",
        TWO
        + "srun -N1 -n1 torchrun --nnodes 1 --rdzv_endpoint localhost:0 --rdzv_backend c10d t.py\n",
    ),
    (
        "rendezvous-address",
        TWO + f"export MASTER_ADDR=$(hostname)\nsrun torchrun --nnodes 2 {MEET} t.py\n",
    ),
    ("rendezvous-missing", TWO + "srun -N 1 -n 1 torchrun --standalone t.py\n"),
    ("rendezvous-missing", TWO + "srun torchrun $ARGS t.py\n"),
    (
        "nnodes-mismatch",
        TWO
        + f'srun torchrun --nnodes "$SLURM_NNODES" {MEET} t.py\nsrun torchrun --nnodes 1:4 {MEET}'
        " t.py\n",
    ),
    (
        "more-processes-than-gpus",
        TWO + "N=2\nG=4\nsrun accelerate launch --num_machines $N --num_processes $((N * G))"
        " --config_file c t.py\n",
    ),
    (
        "more-processes-than-gpus",
        HEAD
        + "#SBATCH --nodes=1 --gpus-per-node=4\naccelerate launch --multi_gpu --num_processes 3"
        " t.py\n",
    ),
    (
        "more-processes-than-gpus",
        TWO
        + "srun accelerate launch --num_machines 2 --num_processes $WORLD --config_file c t.py\n",
    ),
    (
        "more-processes-than-gpus",
        TWO + f"srun torchrun --nnodes 2 --nproc_per_node gpu {MEET} t.py\n",
    ),
    ("mpirun-in-srun", TWO + "srun -n 1 mpirun -np 8 ./x\nmpirun srun_test\n"),
    ("fixed-port", TWO + "export MASTER_PORT=${MASTER_PORT:?}\nPORT=80\n"),
    ("fixed-port", HEAD + "#SBATCH --nodes=1 --exclusive --mem=0\nexport MASTER_PORT=29500\n"),
    (
        "fixed-port",
        TWO + "torchrun --nnodes=1 --rdzv_endpoint=localhost:0 t.py; torchrun --standalone"
        " --master_port 29500 t.py\n",
    ),
    (
        "nodelist-cut",
        TWO + 'h=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)\necho'
        ' "$SLURM_JOB_NODELIST" | tee nodes\n',
    ),
    ("nodelist-cut", TWO + 'echo "nodes: $SLURM_JOB_NODELIST" | sed "s/^/  /"\n'),
    ("nodelist-cut", HEAD + '#SBATCH --nodes=1\nh=$(echo "$SLURM_NODELIST" | cut -d, -f1)\n'),
    (
        "scontrol-in-container",
        TWO + "apptainer exec i.sif python t.py\nscontrol show hostnames a\n",
    ),
    ("pipefail-missing", TWO + "set -o pipefail\nsrun python t.py | tee log\n"),
    (
        "pipefail-missing",
        TWO
        + "date | tee log\nsrun python t.py > log 2>&1\nbash -o pipefail -c 'srun python t.py | tee"
        " log'\n",
    ),
    (
        "pipefail-missing",
        "#!/bin/bash -eo pipefail\n#SBATCH --time=1\nsrun python t.py | tee log\n",
    ),
    ("nounset-before-activation", TWO + "set -e\nmodule load cuda\nset -u\n. venv/bin/activate\n"),
    (
        "nounset-before-activation",
        TWO + "set -u\nf() { module load x; }\nset +u; conda activate a; set -u\n",
    ),
    ("gpu-partition-without-gpus", HEAD + "#SBATCH -p gpu --gres=shard:1\npython t.py\n"),
    ("gpu-partition-without-gpus", HEAD + "#SBATCH -p gpu --exclusive\npython t.py\n"),
    ("gpu-partition-without-gpus", HEAD + "#SBATCH -p nogpus\nsrun --gpus=1 python t.py\n"),
    ("gpu-partition-without-gpus", HEAD + "#SBATCH -p gpu\ncp a b\n"),
    ("pipefail-missing", HEAD + "n=$(python t.py | tail -n 1)\npython -c 'print()' | tail\n"),
    ("pipefail-missing", HEAD + "if python t.py | grep -q x; then exit 1; fi\ncat a | sort\n"),
    ("wait-without-pid", TWO + 'tar xf a.tar &\nwait\npython t.py &\nwait "$!"\n'),
    ("nounset-before-activation", HEAD + "set -u\nsource venv/bin/activate\n"),
    ("conda-not-initialised", "#!/bin/bash -l\n#SBATCH --time=1\nconda activate a\n"),
    (
        "conda-not-initialised",
        TWO + 'source "$(conda info --base)/etc/profile.d/conda.sh"\nconda activate a\n',
    ),
    (
        "conda-not-initialised",
        TWO + "module load site-tools\nconda activate a\nconda run -n b python t.py\n",
    ),
    (
        "conda-not-initialised",
        TWO + 'eval "$(micromamba shell hook --shell bash)"\nmicromamba activate a\n',
    ),
    ("script-directory", TWO + 'cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")}"\necho "$0 started"\n'),
    (
        "script-directory",
        TWO + 'if [ -z "$SLURM_JOB_ID" ]; then cd "$(dirname "$0")"; sbatch "$0"; exit; fi\n',
    ),
    ("script-directory", '#!/bin/bash\ncd "$(dirname "$0")" && sbatch job.sbatch\n'),
    (
        "signal-unheard",
        TWO + "#SBATCH --signal=USR1@60\ntrap 'echo bye' EXIT\nsrun bash -c 'trap stop USR1; python"
        " t.py & wait'\n",
    ),
    (
        "trap-in-foreground",
        TWO + "#SBATCH --signal=B:USR1@60\ntrap stop USR1\nsrun python t.py &\nwait $!\npython"
        " report.py &\nwait $!\n",
    ),
    ("trap-in-foreground", TWO + "#SBATCH --signal=B:USR1@60\nsrun python t.py\n"),
    (
        "usr1-kills-launcher",
        TWO + "#SBATCH --signal=B:USR1@60\ntrap 'touch stop' USR1\nsrun torchrun --nnodes 2 t.py"
        " &\nwait $!\n",
    ),
    (
        "usr1-kills-launcher",
        TWO
        + "trap 'kill -TERM $pid' USR1\nsrun accelerate launch --config_file c t.py &\npid=$!\nwait"
        " $pid\n",
    ),
    ("srun-cpus-per-task", TWO + "#SBATCH -c 8\nexport SRUN_CPUS_PER_TASK=8\nsrun python t.py\n"),
    ("srun-cpus-per-task", TWO + "srun python t.py\n"),
    (
        "slurm-variable-unset",
        TWO + "n=${SLURM_CPUS_PER_TASK:-4}\nsrun bash -c 'echo $SLURM_CPUS_PER_TASK; export"
        " A=$SLURM_CPUS_PER_TASK'\n",
    ),
    (
        "slurm-variable-unset",
        TWO + 'if [ -n "$SLURM_CPUS_PER_TASK" ]; then export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK;'
        " fi\n",
    ),
    (
        "slurm-variable-unset",
        TWO + "export W=$SLURM_NTASKS P=$SLURM_NTASKS_PER_NODE G=$SLURM_GPUS_PER_NODE\necho"
        " $SLURM_CPUS_PER_TASK\n",
    ),
    ("slurm-variable-unset", "#!/bin/bash\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\n"),
    ("prompt-unanswered", HEAD + "conda install -yq numpy\nmamba update --all -qyc conda-forge\n"),
    (
        "prompt-unanswered",
        HEAD + "conda config --set always_yes true\nconda create -n x python=3.11\n",
    ),
    (
        "gpus-hidden",
        HEAD + "#SBATCH --gpus-per-node=4\nexport CUDA_VISIBLE_DEVICES=0,1\npython a.py &\n"
        "export CUDA_VISIBLE_DEVICES=2,3\npython b.py &\nwait\n",
    ),
    (
        "gpus-hidden",
        HEAD + "#SBATCH --gpus-per-node=4\nexport CUDA_VISIBLE_DEVICES=0\npython prepare.py\n"
        "unset CUDA_VISIBLE_DEVICES\ntorchrun --standalone --nproc_per_node 4 t.py\n",
    ),
    # Two tasks that failed, once more
    ("pythonbuffered", TWO + "export PYTHONUNBUFFERED=1\n# PYTHONBUFFERED=1 is no variable\n"),
    (
        "secret-in-script",
        TWO + "export HF_TOKEN=hf_your_token_goes_here_xxxxxxxxxxxxxx"
        " OPENAI=sk-xxxxxxxxxxxxxxxxxxxxxxxxxxx\n",
    ),
    (
        "secret-in-script",
        TWO + "export HF_TOKEN=$(cat ~/.hf) COMMIT=0123456789abcdef0123456789abcdef01234567\n",
    ),
]


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case[0]}-{index}" for index, case in enumerate(CASES)]
)
def test_a_near_miss_is_silent(case: tuple[str, ...]) -> None:
    id_, text, *file = case
    assert id_ in IDS
    assert [one for one in lint(text, file[0] if file else "/x/x.sbatch") if one.id == id_] == []


def test_a_comment_leaves_findings_out() -> None:
    text = HEAD + "{}export PYTHONBUFFERED=1 MASTER_PORT=29500{}\nexport PYTHONBUFFERED=2\n"

    def found(above: str, behind: str) -> list[tuple[int | None, str]]:
        return sorted((one.line, one.id) for one in lint(text.format(above, behind), "x"))

    port, first, second = (3, "fixed-port"), (3, "pythonbuffered"), (4, "pythonbuffered")
    assert found("", "") == [port, first, second]
    assert found("", "  # hpctrain: ignore=pythonbuffered") == [port, second]
    assert found("", "  # hpctrain: ignore=fixed-port,pythonbuffered") == [second]
    assert found("# hpctrain: ignore=pythonbuffered,fixed-port\n", "") == [(5, second[1])]


def test_a_rule_is_silent_where_the_version_of_slurm_is_another() -> None:
    text = "#!/bin/bash\n#SBATCH --time=1 --cpus-per-task=4\nsrun python t.py\n"
    versions = (None, "21.08.8", "22.05", "23.02.7", "23.11.1", "26.05")
    assert [len(lint(text, "x", version)) for version in versions] == [1, 0, 1, 1, 0, 0]
    text = (
        "#!/bin/bash\n#SBATCH --time=1 --gres=gpu:2 --gpus-per-node=2 -c 8\nsrun -c 8 python t.py\n"
    )
    found = [lint(text, "x", version) for version in (None, "24.11", "26.05")]
    assert [[one.level for one in each] for each in found] == [["warning"], [], ["error"]]


LAUNCH = "srun torchrun --standalone t.py &\nwait $!\n"


@pytest.mark.parametrize(
    ("id_", "text", "level"),
    [
        # bash only warns, and takes the rest of the file for the body.
        ("unreadable-shell", HEAD + "python - <<EOF\nimport t\n", "warning"),
        ("unreadable-shell", HEAD + "x=$(python - <<EOF\nimport t\n", "error"),
        ("usr1-kills-launcher", HEAD + f"scancel -s USR1 7\n{LAUNCH}", "error"),
        (
            "more-processes-than-gpus",
            TWO
            + "srun accelerate launch --num_machines 2 --num_processes 6 --config_file c t.py\n",
            "warning",
        ),
        ("log-overwritten", HEAD + "#SBATCH --array=1-3 --output=a.log\npython t.py\n", "warning"),
        ("log-overwritten", HEAD + "#SBATCH --output=%a.log\npython t.py\n", "note"),
        ("exit-code-lost", HEAD + "trap 'exit $?' USR1\npython t.py\necho\n", "warning"),
    ],
)
def test_an_error_is_certain(id_: str, text: str, level: str) -> None:
    assert [one.level for one in lint(text, "x") if one.id == id_] == [level]


def test_the_worst_finding_comes_first() -> None:
    text = "#!/bin/bash\n#SBATCH --gpus=1\n#SBATCH --mem=8Gs\npython t.py\necho done\n"
    assert [one.level for one in lint(text, "x")] == ["error", "warning", "note"]
