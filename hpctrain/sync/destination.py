"""HOST:PATH as a person writes it, and as ssh and a shell on the far side may see it."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from dataclasses import dataclass

from hpctrain.errors import UsageError
from hpctrain.jobs import shell

_FORM = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.+-]*)@)?"
    r"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\]):(?P<path>.*)",
    re.DOTALL | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Destination:
    """A directory on another machine.

    Attributes:
        login: `host` or `user@host`, as rsync takes it: an IPv6 address in brackets. Never begins with a dash.
        path: as written, without slashes at its end; what does not begin with `/` lies in the login directory.
    """

    login: str
    path: str

    @property
    def ssh_login(self) -> str:
        """Return the login as ssh takes it: an IPv6 address without brackets."""
        return self.login.replace("[", "").replace("]", "")

    @property
    def far_path(self) -> str:
        """Return the path for programs of the far side: one that no `cd`, `mkdir` or CDPATH takes for anything else."""
        return self.path if self.path.startswith("/") else f"./{self.path}"

    def __str__(self) -> str:
        """Return HOST:PATH, for messages and to be read again."""
        return f"{self.login}:{self.path}"


def parse(text: str, *, project: str) -> Destination:
    """Read HOST:PATH or USER@HOST:PATH; HOST may be an alias of ~/.ssh/config.

    Nothing in it is expanded on the far side: `$`, quotes and spaces are characters of a name. `~/` is the login directory.

    Args:
        text: what was typed.
        project: the name of the project's directory, for the fix.

    Raises:
        UsageError: it names no host or no directory of its own, or holds what no path on a command line can hold.
    """
    match = _FORM.fullmatch(text)
    if match is None or "://" in text or match["path"].startswith(":"):
        reason = (
            () if ":" not in text else ("a host is letters, digits, '.', '_' and '-', after USER@ or not, and does not begin with '-'",)
        )
        raise UsageError(f"{text!r} is not HOST:PATH", details=reason, fix=f"hpctrain sync HOST:{shell.quote(plain(project))}")
    login = (f"{match['user']}@" if match["user"] else "") + match["host"]
    path = match["path"]
    strange = next((character for character in path if _unprintable(character)), None)
    if strange is not None:
        raise UsageError(f"the path in {text!r} holds the control character {strange!r}", fix=f"hpctrain sync {login}:{plain(project)}")
    path = path.removeprefix("~/").lstrip("/") if path.startswith("~/") else path
    path = path.rstrip("/") or path[:1]
    if path.startswith("$"):
        raise UsageError(
            f"{path.split('/')[0]!r} is not expanded on {match['host']}",
            fix=f"ssh {login} {shell.quote('echo ' + re.split('[^$A-Za-z0-9_{}]', path)[0])}, then use the path that it prints",
        )
    if path.startswith("~") and path != "~":
        raise UsageError(
            f"{path.split('/')[0]!r} is not expanded on {match['host']}; '~/' alone is", fix="write the path of that directory"
        )
    if path == "~" or posixpath.normpath(path or ".") in (".", "..", "/", "//"):
        raise UsageError(f"{text!r} names no directory of the project's own", fix=f"hpctrain sync {login}:{plain(project)}")
    return Destination(login, path)


def plain(name: str) -> str:
    """Return a project's name as one that needs no quotes."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "my_project"


def _unprintable(character: str) -> bool:
    # Cc: control; Cs: bytes that are no UTF-8; Zl, Zp: line ends of other programs.
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
