"""`hpctrain prepare`: create a tokenized dataset or a demo, or show examples with their masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from hpctrain.cli.options import json_option

_FORMS = ("text", "prompt-completion", "messages", "alpaca")


def _fraction(_context: click.Context, _parameter: click.Parameter, word: str | None) -> Any:
    """Return a number of examples, or a fraction below 1."""
    if word is None:
        return None
    try:
        value = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not (0 <= value < 1 or (value.is_integer() and 1 <= value < 1e15 and "%" not in word)):
        raise click.BadParameter(
            f"{word!r} is neither a number of examples nor a fraction: use 500 or 0.05"
        )
    return value


def _pairs(_context: click.Context, parameter: click.Parameter, words: Sequence[str]) -> Any:
    pairs: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not (name and value) or name in pairs:
            raise click.BadParameter(f"{word!r} is not {parameter.metavar}, once for each name")
        pairs[name] = value
    return pairs


@click.command()
@click.argument("data", nargs=-1, metavar="[DATA]...")
@click.option(
    "--model",
    metavar="DIR",
    help="Model whose tokenizer is used. Default: the config's.",
)
@click.option("--to", metavar="DIR", help="Output directory. Default: dataset_name in the config.")
@click.option(
    "--form",
    type=click.Choice(_FORMS),
    help="Dataset format. Default: detected from the columns.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    callback=_pairs,
    metavar="ROLE=NAME",
    help="Column of a role (text, prompt, completion, messages ...).",
)
@click.option(
    "--text-unit",
    type=click.Choice(("line", "block", "file")),
    help="What one example of a text file is.",
)
@click.option(
    "--loss-on",
    type=click.Choice(("all", "completion", "assistant")),
    help="Tokens to train on. Default: the form's.",
)
@click.option(
    "--max-length",
    type=click.IntRange(2),
    metavar="N",
    help="Tokens of an example, and of a packed sequence. Default: the config's.",
)
@click.option(
    "--truncation",
    type=click.Choice(("keep_start", "drop")),
    default="keep_start",
    show_default=True,
    help="How longer examples are truncated.",
)
@click.option(
    "--pack/--no-pack",
    default=None,
    help="Pack several examples into one sequence. Default: --pack.",
)
@click.option(
    "--validation",
    callback=_fraction,
    metavar="X",
    help="Validation split: 500 examples, a fraction 0.05, or 0. Default: 0.05, at most 2000.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed of the validation split, and of the order of packed sequences.",
)
@click.option("--template", metavar="FILE", help="Chat template. Default: the tokenizer's.")
@click.option(
    "--template-option",
    "template_options",
    multiple=True,
    callback=_pairs,
    metavar="NAME=VALUE",
    help="Variable of the template.",
)
@click.option("--system", metavar="TEXT", help="System prompt for conversations without one.")
@click.option(
    "--as-chat",
    is_flag=True,
    help="Turn prompt and completion strings into a conversation.",
)
@click.option("--no-eos", is_flag=True, help="Do not append the EOS token to examples.")
@click.option("--trust-remote-code", is_flag=True, help="Run the tokenizer's own Python code.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Number of processes. Default: all cores, as memory allows.",
)
@click.option(
    "--show",
    type=click.IntRange(1),
    metavar="N",
    help="Print N examples with unmasked tokens marked; write nothing.",
)
@click.option("--force", is_flag=True, help="Overwrite a dataset that prepare wrote at --to.")
@click.option(
    "--config",
    metavar="FILE",
    help="Job config to take defaults from. Default: ./config.yaml, if there is one.",
)
@json_option
@click.option(
    "--demo",
    metavar="DIR",
    help=(
        "Make DIR with a small model, data from the standard library's docstrings, and a job"
        " config."
    ),
)
def command(
    demo: str | None, data: tuple[str, ...], show: int | None, as_json: bool, **options: Any
) -> None:
    """Tokenize, mask and pack a dataset.

    Run it once, on the login node; a training only loads the result. DATA are files (JSONL, JSON,
    CSV, Parquet, text), directories of them, or directories of `save_to_disk`.
    The same command continues after an interruption. With --show, DATA may also be a prepared
    dataset. --demo makes model, data and job config from Python's own sources. stdout is the
    directory.

    \b
    hpctrain prepare chats.jsonl --model models/my_model --show 3
    hpctrain prepare chats.jsonl --model models/my_model --to data/chats
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import prepare

    if demo is not None:
        prepare.make_demo(demo, data)
    elif show is not None:
        prepare.show(data, options, count=show, as_json=as_json)
    else:
        prepare.run(data, options, as_json=as_json)
