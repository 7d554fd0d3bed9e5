"""The section `notify:` of config.yaml: who hears that a run has ended."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator

from hpctrain.fieldtypes import Path, Section, Text, as_list, kind, matching, problem, short
from hpctrain.jobs.spec import OUTCOMES

#: What sbatch's --mail-user takes: an address, or a user name of the cluster; more than one, with commas.
_ADDRESS = re.compile(r"[A-Za-z0-9._%+-]+(@[A-Za-z0-9.-]+)?(,[A-Za-z0-9._%+-]+(@[A-Za-z0-9.-]+)?)*\Z")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def _outcomes(value: Any) -> tuple[str, ...]:
    words = as_list(value)
    wrong = [short(str(word)) if isinstance(word, str) else kind(word) for word in words if word not in OUTCOMES]
    if wrong or not words:
        raise problem(f"must be a list of {', '.join(OUTCOMES)}" + (f", not {wrong[0]!r}" if wrong else ""))
    return tuple(dict.fromkeys(str(word) for word in words))


def _webhook(value: Any) -> Any:
    if isinstance(value, str) and _URL.match(value):
        # Whoever has the address may write into the channel: it is a secret, and scripts are read by others.
        raise problem("must be a file that holds the address, which is a secret (chmod 600), or `environment`, not the address itself")
    return value


class Notify(Section):
    """`notify:` who is told, and when."""

    on: Annotated[tuple[str, ...], BeforeValidator(_outcomes)] = ("completed", "failed")
    mail: Annotated[Text, matching(_ADDRESS, "an address such as me@example.org")] | None = None
    command: Path | None = None
    webhook: Annotated[Path, BeforeValidator(_webhook)] | None = None

    @model_validator(mode="after")
    def _somebody(self) -> Notify:
        if self.mail is None and self.command is None and self.webhook is None:
            raise problem("tells nobody: name one of mail, command and webhook")
        return self
