"""The words of a training's command line mean one thing to every command that reads them."""

import pytest

from hpctrain.config.arguments import Arguments
from hpctrain.config.spec import JobSpec
from hpctrain.util.shell import options_of


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--lora_target_modules q_proj v_proj", "lora_target_modules", "q_proj v_proj"),
        ("--report_to wandb tensorboard --bf16", "report_to", "wandb tensorboard"),
        ("--report_to wandb tensorboard --bf16", "bf16", "true"),
        ("--learning-rate=1e-5 --learning-rate 2e-5", "learning_rate", "2e-5"),
    ],
)
def test_arguments_are_read_as_fit_reads_them(words: str, name: str, value: str) -> None:
    arguments = Arguments(JobSpec(job_name="a", chdir="/", arguments=tuple(words.split())))
    assert arguments.get(name) == value
    read = options_of(words.split())[name]
    assert set(arguments.names) == set(options_of(words.split()))
    assert value == ("true" if read is True else read if isinstance(read, str) else " ".join(read))
