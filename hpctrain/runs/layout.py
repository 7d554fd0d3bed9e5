"""The layout of `runs/`, and the names and exit codes shared by the job script, the training and
the command line.

runs/RUN_ID/                  one run: a training over all restarts and resubmissions
    run.json                  its description, written once by `hpctrain submit` or the first start
    script.sbatch             the first script that ran
    attempts/ATTEMPT/         one start of the job: SLURM_JOB_ID.RESTART, and `.TIME` if Slurm has
                              given out the job id a second time (templates/job.sh)
        start.json, end.json  written by the job script
        exit                  `CODE REASON`, by rank 0, because launchers hide exit codes
        environment.json      versions, host and GPUs of the training (rank 0)
        metrics.jsonl         what the Trainer logged (rank 0; hpctrain/runs/metrics.py)
        ranks/rank-N.log      output of each rank, if several; also in the job's log
    memory/rank-N.jsonl       samples of the MemoryCallback
    wandb/, tensorboard/
                              files of the trackers; a restart continues the same tracker run
    checkpoints/checkpoint-N/ each with its manifest; hpctrain-training.json and
                              hpctrain-rank-N.pt have what the Trainer's files lack
    model/                    the final weights, with a manifest too
    fit.json                  memory and speed, predicted and measured (rank 0; predicted.py)
    evaluation.json           metrics of an evaluation-only run (rank 0)
    launch -> ../.launches/TAG
                              what `hpctrain submit` recorded
    compile-cache/            compiled kernels for its next start (templates/job.sh)
    over                      the run of a chain has ended; jobs still pending do nothing
    stop                      request to save and stop: `touch runs/RUN_ID/stop`
    trial.json                the run's trial in a study
runs/.launches/TAG/           one `hpctrain submit`: a run, a sweep or stages (launch.py)
runs/.sweeps/points-DIGEST.tsv
                              the parameter table of a sweep (hpctrain/config/sweep.py)
runs/.studies/                studies of `hpctrain tune` (hpctrain/training/study.py)
runs/.code/DIGEST/            a snapshot of the code (hpctrain/runs/code.py)
runs/.mlflow/                 MLflow's experiments, if no server is set

Names that begin with a dot are never runs.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

#: The states of a run (hpctrain.runs.job_state).
STATES = ("pending", "running", "completed", "failed", "stopped", "unknown")
RUNS = "runs"
LAUNCHES = ".launches"
SWEEPS = ".sweeps"
CODE = ".code"

#: In a run's directory: predicted and measured memory and speed (hpctrain.runs.predicted).
FIT = "fit.json"
#: In a run's directory: metrics of an evaluation-only run.
EVALUATION = "evaluation.json"

#: The file that marks a checkpoint as complete; written last.
CHECKPOINT_MANIFEST = "hpctrain.json"
#: In a checkpoint: the files that a verification found changed since the save.
CHECKPOINT_DAMAGE = "hpctrain-damage.json"

#: Exit code of a training that has done all steps, or was ended by early stopping.
DONE = 0
#: Exit code of an error, including NaN, that a requeue would not fix.
FAILED = 1
#: Exit code of a training that saved and stopped before it was done; the job script requeues it.
REQUEUE = 85
#: Exit code of a training that saved and stopped at the user's request (`runs/RUN_ID/stop`); it is
#: not requeued.
STOPPED = 86

RUN_ID_VARIABLE = "HPCTRAIN_RUN_ID"
RUN_DIR_VARIABLE = "HPCTRAIN_RUN_DIR"
ATTEMPT_VARIABLE = "HPCTRAIN_ATTEMPT"
TAG_VARIABLE = "HPCTRAIN_TAG"
#: Where the training reads its dataset: the node-local copy, if one was made.
DATA_VARIABLE = "HPCTRAIN_DATA"

#: Valid run ids, tags and stage names: they become file names, words in bash and Slurm comments.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}\Z")


def run_id(tag: str, *, stage: str | None = None, index: int | None = None) -> str:
    """Return the id of a run: the tag of its launch, and `_STAGE` or `_INDEX` if given."""
    return "_".join(
        [tag, *([stage] if stage else []), *([str(index)] if index is not None else [])]
    )


def in_runs_dir(command: str, runs_dir: Path) -> str:
    """Return a command on runs, with the option for the runs directory if that is not ./runs."""
    if runs_dir.absolute() == Path(RUNS).absolute():
        return command
    return f"{command} --runs-dir {shlex.quote(str(runs_dir))}"
