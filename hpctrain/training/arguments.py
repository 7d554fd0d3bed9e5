"""Our own options of the shipped trainings, which all of them take besides the libraries' own."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class MonitorArguments:
    """Our own options for what the log shows."""

    memory_every: int = field(default=10, metadata={"help": "Steps between two memory samples of each rank; 0 takes none."})
    speed_every: int | None = field(
        default=None, metadata={"help": "Steps between two lines of the speed; by default as logging_steps; 0 writes none."}
    )


@dataclass
class SurvivalArguments:
    """Our own options for starting, stopping and going on."""

    init_from: str | None = field(
        default=None,
        metadata={"help": "Start from these weights, and nothing else of them: a folder, RUN_ID, RUN_ID/checkpoint-40, or stage:NAME."},
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after so many evaluations in a row without a better metric_for_best_model."}
    )
    early_stopping_threshold: float = field(default=0.0, metadata={"help": "How much better counts as better."})
    stop_on_nan: bool = field(default=True, metadata={"help": "End with an error when the gradient norm is NaN or infinite."})
    resume_with_missing_state: bool = field(
        default=False, metadata={"help": "Resume without the optimizer's, the scheduler's or the random numbers' state."}
    )
    resume_with_other_world_size: bool = field(default=False, metadata={"help": "Resume with another number of processes."})
    resume_with_other_data: bool = field(default=False, metadata={"help": "Resume with another dataset."})
    resume_without_manifest: bool = field(default=False, metadata={"help": "Resume a checkpoint that was not saved by hpctrain."})


@dataclass
class ModeArguments:
    """Our own options for what a training does at all."""

    evaluate_only: bool = field(default=False, metadata={"help": "Evaluate the weights on the evaluation split, train nothing, and end."})
    trial: str | None = field(
        default=None, metadata={"help": "The file of a trial of `hpctrain tune`: it names the study that the evaluations are told to."}
    )
