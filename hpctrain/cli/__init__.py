"""The command line: one file per verb, and the only place that prints or exits.

This module stays light, because every call pays for it: a verb's module is imported when that verb is called.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import shlex
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from hpctrain import __version__
from hpctrain.errors import HpctrainError

INTERRUPTED = 130
#: Verb → first line of its help, in the order of the everyday path. The function is `command` in hpctrain/cli/VERB.py, `_` for `-`.
VERBS = {
    "init": "Write config.yaml for this cluster, asking only what cannot be found out.",
    "doctor": "Look whether this machine, the environment and (--job) the nodes are fit for training.",
    "prepare": "Make data ready for training: text in, tokens and masks out.",
    "sync": "Bring this project to the cluster, by rsync over ssh.",
    "fit": "Work out what memory and time a job needs, and which layouts fit.",
    "check": "Find what would go wrong, before the job queues.",
    "lint": "Find what is wrong in any sbatch script, line by line.",
    "render": "Write the sbatch script.",
    "sweep": "Show the points of a sweep before they become jobs.",
    "tune": "Search for good training arguments: an optuna study as an array job.",
    "submit": "Submit the script to Slurm, or run it on this machine.",
    "resubmit": "Submit again what is missing or failed of NAME: a run, a sweep or stages.",
    "ps": "List my jobs, on Slurm and on this machine.",
    "watch": "Show what a run does, live: progress, loss, memory of every GPU, warnings.",
    "logs": "Show the logs of a job as one; -f follows them.",
    "explain": "Say why a job failed, and what to type.",
    "report": "Write a page about a run, or compare the points of a sweep.",
    "notify": "Tell somebody how a run ended; without RUN, try whether that works.",
    "cancel": "Cancel jobs.",
    "runs": "List, show, drop, export and import runs.",
    "checkpoints": "List, verify, drop, export and import checkpoints.",
    "merge": "Merge a LoRA adapter into its base model, and verify it by loading.",
    "explain-script": "Say of each line of a script why it is there.",
    "docs": "Print the page of a finding, or of a diagnosis.",
    "clusters": "List the known clusters; `clusters show NAME` says what is known, and from where.",
}


class LazyGroup(click.Group):
    """A group that imports a verb's module only when the verb is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of the everyday path."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb; while the group's own help is shown, a stand-in that knows the help line alone."""
        if cmd_name not in VERBS:
            return None
        if ctx.resilient_parsing or ctx.meta.get("hpctrain.listing"):
            return click.Command(cmd_name, short_help=VERBS[cmd_name])
        command: click.Command = importlib.import_module(f"hpctrain.cli.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs without importing them."""
        ctx.meta["hpctrain.listing"] = True
        try:
            super().format_commands(ctx, formatter)
        finally:
            ctx.meta.pop("hpctrain.listing")

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or name the nearest one."""
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            import difflib

            close = difflib.get_close_matches(name, VERBS, n=1)
            hint = f"hpctrain {close[0]}" if close else "hpctrain --help"
            raise HpctrainUsage(f"there is no verb {name!r}", hint)
        return super().resolve_command(ctx, args)


class HpctrainUsage(click.UsageError):
    """A usage error that knows what to type instead."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="hpctrain %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Correct, monitored, restartable training jobs on Slurm clusters.

    The everyday path: hpctrain init, doctor, prepare, fit, check, render, submit, watch, explain, report.
    """
    ctx.meta["hpctrain.debug"] = debug


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 ok, 1 failed, 2 usage or config error, 3 scheduler unreachable, 130 interrupted."""
    # A short-lived process that imports a lot: collecting while it does takes a tenth of the time, and finds nothing. What lives
    # longer (hpctrain.cli.follow) switches it on again.
    gc.disable()
    words = sys.argv[1:] if arguments is None else arguments
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may hold bytes that are no UTF-8
            stream.reconfigure(errors="surrogateescape")
    try:
        # Not `cli.main`, which ends a program whose reader went away with 1.
        with cli.make_context("hpctrain", list(words)) as ctx:
            result: Any = cli.invoke(ctx)
        sys.stdout.flush()
        code = result if isinstance(result, int) else 0
    except click.exceptions.Exit as ended:  # --help and --version
        code = ended.exit_code
    except BrokenPipeError:
        # The reader went away (`| head`): nobody is left to tell, and Python's own flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except (Exception, KeyboardInterrupt) as error:
        ours = words[: words.index("--")] if "--" in words else words
        if "--debug" in ours and not isinstance(error, click.ClickException | click.Abort | KeyboardInterrupt):
            import traceback

            traceback.print_exception(error)
        message, code = _explain(error, words)
        if code == INTERRUPTED:
            import atexit
            import signal

            # A second Ctrl-C, while Python ends, changes nothing of how it ended.
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        sys.stderr.write(message + "\n")
    sys.exit(code)


def _open_closed_streams() -> None:
    """Give the program the streams that its caller closed (`>&-`); Python has None for them, and a file would get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - as long as the program


def _explain(error: BaseException, words: list[str]) -> tuple[str, int]:
    """Return what to tell a person about `error`, and the exit code."""
    verb = next((word for word in words if word in VERBS), None)
    help_ = " ".join(["hpctrain", *([verb] if verb else []), "--help"])
    match error:
        case HpctrainError():
            return error.render(), error.exit_code
        case click.exceptions.NoArgsIsHelpError():
            return error.format_message(), 2
        case click.ClickException():
            fix = error.fix if isinstance(error, HpctrainUsage) else help_
            return HpctrainError(_lower(error.format_message()), fix=fix).render(), error.exit_code
        case click.Abort() | KeyboardInterrupt():
            return "interrupted", INTERRUPTED
        case OSError():
            place = (str(error.filename),) if error.filename else ()
            return HpctrainError(_lower(error.strerror or str(error)), details=place, fix=_look_at(error)).render(), 1
    what = f"this is a mistake in hpctrain: {type(error).__name__}: {error}"
    return HpctrainError(what, fix=f"report it with the output of: hpctrain --debug {shlex.join(words)}").render(), 1


def _look_at(error: OSError) -> str:
    """Return the command that shows why a file system refused."""
    import errno

    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "."
    if error.errno == errno.ENOTDIR:  # which of the directories above is none?
        return f"namei -l {shlex.quote(path)}"
    listed = f"ls -ld {shlex.quote(path)}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"df -h {shlex.quote(str(Path(path).parent))}"
    return listed if path != "." else f"df -h . && {listed}"


def _lower(message: str) -> str:
    first = message.rstrip(".")
    return first[:1].lower() + first[1:]
