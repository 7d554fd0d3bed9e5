"""The training script's arguments as its parser would understand them; what only the parser can know stays unknown."""

from __future__ import annotations

from hpctrain.jobs.spec import JobSpec

#: Where argparse would take the value for an option that stands alone: `--bf16`.
FLAG = "true"


class Arguments:
    """`--name value` and `--name=value` words, the last one winning; dashes in names count as underscores, as HfArgumentParser does."""

    def __init__(self, spec: JobSpec) -> None:
        self._values: dict[str, str] = {}
        words = spec.arguments
        for position, word in enumerate(words):
            if not word.startswith("--") or len(word) == 2:
                continue
            name, equals, value = word[2:].partition("=")
            following = words[position + 1] if position + 1 < len(words) else "--"
            self._values[name.replace("-", "_")] = value if equals else FLAG if following.startswith("--") else following
        #: A file holds more of them, which nobody here has read.
        self.incomplete = "config" in self._values
        #: The training is ours, so that what the arguments mean is known.
        self.ours = spec.script is None
        #: It is the SFT training.
        self.sft = self.ours and spec.task == "sft"

    def get(self, *names: str) -> str | None:
        """Return the value of the first of these options that is given."""
        return next((self._values[name] for name in names if name in self._values), None)

    def says(self, name: str) -> bool | None:
        """Return the truth value of an option; None where it is not given."""
        value = self._values.get(name)
        return None if value is None else value.lower() in {"true", "1", "yes", "y", "t", "on"}

    @property
    def names(self) -> tuple[str, ...]:
        """The options that are given."""
        return tuple(self._values)
