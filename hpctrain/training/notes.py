"""What a person should know before the first step, said behind the table of the first lines (hpctrain.training.start_callback).

It is found earlier: while options are read and the Trainer is built. Kept until then, so that a log begins with its table; where the
training ends before there is a table, it is said at that end.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from hpctrain.training.process import say

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

MARK = "[train] "
WIDTH = 80


class Notes(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """See the module. What is added is said once, by `say`: at the latest when the training begins, or when a `with` of it ends.

    `add` on rank 0 only: each process says what it holds.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []

    def add(self, *texts: str) -> None:
        """Keep texts, without their mark."""
        self._texts += texts

    def say(self) -> None:
        """Write what is kept, in lines of 80 columns."""
        texts, self._texts = self._texts, []
        for text in texts:
            for line in textwrap.wrap(text, WIDTH - len(MARK), subsequent_indent="  ", break_on_hyphens=False):
                say(f"{MARK}{line}")

    def on_train_begin(self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """Say it, where nothing else has."""
        self.say()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.say()
