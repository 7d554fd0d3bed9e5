"""The options of the classifier's training that neither TRL nor transformers has."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ClassifyArguments:
    """Our own options for training a classifier of timelines."""

    from_scratch: bool = field(
        default=False, metadata={"help": "Take config.json alone from the model's folder, and begin with random weights."}
    )
    label_column: str | None = field(default=None, metadata={"help": "The column of the labels. Default: label, or labels."})
    class_names: list[str] | None = field(
        default=None, metadata={"help": "Names of the classes in the order of their numbers. Default: what the dataset says."}
    )
    class_weights: str = field(
        default="none", metadata={"help": "none, or balanced: each class counts in the loss as if all had as many rows.",
                                  "choices": ["none", "balanced"]},
    )  # fmt: skip
    pad_token_id: int | None = field(
        default=None, metadata={"help": "The id that pads the rows. Default: what the dataset says, else the model's config.json."}
    )
    max_events: int | None = field(
        default=None, metadata={"help": "Keep the last so many events of a longer row, in training and evaluation."}
    )
    random_truncation: float = field(
        default=0.0, metadata={"help": "Cut a training row to a random length with this probability, differently in each epoch."}
    )
    min_events: int = field(default=1, metadata={"help": "Of a row that is cut at random, keep at least so many events."})
    truncation_keeps: str = field(
        default="start", metadata={"help": "What stays of it: start (as if it was seen earlier), or a window from anywhere.",
                                   "choices": ["start", "window"]},
    )  # fmt: skip
