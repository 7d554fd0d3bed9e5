"""What is typed to install hpctrain elsewhere installs the one that says it."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from hpctrain.util import installed


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "hpctrain[train]"),
        ({"url": "file://{clone}", "dir_info": {"editable": True}}, "{clone}[train]"),
        ({"url": "file:///nowhere/at/all", "dir_info": {}}, "hpctrain[train]"),
        (
            {"url": "https://h/p.git", "vcs_info": {"vcs": "git", "commit_id": "12ab"}},
            "hpctrain[train] @ git+https://h/p.git@12ab",
        ),
        (
            {"url": "https://h/p-9.0-py3-none-any.whl", "archive_info": {}},
            "hpctrain[train] @ https://h/p-9.0-py3-none-any.whl",
        ),
        ([], "hpctrain[train]"),
        ("not JSON", "hpctrain[train]"),
    ],
)
def test_where_it_came_from(
    origin: object, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    folder = tmp_path / "site/hpctrain-9.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: hpctrain\nVersion: 9.0\n")
    if origin is not None:
        text = json.dumps(origin) if origin != "not JSON" else "{"
        (folder / "direct_url.json").write_text(
            text.replace("{clone}", str(clone).replace(" ", "%20"))
        )
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    wanted = expected.replace("{clone}", str(clone))
    assert installed.requirement("train") == wanted
    assert shlex.split(installed.command("train")) == [
        sys.executable,
        "-m",
        "pip",
        "install",
        wanted,
    ]
    (tmp_path / "pyvenv.cfg").write_text(
        "home = /usr/bin\nuv = 0.9.1\n"
    )  # whose environments have no pip
    assert shlex.split(installed.command("train")) == [
        "uv",
        "pip",
        "install",
        "--python",
        sys.executable,
        wanted,
    ]
