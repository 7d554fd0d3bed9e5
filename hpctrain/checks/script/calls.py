"""What commands start: calls of srun, torchrun, accelerate launch and similar, with their options;
and the texts that one shell passes to another (`bash -c '…'`, a heredoc as input of bash).

An inner text is read again with the offsets of the outer one; the outer shell's expansions stay
marked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from hpctrain.checks.script.model import (
    OptionCall,
    Place,
    Shell,
    ShellWord,
    SimpleCommand,
    Variables,
    WordPiece,
)
from hpctrain.checks.script.reader import SourceText, read_shell
from hpctrain.slurm.notations import directives as slurm

Launcher = Literal["torchrun", "accelerate", "deepspeed"]

#: Programs that run the rest of their line, which may be srun or a launcher.
WRAPPERS = frozenset(
    [
        "exec",
        "nohup",
        "time",
        "command",
        "env",
        "timeout",
        "nice",
        "ionice",
        "stdbuf",
        "numactl",
        "taskset",
        "unbuffer",
        # Functions of hpctrain's own scripts (templates/job.sh).
        "hpctrain_run",
        "hpctrain_wait",
    ]
)
PROGRAMS: dict[str, Launcher] = {
    "torchrun": "torchrun",
    "torchrun_jsc": "torchrun",
    "ft_launcher": "torchrun",
    "accelerate-launch": "accelerate",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
}
_MODULES: dict[str, Launcher] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torchrun_jsc": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
CONTAINERS = frozenset(
    [
        "singularity",
        "apptainer",
        "podman",
        "podman-hpc",
        "docker",
        "shifter",
        "sarus",
        "enroot",
        "ch-run",
    ]
)
_RUNNERS = frozenset(
    [
        "uv",
        "poetry",
        "pixi",
        "conda",
        "mamba",
        "micromamba",
        "nsys",
        "ncu",
        "mpirun",
        "mpiexec",
        "ssh",
        "pdsh",
    ]
)
_REMOTE = frozenset({"ssh", "pdsh", "mpirun", "mpiexec", "clush", "ibrun"})
_TALKERS = frozenset(
    ["echo", "printf", "which", "type", "pip", "grep", "ls", "cat", "test", "[", "[[", "logger"]
)
#: Options of launchers without a value (torch 2.13, accelerate 1.15).
_FLAGS = frozenset(
    [
        "standalone",
        "no_python",
        "run_path",
        "virtual_local_rank",
        "module",
        "m",
        "h",
        "help",
        "cpu",
        "debug",
        "downcast_bf16",
        "dynamo_use_dynamic",
        "dynamo_use_fullgraph",
        "dynamo_use_regional_compilation",
        "enable_cpu_affinity",
        "multi_gpu",
        "no_tpu_cluster",
        "q",
        "quiet",
        "same_network",
        "tpu",
        "tpu_cluster",
        "tpu_use_sudo",
        "use_deepspeed",
        "use_fsdp",
        "use_megatron_lm",
        "use_xpu",
        "mps",
        "use_parallelism_config",
        "fp8_use_autocast_during_eval",
        "use_cpu",
        "use_env",
    ]
)
#: Variables that are 0 in the batch shell, and different in each task.
RANK_VARIABLES = frozenset({"SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"})


@dataclass(slots=True, eq=False, kw_only=True)
class LauncherCall(OptionCall):
    """One call of a launcher; option names have underscores.

    Attributes:
        complete: all options are known; False if a variable may contain more.
        remote: something other than srun (ssh, mpirun) starts it on the nodes.
    """

    kind: Launcher
    complete: bool
    remote: bool


def srun_call(command: SimpleCommand) -> OptionCall | None:
    """Return the srun call in the argv of `command`, possibly after wrappers, or None."""
    argv = command.argv
    prefix = argv[: 8 if argv and argv[0].program in WRAPPERS else 1]
    start = next((at for at, word in enumerate(prefix) if word.program == "srun"), None)
    if start is None:
        return None
    call = OptionCall(command, argv[start], argv[start + 1 :])
    while call.rest and len(call.rest[0].text) > 1 and call.rest[0].text[0] == "-":
        word = call.rest.pop(0)
        if word.text == "--":
            break
        _srun_option(call, word)
    return call


def _srun_option(call: OptionCall, word: ShellWord) -> None:
    if word.text.startswith("--"):
        name, equals, value = word.text[2:].partition("=")
        name, offset = slurm.ALIASES.get(name, name), len(word.text) - len(value)
        takes = not equals and name in slurm.SRUN_WITH_VALUE
    else:
        letter, equals, offset = word.text[1], word.text[2:], 2
        takes = not equals and letter in slurm.SRUN_SHORT_WITH_VALUE
        valued = slurm.SRUN_SHORT_WITH_VALUE | slurm.SRUN_SHORT_OPTIONAL
        name = valued.get(letter, "")
        if not name:  # flags, of which several may be in one word
            name, equals = slurm.SRUN_SHORT_FLAGS.get(letter, letter), ""
    call.words[name], call.options[name] = word, _rest(word, offset) if equals else None
    if takes and call.rest:
        call.options[name] = call.rest.pop(0)


def _rest(word: ShellWord, offset: int) -> ShellWord:
    """Return `word` from the character `offset` of its leading literal parts on."""
    rest = list(word.parts)
    left = offset
    while rest and rest[0].kind == "text" and left >= len(rest[0].text):
        left -= len(rest.pop(0).text)
    if rest and rest[0].kind == "text" and left:
        rest[0] = replace(rest[0], text=rest[0].text[left:], start=rest[0].start + left)
    return ShellWord.of(rest, rest[0].start if rest else word.end, word.end)


def launcher_call(command: SimpleCommand) -> LauncherCall | None:
    """Return the launcher that `command` calls, directly or through srun, a container or another
    wrapper.
    """
    words = command.call.rest if command.call is not None else command.argv
    found = _launcher(words)
    if found is None or words[0].program in _TALKERS:
        return None
    kind, index, after = found
    head = words[0]
    asks = head.program == "command" and words[1].text.startswith("-")
    known = head.program in WRAPPERS | CONTAINERS | _RUNNERS or head.program.startswith("python")
    wraps = command.call or known or set("/=") & set(head.text)
    if asks or (index and not wraps):
        return None
    launch = LauncherCall(
        command,
        words[index],
        words[after:],
        kind=kind,
        complete=command.complete,
        remote=any(word.program in _REMOTE for word in (*command.words, *words[:index])),
    )
    while launch.rest and (launch.rest[0].text.startswith("-") or launch.rest[0].holds_more):
        if _launcher_option(launch, launch.rest.pop(0)) in ("m", "module"):
            break
    return launch


def _launcher(words: list[ShellWord]) -> tuple[Launcher, int, int] | None:
    """Return the launcher's kind, its index, and the index of its first option."""
    for index, word in enumerate(words):
        following = words[index + 1].text if index + 1 < len(words) else ""
        if word.program == "accelerate":
            return ("accelerate", index, index + 2) if following == "launch" else None
        is_module, is_option = word.text == "-m", word.text.startswith("-")
        kind = _MODULES.get(following) if is_module else PROGRAMS.get(word.program)
        if kind is not None and (is_module or not is_option):
            return kind, index, index + 1 + is_module
        if word.text.endswith((".py", ".sh")) or word.program in ("bash", "sh"):
            return None
    return None


