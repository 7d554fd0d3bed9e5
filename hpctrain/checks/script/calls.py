"""Calls of srun, torchrun, accelerate launch and similar: their options, and the start of the
command that they run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from hpctrain.checks.script.model import Argv, ShellWord, SimpleCommand
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
_MAX_PREFIX = 8


@dataclass(slots=True, eq=False)
class OptionCall:
    """A call of a program with options.

    Attributes:
        at: the program's word.
        options: long option name without dashes to its value; None for a flag.
        words: the same names to the words that contain them.
    """

    at: ShellWord
    options: dict[str, ShellWord | None] = field(default_factory=dict)
    words: dict[str, ShellWord] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        """Whether one of `names` is given."""
        return any(name in self.options for name in names)

    def option(self, *names: str) -> ShellWord | None:
        """Return the value of the first of `names` that is given."""
        return next((word for name in names if (word := self.options.get(name)) is not None), None)

    def text(self, name: str) -> str | None:
        """Return the literal value of `name`; None if it is missing or not literal."""
        word = self.option(name)
        return word.text if word is not None and word.is_literal else None


@dataclass(slots=True, eq=False)
class SrunCall(OptionCall):
    """One srun call; `command` is the index in argv of the program that it starts, or the length of
    argv.
    """

    command: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class LauncherCall(OptionCall):
    """One call of a launcher; option names have underscores.

    Attributes:
        complete: all options are known; False if a variable may contain more.
        call: the srun that starts it, in the same command or in the one that started its shell.
        remote: something other than srun (ssh, mpirun) starts it on the nodes.
    """

    kind: Launcher
    command: SimpleCommand
    complete: bool = True
    call: SrunCall | None = None
    remote: bool = False


def srun_position(argv: list[ShellWord]) -> int | None:
    """Return the index of `srun` if `argv` is an srun call, possibly after wrappers."""
    first = argv[0].program if argv else ""
    prefix = argv[: _MAX_PREFIX if first in WRAPPERS else 1]
    return next((at for at, word in enumerate(prefix) if word.program == "srun"), None)


def srun_call(argv: list[ShellWord]) -> SrunCall | None:
    """Return the srun call in `argv`, or None."""
    start = srun_position(argv)
    if start is None:
        return None
    call, index = SrunCall(argv[start]), start + 1
    while index < len(argv) and len(argv[index].text) > 1 and argv[index].text[0] == "-":
        if argv[index].text == "--":
            index += 1
            break
        index += 1 + _srun_option(call, argv[index], argv[index + 1 : index + 2])
    call.command = min(index, len(argv))
    return call


def _srun_option(call: SrunCall, word: ShellWord, following: list[ShellWord]) -> bool:
    """Add the option in `word`; return whether the next word is its value."""
    if word.text.startswith("--"):
        name, equals, value = word.text[2:].partition("=")
        name, rest = slurm.ALIASES.get(name, name), len(word.text) - len(value)
        takes = not equals and name in slurm.SRUN_WITH_VALUE
    else:
        letter, equals, rest = word.text[1], word.text[2:], 2
        name = slurm.SRUN_SHORT_WITH_VALUE.get(letter, "")
        takes = bool(name) and not equals
        name = name or slurm.SRUN_SHORT_OPTIONAL.get(letter, "")
        if not name:  # flags, of which several may be in one word
            name, equals = slurm.SRUN_SHORT_FLAGS.get(letter, letter), ""
    value_word = _rest(word, rest) if equals else following[0] if takes and following else None
    call.words[name], call.options[name] = word, value_word
    return takes


def _rest(word: ShellWord, offset: int) -> ShellWord:
    """Return `word` from the character `offset` of its leading literal parts on."""
    rest = list(word.parts)
    left = offset
    while rest and rest[0].kind == "text" and left >= len(rest[0].text):
        left -= len(rest[0].text)
        rest.pop(0)
    if rest and rest[0].kind == "text" and left:
        rest[0] = replace(rest[0], text=rest[0].text[left:], start=rest[0].start + left)
    return ShellWord.of(rest, rest[0].start if rest else word.end, word.end)


def launcher_call(command: SimpleCommand, argv: Argv, call: SrunCall | None) -> LauncherCall | None:
    """Return the launcher that `command` calls, directly or through srun, a container or another
    wrapper.
    """
    begin = call.command if call is not None else 0
    words = argv.words[begin:]
    found = _launcher(words)
    if found is None or words[0].program in _TALKERS:
        return None
    kind, index, after = found
    head = words[0]
    asks = head.program == "command" and words[1].text.startswith("-")
    known = head.program in WRAPPERS | CONTAINERS | _RUNNERS or head.program.startswith("python")
    if asks or (index and call is None and not known and not set("/=") & set(head.text)):
        return None
    launch = LauncherCall(
        words[index], kind=kind, command=command, call=call, complete=argv.complete
    )
    launch.remote = any(word.program in _REMOTE for word in argv.words[: begin + index])
    _launcher_options(launch, words[after:])
    return launch


def _launcher(words: list[ShellWord]) -> tuple[Launcher, int, int] | None:
    """Return the launcher's kind, its index, and the index of its first option."""
    for index, word in enumerate(words):
        following = words[index + 1].text if index + 1 < len(words) else ""
        if word.program == "accelerate":
            return ("accelerate", index, index + 2) if following == "launch" else None
        if word.program in PROGRAMS and not word.text.startswith("-"):
            return PROGRAMS[word.program], index, index + 1
        if word.text == "-m" and following in _MODULES:
            return _MODULES[following], index, index + 2
        if word.text.endswith((".py", ".sh")) or word.program in ("bash", "sh"):
            return None
    return None


def _launcher_options(launch: LauncherCall, words: list[ShellWord]) -> None:
    left = iter([*words, None])
    word = next(left)
    while word is not None:
        if _holds_more(word):
            launch.complete, word = False, next(left)
            continue
        if not word.text.startswith("-"):
            return
        name, equals, _ = word.text.lstrip("-").partition("=")
        name = name.replace("-", "_")
        following = next(left)
        launch.words[name] = word
        launch.options[name] = _rest(word, word.text.index("=") + 1) if equals else None
        if name in ("m", "module") and not equals:
            return
        option = following is None or (following.is_literal and following.text.startswith("-"))
        if not equals and name not in _FLAGS and not option:
            launch.options[name], following = following, next(left)
        word = following


def _holds_more(word: ShellWord) -> bool:
    """Whether `word` is an expansion that may become any number of words."""
    first = word.parts[0] if word.parts else None
    if first is None or first.kind == "text":
        return False
    return not first.quoted or first.text in ("@", "*") or first.operand in ("[@]", "[*]")
