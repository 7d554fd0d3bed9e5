"""The commands of the group `Prepare and validate`: their options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from hpctrain.cli.options import (
    JobCommand,
    job_options,
    json_option,
    request_with_config,
)
from hpctrain.finding import LEVELS, Level

# -- prepare ---------------------------------------------------------------------------------------

_FORMS = ("text", "prompt-completion", "messages", "alpaca")


def _fraction(_context: click.Context, _parameter: click.Parameter, word: str | None) -> Any:
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
def prepare(
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


# -- fit -------------------------------------------------------------------------------------------


@click.command(cls=JobCommand)
@click.argument("config_file", required=False, metavar="[CONFIG]")
@job_options
@click.option(
    "--gpu",
    metavar="NAME",
    help="The GPU, such as h100, a100-80gb, mi250x. Default: that of the cluster's profile.",
)
@click.option(
    "--gpu-memory",
    metavar="SIZE",
    help="Memory of each GPU, such as 80G, where the name does not say it.",
)
@click.option(
    "--model", metavar="FOLDER", help="Directory with config.json. Default: model_name_or_path."
)
@click.option("--all", "every", is_flag=True, help="Show every layout that fits, not only ten.")
@json_option
@click.pass_context
def fit(ctx: click.Context, /, config_file: str | None, **parameters: Any) -> int:
    """Estimate GPU memory and training time.

    The job of CONFIG (./config.yaml) and of these options is worked out from the model's
    config.json alone: the peak of each GPU by part, the host memory of each node, and the layouts
    that fit on the cluster's GPUs with the same global batch, fastest first. Nothing is downloaded,
    queued or imported. Exit code 1 where the asked layout does not fit.

    \b
    hpctrain fit
    hpctrain fit --gpu h100 --gpus 4 --model models/llama
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import fit

    asked = request_with_config(ctx, config_file, parameters, for_others="hpctrain fit --model")
    return fit.run(asked, parameters)


# -- check -----------------------------------------------------------------------------------------


@click.command(cls=JobCommand)
@click.argument("config_file", required=False, metavar="[CONFIG]")
@job_options
@click.option("--no-slurm", is_flag=True, help="Do not query Slurm.")
@click.option(
    "--show-origin",
    is_flag=True,
    help="Show each value, its origin, and what it overrides.",
)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="note",
    show_default=True,
    help="Show findings of this level and above.",
)
@json_option
@click.pass_context
def check(ctx: click.Context, /, config_file: str | None, **parameters: Any) -> int:
    """Validate a job before submitting it.

    The job of CONFIG (./config.yaml) and of these options is compared with the cluster's profile,
    with Slurm's configuration, and with the files and the environment that it will use; last, with
    sbatch --test-only. Nothing is submitted or written. Exit code 1 with findings of level error.

    \b
    hpctrain check
    hpctrain check --nodes 2 --gpus 4 --time 24:00:00
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import check

    others = "hpctrain check --script" if str(config_file).endswith(".py") else "hpctrain lint"
    asked = request_with_config(ctx, config_file, parameters, for_others=others)
    return check.run(asked, parameters)


# -- lint ------------------------------------------------------------------------------------------


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--fix", "do_fix", is_flag=True, help="Apply safe fixes, then show the remaining findings."
)
@click.option(
    "--diff",
    is_flag=True,
    help="Show what --fix would change; write nothing. Exit code 1 if there are changes.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Explain FILE line by line: directives, options of srun and the launchers, and what"
    " hpctrain itself wrote; findings are shown below their lines.",
)
@click.option("--sources", is_flag=True, help="With --explain: name the manuals.")
@click.option("--select", metavar="ID,...", help="Only these findings.")
@click.option("--ignore", metavar="ID,...", help="Ignore these findings.")
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="error",
    show_default=True,
    help="Exit with 1 for findings of this level and above.",
)
@click.option(
    "--cluster", metavar="NAME", help="Also compare the directives with this cluster's profile."
)
@json_option
def lint(
    *,
    files: tuple[str, ...],
    do_fix: bool,
    diff: bool,
    explain: bool,
    sources: bool,
    select: str | None,
    ignore: str | None,
    level: Level,
    cluster: str | None,
    as_json: bool,
) -> int:
    """Lint or explain sbatch scripts.

    The scripts are read, never run. FILE may be a directory: its *.sbatch and *.slurm files are
    read, and its *.sh files with directives; - is stdin. A comment on a line, or on one of its own
    above it, leaves findings out: # hpctrain: ignore=ID,ID

    \b
    hpctrain lint job.sbatch
    hpctrain lint --explain job.sbatch
    hpctrain lint --cluster jean_zay colleague.slurm
    hpctrain lint --fix --select dos-line-ends,pythonbuffered scripts/
    """  # noqa: D301 - \b keeps click from wrapping
    from hpctrain.cli.actions import lint

    return lint.run(
        files,
        do_fix=do_fix,
        diff=diff,
        explain=explain,
        sources=sources,
        chosen=(select, ignore),
        level=level,
        cluster=cluster,
        as_json=as_json,
    )
