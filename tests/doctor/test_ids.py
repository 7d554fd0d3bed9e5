"""Every id is said somewhere, and listed."""

from __future__ import annotations

import re
from pathlib import Path

import hpctrain.doctor
from hpctrain.doctor import IDS

ROOM = Path(hpctrain.doctor.__file__).parent


def test_the_ids_are_those_that_the_judges_say() -> None:
    said = {each for path in ROOM.glob("judge/*.py") for each in re.findall(r'id="([a-z-]+)"', path.read_text())}
    assert said == set(IDS)
    assert len(IDS) == len(set(IDS))
