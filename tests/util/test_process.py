"""Programs that hang are left behind on time."""

import pytest

from hpctrain.util import process


@pytest.mark.timeout(60)
def test_a_wrapper_whose_child_holds_its_output_is_not_waited_for() -> None:
    """Sites wrap squeue in shell scripts; killing the shell leaves the real one with the pipe."""
    with pytest.raises(process.NoAnswerError):
        process.run(["bash", "-c", "sleep 100 & wait"], timeout=0.5)
