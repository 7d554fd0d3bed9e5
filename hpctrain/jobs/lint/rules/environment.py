"""Variables of Python, PyTorch and NCCL; caches; secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.jobs import secrets_in_text
from hpctrain.jobs.lint.facts import Facts
from hpctrain.jobs.lint.reader.model import Assignment, Command, Scope
from hpctrain.jobs.lint.rules.common import Edit, Hit, assignments

OLD_NAMES = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG", "TORCH_NCCL_TRACE_BUFFER_SIZE": "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "TORCH_FR_DUMP_TEMP_FILE",
}  # fmt: skip
_RECORDER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_CACHES = frozenset({"TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "MIOPEN_USER_DB_PATH"})
_HOME = re.compile(r"(?:\$\{?HOME\}?|~|/home)(?:/|\Z)")
_PER_NODE = re.compile(r"SLURM_PROCID|SLURM_NODEID|SLURM_LOCALID|SLURMD_NODENAME|hostname|HOSTNAME")


def python_buffering(facts: Facts) -> Iterator[Hit]:
    """PYTHONBUFFERED, which nobody reads."""
    for assignment, _ in assignments(facts):
        if assignment.name == "PYTHONBUFFERED":
            yield Hit(
                "pythonbuffered",
                assignment.start,
                "Python knows no PYTHONBUFFERED",
                "write: PYTHONUNBUFFERED=1",
                edits=_rename(facts, assignment, "PYTHONUNBUFFERED"),
            )


def _rename(facts: Facts, assignment: Assignment, name: str) -> list[Edit]:
    """Return the edit of the name; none where the old one stands somewhere else too, which may be what reads it."""
    end = assignment.start + len(assignment.name)
    alone = len(re.findall(rf"\b{assignment.name}\b", facts.text, re.ASCII)) == 1
    return [Edit(assignment.start, end, name)] if alone and facts.text[assignment.start : end] == assignment.name else []


def names(facts: Facts) -> Iterator[Hit]:
    """Old names of PyTorch's NCCL variables."""
    set_names = {assignment.name for assignment, _ in assignments(facts)}
    for assignment, _ in assignments(facts):
        new = OLD_NAMES.get(assignment.name)
        if new is None:
            continue
        what, fix = f"{assignment.name} is now {new}", f"write: {new}"
        if new.startswith("TORCH_FR_"):  # which PyTorch it is, the text does not say
            reason = "PyTorch 2.9 gave it a new name; it still reads the old one, and earlier versions read the old one alone."
            yield Hit("old-nccl-name", assignment.start, what, f"with PyTorch 2.9 or later, {fix}", level="note", reason=reason)
        else:
            yield Hit("old-nccl-name", assignment.start, what, fix, edits=[] if new in set_names else _rename(facts, assignment, new))


def recorder(facts: Facts) -> Iterator[Hit]:
    """The flight recorder cannot write when the watchdog ends the process at once."""
    found = {assignment.name: assignment for assignment, _ in assignments(facts)}
    size = next((found[name] for name in _RECORDER if name in found), None)
    handling = found.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") or found.get("NCCL_ASYNC_ERROR_HANDLING")
    if size and handling and handling.word.text == "1" and size.word.text not in ("0", ""):
        yield Hit("flight-recorder-off", handling.start, f"{handling.name}=1 together with {size.name}", "take it away: the default is 3")


def interfaces(facts: Facts) -> Iterator[Hit]:
    """Gloo chooses its interface on its own."""
    found = {assignment.name: assignment for assignment, _ in assignments(facts)}
    nccl = found.get("NCCL_SOCKET_IFNAME")
    uses_gloo = re.search(r"\bgloo\b", facts.text, re.ASCII) is not None
    if (
        nccl
        and uses_gloo
        and "GLOO_SOCKET_IFNAME" not in facts.text
        and nccl.word.is_literal
        and nccl.word.text
        and not nccl.word.text.startswith("^")
    ):
        first = nccl.word.text.lstrip("=").partition(",")[0]
        yield Hit(
            "gloo-interface",
            nccl.start,
            "NCCL_SOCKET_IFNAME is set and GLOO_SOCKET_IFNAME is not",
            f"add: export GLOO_SOCKET_IFNAME={first}",
        )


def torchrun_defaults(facts: Facts) -> Iterator[Hit]:
    """PET_* change torchrun's defaults from afar."""
    for assignment, _ in assignments(facts):
        if assignment.name.startswith("PET_"):
            option = assignment.name.removeprefix("PET_").lower()
            yield Hit(
                "pet-variable",
                assignment.start,
                f"{assignment.name} is a default of torchrun --{option}",
                f"write the option: torchrun --{option} …",
            )


def caches(facts: Facts) -> Iterator[Hit]:
    """Compiler caches in a home directory that all nodes share."""
    if not facts.many_nodes and "array" not in facts.options:
        return
    for assignment, _ in assignments(facts):
        if assignment.name in _CACHES and _HOME.match(assignment.word.text) and not _PER_NODE.search(assignment.word.text):
            yield Hit(
                "shared-compiler-cache",
                assignment.start,
                f"{assignment.name} lies in the home directory",
                f"write: {assignment.name}=/tmp/$USER-$SLURM_JOB_ID/{assignment.name.partition('_')[0].lower()}",
            )


def dotenv(facts: Facts) -> Iterator[Hit]:
    """`export $(cat .env | xargs)`."""
    for command in facts.named("export"):
        for word in command.words[1:]:
            part = word.parts[0] if len(word.parts) == 1 else None  # a whole argument, not the value of a name
            if part is not None and part.kind == "command" and not part.quote and any(_reads_dotenv(facts, one) for one in part.commands):
                yield Hit("dotenv-xargs", command.start, "export $(… .env …) splits values at blanks", "write: set -a; source .env; set +a")


def _reads_dotenv(facts: Facts, command: Command) -> bool:
    return command.name == "xargs" or re.search(r"\.env\b", facts.text[command.start : command.end]) is not None


def printed(facts: Facts) -> Iterator[Hit]:
    """The whole environment in the log."""
    for command in facts.named("env", "printenv", "export"):
        arguments = [word.text for word in command.words[1:]]
        whole = (command.name == "export" and arguments == ["-p"]) or (command.name != "export" and arguments in ([], ["-0"]))
        into_file = any(redirect.operator in (">", ">>", "&>", ">|") for redirect in command.redirects)
        if whole and not into_file and command.scope.inside("$(", "function") is None and _ends_in_log(command):
            yield Hit(
                "environment-in-log",
                command.start,
                f"{' '.join([command.name, *arguments])} writes every variable into the log, tokens too",
                "env | grep ^SLURM_",
            )


def _ends_in_log(command: Command) -> bool:
    following = command.pipe_next
    while isinstance(following, Command):
        if following.name not in ("sort", "tee", "cat", "head"):
            return False
        following = following.pipe_next
    return not isinstance(following, Scope)


def secrets(facts: Facts) -> Iterator[Hit]:
    """Tokens written into the script."""
    for match in secrets_in_text.spans(facts.text):
        kind = match[0].lstrip("\"'")[:3]
        yield Hit(
            "secret-in-script",
            match.start(),
            f"a token ({kind}…) stands in the script",
            'keep it in a file with mode 0600, and: export NAME="$(< ~/.config/NAME)"',
        )


RULES = (python_buffering, names, recorder, interfaces, torchrun_defaults, caches, dotenv, printed, secrets)
