"""What `hpctrain watch` shows of the log of a run: the last warnings, and of one that failed, its first exception among them."""

from __future__ import annotations

from hpctrain.cli import watch_view

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
