"""The command line, and the only place that prints or exits: the options of the commands are in a
module for each group of the help, and what COMMAND does is in actions/COMMAND.py.

This module stays small, because every call loads it: the others are imported when a command is
called.
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import itertools
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

import click

from hpctrain import __version__
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.terminal import Border

INTERRUPTED = 130
_COMPLETE = "_HPCTRAIN_COMPLETE"
#: Title → command → first line of its help.
GROUPS = {
    "Set up": {
        "init": "Create config.yaml for this cluster.",
        "doctor": "Check this machine and environment and, with --job, the nodes.",
        "sync": "Upload the project to a cluster with rsync.",
        "clusters": "List cluster profiles.",
    },
    "Prepare and validate": {
        "prepare": "Tokenize, mask and pack a dataset.",
        "fit": "Estimate GPU memory and training time.",
        "check": "Validate a job before submitting it.",
        "lint": "Lint or explain sbatch scripts.",
    },
    "Run": {
        "render": "Generate the sbatch script.",
        "submit": "Submit a job to Slurm, or run it locally.",
        "resubmit": "Resubmit the failed or missing jobs of a run or sweep.",
        "cancel": "Cancel jobs.",
        "tune": "Run a hyperparameter search with Optuna.",
    },
    "Monitor and debug": {
        "ps": "List jobs, their progress and pending reasons.",
        "watch": "Show live progress, loss and GPU memory.",
        "logs": "Show the merged logs of all ranks.",
        "explain": "Diagnose a failed job and suggest a fix.",
        "report": "Create an HTML report of a run or sweep.",
    },
    "Manage results": {
        "runs": "Manage runs.",
        "checkpoints": "Manage checkpoints.",
    },
}
#: The module of each group; the functions have the names of the commands.
_MODULES = ("set_up", "validate", "run", "monitor", "manage")
VERBS = {name: line for commands in GROUPS.values() for name, line in commands.items()}


class HpctrainUsage(click.UsageError):
    """A usage error with a suggested command."""

    def __init__(self, message: str, fix: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.fix = fix
        self.hint = hint


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command is called.

    Args:
        groups: title → command → first line of its help.
        lazy: command → its module in hpctrain.cli and the attribute there.
    """

    def __init__(
        self,
        *args: Any,
        groups: Mapping[str, Mapping[str, str]],
        lazy: Mapping[str, tuple[str, str]],
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self._groups, self._lazy = groups, lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which they are used."""
        del ctx
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        del ctx
        if cmd_name not in self._lazy:
            return None
        module, attribute = self._lazy[cmd_name]
        return cast(
            click.Command, getattr(importlib.import_module(f"hpctrain.cli.{module}"), attribute)
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest the nearest one."""
        if args[0] not in self._lazy and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], self._lazy, n=1)
            fix = shlex.join([*close, *args[1:]] if close else ["--help"])
            raise HpctrainUsage(f"unknown command {args[0]!r}", f"{ctx.command_path} {fix}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            _refuse_swallowed(ctx, f"{ctx.command_path} {name}", command, rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their groups, without importing them."""
        del ctx
        width = max(map(len, self._lazy))
        for title, commands in self._groups.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in commands.items()])


def _refuse_swallowed(
    ctx: click.Context, path: str, command: click.Command, words: list[str]
) -> None:
    """Refuse an option used as the value of another: click would accept `--force` in `--to
    --force`.

    Raises:
        HpctrainUsage: an option follows one that needs a value.
    """
    options = [each for each in command.get_params(ctx) if isinstance(each, click.Option)]
    names = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    valued = {name for option in options if not option.is_flag for name in option.opts}
    for word, value in itertools.pairwise(itertools.takewhile(lambda each: each != "--", words)):
        if word in valued and value in names:
            raise HpctrainUsage(
                f"{word} needs a value, and the option {value} follows it", f"{path} --help"
            )


class _HelpFormatter(click.HelpFormatter):
    """Keeps `--cpus-per-task` in one piece: click wraps at hyphens."""

    def write_text(self, text: str) -> None:
        """Write a paragraph."""
        super().write_text(text.replace("-", "\N{NON-BREAKING HYPHEN}"))

    def write_dl(self, rows: Iterable[tuple[str, str]], *args: int, **options: int) -> None:
        """Write options or commands with their descriptions."""
        whole = [(name, line.replace("-", "\N{NON-BREAKING HYPHEN}")) for name, line in rows]
        super().write_dl(whole, *args, **options)

    def getvalue(self) -> str:
        """Return the help with normal hyphens."""
        return super().getvalue().replace("\N{NON-BREAKING HYPHEN}", "-")


click.Context.formatter_class = _HelpFormatter