def _launcher_option(launch: LauncherCall, word: ShellWord) -> str:
    """Add the option in `word`, and return its name."""
    if word.holds_more:
        launch.complete = False
        return ""
    name, equals, _ = word.text.lstrip("-").partition("=")
    name = name.replace("-", "_")
    launch.words[name] = word
    launch.options[name] = _rest(word, word.text.index("=") + 1) if equals else None
    options = launch.rest[:1] and launch.rest[0].is_literal and launch.rest[0].text.startswith("-")
    if not equals and name not in _FLAGS and launch.rest and not options:
        launch.options[name] = launch.rest.pop(0)
    return name if not equals else ""


# ---- texts for other shells ----------------------------------------------------------------------

SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
_SHELL_SHEBANG = re.compile(r"#!\s*\S*?(?:env\s+)?(?:bash|sh|zsh|dash|ksh)\b")


def read_shells(batch: Shell, numbers: dict[str, int | None]) -> list[Shell]:
    """Read the texts that the shell of a script passes to others, and these to others, and
    substitute the variables in the commands of all; return all.
    """
    shells = [batch]
    steps: dict[str, SimpleCommand] = {}
    for shell in shells:  # grows during the loop
        outer = shell.via.shell.variables if shell.via is not None else None
        shell.variables = Variables(shell.commands, numbers, outer)
        for command in shell.commands:
            command.argv = shell.variables.expanded(command.words)
            command.call = srun_call(command)
            if command.call is not None and shell is batch:
                steps |= {word.program: command for word in command.words}
        for command in shell.commands if len(shells) < 200 else ():
            inner = _shell_of(command, steps)
            shells += [inner] if inner is not None else []
    return shells


def _shell_of(command: SimpleCommand, steps: dict[str, SimpleCommand]) -> Shell | None:
    """Return the shell that reads a text in `command`."""
    argv, via = command.argv, command
    at = next((at for at, word in enumerate(argv) if word.program in SHELLS), len(argv))
    script, stdin = _script_of(argv[at + 1 :]) if argv[at:] else (None, False)
    if script is not None:
        pieces = command.shell.variables.flatten(script.parts)
    elif command.heredocs:
        written = command if stdin else _step_of_written(command, steps)
        if written is None:
            return None
        heredoc, via = command.heredocs[-1], written
        body = WordPiece("text", heredoc.text, heredoc.start, heredoc.end)
        pieces = list(heredoc.parts) or [body]
    else:
        return None
    place: Place = "task"
    if via.call is None:
        known = via.argv[0].program in SHELLS | WRAPPERS | CONTAINERS
        place = via.shell.place if known else "unknown"
    shell = Shell(place, via)
    return read_shell(SourceText.of_pieces(pieces, via.shell.place), shell)


def _step_of_written(
    command: SimpleCommand, steps: dict[str, SimpleCommand]
) -> SimpleCommand | None:
    """Return the srun call that runs the script written by `cat > FILE <<EOF`."""
    names = {target.program for operator, target in command.redirects if operator == ">"}
    shell = command.heredocs and _SHELL_SHEBANG.match(command.heredocs[-1].text)
    if command.name != "cat" or not (shell or any(name.endswith(".sh") for name in names)):
        return None
    return next((steps[name] for name in names if name in steps), None)


def _script_of(words: list[ShellWord]) -> tuple[ShellWord | None, bool]:
    """Return the text after `-c` in a shell's arguments, and whether the shell reads stdin."""
    wants_text = False
    while words and words[0].text[:1] in ("-", "+"):
        flags = words[0].text
        takes = 0 if flags.startswith("--") else flags.lower().count("o")  # each takes an argument
        wants_text = wants_text or bool(re.match(r"-\w*c", flags))
        words = words[1 + takes :]
    return (words[0], False) if wants_text and words else (None, not words)
