"""HOST:PATH: what is taken, and what is refused before any program sees it."""

from __future__ import annotations

import pytest

from hpctrain.errors import UsageError
from hpctrain.sync import destination


@pytest.mark.parametrize(
    ("text", "login", "path", "far_path"),
    [
        ("leo:/scratch/a", "leo", "/scratch/a", "/scratch/a"),
        ("me@login.leonardo.cineca.it:sft", "me@login.leonardo.cineca.it", "sft", "./sft"),
        ("u100.1+x@h-1:/a/", "u100.1+x@h-1", "/a", "/a"),
        ("h:~/proj/x", "h", "proj/x", "./proj/x"),
        ("h:-rf", "h", "-rf", "./-rf"),
        ("h:a:b", "h", "a:b", "./a:b"),
        ("h:it's $(x) `y` ünï", "h", "it's $(x) `y` ünï", "./it's $(x) `y` ünï"),
        ("[::1]:/a", "[::1]", "/a", "/a"),
    ],
)
def test_what_is_taken(text: str, login: str, path: str, far_path: str) -> None:
    found = destination.parse(text, project="p")
    assert (found.login, found.path, found.far_path) == (login, path, far_path)
    assert destination.parse(str(found), project="p") == found  # as it is remembered


def test_ssh_takes_an_address_without_brackets() -> None:
    assert destination.parse("me@[fe80::1%eth0]:/a", project="p").ssh_login == "me@fe80::1%eth0"


@pytest.mark.parametrize(
    "text",
    [
        "", "leo", "/local/path", ":path", "-oProxyCommand=x:/a", "-l@h:/a", "me@-h:/a", "a b:/x", "h;id:/x", "$(id):/x", "h\n:/x", "@h:/x",
        "rsync://h/x", "h::module", "ünï:/x", "me@you@h:/x",
        "h:", "h:/", "h:~", "h:~/", "h:.", "h:./", "h:a/..", "h:..", "h://",
        "h:a\nb", "h:a\x1bb", "h:a\x00", "h:\udcff", "h:a\u2028b", "h:\x85",
        "h:~you/x", "h:$SCRATCH/x", "h:${WORK}",
    ],
)  # fmt: skip
def test_what_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        destination.parse(text, project="my proj")
    assert refused.value.fix
    assert "\n" not in refused.value.what
    assert refused.value.what.isprintable()


def test_a_variable_is_looked_up_by_its_owner() -> None:
    with pytest.raises(UsageError) as refused:
        destination.parse("leo:$SCRATCH/x", project="p")
    assert refused.value.fix == "ssh leo 'echo $SCRATCH', then use the path that it prints"
