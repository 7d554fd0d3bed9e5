"""What each project was synced to, and by which identity the far side knows it: one small file for each project directory."""

from __future__ import annotations

import hashlib
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from hpctrain.scheduler import state_dir


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is known of a project directory.

    Attributes:
        project: its identity, made once; the far side's marker has it.
        destination: HOST:PATH of the last sync; None before the first.
        port: that was given with it.
        ssh_config: that was given with it.
    """

    project: str
    destination: str | None = None
    port: int | None = None
    ssh_config: str | None = None


def of(directory: Path) -> Remembered:
    """Return what is known of `directory`; with a new identity where nothing is known."""
    known = state_dir.read_json(_path(directory)) or {}
    project, destination, port, ssh_config = (known.get(key) for key in ("project", "destination", "port", "ssh_config"))
    if not isinstance(project, str) or not project.isalnum():
        return Remembered(uuid.uuid4().hex)
    return Remembered(
        project,
        destination if isinstance(destination, str) else None,
        port if isinstance(port, int) else None,
        ssh_config if isinstance(ssh_config, str) else None,
    )


def keep(directory: Path, remembered: Remembered) -> None:
    """Write down what is known of `directory`."""
    path = _path(directory)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    state_dir.write_json(
        path,
        {
            "schema": 1,
            "directory": os.fsencode(directory.resolve()).decode("utf-8", "replace"),
            "project": remembered.project,
            "destination": remembered.destination,
            "port": remembered.port,
            "ssh_config": remembered.ssh_config,
        },
    )


def _path(directory: Path) -> Path:
    name = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:24]
    return state_dir.state_dir() / "sync" / f"{name}.json"
