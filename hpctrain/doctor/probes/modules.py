"""Probe of environment modules: each of the job's modules is loaded, in order, in the shell that the job gets."""

from __future__ import annotations

import re

from hpctrain.doctor import start
from hpctrain.doctor.facts import Case, ModuleFacts, ModulesFacts
from hpctrain.doctor.shells import modules as first_lines
from hpctrain.doctor.shells import shell_of
from hpctrain.errors import SchedulerError
from hpctrain.jobs import shell

LIMIT_S = 60.0
_MARK = "HPCTRAIN-MODULE"
#: Environment Modules 3 and 4 end with 0 although the module was not loaded; the words on standard error tell.
_FAILED = re.compile(r"\berror\b|unable to locate|unknown module|cannot be loaded|not found|does not exist|cannot load", re.IGNORECASE)


def modules(case: Case) -> ModulesFacts:
    """Return which of the job's modules load in the job's shell."""
    spec = case.spec
    argv, name = shell_of(spec), spec.shebang.removeprefix("#!")
    if not spec.modules:
        return ModulesFacts(program=name)
    lines = ["type module >/dev/null 2>&1 || exit 77", *(f"{line} </dev/null >/dev/null 2>&1" for line in first_lines(spec))]
    for number, module in enumerate(spec.modules):
        lines.append(f'said=$(mktemp); module load {shell.quote(module)} </dev/null >/dev/null 2>"$said"; status=$?')
        lines.append(f'echo {_MARK} {number} $status; cat "$said"; rm -f "$said"')
    try:
        done = start.run([*argv, "\n".join(lines)], timeout=LIMIT_S)
    except start.TooLateError:
        return ModulesFacts(program=name, late=True)
    except SchedulerError:
        return ModulesFacts(program=name, command=False)
    if done.returncode == 77:
        return ModulesFacts(program=name, command=False, login_shell=_login_shell_has_it())
    return ModulesFacts(program=name, command=True, modules=_read(done.stdout, spec.modules))


def _read(text: str, names: tuple[str, ...]) -> tuple[ModuleFacts, ...]:
    pieces = re.split(rf"^{_MARK} (\d+) (\d+)\n", text, flags=re.MULTILINE)
    told = {int(pieces[at]): (int(pieces[at + 1]), pieces[at + 2]) for at in range(1, len(pieces) - 2, 3)}
    found = []
    for number, name in enumerate(names):
        if number not in told:
            found.append(ModuleFacts(name=name, loaded=None))
            continue
        status, said = told[number]
        failed = status != 0 or _FAILED.search(said) is not None
        found.append(ModuleFacts(name=name, loaded=not failed, said=_sentence(said) if failed else ""))
    return tuple(found)


def _sentence(said: str) -> str:
    """Return the lines that say what went wrong, without Lmod's advice below them."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    at = next((number for number, line in enumerate(lines) if _FAILED.search(line)), 0)
    return " ".join(lines[at : at + 2])[:300]


def _login_shell_has_it() -> bool | None:
    try:
        return start.run(["bash", "-lc", "type module >/dev/null 2>&1"], timeout=10).returncode == 0
    except (start.TooLateError, SchedulerError):
        return None
