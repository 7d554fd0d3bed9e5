"""What `hpctrain watch` shows of the log of a run: the last warnings, and of one that failed, its first exception among them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from hpctrain.cli import watch_view
from hpctrain.cli.watch_look import Looked

FIRST = ("torch.OutOfMemoryError: CUDA out of memory.", 1)
LATER = [(f"srun: error: node{number}: task {number}: Exited with exit code 1", 1) for number in range(8)]


def test_what_follows_does_not_push_the_first_exception_out() -> None:
    found = [("UserWarning: old", 3), FIRST, ("torch.distributed.DistNetworkError: closed", 2), *LATER]
    shown = watch_view._warnings(found, failed=True)
    assert shown[-1] == FIRST[0], "a low terminal shows the last ones only"
    assert len(shown) == 6
    assert shown[0] == LATER[3][0]


def test_of_a_run_that_goes_on_the_last_are_shown() -> None:
    assert watch_view._warnings([FIRST, *LATER], failed=False) == tuple(line for line, _ in LATER[-6:])
    assert watch_view._warnings([("UserWarning: old", 3)], failed=True) == ("UserWarning: old (3 times)",)


def test_a_run_whose_directory_was_taken_away_while_it_runs_is_said(tmp_path: Path) -> None:
    """Its job runs, and nothing says any more how far it is: `no step yet` alone would be no truth."""
    watched = SimpleNamespace(looked=Looked(tmp_path, "gone", jobs=("7",)), state="RUNNING")
    (said,) = watch_view._moved(watched, 90.0)  # type: ignore[arg-type]
    assert said == f"{tmp_path / 'gone'} is not there: moved, or deleted? Its steps are written there"
    assert watch_view._moved(watched, 5.0) == (), "it may have to be made yet"  # type: ignore[arg-type]
    assert watch_view._moved(SimpleNamespace(looked=watched.looked, state="PENDING"), None) == ()  # type: ignore[arg-type]