@click.group(
    cls=LazyGroup,
    groups=GROUPS,
    lazy={
        name: (module, name)
        for module, commands in zip(_MODULES, GROUPS.values(), strict=True)
        for name in commands
    },
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="hpctrain %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--quiet", is_flag=True, help="Leave out notes and next steps.")
@click.pass_context
def cli(ctx: click.Context, debug: bool, quiet: bool) -> None:
    """Correct, monitored, restartable training jobs on Slurm clusters.

    hpctrain init -> check -> submit -> watch -> explain
    """
    del debug, quiet  # main looks for them anywhere on the command line
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        step = "check" if Path("config.yaml").exists() else "init"
        click.echo(f"\nnext: hpctrain {'watch' if Path('runs').is_dir() else step}")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 ok, 1 failed, 2 usage or config error, 3 scheduler
    unreachable, 130 interrupted.
    """
    # Short-lived processes with many imports: garbage collection during imports takes a tenth of
    # the time, and frees nothing. Long-running commands (hpctrain.cli.follow) enable it again.
    gc.disable()
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may contain bytes that are not UTF-8
            stream.reconfigure(errors="surrogateescape")
    if _COMPLETE in os.environ:
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {}, "hpctrain", _COMPLETE, os.environ[_COMPLETE]))
    ours = words[: words.index("--")] if "--" in words else words
    flags = {"--debug", "--quiet"} & set(ours)
    words = [word for word in ours if word not in flags] + words[len(ours) :]
    if {"-h", "--help"} & set(ours):  # never the value of an option
        words = [*itertools.takewhile(lambda word: not word.startswith("-"), words), "--help"]
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Border(sys.stdout), Border(sys.stderr, quiet="--quiet" in flags)
    try:
        # Not `cli.main`, which exits with 1 if the reader has closed the pipe.
        with cli.make_context("hpctrain", list(words)) as ctx:
            result: Any = cli.invoke(ctx)
        sys.stdout.flush()
        code = result if isinstance(result, int) else 0
    except click.exceptions.Exit as ended:  # --help and --version
        code = ended.exit_code
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`): exit silently, also in Python's final flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in flags and not isinstance(
            error, click.ClickException | click.Abort | KeyboardInterrupt
        ):
            import traceback

            traceback.print_exception(error)
        message, code = _explain(error, words)
        if code == INTERRUPTED:
            import atexit
            import signal

            # Ignore a second Ctrl-C while Python exits, so that the exit code stays the same.
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        sys.stderr.write(message + "\n")
    finally:
        sys.stdout, sys.stderr = streams
    sys.exit(code)


def _open_closed_streams() -> None:
    """Reopen streams that the caller closed (`>&-`): Python sets them to None, and the next opened
    file would get their descriptors.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open until the program exits


def _explain(error: BaseException, words: list[str]) -> tuple[str, int]:
    match error:
        case click.Abort() | KeyboardInterrupt():
            return "interrupted", INTERRUPTED
        case click.exceptions.NoArgsIsHelpError():
            return error.format_message(), 2
        case HpctrainError():
            shown = error
        case click.ClickException():
            shown = _usage_error(error, words)
        case OSError():
            place = (str(error.filename),) if error.filename else ()
            what = _lower(error.strerror or str(error))
            shown = HpctrainError(what, details=place, fix=_look_at(error))
        case _:
            shown = HpctrainError(
                f"this is a mistake in hpctrain: {type(error).__name__}: {error}",
                hint=f"report it with the output of: hpctrain --debug {shlex.join(words)}",
            )
    return shown.render(), shown.exit_code


def _usage_error(error: click.ClickException, words: list[str]) -> UsageError:
    verb = next((word for word in words if word in VERBS), None)
    path = getattr(getattr(error, "ctx", None), "command_path", None)
    fix = f"{path or shlex.join(['hpctrain', *([verb] if verb else [])])} --help"
    match error:
        case HpctrainUsage():
            return UsageError(_lower(error.message), fix=error.fix, hint=error.hint)
        case click.NoSuchOption(option_name=typed, possibilities=[close, *_]):
            names = [word.partition("=")[0] for word in words]
            if typed in names:
                at = names.index(typed)
                corrected = close + words[at].removeprefix(typed)
                fix = shlex.join(["hpctrain", *words[:at], corrected, *words[at + 1 :]])
            return UsageError(f"no such option {typed!r}; did you mean {close!r}?", fix=fix)
    return UsageError(_lower(error.format_message()), fix=fix)


def _look_at(error: OSError) -> str:
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"df -h {shlex.quote(str(Path(path).parent))}"
    return f"ls -ld {shlex.quote(path)}" if path != "." else "df -h . && ls -ld ."


def _lower(message: str) -> str:
    first = message.rstrip(".")
    return first[:1].lower() + first[1:]
