"""Where things lie in `runs/`, and the words that the job script, the training and the command line share.

runs/RUN_ID/                     one run: what one training does until it is done, over restarts and resubmissions
    run.json                     who it is: written once, by `hpctrain submit` or by the job script at its first start
    script.sbatch                the script that ran first
    attempts/ATTEMPT/            one start of the job: job id and restart count, and the time where another job had that id before
        start.json, end.json     written by the job script
        exit                     `CODE REASON`, written by rank 0 of the training: launchers hide the exit codes of their processes
        environment.json         what the training ran with: versions, host, GPUs (rank 0)
        metrics.jsonl            what the Trainer logged (rank 0)
        ranks/rank-N.log         what each of several ranks wrote (hpctrain/training/rank_log.py); the job's log has all of it too
    memory/rank-N.jsonl          samples of the MemoryCallback
    tracker.json, wandb/, tensorboard/   of the trackers, where there are any: a restart goes on with the same tracker run
    checkpoints/checkpoint-N/    each with its manifest, CHECKPOINT_MANIFEST; hpctrain-training.json and hpctrain-rank-N.pt hold what
                                 the Trainer's own files leave out
    model/                       the final weights, with a manifest too
    fit.json                     memory and speed as predicted and as measured (hpctrain/runs/predicted.py; rank 0)
    evaluation.json              what an evaluation-only run measured (rank 0)
    bad-batch/step-N/            what each rank had of a step whose gradient was not finite (hpctrain/training/bad_batch.py)
    launch -> ../.launches/TAG   what `hpctrain submit` wrote down
    over                         of a chain of jobs: the run has ended, and the jobs that still wait have nothing to do
    stop                         somebody wants the run to save and stop: `touch runs/RUN_ID/stop`
runs/.launches/TAG/              one `hpctrain submit`: a run, a sweep or stages (hpctrain/runs/launch.py): the config as resolved, with
                                 where each value came from, scripts, each sbatch, the version of the code, and the code
runs/.sweeps/points-DIGEST.tsv   the table of a sweep's points (hpctrain/jobs/sweep)
runs/.studies/                   studies of `hpctrain tune` (hpctrain/training/study.py); RUN_ID/trial.json says which trial a run is
runs/.code/DIGEST/               a snapshot
runs/.mlflow/                    the experiments of MLflow, where no server is named
runs/.index/                     may be deleted at any time

A name that begins with a dot is never a run.
"""

from __future__ import annotations

import re
from pathlib import Path

RUNS = "runs"
LAUNCHES = ".launches"
SWEEPS = ".sweeps"
CODE = ".code"
INDEX = ".index"

FIT = "fit.json"
"""In a run's directory: what was predicted of it, and measured (hpctrain.runs.predicted)."""
EVALUATION = "evaluation.json"
"""In a run's directory: what an evaluation-only run measured."""
BAD_BATCH = "bad-batch"
"""In a run's directory: the batches of steps whose gradient was not finite (hpctrain.training.bad_batch)."""

CHECKPOINT_MANIFEST = "hpctrain.json"
"""The file whose presence makes a checkpoint count; written last."""

DONE = 0
"""Exit code of a training that has done all of its steps, or that early stopping ended."""
FAILED = 1
"""Exit code of an error, NaN included: no requeue helps."""
REQUEUE = 85
"""Exit code of a training that saved and stopped before it was done, and wants to go on: what the job script requeues for."""
STOPPED = 86
"""Exit code of a training that saved and stopped because somebody asked for it (`runs/RUN_ID/stop`): nothing is requeued."""

RUN_ID_VARIABLE = "HPCTRAIN_RUN_ID"
RUN_DIR_VARIABLE = "HPCTRAIN_RUN_DIR"
ATTEMPT_VARIABLE = "HPCTRAIN_ATTEMPT"
TAG_VARIABLE = "HPCTRAIN_TAG"

#: What a run id, a tag or a stage's name may be: it becomes a file name, a word of bash and a comment of Slurm.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}\Z")


def attempt_name(job_id: str, restart: int) -> str:
    """Return the name of an attempt's directory: `JOB_ID.RESTART`, where an array task has a job id of its own (SLURM_JOB_ID).

    Slurm begins again with small ids one day (MaxJobId, or a new state directory). Where the run has that directory from an earlier job,
    the job script appends its time in seconds since the epoch: `JOB_ID.RESTART.AT` (templates/_macros.j2).
    """
    return f"{job_id}.{restart}"


def run_id(tag: str, *, stage: str | None = None, index: int | None = None) -> str:
    """Return the id of a run: the tag of its launch, with the stage's name or the point's index behind `_`."""
    return "_".join([tag, *([stage] if stage else []), *([str(index)] if index is not None else [])])


def run_dir(runs: Path, run: str) -> Path:
    """Return the directory of a run in the directory `runs`."""
    return runs / run
