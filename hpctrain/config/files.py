"""The config files of a user, found and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hpctrain import yaml12
from hpctrain.config import layers
from hpctrain.config.layers import KeyPath, Layer
from hpctrain.errors import UsageError
from hpctrain.jobs import shell


def gather(
    *,
    options: Mapping[KeyPath, str],
    sbatch: Sequence[str],
    config: str | None,
    directory: Path,
    environment: Mapping[str, str],
) -> list[Layer]:
    """Return the layers of a job config, the strongest first.

    Args:
        options: of the command line, by path.
        sbatch: the `key=value` words of --sbatch.
        config: the file of --config; without it ./config.yaml, if there is one.
        directory: where the command was given.
        environment: for HPCTRAIN_*, XDG_CONFIG_HOME and HOME.

    Raises:
        UsageError: a file cannot be read or is no YAML.
    """
    found = [layers.from_options(options, sbatch), layers.from_environment(environment)]
    if config is not None:
        found.append(_read(directory / config, config))
    elif (directory / "config.yaml").exists():
        found.append(_read(directory / "config.yaml", "config.yaml"))
    user = user_config(environment)
    if user is not None and user.exists():
        found.append(_read(user, str(user)))
    return found


def user_config(environment: Mapping[str, str]) -> Path | None:
    """Return the place of the user's own config, which holds for every project."""
    base = environment.get("XDG_CONFIG_HOME") or (f"{environment['HOME']}/.config" if environment.get("HOME") else None)
    return Path(base) / "hpctrain" / "config.yaml" if base else None


def _read(path: Path, title: str) -> Layer:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no file {title}", fix="--config with one of: ls *.yaml; without --config, ./config.yaml is read"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {title}: {reason}", fix=f"ls -l {shell.quote(title)}") from error
    return layers.from_document(yaml12.load(text, title), title)
