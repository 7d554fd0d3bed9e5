"""Calls of torchrun, accelerate launch and their like: which options they get, and through which srun."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from hpctrain.jobs.lint import srun
from hpctrain.jobs.lint.reader.model import Command, Part, Word
from hpctrain.jobs.lint.values import Argv, Values

Kind = Literal["torchrun", "accelerate", "deepspeed"]

PROGRAMS: dict[str, Kind] = {
    "torchrun": "torchrun", "torchrun_jsc": "torchrun", "accelerate-launch": "accelerate", "accelerate": "accelerate",
    "deepspeed": "deepspeed",
}  # fmt: skip
MODULES: dict[str, Kind] = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun", "torchrun_jsc": "torchrun",
    "accelerate.commands.launch": "accelerate", "deepspeed.launcher.runner": "deepspeed",
}  # fmt: skip
CONTAINERS = frozenset({"singularity", "apptainer", "podman", "podman-hpc", "docker", "shifter", "sarus", "enroot", "ch-run"})
_RUNNERS = srun.WRAPPERS | CONTAINERS | {
    "uv", "poetry", "pixi", "conda", "mamba", "micromamba", "nsys", "ncu", "mpirun", "mpiexec", "ssh", "pdsh",
}  # fmt: skip
_TALKERS = frozenset({"echo", "printf", "which", "type", "pip", "grep", "ls", "cat", "test", "[", "[[", "logger"})
#: Options without a value (torch 2.13, accelerate 1.15).
_FLAGS = frozenset({
    "standalone", "no_python", "run_path", "virtual_local_rank", "module", "m", "h", "help", "cpu", "debug", "downcast_bf16",
    "dynamo_use_dynamic", "dynamo_use_fullgraph", "dynamo_use_regional_compilation", "enable_cpu_affinity", "multi_gpu", "no_tpu_cluster",
    "q", "quiet", "same_network", "tpu", "tpu_cluster", "tpu_use_sudo", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_xpu", "mps",
    "use_parallelism_config", "fp8_use_autocast_during_eval", "use_cpu", "use_env",
})  # fmt: skip


@dataclass(slots=True, eq=False)
class Launch:
    """One call of a launcher.

    Attributes:
        at: the program's word.
        options: name with underscores and without dashes → value; None for a flag.
        words: the same names → the word in which the name stands.
        complete: every option is known; False where a variable may hold more.
        call: the srun that starts it in the same command, or in the one that started its shell.
        remote: something other than srun (ssh, mpirun) takes it to the nodes.
    """

    kind: Kind
    at: Word
    command: Command
    options: dict[str, Word | None] = field(default_factory=dict)
    words: dict[str, Word] = field(default_factory=dict)
    complete: bool = True
    call: srun.Srun | None = None
    remote: bool = False

    def text(self, *names: str) -> str | None:
        """Return the literal text of the first of `names` that is given; None for none, or one that is no literal."""
        word = self.option(*names)
        return word.text if word is not None and word.is_literal else None

    def option(self, *names: str) -> Word | None:
        """Return the value of the first of `names` that is given."""
        return next((word for name in names if (word := self.options.get(name)) is not None), None)

    def has(self, *names: str) -> bool:
        """Whether one of `names` is given."""
        return any(name in self.options for name in names)


def find(command: Command, argv: Argv, call: srun.Srun | None) -> Launch | None:
    """Return the launcher that `command` calls, itself or through srun, a container or another wrapper."""
    words = argv.words
    begin = call.command if call is not None else 0
    if begin >= len(words):
        return None
    head = words[begin].text.rpartition("/")[2]
    if head in _TALKERS or (head == "command" and len(words) > begin + 1 and words[begin + 1].text.startswith("-")):
        return None
    found = _program(words, begin)
    if found is None:
        return None
    kind, index, behind = found
    wrapped = index > begin and not head.startswith("python")
    if wrapped and call is None and head not in _RUNNERS and "/" not in words[begin].text and "=" not in words[begin].text:
        return None
    launch = Launch(kind, words[index], command, call=call, complete=argv.complete)
    launch.remote = any(word.text.rpartition("/")[2] in ("ssh", "pdsh", "mpirun", "mpiexec", "clush", "ibrun") for word in words[:index])
    _options(launch, words, behind)
    return launch


def _program(words: list[Word], begin: int) -> tuple[Kind, int, int] | None:
    """Return the launcher's kind, its index, and that of its first option."""
    for index in range(begin, len(words)):
        name = words[index].text.rpartition("/")[2]
        if name in PROGRAMS and words[index].text[:1] != "-":
            kind = PROGRAMS[name]
            if name == "accelerate":
                if index + 1 >= len(words) or words[index + 1].text != "launch":
                    return None
                return kind, index, index + 2
            return kind, index, index + 1
        if words[index].text == "-m" and index + 1 < len(words) and words[index + 1].text in MODULES:
            return MODULES[words[index + 1].text], index, index + 2
        if words[index].text.endswith((".py", ".sh")) or name in ("bash", "sh"):
            return None
    return None


def _options(launch: Launch, words: list[Word], index: int) -> None:
    while index < len(words):
        word = words[index]
        if _unknown(word):
            launch.complete = False
            index += 1
            continue
        if not word.text.startswith("-"):
            return
        name, equals, _ = word.text.lstrip("-").partition("=")
        name = name.replace("-", "_")
        launch.words[name] = word
        index += 1
        if equals:
            launch.options[name] = srun.behind(word, word.text.index("=") + 1)
        elif name in _FLAGS or index >= len(words) or (words[index].text.startswith("-") and words[index].is_literal):
            launch.options[name] = None
            if name in ("m", "module"):
                return
        else:
            launch.options[name] = words[index]
            index += 1
    # No script was named: it, and options too, may come from "$@".


def _unknown(word: Word) -> bool:
    first = word.parts[0] if word.parts else None
    return first is not None and first.kind != "text" and (not first.quote or first.text in ("@", "*") or first.operand in ("[@]", "[*]"))


def rank_parts(word: Word, values: Values) -> list[Part]:
    """Return the expansions of Slurm's rank variables in `word`, those inside known variables too."""
    if not word.parts:
        return []
    return [item for part in values.flatten(word.parts) if part.kind != "text" for item in _with_place(part) if item.text in RANK_VARIABLES]


def _with_place(part: Part) -> list[Part]:
    return [item if item.place or not part.place else replace(item, place=part.place) for item in part.walk() if item.kind == "var"]


#: Set, and 0, in the batch shell; different in each task.
RANK_VARIABLES = frozenset({"SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"})
