"""The command line, and the only place that prints or exits: the options of COMMAND and what it does
are in actions/COMMAND.py, those of `runs` and `checkpoints` in manage.py.

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
from collections.abc import Iterable
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
#: Commands that are not in a module of their own in actions/.
_MANAGE = ("runs", "checkpoints")
VERBS = {name: line for commands in GROUPS.values() for name, line in commands.items()}


class CommandGroup(click.Group):
    """Suggests the nearest command, and refuses options as values."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest the nearest one."""
        if args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            fix = shlex.join([*close, *args[1:]] if close else ["--help"])
            raise UsageError(f"unknown command {args[0]!r}", fix=f"{ctx.command_path} {fix}")
        name, command, rest = super().resolve_command(ctx, args)
        # click would accept `--force` as the value in `--to --force`.
        options = command.get_params(ctx) if command is not None else []
        names = {name for each in options for name in (*each.opts, *each.secondary_opts)}
        valued = {
            name
            for each in options
            if isinstance(each, click.Option) and not each.is_flag
            for name in each.opts
        }
        for word, value in itertools.pairwise(itertools.takewhile(lambda word: word != "--", rest)):
            if word in valued and value in names:
                raise UsageError(
                    f"{word} needs a value, and the option {value} follows it",
                    fix=f"{ctx.command_path} {name} --help",
                )
        return name, command, rest


class _LazyGroup(CommandGroup):  # imports a command's module only when the command is called
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in VERBS:
            return None
        module, name = f"actions.{cmd_name}", "command"
        if cmd_name in _MANAGE:
            module, name = "manage", cmd_name
        return cast(click.Command, getattr(importlib.import_module(f"hpctrain.cli.{module}"), name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        width = max(map(len, VERBS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in commands.items()])


class _HelpFormatter(click.HelpFormatter):
    """Keeps `--cpus-per-task` in one piece: click wraps at hyphens."""

    def write_text(self, text: str) -> None:
        """Write a paragraph."""
        super().write_text(text.replace("-", "\N{NON-BREAKING HYPHEN}"))

    def write_dl(self, rows: Iterable[tuple[str, str]], *args: int, **options: int) -> None:
        """Write options or commands with their descriptions."""
        super().write_dl(
            [(name, line.replace("-", "\N{NON-BREAKING HYPHEN}")) for name, line in rows],
            *args,
            **options,
        )

    def getvalue(self) -> str:
        """Return the help with normal hyphens."""
        return super().getvalue().replace("\N{NON-BREAKING HYPHEN}", "-")


click.Context.formatter_class = _HelpFormatter


@click.group(
    cls=_LazyGroup,
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
    # Python sets streams that the caller closed (`>&-`) to None, and the next opened file would get
    # their descriptors.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open until the program exits
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may contain bytes that are not UTF-8
            # click would write past `Border` to a stream in ASCII.
            is_ascii = (stream.encoding or "").lower() in ("ascii", "us-ascii", "ansi_x3.4-1968")
            stream.reconfigure(
                encoding="utf-8" if is_ascii else stream.encoding, errors="surrogateescape"
            )
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
            is_named = isinstance(error.filename, str | bytes)
            path = os.fsdecode(error.filename) if is_named else "."
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            shown = HpctrainError(
                (error.strerror or str(error)).lower(),
                details=(path,) if is_named else (),
                fix=f"df -h {shlex.quote(str(Path(path).parent))}"
                if is_full
                else f"ls -ld {shlex.quote(path)}",
            )
        case _:
            shown = HpctrainError(
                f"this is a mistake in hpctrain: {type(error).__name__}: {error}",
                hint=f"report it with the output of: hpctrain --debug {shlex.join(words)}",
            )
    return shown.render(), shown.exit_code


def _usage_error(error: click.ClickException, words: list[str]) -> UsageError:
    path = getattr(getattr(error, "ctx", None), "command_path", None)
    fix = f"{path or 'hpctrain'} --help"
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        typed, close = error.option_name, error.possibilities[0]
        message = f"no such option {typed!r}; did you mean {close!r}?"
        names = [word.partition("=")[0] for word in words]
        if typed in names:
            at = names.index(typed)
            corrected = close + words[at].removeprefix(typed)
            fix = shlex.join(["hpctrain", *words[:at], corrected, *words[at + 1 :]])
    return UsageError(message[:1].lower() + message[1:], fix=fix)
